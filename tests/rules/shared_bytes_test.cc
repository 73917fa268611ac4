// Every output against every array: which may share bytes, and which are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class SharedBytes : public TargetTest {};

/// An argument: where it is, how large, and how to move it elsewhere.
struct Piece {
  std::string name;
  std::function<void*()> get;
  size_t bytes;
  std::function<void(void*)> set;
};
template <int kRank, bool kConst>
Piece piece(const char* name, BasicView<kRank, kConst>* v) {
  size_t bytes = static_cast<size_t>(size_of(v->dtype));
  for (const int64_t n : v->shape) bytes *= static_cast<size_t>(n);  // contiguous
  return {name, [v] { return const_cast<void*>(v->data); }, bytes, [v](void* p) { v->data = p; }};
}
template <class T>
Piece piece(const char* name, const T** array, size_t count) {
  return {name, [array] { return const_cast<T*>(*array); }, count * sizeof(T),
          [array](void* p) { *array = static_cast<const T*>(p); }};
}
Piece piece(const char* name, ConstKv* kv, const KvStorage& storage) {
  return {name, [kv] { return const_cast<void*>(kv->data); }, storage.memory.size(), [kv](void* p) { kv->data = p; }};
}
Piece piece(const char* name, void** memory, size_t bytes) {
  return {name, [memory] { return *memory; }, bytes, [memory](void* p) { *memory = p; }};
}

/// What is written, against everything else: refused if they share 4 bytes at either end or a few in the middle,
/// accepted side by side.
void check_overlap(const std::vector<Piece>& written, const std::vector<Piece>& read,
                   const std::function<Status()>& call) {
  ASSERT_TRUE(ok(call()));
  std::vector<Piece> others = written;
  others.insert(others.end(), read.begin(), read.end());
  for (size_t w = 0; w < written.size(); ++w) {
    for (size_t o = 0; o < others.size(); ++o) {
      if (o == w) continue;
      const Piece &out = written[w], &other = others[o];
      void* const out_home = out.get();
      void* const other_home = other.get();
      // 16 bytes of room, so that both are aligned whatever their sizes; 4 bytes are an element of everything but f16.
      std::vector<char> room(out.bytes + 2 * other.bytes + 64);
      char* const middle = room.data() + (other.bytes + 15) / 16 * 16;
      const int64_t size = static_cast<int64_t>(out.bytes), width = static_cast<int64_t>(other.bytes);
      const struct {
        int64_t at;  // a multiple of 4
        bool apart;
      } places[] = {{-(width + 3) / 4 * 4, true}, {-(width - 1) / 4 * 4, false}, {0, false},
                    {size / 8 * 4, false},        {(size - 1) / 4 * 4, false},   {(size + 3) / 4 * 4, true}};
      for (const auto& place : places) {
        out.set(middle);
        std::memcpy(middle + place.at, other_home, other.bytes);
        other.set(middle + place.at);
        const std::vector<char> before = room;
        const Status s = call();
        const std::string text = out.name + " and " + other.name + " " + std::to_string(place.at) + " bytes behind";
        if (place.apart) {
          EXPECT_TRUE(s.ok()) << text << ": " << s.detail;
        } else {
          EXPECT_EQ(s.code, Code::kOverlap) << text << ": " << s.detail;
          const std::string said = s.detail;
          EXPECT_TRUE(said == out.name + ": overlaps " + other.name || said == other.name + ": overlaps " + out.name)
              << text << ": " << said;
          EXPECT_EQ(room, before) << text;
        }
        out.set(out_home);
        other.set(other_home);
      }
    }
  }
}

