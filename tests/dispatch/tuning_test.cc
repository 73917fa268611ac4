// Each hint of dispatch/tuning.h changes something that can be counted, for the facts of every CPU family, on any
// machine: kernels and drivers are compiled again with counters (counted.h). A hint that nothing reads any more fails
// here.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "lib/contract/ukernels.h"
#include "simdattn/simdattn.h"
#include "tests/dispatch/counted.h"

namespace simdattn {
extern const UKernels kKernels_counted;  // lib/targets/table.cc with counters
}

namespace simdattn::test {
namespace {

int64_t half_steps = 0;  // calls of score_rows that take half a panel at once

const Target& counted_target() {
  static UKernels table = kKernels_counted;
  table.attention[0].kv[0].score_rows = [](const ScoreTile& a) {
    half_steps += a.keys_at_once < kPanelWidth;
    kKernels_counted.attention[0].kv[0].score_rows(a);
  };
  static const Target target = {"test/counted", &table, true, true, ""};
  return target;
}

/// One token: `group` rows for each of some key heads, keys and values in rows. The heads share memory, but a call
/// reads as many bytes as if they did not.
void decode(int64_t heads, int64_t group, int64_t keys, int64_t dim) {
  const std::vector<float> q(static_cast<size_t>(dim), 0.5f), kv(static_cast<size_t>((keys + 256) * dim), 0.25f);
  std::vector<float> out(static_cast<size_t>(heads * group * dim));
  AttentionProblem a;
  a.q = ConstView<4>(q.data(), DType::kF32, {1, heads * group, 1, dim}, {0, 0, dim, 1});
  a.k = a.v = ConstView<4>(kv.data(), DType::kF32, {1, heads, keys, dim}, {0, 0, dim, 1});
  a.out = view(out.data(), {1, heads * group, 1, dim});
  Exec e = {.target = &counted_target()};
  std::vector<char> workspace(attention_workspace(a, e));
  e.workspace = workspace.data();
  e.workspace_bytes = workspace.size();
  const Status s = attention(a, e);
  EXPECT_TRUE(s.ok()) << s.detail;
}

/// Rows of weights for each of some heads that share memory.
void weigh(int64_t rows) {
  constexpr int64_t kHeads = 33, kKeys = 4096, kDim = 64;  // 33 MiB
  const std::vector<float> p(static_cast<size_t>(rows * kKeys), 0.5f),
      v(static_cast<size_t>((kKeys + 256) * kDim), 1.0f);
  std::vector<float> out(static_cast<size_t>(kHeads * rows * kDim));
  const Status s = weighted_values(ConstView<4>(p.data(), DType::kF32, {1, kHeads, rows, kKeys}, {0, 0, kKeys, 1}),
                                   ConstView<4>(v.data(), DType::kF32, {1, kHeads, kKeys, kDim}, {0, 0, kDim, 1}),
                                   view(out.data(), {1, kHeads, rows, kDim}), {}, {.target = &counted_target()});
  EXPECT_TRUE(s.ok()) << s.detail;
}

/// 33 MiB of f32 are rotated out of place: 12 heads of 128 columns, of which the last 8 do not rotate.
std::vector<float> rotate() {
  constexpr int64_t kHeads = 12, kDim = 128, kTokens = (int64_t{33} << 20) / 4 / kDim / kHeads;
  std::vector<float> x(static_cast<size_t>(kHeads * kDim + kTokens));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 40.0f;
  std::vector<float> out(static_cast<size_t>(kTokens * kHeads * kDim));
  const ConstView<2> table(x.data(), DType::kF32, {kTokens, kDim / 2 - 4}, {1, 1});
  const Status s = rope(ConstView<4>(x.data(), DType::kF32, {1, kHeads, kTokens, kDim}, {0, kDim, 1, 1}), table, table,
                        {}, View<4>(out.data(), DType::kF32, {1, kHeads, kTokens, kDim}, {0, kDim, kHeads * kDim, 1}),
                        {}, {.target = &counted_target()});
  EXPECT_TRUE(s.ok()) << s.detail;
  EXPECT_EQ(counts.ordered, counts.streamed_bytes > 0 ? 1 : 0);
  return out;
}

int64_t count(const Tuning& t, const std::function<int64_t()>& body) {
  tuning = t;
  counts = {};
  half_steps = 0;
  return body();
}

/// A hint: its value alone in otherwise usual facts, a value that differs from the usual one, and what it changes.
struct Hint {
  const char* name;
  std::function<Tuning(const Tuning&)> alone;
  Tuning other;
  std::function<int64_t()> counted;
};

const std::vector<Hint>& hints() {
  static const std::vector<Hint> all = {
      {"l1_bytes",
       [](const Tuning& t) { return Tuning{.l1_bytes = t.l1_bytes}; },
       {.l1_bytes = 32 << 10},
       [] {
         decode(1, 1, 512, 160);  // two panels of f32 take 40 KiB
         return half_steps;
       }},
      {"memory_in_pages",
       [](const Tuning& t) { return Tuning{.memory_in_pages = t.memory_in_pages}; },
       {.memory_in_pages = true},
       [] {
         decode(33, 4, 2048, 64);  // values of four rows are prefetched on every CPU
         return counts.steps_back;
       }},
      {"memory_by_hardware",
       [](const Tuning& t) { return Tuning{.memory_by_hardware = t.memory_by_hardware}; },
       {.memory_by_hardware = true},
       [] {
         weigh(1);
         return counts.prefetches;
       }},
      {"stream_results",
       [](const Tuning& t) { return Tuning{.stream_results = t.stream_results}; },
       {.stream_results = true},
       [] {
         rotate();
         return counts.streamed_bytes;
       }},
      {"slow_bf16_pairs",
       [](const Tuning& t) { return Tuning{.slow_bf16_pairs = t.slow_bf16_pairs}; },
       {.slow_bf16_pairs = true},
       [] { return static_cast<int64_t>(isa_at(static_cast<int>(Isa::kAvx3Dl), tuning)); }},
  };
  // Another hint does not compile here: it wants a row above.
  const auto& [l1, pages, hardware, stream, slow] = tuning;
  (void)l1, (void)pages, (void)hardware, (void)stream, (void)slow;
  return all;
}

TEST(Tuning, EachHintChangesWhatCanBeCounted) {
  for (const Hint& hint : hints()) {
    EXPECT_NE(count({}, hint.counted), count(hint.other, hint.counted)) << hint.name << " is read by nothing";
  }
}

/// Keys and values of 2048 tokens are a MiB a head: what a call reads decides whether it prefetches. Of one row the
/// values follow later than the keys, whose rows a kernel transposes.
TEST(Tuning, LargeOperandsAreFetched) {
  const auto fetched = [](int64_t heads, int64_t group, int64_t keys) {
    return count({}, [&] {
      decode(heads, group, keys, 64);
      return counts.prefetches;
    });
  };
  EXPECT_EQ(fetched(1, 4, 1024), 0);
  EXPECT_GT(fetched(2, 4, 2048), 0);
  EXPECT_GT(fetched(10, 1, 2048) * 6, fetched(6, 1, 2048) * 10);
}

/// The value that a family gives to a hint arrives, whatever its other hints are.
TEST(Tuning, FactsOfEachFamilyArrive) {
  for (const CpuFamily& family : kCpuFamilies) {
    for (const Hint& hint : hints()) {
      EXPECT_EQ(count(family.tuning, hint.counted), count(hint.alone(family.tuning), hint.counted))
          << hint.name << " of " << family.name;
    }
  }
}

TEST(Tuning, HardwareFetchesValuesOfASingleRow) {
  const Tuning hardware = {.memory_by_hardware = true};
  EXPECT_EQ(count(hardware, [] { return weigh(1), counts.prefetches; }), 0);
  EXPECT_GT(count({}, [] { return weigh(1), counts.prefetches; }), 0);
  const int64_t usual = count({}, [] { return weigh(4), counts.prefetches; });
  EXPECT_GT(usual, 0);
  EXPECT_EQ(count(hardware, [] { return weigh(4), counts.prefetches; }), usual);
  // Keys are prefetched: what is left of a decode's prefetches.
  const auto attend = [] { return decode(33, 1, 2048, 64), counts.prefetches; };
  const int64_t keys = count(hardware, attend);
  EXPECT_GT(keys, 0);
  EXPECT_LT(keys, count({}, attend));
}

TEST(Tuning, ResultsThatStayInCachesAreNotStreamed) {
  const Tuning stream = {.stream_results = true};
  const std::vector<float> x(1 << 16, 1.0f);
  std::vector<float> out(x.size());
  const ConstView<2> angles(x.data(), DType::kF32, {512, 64}, {64, 1});
  const auto small = [&] {
    const Status s = rope(view(x.data(), {1, 1, 512, 128}), angles, angles, {}, view(out.data(), {1, 1, 512, 128}), {},
                          {.target = &counted_target()});
    EXPECT_TRUE(s.ok()) << s.detail;
    return counts.streamed_bytes;
  };
  EXPECT_EQ(count(stream, small), 0);
  std::vector<float> streamed, stored;
  const int64_t bytes = count(stream, [&] { return streamed = rotate(), counts.streamed_bytes; });
  EXPECT_EQ(bytes, static_cast<int64_t>(streamed.size() * sizeof(float)));
  EXPECT_EQ(count({}, [&] { return stored = rotate(), counts.streamed_bytes; }), 0);
  EXPECT_TRUE(streamed == stored);
}

}  // namespace
}  // namespace simdattn::test
