// The stack of every public function: a thread's own stack is painted, the function runs on it, and the lowest byte
// that changed tells how deep it went.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr size_t kMostStack = 48 * 1024;  // what simdattn.h says
constexpr size_t kStack = size_t{1} << 20;
constexpr size_t kPainted = size_t{1} << 17;  // where a thread begins: all of it would take minutes to look through
constexpr unsigned char kPaint = 0x5C;

struct Job {
  const std::function<Status()>* call;
  Status status;
  const unsigned char* top;
};
void* run_job(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  unsigned char here = 0;
  job.top = &here;
  job.status = (*job.call)();
  return nullptr;
}

class Stack : public TargetTest {
 protected:
  /// Runs `call`, which has to succeed, and remembers how deep it went.
  void measure(const std::string& text, const std::function<Status()>& call) {
    static const std::unique_ptr<unsigned char, void (*)(void*)> memory(
        static_cast<unsigned char*>(std::aligned_alloc(4096, kStack)), std::free);
    unsigned char* const painted = memory.get() + kStack - kPainted;
    std::memset(painted, kPaint, kPainted);
    Job job = {&call, {}, nullptr};
    pthread_attr_t attributes;
    pthread_t thread;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstack(&attributes, memory.get(), kStack), 0);
    ASSERT_EQ(pthread_create(&thread, &attributes, run_job, &job), 0);
    ASSERT_EQ(pthread_join(thread, nullptr), 0);
    pthread_attr_destroy(&attributes);
    ASSERT_TRUE(job.status.ok()) << job.status.detail << ", " << text;
    const unsigned char* lowest = painted;
    constexpr size_t kAtOnce = 1024;
    while (std::memcmp(lowest, lowest + 1, kAtOnce) == 0) lowest += kAtOnce;
    while (*lowest == kPaint) ++lowest;
    const size_t depth = static_cast<size_t>(job.top - lowest);
    const std::string function = text.substr(0, text.find(' '));
    if (depth > deepest_[function].first) deepest_[function] = {depth, text};
  }
  void TearDown() override {
    EXPECT_FALSE(deepest_.empty());
    for (const auto& [function, deepest] : deepest_) {
      if (std::getenv("SIMDATTN_SHOW_STACK") != nullptr) {
        std::printf("%8zu %-16s %s\n", deepest.first, target_name(*GetParam()), deepest.second.c_str());
      }
      EXPECT_LE(deepest.first, kMostStack) << deepest.second;
      EXPECT_GT(deepest.first, 64u) << "nothing was measured: " << deepest.second;
    }
  }

  /// All that runs a problem of these sizes. `mixed`: with whatever options.
  void measure_attention(Random& random, const struct Sizes& n, bool listed, bool mixed);

 private:
  std::map<std::string, std::pair<size_t, std::string>> deepest_;  // of each function, and the call
};

constexpr Arithmetic kArithmetics[] = {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8};
bool only_rows(KvType type) { return type >= KvType::kQ4_1; }
int64_t whole_blocks(KvType type, int64_t dim) { return type >= KvType::kQ8_0 ? (dim + 31) / 32 * 32 : dim; }

/// Every byte alike: finite numbers of any type, or NaN.
KvStorage filled(Random& random, KvType type, KvForm form, std::array<int64_t, 4> shape, bool nan = false) {
  KvStorage s = make_kv(random, type, form, shape[0], shape[1], shape[2], shape[3], 40);
  for (const Guarded* g : {&s.memory, &s.scales}) std::memset(g->data(), nan ? 0xFF : 0x3A, g->size());
  return s;
}

struct Rotation {
  std::vector<float> table;
  KeyRotation rope;
  Rotation(Random& random, int64_t positions, int64_t dim, bool hadamard) {
    if (dim > 1 && random.coin()) {
      table.assign(static_cast<size_t>(positions * (dim / 2)), 0.5f);
      rope.cos = rope.sin = view(table.data(), {positions, dim / 2});
      rope.options.pairing = random.coin() ? RopePairing::kHalfSplit : RopePairing::kInterleaved;
    }
    if (hadamard) rope.hadamard_block = std::min<int64_t>(dim & -dim, 4096);
  }
};