/// A problem that has every array. With `packed_keys` cu_k, else block tables.
struct EveryArray {
  Random random{seed() * 7000 + 1};
  static constexpr int64_t kHeads = 2, kQ = 5, kKv = 96;
  Array<4> q{random, DType::kF32, {1, kHeads, kQ, 8}}, out{random, DType::kF32, {1, kHeads, kQ, 4}},
      acc = out.like(random);
  Array<3> lse{random, DType::kF32, {1, kHeads, kQ}}, max = lse.like(random), sum = lse.like(random);
  Array<4> bias, keep;
  KvStorage k, v;
  std::vector<uint8_t> bits = std::vector<uint8_t>(12, 0xFF);
  int32_t cu_q[3] = {0, 2, 5}, cu_k[3] = {0, 90, 96};
  int32_t offsets[2] = {3, 4}, prefix_end[2] = {1, 2}, kv_start[2] = {0, 1}, kv_length[2] = {90, 6};
  float slopes[2] = {1, 0.5f}, sinks[2] = {0, 1}, bias_scale[2] = {1, 2};
  AttentionProblem a;
  Plan plan;
  std::vector<char> workspace_memory, partial_memory;
  void* workspace = nullptr;
  void* partial = nullptr;
  Exec exec;
  explicit EveryArray(const Target* target, bool packed_keys) {
    const int64_t longest = packed_keys ? cu_k[1] : kKv;
    bias = Array<4>(random, DType::kF32, {1, kHeads, kQ, longest});
    keep = Array<4>(random, DType::kU8, {1, kHeads, kQ, longest});
    q.fill(random, Values::kOrdinary);
    bias.fill(random, Values::kOrdinary);
    keep.fill_bytes(1);
    const int64_t batch = packed_keys ? 1 : 2;
    k = make_kv(random, DType::kF32, packed_keys ? KvForm::kRows : KvForm::kPagedPanels, batch, 1, kKv, 8);
    v = make_kv(random, DType::kF32, packed_keys ? KvForm::kRows : KvForm::kPagedRows, batch, 1, kKv, 4);
    for (const KvStorage* s : {&k, &v}) std::memset(s->memory.data(), 0, s->memory.size());
    a.q = q.view, a.k = k.kv, a.v = v.kv, a.out = out.view, a.lse = lse.view;
    a.acc = acc.view, a.max = max.view, a.sum = sum.view;
    a.cu_q = cu_q;
    if (packed_keys) a.cu_k = cu_k;
    a.n_sequences = 2;
    Scoring& s = a.scoring;
    s.offsets = offsets, s.prefix_end = prefix_end, s.kv_start = kv_start, s.kv_length = kv_length;
    s.alibi_slopes = slopes, s.sinks = sinks, s.bias_scale = bias_scale;
    s.bias = bias.view;
    s.mask = keep.view;
    s.packed_mask = {bits.data(), 6, {0, 1, 2}};
    exec.target = target;
    EXPECT_TRUE(attention_plan(a, &plan, exec).ok());
    workspace_memory.resize(plan.workspace_bytes);
    workspace = workspace_memory.data();
  }
  std::vector<Piece> outputs() {
    return {piece("out", &a.out), piece("lse", &a.lse), piece("acc", &a.acc), piece("max", &a.max),
            piece("sum", &a.sum)};
  }
  std::vector<Piece> inputs() {
    Scoring& s = a.scoring;
    std::vector<Piece> list = {piece("q", &a.q),
                               piece("k", &a.k, k),
                               piece("v", &a.v, v),
                               piece("cu_q", &a.cu_q, 3),
                               piece("scoring.bias", &s.bias),
                               piece("scoring.mask", &s.mask),
                               piece("scoring.packed_mask", &s.packed_mask.data, 1 + 1 + 2 * (kQ - 1)),
                               piece("scoring.bias_scale", &s.bias_scale, 2),
                               piece("scoring.alibi_slopes", &s.alibi_slopes, 2),
                               piece("scoring.sinks", &s.sinks, 2),
                               piece("scoring.offsets", &s.offsets, 2),
                               piece("scoring.prefix_end", &s.prefix_end, 2),
                               piece("scoring.kv_start", &s.kv_start, 2),
                               piece("scoring.kv_length", &s.kv_length, 2)};
    if (a.cu_k != nullptr) {
      list.push_back(piece("cu_k", &a.cu_k, 3));
    } else {
      list.push_back(piece("k.block_table", &a.k.block_table, k.table.memory.size() / 4));
      list.push_back(piece("v.block_table", &a.v.block_table, v.table.memory.size() / 4));
    }
    return list;
  }
};

TEST_P(SharedBytes, AttentionSharesNoBytes) {
  for (const bool packed_keys : {false, true}) {
    EveryArray e(GetParam(), packed_keys);
    std::vector<Piece> written = e.outputs();
    written.push_back(piece("exec.workspace", &e.workspace, e.plan.workspace_bytes));
    check_overlap(written, e.inputs(), [&e] {
      e.exec.workspace = e.workspace, e.exec.workspace_bytes = e.plan.workspace_bytes;
      return attention(e.a, e.exec);
    });
    // A plan looks at the outputs, a range at its memory.
    check_overlap(e.outputs(), e.inputs(), [&e] {
      Plan plan;
      return attention_plan(e.a, &plan, e.exec);
    });
    check_overlap(e.outputs(), e.inputs(), [&e] {
      Plan plan = e.plan;
      return attention_bind(e.a, &plan);
    });
  }
}

