// The edges of the contract: sizes and strides that no memory holds, and what is legal although it looks odd.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class Contract : public TargetTest {};

// ---------------------------------------------------------------------------------------------------------------------
// Sizes

/// Changes that no store survives: refused by every function that takes one.
TEST_P(Contract, SizesBeyondAllMemoryAreRefused) {
  Random random(seed() * 7000 + 8);
  struct Change {
    const char* what;
    std::function<void(Kv&)> apply;
    bool paged;
  };
  std::vector<Change> changes;
  for (const int64_t n : {int64_t{1} << 30, int64_t{1} << 57, int64_t{1} << 61, int64_t{1} << 62, kMost, -kMost - 1}) {
    changes.push_back({"block_table_stride", [n](Kv& kv) { kv.block_table_stride = n; }, true});
    changes.push_back({"page_size", [n](Kv& kv) { kv.page_size = n; }, true});
    changes.push_back({"n_pages", [n](Kv& kv) { kv.n_pages = n; }, true});
    changes.push_back({"ring", [n](Kv& kv) { kv.ring = n; }, false});
    changes.push_back({"batch", [n](Kv& kv) { kv.batch = n; }, false});
    changes.push_back({"batch of pages", [n](Kv& kv) { kv.batch = n; }, true});
    changes.push_back({"heads", [n](Kv& kv) { kv.heads = n; }, false});
    changes.push_back({"tokens", [n](Kv& kv) { kv.capacity = n; }, false});
    changes.push_back({"dim", [n](Kv& kv) { kv.dim = n; }, false});
    if (n <= int64_t{1} << 57 && n > 0) continue;  // an address, if there were the memory
    changes.push_back({"batch_stride", [n](Kv& kv) { kv.batch_stride = n; }, true});
    changes.push_back({"head_stride", [n](Kv& kv) { kv.head_stride = n; }, true});
    changes.push_back({"token_stride", [n](Kv& kv) { kv.token_stride = n; }, false});
  }
  for (const Change& change : changes) {
    for (const bool panels : {false, true}) {
      const KvForm form = change.paged ? (panels ? KvForm::kPagedPanels : KvForm::kPagedRows)
                                       : (panels ? KvForm::kPanels : KvForm::kRows);
      const KvStorage store = make_kv(random, DType::kF32, form, 2, 2, 200, 8);
      std::memset(store.memory.data(), 0, store.memory.size());
      Kv kv = store.kv;
      change.apply(kv);
      const std::string text = std::string(change.what) + (panels ? ", panels" : ", rows");
      const Array<4> rows(random, DType::kF32, {2, 2, 1, 8}), q(random, DType::kF32, {2, 2, 1, 8}),
          out = q.like(random);
      const KvStorage plain = make_kv(random, DType::kF32, KvForm::kRows, 2, 2, 200, 8);
      EXPECT_FALSE(kv_append(rows.view, {}, kv, {}, exec()).ok()) << text;
      EXPECT_FALSE(kv_shift(kv, 3, 9, 1, {}, exec()).ok()) << text;
      EXPECT_FALSE(kv_shift(kv, 3, 9, -1, {}, exec()).ok()) << text;
      AttentionProblem a;
      a.q = q.view, a.k = kv, a.v = plain.kv, a.out = out.view;
      EXPECT_FALSE(run_attention(a, GetParam()).ok()) << text;
      Plan plan;
      EXPECT_FALSE(attention_plan(a, &plan, exec()).ok()) << text;
      if (panels) continue;
      a.k = plain.kv, a.v = kv;
      EXPECT_FALSE(run_attention(a, GetParam()).ok()) << text << " of v";
      EXPECT_FALSE(attention_plan(a, &plan, exec()).ok()) << text << " of v";
      for (unsigned char byte :
           std::vector<unsigned char>(store.memory.data(), store.memory.data() + store.memory.size()))
        ASSERT_EQ(byte, 0) << text;
    }
  }
}