/// What a problem over stores that are filled() is drawn from.
struct Sizes {
  KvType type;
  KvForm form;
  Arithmetic arithmetic;
  int64_t rows;
  int64_t dim;
  int64_t keys;
  KvType v_type;
  int64_t d_v;
};
Sizes drawn_sizes(Random& random, KvType type, KvForm form, Arithmetic arithmetic, int64_t rows) {
  const int64_t dim =
      whole_blocks(type, random.of<int64_t>({random.integer(1, 40), 64, rows > 70 ? 96 : 128, rows > 13 ? 128 : 576}));
  const int64_t keys = rows > 13 ? 300 : random.of<int64_t>({40, 300, 1100});
  const KvType v_type = random.coin() ? type : kStorageTypes[random.integer(0, std::size(kStorageTypes) - 1)];
  const int64_t d_v = whole_blocks(v_type, random.of<int64_t>({random.integer(1, 40), 128, dim}));
  return {type, form, arithmetic, rows, dim, keys, v_type, d_v};
}

void Stack::measure_attention(Random& random, const Sizes& n, bool listed, bool mixed) {
  const int64_t group = mixed ? random.integer(1, 2) : 1;
  const KvStorage k = filled(random, n.type, n.form, {1, 1, n.keys, n.dim});
  const KvStorage v = filled(random, n.v_type, mixed && random.coin() ? KvForm::kPagedRows : KvForm::kRows,
                             {1, 1, n.keys, n.d_v}, mixed && random.one_in(4));
  std::vector<float> q(static_cast<size_t>(n.rows * group * n.dim), 0.1f),
      out(static_cast<size_t>(n.rows * group * n.d_v)), bias(static_cast<size_t>(n.keys), 0.5f);
  std::vector<int32_t> list;
  for (int32_t j = 0; j < n.keys; j += 2) list.push_back(j);
  AttentionProblem a;
  a.q = view(q.data(), {1, group, n.rows, n.dim}), a.out = view(out.data(), {1, group, n.rows, n.d_v});
  a.k = k.kv, a.v = v.kv;
  a.arithmetic = n.arithmetic;
  a.scoring.causal = mixed && random.coin();
  if (mixed && random.coin()) a.scoring.bias = view(bias.data(), {1, 1, 1, n.keys}), a.scoring.softcap = 3;
  if (listed) a.lists = {list.data(), 1, static_cast<int64_t>(list.size()), 1, {}};
  const std::string text = describe(a) + " " + arithmetic_name(n.arithmetic) + (listed ? ", lists" : "");
  Plan plan;
  measure("attention_plan " + text, [&] { return attention_plan(a, &plan, exec()); });
  std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  Exec with = exec();
  with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
  measure("attention " + text, [&] { return attention(a, with); });
  measure("attention_bind " + text, [&] { return attention_bind(a, &plan); });
  measure("attention_range " + text,
          [&] { return attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), with); });
  measure("attention_reduce " + text,
          [&] { return attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), with); });
}