TEST_P(SharedBytes, RangesShareNoBytesWithTheirMemory) {
  // Keys in splits, so that there are partial states.
  Random random(seed() * 7000 + 2);
  const int64_t n = 2100;
  Array<4> q(random, DType::kF32, {1, 1, 1, 4}), k(random, DType::kF32, {1, 1, n, 4}),
      v = k.like(random), out(random, DType::kF32, {1, 1, 1, 4});
  Array<4> keep(random, DType::kU8, {1, 1, 1, n});
  Array<3> lse(random, DType::kF32, {1, 1, 1});
  for (const Array<4>* x : {&q, &k, &v}) x->fill(random, Values::kOrdinary);
  keep.fill_bytes(1);
  const int32_t length = n, start = 0;
  AttentionProblem a;
  a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
  a.scoring.mask = keep.view;
  a.scoring.kv_length = &length;
  a.scoring.kv_start = &start;
  Exec e = exec();
  Plan plan;
  ASSERT_TRUE(attention_plan(a, &plan, e).ok());
  ASSERT_GT(plan.reduce_tasks, 0);
  std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  void* memory = workspace.data();
  void* states = partial.data();
  // As the arrays move, the plan is made again; its memory is what is looked at here.
  for (const bool reduce : {false, true}) {
    check_overlap(
        {piece("exec.workspace", &memory, plan.workspace_bytes), piece("partial", &states, plan.partial_bytes)},
        {piece("q", &a.q), piece("out", &a.out), piece("lse", &a.lse), piece("scoring.mask", &a.scoring.mask),
         piece("scoring.kv_length", &a.scoring.kv_length, 1), piece("scoring.kv_start", &a.scoring.kv_start, 1)},
        [&] {
          Plan p;
          e.workspace = nullptr;
          if (const Status s = attention_plan(a, &p, e); !s.ok()) return s;
          e.workspace = memory, e.workspace_bytes = p.workspace_bytes;
          return reduce ? attention_reduce(p, 0, p.reduce_tasks, states, p.partial_bytes, e)
                        : attention_range(p, 0, p.tasks, states, p.partial_bytes, e);
        });
  }
}

TEST_P(SharedBytes, MaskedSoftmaxSharesNoBytes) {
  EveryArray e(GetParam(), false);
  Random random(seed() * 7000 + 3);
  const std::array<int64_t, 4> shape = {2, 2, 5, 96};
  Array<4> x(random, DType::kF32, shape), out = x.like(random), bias(random, DType::kF32, shape, Values::kOrdinary),
                                          keep(random, DType::kU8, shape);
  Array<3> lse(random, DType::kF32, {2, 2, 5});
  x.fill(random, Values::kOrdinary);
  keep.fill_bytes(1);
  ConstView<4> x_view = x.view;
  View<4> out_view = out.view;
  View<3> lse_view = lse.view;
  Scoring s = e.a.scoring;
  s.bias = bias.view, s.mask = keep.view;
  s.packed_mask.stride = {10, 2, 2};
  std::vector<uint8_t> bits(64, 0xFF);
  s.packed_mask.data = bits.data();
  const auto overlap = [&](const std::vector<Piece>& read) {
    check_overlap({piece("out", &out_view), piece("lse", &lse_view)}, read,
                  [&] { return masked_softmax(x_view, out_view, s, lse_view, exec()); });
  };
  overlap({piece("scoring.bias", &s.bias), piece("scoring.mask", &s.mask),
           piece("scoring.packed_mask", &s.packed_mask.data, 1 + 10 + 2 + 2 * 4),
           piece("scoring.bias_scale", &s.bias_scale, 2), piece("scoring.alibi_slopes", &s.alibi_slopes, 2),
           piece("scoring.sinks", &s.sinks, 2), piece("scoring.offsets", &s.offsets, 2),
           piece("scoring.prefix_end", &s.prefix_end, 2), piece("scoring.kv_start", &s.kv_start, 2),
           piece("scoring.kv_length", &s.kv_length, 2)});

  // Each of them by itself: a call that gives none is not looked at.
  const Scoring all = s;
  const Piece bias_piece = piece("scoring.bias", &s.bias), keep_piece = piece("scoring.mask", &s.mask);
  const auto alone = [&](auto Scoring::* member, const Piece& read) {
    s = Scoring();
    s.causal = all.causal;
    s.offset = all.offset;
    s.*member = all.*member;
    overlap({read});
  };
  alone(&Scoring::bias, bias_piece);
  alone(&Scoring::mask, keep_piece);
  alone(&Scoring::packed_mask, piece("scoring.packed_mask", &s.packed_mask.data, 1 + 10 + 2 + 2 * 4));
  alone(&Scoring::alibi_slopes, piece("scoring.alibi_slopes", &s.alibi_slopes, 2));
  alone(&Scoring::sinks, piece("scoring.sinks", &s.sinks, 2));
  alone(&Scoring::offsets, piece("scoring.offsets", &s.offsets, 2));
  alone(&Scoring::prefix_end, piece("scoring.prefix_end", &s.prefix_end, 2));
  alone(&Scoring::kv_start, piece("scoring.kv_start", &s.kv_start, 2));
  alone(&Scoring::kv_length, piece("scoring.kv_length", &s.kv_length, 2));
}