/// Strides of 0 make a problem as large as sizes go: its tasks are counted, or it is refused, at once.
TEST_P(Contract, PlansOfHugeSizesCountOrRefuse) {
  float number = 1;
  const int64_t sizes[] = {1, 7, 100000, (int64_t{1} << 30) - 1};
  for (const int64_t batch : sizes) {
    for (const int64_t heads : sizes) {
      for (const int64_t n_q : sizes) {
        for (const int64_t n_kv : sizes) {
          for (const bool grouped : {false, true}) {
            AttentionProblem a;
            a.q = ConstView<4>(&number, DType::kF32, {batch, heads, n_q, 1}, {0, 0, 0, 1});
            a.k = ConstView<4>(&number, DType::kF32, {batch, grouped ? 1 : heads, n_kv, 1}, {0, 0, 0, 1});
            a.v = a.k;
            Plan plan;
            plan.tasks = plan.reduce_tasks = -7;
            const Status s = attention_plan(a, &plan, exec());
            const auto blocks_of = [&](double rows) {
              return static_cast<double>(batch) * (grouped ? 1.0 : static_cast<double>(heads)) *
                     std::ceil(static_cast<double>(n_q) * (grouped ? static_cast<double>(heads) : 1.0) / rows);
            };
            const double splits = std::ceil(static_cast<double>(n_kv) / 1024);
            if (!s.ok()) {
              EXPECT_EQ(s.code, Code::kShape) << s.detail;
              EXPECT_GE(4 * blocks_of(256) * splits, 0x1p60);
              continue;
            }
            ASSERT_GE(plan.tasks, 1);
            ASSERT_GE(plan.reduce_tasks, 0);
            // Row blocks of one of the sizes, or the splits of these.
            bool counted = false;
            for (double rows = 16; rows <= 256; rows *= 2) {
              const double share = static_cast<double>(plan.tasks) / blocks_of(rows);
              counted = counted || std::fabs(share - 1) < 1e-9 || std::fabs(share / splits - 1) < 1e-9;
            }
            EXPECT_TRUE(counted) << plan.tasks << " tasks, " << batch << " x " << heads << " x " << n_q << ", " << n_kv;
          }
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Legal things

/// The stride of a dimension of one element means nothing: any number.
TEST_P(Contract, StridesOfOneElementMeanNothing) {
  Random random(seed() * 7000 + 9);
  float x[4] = {1, 2, 3, 4}, y[4], lse[1];
  uint8_t keep[4] = {1, 0, 1, 1};
  const float bias[4] = {0.5f, 0, -kInf, 1};
  const Exec e = exec();
  for (const int64_t odd : {kMost, -kMost - 1, int64_t{1} << 61, int64_t{-3}}) {
    const std::array<int64_t, 4> stride = {odd, odd, odd, 1};
    const ConstView<4> in(x, DType::kF32, {1, 1, 1, 4}, stride);
    const View<4> out(y, DType::kF32, {1, 1, 1, 4}, stride);
    const View<3> out_lse(lse, DType::kF32, {1, 1, 1}, {odd, odd, odd});
    Scoring s;
    s.mask = ConstView<4>(keep, DType::kU8, {1, 1, 1, 4}, stride);
    s.bias = ConstView<4>(bias, DType::kF32, {1, 1, 1, 4}, stride);
    Status status = masked_softmax(in, out, s, out_lse, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_FLOAT_EQ(y[0] + y[3], 1.0f);
    status = masked_softmax(in, out, {}, out_lse, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    status = softmax(ConstView<2>(x, DType::kF32, {1, 4}, {odd, 1}), View<2>(y, DType::kF32, {1, 4}, {odd, 1}),
                     View<1>(lse, DType::kF32, {1}, {odd}), e);
    EXPECT_TRUE(status.ok()) << status.detail;
    status = scores(in, in, View<4>(y, DType::kF32, {1, 1, 1, 1}, {odd, odd, odd, odd}), {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[0], 15.0f);
    status = weighted_values(ConstView<4>(x, DType::kF32, {1, 1, 1, 1}, {odd, odd, odd, odd}), in, out, {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[3], 4.0f);
    status = gaussian_scores(in, in, View<4>(y, DType::kF32, {1, 1, 1, 1}, stride), {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[0], 0.0f);
    std::vector<char> memory(additive_scores_workspace(4, 4, 1) + bilinear_scores_workspace(4, 1));
    const Exec with_memory = {.target = GetParam(), .workspace = memory.data(), .workspace_bytes = memory.size()};
    const ConstView<3> wide(x, DType::kF32, {1, 1, 4}, {odd, odd, 1}), tall(x, DType::kF32, {1, 4, 1}, {odd, 1, odd});
    const ConstView<4> one(x, DType::kF32, {1, 1, 1, 1}, {odd, odd, odd, odd});
    status = bilinear_scores(in, tall, one, View<4>(y, DType::kF32, {1, 1, 1, 1}, stride), {}, with_memory);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[0], 30.0f);
    status = additive_scores(in, in, ConstView<2>(x, DType::kF32, {1, 1}, {odd, odd}),
                             View<4>(y, DType::kF32, {1, 1, 1, 1}, stride), wide, wide, with_memory);
    EXPECT_TRUE(status.ok()) << status.detail;
    status = attention_merge(ConstView<5>(x, DType::kF32, {1, 1, 1, 1, 4}, {odd, odd, odd, odd, 1}),
                             ConstView<4>(x, DType::kF32, {1, 1, 1, 1}, stride), out, out_lse, nullptr, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[2], 3.0f);
    status = rope(in, ConstView<2>(x, DType::kF32, {1, 2}, {odd, 1}), ConstView<2>(x, DType::kF32, {1, 2}, {odd, 1}),
                  {}, out, {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    status = add_rows(in, in, out, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[3], 8.0f);
    status = hadamard(in, out, 4, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    status = rope_direct(in, 2, {}, {}, out, {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    AttentionProblem a;
    a.q = in, a.out = out, a.lse = out_lse;
    a.k = view(x, {1, 1, 1, 4}), a.v = a.k;
    a.k.batch_stride = a.k.head_stride = a.k.token_stride = odd;
    a.v.batch_stride = a.v.head_stride = a.v.token_stride = odd;
    status = run_attention(a, GetParam());
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[3], 4.0f);
    Kv kv = view(y, {1, 1, 1, 4});
    kv.batch_stride = kv.head_stride = kv.token_stride = odd;
    const int32_t zero = 0;
    y[3] = 0;
    status = kv_append(in, ConstView<2>(&zero, DType::kI32, {1, 1}, {odd, odd}), kv, {}, e);
    EXPECT_TRUE(status.ok()) << status.detail;
    EXPECT_EQ(y[3], 4.0f);
  }
}

/// The largest offsets, both ways to say them.
TEST_P(Contract, OffsetsOfTheLargestSize) {
  Random random(seed() * 7000 + 10);
  Array<4> q(random, DType::kF32, {1, 1, 3, 4}), k(random, DType::kF32, {1, 1, 9, 4}, Values::kOrdinary),
      out = q.like(random);
  Array<3> lse(random, DType::kF32, {1, 1, 3});
  q.fill(random, Values::kOrdinary);
  for (const int32_t offset : {1 << 30, -(1 << 30)}) {
    for (const bool by_sequence : {false, true}) {
      for (const int kind : {0, 1, 2, 3, 4}) {
        AttentionProblem a;
        a.q = q.view, a.k = k.view, a.v = k.view, a.out = out.view, a.lse = lse.view;
        Scoring& s = a.scoring;
        s.offset = by_sequence ? 0 : offset;
        if (by_sequence) s.offsets = &offset;
        s.causal = kind == 1;
        if (kind == 2) s.window_left = (int64_t{1} << 30) - 5;
        if (kind == 3) s.window_right = (int64_t{1} << 30) + 5;
        if (kind == 4) s.chunk = (int64_t{1} << 30) + 4;
        const reference::AttentionResult want = reference::attention(a);
        ASSERT_TRUE(ok(run_attention(a, GetParam())));
        const reference::Tensor got = reference::read(out.view), got_lse = reference::read(lse.view);
        for (int64_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.out[i], 1e-5) << offset << " " << kind;
        for (int64_t i = 0; i < 3; ++i)
          ASSERT_TRUE(got_lse[i] == want.lse[i] || std::fabs(got_lse[i] - want.lse[i]) < 1e-5) << offset << " " << kind;
        // masked_softmax has the same limits.
        std::vector<float> x(27, 0.5f), y(27);
        ASSERT_TRUE(ok(masked_softmax(view(x.data(), {1, 1, 3, 9}), view(y.data(), {1, 1, 3, 9}), s, {}, exec())));
      }
    }
  }
}

/// Windows and chunks of any length: they reach as far as there are keys.
TEST_P(Contract, WindowsOfTheLargestSize) {
  const float x[4] = {1, 2, 3, 4};
  for (const int64_t offset : {int64_t{-5}, int64_t{0}, int64_t{2}, int64_t{-1} << 30, int64_t{1} << 30}) {
    for (const int64_t length : {int64_t{1} << 40, kMost - 1, kMost}) {
      for (const int kind : {0, 1, 2, 3}) {
        float y[4], lse = 0;
        Scoring s;
        s.offset = offset;
        if (kind == 0 || kind == 3) s.window_left = length;
        if (kind == 1 || kind == 3) s.window_right = length;
        if (kind == 2) s.chunk = length;
        ASSERT_TRUE(ok(masked_softmax(view(x, {1, 1, 1, 4}), view(y, {1, 1, 1, 4}), s, view(&lse, {1, 1, 1}), exec())));
        const bool seen = kind != 2 || offset >= 0;  // positions below 0 are of another chunk
        EXPECT_EQ(lse > -kInf, seen) << offset << " " << length << " " << kind;
        for (const float p : y) EXPECT_EQ(p > 0, seen) << offset << " " << length << " " << kind;
      }
    }
  }
}

/// What is absent: outputs in every mixture that leaves something to write, and nothing at all without query rows.
TEST_P(Contract, OutputsMayBeAbsent) {
  Random random(seed() * 7000 + 11);
  for (const int64_t n_q : {0, 2}) {
    const Array<4> q(random, DType::kF32, {1, 2, n_q, 4}, Values::kOrdinary),
        k(random, DType::kF32, {1, 2, 1500, 4}, Values::kOrdinary);
    for (int given = 0; given < 8; ++given) {
      for (const bool shaped : {false, true}) {
        const Array<4> out = q.like(random), acc = q.like(random), all = q.like(random);
        const Array<3> lse(random, DType::kF32, {1, 2, n_q}), max = lse.like(random), sum = lse.like(random);
        AttentionProblem a;
        a.q = q.view, a.k = k.view, a.v = k.view;
        a.out = all.view;
        ASSERT_TRUE(run_attention(a, GetParam()).ok());
        a.out = {};
        if (shaped) a.out.shape = out.view.shape, a.out.stride = out.view.stride;
        if ((given & 1) != 0) a.out = out.view;
        if ((given & 2) != 0) a.lse = lse.view;
        if ((given & 4) != 0) a.acc = acc.view, a.max = max.view, a.sum = sum.view;
        const std::string text = std::to_string(given) + ", rows " + std::to_string(n_q) + (shaped ? ", shaped" : "");
        const bool good = given != 0 || n_q == 0;
        const Status whole = run_attention(a, GetParam()), tasks = run_tasks(a, GetParam(), random);
        EXPECT_EQ(whole.ok(), good) << text << ": " << whole.detail;
        EXPECT_EQ(tasks.ok(), good) << text << ": " << tasks.detail;
        if ((given & 1) != 0) {
          EXPECT_EQ(out.bits(), all.bits()) << text;
        }
      }
    }
  }
}

/// Pages that no row sees need not exist: hidden by a mask, or by the ring of the other store.
TEST_P(Contract, HiddenPagesNeedNotExist) {
  Random random(seed() * 7000 + 12);
  int64_t missing = 0, refused = 0;
  for (int64_t i = 0; i < cases(300); ++i) {
    const bool splits = random.one_in(6);
    const int64_t batch = random.integer(1, 2), heads = random.integer(1, 2), n_q = random.integer(1, splits ? 2 : 20),
                  n_kv = splits ? random.integer(1100, 2200) : random.integer(1, 300), dim = 4;
    const Array<4> q(random, random.storage(), {batch, heads, n_q, dim}, Values::kOrdinary),
        rows(random, random.storage(), {batch, 1, n_kv, dim}, Values::kOrdinary),
        out(random, DType::kF32, {batch, heads, n_q, dim}), want = out.like(random);
    const Array<3> lse(random, DType::kF32, {batch, heads, n_q}), want_lse = lse.like(random);
    const bool ring = random.one_in(4);
    const bool keys_ring = ring && random.coin();
    const int64_t capacity = random.integer(1, n_kv);
    const KvStorage k = store_kv(random, rows,
                                 keys_ring ? random.of({KvForm::kRingRows, KvForm::kRingPanels})
                                           : random.of({KvForm::kPagedRows, KvForm::kPagedPanels}),
                                 capacity);
    const KvStorage v = store_kv(random, rows, ring && !keys_ring ? KvForm::kRingRows : KvForm::kPagedRows, capacity);
    // What is hidden, by key: the same for all rows of a sequence, whatever says it; and where it is said by row, one
    // row may see what the others do not.
    std::vector<std::vector<bool>> hides(static_cast<size_t>(batch), std::vector<bool>(static_cast<size_t>(n_kv)));
    for (auto& sequence : hides) {
      for (int64_t t = 0; t < n_kv;) {
        const int64_t end = std::min(n_kv, t + random.integer(1, 150));
        const bool hide = random.coin();
        for (; t < end; ++t) sequence[static_cast<size_t>(t)] = hide;
      }
    }
    const int way = static_cast<int>(random.integer(0, 2));
    const Array<4> keep(random, DType::kU8, {batch, 1, 1, n_kv}), bias(random, random.storage(), {batch, 1, 1, n_kv});
    std::vector<uint8_t> bits(static_cast<size_t>(batch * ((n_kv + 7) / 8)), 0);
    for (const auto [b, t] : indices(batch, n_kv)) {
      const bool hide = hides[static_cast<size_t>(b)][static_cast<size_t>(t)];
      set_element_bits(keep.view.data, DType::kU8, keep.at({b, 0, 0, t}), hide ? 0 : 3);
      bias.set_at({b, 0, 0, t}, hide ? -kInf : 0.25f);
      uint8_t& byte = bits[static_cast<size_t>(b * ((n_kv + 7) / 8) + t / 8)];
      byte = static_cast<uint8_t>(byte | (hide ? 0 : 1 << t % 8));
    }
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.kv, a.out = want.view, a.lse = want_lse.view;
    if (way == 0) a.scoring.mask = keep.view;
    if (way == 1) a.scoring.bias = bias.view;
    if (way == 2) a.scoring.packed_mask = {bits.data(), n_kv, {(n_kv + 7) / 8, 0, 0}};
    a.scoring.causal = random.coin();
    ASSERT_TRUE(run_attention(a, GetParam()).ok());
    a.out = out.view, a.lse = lse.view;
    // Every page without a visible key goes. Another page that one row sees goes afterwards.
    const int64_t first = ring ? std::max<int64_t>(0, n_kv - (keys_ring ? k.kv.ring : v.kv.ring)) : 0;
    const auto visible = [&](int64_t b, int64_t t) {  // by the last row, which sees all that others see
      return t >= first && !hides[static_cast<size_t>(b)][static_cast<size_t>(t)];
    };
    int32_t* seen_entry = nullptr;
    for (const KvStorage* store : {&k, &v}) {
      if (store->kv.page_size == 0) continue;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t t = 0; t < n_kv; t += store->kv.page_size) {
          bool any = false;
          for (int64_t j = t; j < std::min(n_kv, t + store->kv.page_size); ++j) any = any || visible(b, j);
          if (any) {
            seen_entry = &store->page(b, t);
          } else {
            store->page(b, t) = -1;
            ++missing;
          }
        }
      }
    }
    for (const bool tasks : {false, true}) {
      out.fill_bytes(Guarded::kCanary), lse.fill_bytes(Guarded::kCanary);
      ASSERT_TRUE(ok(tasks ? run_tasks(a, GetParam(), random) : run_attention(a, GetParam())))
          << " case " << i << ": " << describe(a);
      ASSERT_EQ(out.bits(), want.bits()) << "case " << i << (tasks ? ", tasks: " : ": ") << describe(a);
      ASSERT_EQ(lse.bits(), want_lse.bits()) << "case " << i;
    }
    if (seen_entry == nullptr) continue;
    *seen_entry =
        random.of({-1, -7, std::numeric_limits<int32_t>::min(), 1 << 20, std::numeric_limits<int32_t>::max()});
    ++refused;
    out.fill_bytes(Guarded::kCanary), lse.fill_bytes(Guarded::kCanary);
    const Status s = run_attention(a, GetParam());
    ASSERT_EQ(s.code, Code::kRange) << s.detail << " case " << i << ": " << describe(a);
    ASSERT_NE(std::strstr(s.detail, ".block_table"), nullptr) << s.detail;
    ASSERT_TRUE(out.untouched() && lse.untouched()) << "case " << i;
    // One range over everything.
    Plan plan;
    Exec e = exec();
    const Status planned = attention_plan(a, &plan, e);
    if (!planned.ok()) continue;  // a plan may see it, too
    std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
    e.workspace = workspace.data(), e.workspace_bytes = workspace.size();
    const Status ranged = attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), e);
    ASSERT_EQ(ranged.code, Code::kRange) << ranged.detail << " case " << i << ": " << describe(a);
    ASSERT_TRUE(out.untouched() && lse.untouched()) << "case " << i;
  }
  EXPECT_GT(missing, 0);
  EXPECT_GT(refused, 0);
}

SIMDATTN_FOR_EACH_TARGET(Contract);

}  // namespace
}  // namespace simdattn::test