/// Every storage type in every form and arithmetic: one query of ordinary heads, with and without a list, and a
/// share of other sizes, with masks that hide NaN, splits and reductions.
TEST_P(Stack, Attention) {
  Random random(seed() * 9000 + 1);
  for (const KvType type : kStorageTypes) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels}) {
      if (only_rows(type) && !in_rows(form)) continue;
      for (const Arithmetic arithmetic : kArithmetics) {
        for (const bool listed : {false, true}) {
          measure_attention(random, {type, form, arithmetic, 1, 128, 300, type, 128}, listed, false);
        }
        for (const int64_t rows : {1, 2, 4, 8, 12, 13, 70, 300}) {
          // Paths depend on the number of rows; with many of them a wide head is time alone.
          if (!random.one_in((cases(4) < 4 ? 6 : 2) * (GetParam() == &scalar_target() ? 3 : 1))) continue;
          const Sizes sizes = drawn_sizes(random, type, form, arithmetic, rows);
          measure_attention(random, sizes, random.one_in(3), true);
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// What random problems have besides: batches, bits, ALiBi, rings, outputs of any type.
TEST_P(Stack, AttentionOfAnyKind) {
  Random random(seed() * 9000 + 2);
  for (int64_t i = 0; i < cases(200); ++i) {
    AttentionLimits limits;
    limits.rings = true;
    limits.max_dim = random.one_in(3) ? 300 : 40;
    limits.max_kv = random.one_in(8) ? 1500 : 300;
    limits.values = random.coin() ? Values::kOrdinary : Values::kSpecial;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.arithmetic = kArithmetics[random.integer(0, 2)];
    Plan plan;
    measure("attention_plan " + describe(a), [&] { return attention_plan(a, &plan, exec()); });
    std::vector<char> workspace(plan.workspace_bytes);
    Exec with = exec();
    with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
    measure("attention " + describe(a), [&] { return attention(a, with); });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(Stack, Caches) {
  Random random(seed() * 9000 + 3);
  for (const KvType type : kStorageTypes) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels,
                              KvForm::kRingRows, KvForm::kRingPanels}) {
      if (only_rows(type) && !in_rows(form)) continue;
      for (const int64_t most : {8, 128, 257, 576, 4096, 8192}) {
        const int64_t dim = whole_blocks(type, most), tokens = random.of<int64_t>({5, 32, 70}),
                      heads = random.integer(1, 3);
        const KvStorage s = filled(random, type, form, {1, heads, tokens, dim});
        const int64_t n = s.kv.ring > 0 ? std::min(s.kv.ring, tokens) : tokens;
        std::vector<float> out(static_cast<size_t>(heads * n * dim), 0.3f);
        const std::string text = " type " + std::to_string(static_cast<int>(type)) + ", form " +
                                 std::to_string(static_cast<int>(form)) + ", dim " + std::to_string(dim);
        const View<4> rows = view(out.data(), {1, heads, n, dim});
        measure("kv_read" + text, [&] { return kv_read(s.kv, tokens - n, rows, exec()); });
        if (only_rows(type)) continue;
        for (const bool hadamard : {false, true}) {
          const Rotation rotation(random, tokens, dim, hadamard);
          const DType from = random.storage();
          const View<4> other(out.data(), from, rows.shape);
          measure("kv_append" + text + (hadamard ? ", Hadamard" : ""),
                  [&] { return kv_append(other, {}, s.kv, {.rope = rotation.rope, .start = tokens - n}, exec()); });
          measure("kv_shift" + text + (hadamard ? ", Hadamard" : ""),
                  [&] { return kv_shift(s.kv, tokens - n + 2, tokens, -2, rotation.rope, exec()); });
          if (hadamard) continue;
          measure("kv_shift" + text + ", around",
                  [&] { return kv_shift(s.kv, tokens - n, tokens - 1, 1, {}, exec()); });
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Stack, Selection) {
  Random random(seed() * 9000 + 7);
  for (const KvType type : kStorageTypes) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows}) {
      if (only_rows(type) && !in_rows(form)) continue;
      for (const Arithmetic arithmetic : kArithmetics) {
        const int64_t heads = random.of<int64_t>({1, 4, 64}), n = random.of<int64_t>({1, 3}), rows = 300, dim = 128,
                      k = random.of<int64_t>({1, 100, 300});
        const KvStorage keys = filled(random, type, form, {1, 1, rows, dim});
        std::vector<float> q(static_cast<size_t>(heads * n * dim), 0.1f), out(static_cast<size_t>(n * rows));
        std::vector<int32_t> lists(static_cast<size_t>(n * k));
        std::vector<char> workspace(std::max(index_scores_workspace(arithmetic, heads, dim), top_k_workspace(k)));
        Exec with = exec();
        with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
        const View<4> scores = view(out.data(), {1, 1, n, rows});
        const std::string text = " type " + std::to_string(static_cast<int>(type)) + " " + arithmetic_name(arithmetic);
        measure("index_scores" + text,
                [&] { return index_scores(view(q.data(), {1, heads, n, dim}), keys.kv, {}, scores, {}, with); });
        measure("top_k" + text,
                [&] { return top_k(scores, k, View<4>(lists.data(), DType::kI32, {1, 1, n, k}), {}, with); });
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Stack, Rotations) {
  Random random(seed() * 9000 + 4);
  for (const int64_t dim : {2, 64, 128, 130, 256, 2048, 4096}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
        const int64_t heads = 3, n = 5, half = dim / 2;
        std::vector<float> memory(static_cast<size_t>(heads * n * dim), 0.5f),
            table(static_cast<size_t>(n * half), 0.5f), sine = table;
        const View<4> x(memory.data(), type, {1, heads, n, dim});
        const View<2> cos = view(table.data(), {n, half});
        const std::string text = " dim " + std::to_string(dim);
        // The norm, which has a row of its own, where rows may have one.
        const RopeOptions options = {
            .pairing = pairing, .inverse = random.coin(), .norm = dim <= 2048 ? RowNorm::kRms : RowNorm::kNone};
        measure("rope" + text, [&] { return rope(x, cos, cos, {}, x, options, exec()); });
        for (const RopeType rope_type : {RopeType::kDefault, RopeType::kYarn, RopeType::kLlama3, RopeType::kLongRope}) {
          const std::vector<double> factors(static_cast<size_t>(half), 2.0);
          RopeTableOptions o;
          o.rope_type = rope_type, o.factor = rope_type == RopeType::kDefault ? 0 : 4;
          o.original_max_position_embeddings = 64, o.max_position_embeddings = 256;
          o.short_factor = o.long_factor = {factors.data(), half};
          o.f32_angles = random.coin();
          std::vector<double> inv(static_cast<size_t>(half));
          double factor = 0;
          std::vector<char> workspace(rope_direct_workspace(half));
          Exec with = exec();
          with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
          measure("rope_direct" + text, [&] { return rope_direct(x, half, o, {}, x, options, with); });
          measure("rope_frequencies" + text, [&] { return rope_frequencies(inv.data(), half, &factor, o); });
          measure("rope_table" + text, [&] { return rope_table(cos, view(sine.data(), {n, half}), o); });
        }
        measure("add_rows" + text,
                [&] { return add_rows(x, view(sine.data(), {1, heads, n, dim}, {0, 0, 0, 1}), x, exec()); });
        measure("hadamard" + text, [&] { return hadamard(x, x, std::min<int64_t>(dim & -dim, 4096), exec()); });
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    std::vector<float> numbers(static_cast<size_t>(3 * dim));
    measure("sinusoidal_table", [&] { return sinusoidal_table(view(numbers.data(), {3, dim})); });
    measure("alibi_slopes", [&] { return alibi_slopes(dim, numbers.data()); });
  }
}

TEST_P(Stack, Unfused) {
  Random random(seed() * 9000 + 5);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 4, 70}) {
      for (const int64_t dim : {5, 64, 200}) {
        for (const int64_t keys : {3, 300}) {
          if (cases(4) < 4 && !random.one_in(3)) continue;
          const int64_t heads = random.integer(1, 2);
          std::vector<float> q(static_cast<size_t>(heads * rows * dim), 0.1f), k(static_cast<size_t>(keys * dim), 0.1f),
              p(static_cast<size_t>(heads * rows * keys), 0.1f),
              out(static_cast<size_t>(heads * rows * std::max(dim, keys)));
          const int64_t d_q = std::min<int64_t>(dim, 16);
          std::vector<float> square(static_cast<size_t>(heads * d_q * dim), 0.1f);
          const ConstView<4> query(q.data(), type, {1, heads, rows, dim}), key(k.data(), type, {1, 1, keys, dim});
          const View<4> s = view(p.data(), {1, heads, rows, keys}), o(out.data(), type, {1, heads, rows, dim});
          std::vector<char> workspace(size_t{1} << 22);
          Exec with = exec();
          with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
          const std::string text =
              " rows " + std::to_string(rows) + ", dim " + std::to_string(dim) + ", keys " + std::to_string(keys);
          for (const Arithmetic arithmetic : kArithmetics) {
            measure("scores" + text, [&] { return scores(query, key, s, {.arithmetic = arithmetic}, with); });
            for (const bool hidden : {false, true}) {
              // A NaN behind a weight of 0.
              std::fill(p.begin(), p.end(), 0.1f);
              if (hidden) p[0] = 0, put(k.data(), type, 0, std::numeric_limits<float>::quiet_NaN());
              measure("weighted_values" + text,
                      [&] { return weighted_values(s, key, o, {.arithmetic = arithmetic}, with); });
            }
            put(k.data(), type, 0, 0.1f);
          }
          measure("gaussian_scores" + text, [&] { return gaussian_scores(query, key, s, {}, with); });
          measure("bilinear_scores" + text, [&] {
            return bilinear_scores(ConstView<4>(q.data(), type, {1, heads, rows, d_q}),
                                   ConstView<3>(square.data(), type, {heads, d_q, dim}), key, s, {}, with);
          });
          measure("additive_scores" + text,
                  [&] { return additive_scores(query, key, view(q.data(), {heads, dim}), s, {}, {}, with); });
          measure("softmax" + text, [&] {
            return softmax(view(p.data(), {heads * rows, keys}), view(p.data(), {heads * rows, keys}), {}, exec());
          });
          Scoring scoring;
          scoring.causal = random.coin(), scoring.softcap = random.coin() ? 2.0f : 0.0f;
          std::vector<float> bias(static_cast<size_t>(keys), 0.5f);
          if (random.coin()) scoring.bias = view(bias.data(), {1, 1, 1, keys});
          measure("masked_softmax" + text, [&] { return masked_softmax(s, s, scoring, {}, exec()); });
          const View<5> parts(q.data(), type, {1, 1, heads, rows, dim});
          measure("attention_merge" + text,
                  [&] { return attention_merge(parts, view(p.data(), {1, 1, heads, rows}), o, {}, nullptr, exec()); });
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Stack, States) {
  Random random(seed() * 9000 + 6);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n : {1, 5, 70}) {
      for (const int64_t dim : {5, 64, 200}) {
        std::vector<float> rows(static_cast<size_t>(2 * n * dim), 0.1f), gate(static_cast<size_t>(n), -0.1f),
            out = rows, state(static_cast<size_t>(dim * dim), 0.1f);
        LinearAttentionProblem a;
        a.k = a.v = ConstView<4>(rows.data(), type, {1, 1, n, dim});
        a.q = ConstView<4>(rows.data(), type, {1, random.integer(1, 2), n, dim});
        a.out = View<4>(out.data(), type, a.q.shape);
        a.decay = a.beta = view(gate.data(), {1, 1, n, 1});
        a.state = view(state.data(), {1, 1, dim, dim});
        a.transposed = random.coin();
        const std::vector<float> before = state;
        if (random.coin()) a.state_in = view(before.data(), {1, 1, dim, dim});
        std::vector<char> workspace(linear_attention_workspace(a));
        Exec with = exec();
        with.workspace = workspace.data(), with.workspace_bytes = workspace.size();
        const std::string text = " tokens " + std::to_string(n) + ", dim " + std::to_string(dim);
        measure("linear_attention" + text, [&] { return linear_attention(a, with); });
        measure("linear_attention_range" + text,
                [&] { return linear_attention_range(a, 0, linear_attention_tasks(a), with); });
      }
      for (const int64_t width : {1, 4, 32}) {
        for (const bool last : {false, true}) {
          const int64_t channels = random.of<int64_t>({7, 70, 700});
          std::vector<float> x(static_cast<size_t>(n * channels), 0.1f),
              out = x, w(static_cast<size_t>(channels * width), 0.1f), past = w;
          CausalConvProblem c;
          c.x = ConstView<3>(x.data(), type, {1, last ? n : channels, last ? channels : n});
          c.out_transposed = random.coin();
          const bool out_last = last != c.out_transposed;
          c.out = View<3>(out.data(), type, {1, out_last ? n : channels, out_last ? channels : n});
          c.weight = ConstView<2>(w.data(), random.storage(), {channels, width});
          c.bias = ConstView<1>(w.data(), type, {channels});
          if (width > 1) c.state = {past.data(), type, {1, last ? width - 1 : channels, last ? channels : width - 1}};
          if (width > 1 && random.coin()) c.state_in = c.state, c.state = {};
          c.channels_last = last, c.silu = true;
          measure("causal_conv channels " + std::to_string(channels) + ", tokens " + std::to_string(n),
                  [&] { return causal_conv(c, exec()); });
        }
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Stack);

}  // namespace
}  // namespace simdattn::test