TEST_P(SharedBytes, OtherFunctionsShareNoBytes) {
  Random random(seed() * 7000 + 4);
  Array<4> q(random, DType::kF32, {1, 2, 3, 8}), k(random, DType::kF32, {1, 2, 5, 8}),
      scores_out(random, DType::kF32, {1, 2, 3, 5}), out(random, DType::kF32, {1, 2, 3, 8});
  Array<3> m(random, DType::kF32, {2, 8, 8}, Values::kOrdinary), lse(random, DType::kF32, {1, 2, 3});
  Array<2> w(random, DType::kF32, {2, 8}, Values::kOrdinary);
  Array<5> parts(random, DType::kF32, {2, 1, 2, 3, 8}, Values::kOrdinary);
  Array<4> part_lse(random, DType::kF32, {2, 1, 2, 3});
  for (const Array<4>* x : {&q, &k, &scores_out, &part_lse}) x->fill(random, Values::kOrdinary);
  ConstView<4> q_view = q.view, k_view = k.view, p_view = scores_out.view, part_lse_view = part_lse.view;
  ConstView<3> m_view = m.view, wq_view = m.view, wk_view = m.view;
  ConstView<2> w_view = w.view;
  ConstView<5> parts_view = parts.view;
  Array<4> result = scores_out.like(random);
  View<4> result_view = result.view, out_view = out.view;
  View<3> lse_view = lse.view;
  const Piece scores_piece = piece("out", &result_view);
  check_overlap({scores_piece}, {piece("q", &q_view), piece("k", &k_view)},
                [&] { return scores(q_view, k_view, result_view, {}, exec()); });
  check_overlap({scores_piece}, {piece("q", &q_view), piece("k", &k_view)},
                [&] { return gaussian_scores(q_view, k_view, result_view, {}, exec()); });
  const size_t bilinear = bilinear_scores_workspace(8, 8), additive = additive_scores_workspace(8, 8, 8);
  std::vector<char> memory(bilinear + additive);
  void* workspace = memory.data();
  check_overlap({scores_piece, piece("exec.workspace", &workspace, bilinear)},
                {piece("q", &q_view), piece("k", &k_view), piece("m", &m_view)}, [&] {
                  return bilinear_scores(q_view, m_view, k_view, result_view, {},
                                         {.target = GetParam(), .workspace = workspace, .workspace_bytes = bilinear});
                });
  check_overlap(
      {scores_piece, piece("exec.workspace", &workspace, additive)},
      {piece("q", &q_view), piece("k", &k_view), piece("w", &w_view), piece("wq", &wq_view), piece("wk", &wk_view)},
      [&] {
        return additive_scores(q_view, k_view, w_view, result_view, wq_view, wk_view,
                               {.target = GetParam(), .workspace = workspace, .workspace_bytes = additive});
      });
  check_overlap({piece("out", &out_view)}, {piece("p", &p_view), piece("v", &k_view)},
                [&] { return weighted_values(p_view, k_view, out_view, {}, exec()); });
  const float sinks[2] = {1, 2};
  const float* sinks_pointer = sinks;
  check_overlap({piece("out", &out_view), piece("lse", &lse_view)},
                {piece("part_lse", &part_lse_view), piece("sinks", &sinks_pointer, 2)},
                [&] { return attention_merge(parts_view, part_lse_view, out_view, lse_view, sinks_pointer, exec()); });
  check_overlap({piece("lse", &lse_view)}, {piece("parts", &parts_view)},
                [&] { return attention_merge(parts_view, part_lse_view, out_view, lse_view, sinks_pointer, exec()); });
  Array<2> x(random, DType::kF32, {6, 9}), y = x.like(random);
  Array<1> rows_lse(random, DType::kF32, {6});
  x.fill(random, Values::kOrdinary);
  ConstView<2> x_view = x.view;
  View<2> y_view = y.view;
  View<1> rows_lse_view = rows_lse.view;
  check_overlap({piece("lse", &rows_lse_view)}, {piece("x", &x_view), piece("out", &y_view)},
                [&] { return softmax(x_view, y_view, rows_lse_view, exec()); });
}

/// Between 1024 pairs and more, cos and sin of a row move from the stack to the workspace.
TEST_P(SharedBytes, RopeDirectUsesItsWorkspaceAndNoOther) {
  Random random(seed() * 7000 + 5);
  for (const int64_t pairs : {1, 8, 1023, 1024, 1025, 1100, 5000}) {
    const int64_t n = 3;
    Array<4> x(random, DType::kF32, {1, 1, n, 2 * pairs}), out = x.like(random), want = x.like(random);
    x.fill(random, Values::kOrdinary);
    const size_t bytes = rope_direct_workspace(pairs);
    EXPECT_EQ(bytes > 0, pairs > 1024);
    // Where none is needed, one that is given is left alone.
    const Guarded workspace(bytes > 0 ? bytes : 100, Guard::kAfter);
    std::memset(workspace.data(), 0x5A, workspace.size());
    const Exec e = {.target = GetParam(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    ASSERT_TRUE(ok(rope_direct(x.view, pairs, {}, 7, out.view, {}, e)));
    Array<2> cos(random, DType::kF32, {n, pairs}), sin = cos.like(random);
    ASSERT_TRUE(rope_table(cos.view, sin.view, {}, {}, 7).ok());
    ASSERT_TRUE(rope(x.view, cos.view, sin.view, {}, want.view, {}, exec()).ok());
    EXPECT_EQ(out.bits(), want.bits()) << pairs;
    for (size_t i = 0; i < workspace.size() && bytes == 0; ++i) ASSERT_EQ(workspace.data()[i], 0x5A) << pairs;
    if (bytes == 0) continue;
    Exec bad = e;
    --bad.workspace_bytes;
    EXPECT_EQ(rope_direct(x.view, pairs, {}, {}, out.view, {}, bad).code, Code::kWorkspace);
    ConstView<4> x_view = x.view;
    View<4> out_view = out.view;
    void* memory = workspace.data();
    check_overlap({piece("out", &out_view), piece("exec.workspace", &memory, bytes)}, {}, [&] {
      return rope_direct(x_view, pairs, {}, {}, out_view, {},
                         {.target = GetParam(), .workspace = memory, .workspace_bytes = bytes});
    });
    check_overlap({piece("exec.workspace", &memory, bytes)}, {piece("x", &x_view)}, [&] {
      return rope_direct(x_view, pairs, {}, {}, out_view, {},
                         {.target = GetParam(), .workspace = memory, .workspace_bytes = bytes});
    });
  }
}

TEST(SharedBytesOf, FrequenciesAndTheirFactorShareNoBytes) {
  double room[10];
  std::fill_n(room, 10, 7.0);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(rope_frequencies(room, 8, room + i).code, Code::kOverlap) << i;
    for (const double x : room) ASSERT_EQ(x, 7.0);
  }
  EXPECT_TRUE(rope_frequencies(room + 1, 8, room).ok());
  EXPECT_TRUE(rope_frequencies(room, 8, room + 8).ok());
  // The arrays of the options, too.
  std::vector<double> factors(8, 2.0);
  const RopeTableOptions options = {.freq_factors = factors};
  EXPECT_EQ(rope_frequencies(factors.data(), 8, nullptr, options).code, Code::kOverlap);
  EXPECT_EQ(rope_frequencies(room, 8, factors.data() + 7, options).code, Code::kOverlap);
  EXPECT_TRUE(rope_frequencies(room, 8, room + 8, options).ok());
}

SIMDATTN_FOR_EACH_TARGET(SharedBytes);

}  // namespace
}  // namespace simdattn::test
