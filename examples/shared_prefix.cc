// Cascade attention: sequences that begin with the same prompt keep its keys and values once. One decode step is
// (1) the queries of all sequences, as rows of one tile, over the shared prefix: its bytes are read once,
// (2) each sequence's query over its own suffix,
// (3) attention_merge, which joins the two by their log-sum-exp.
// Checks itself against attention over prefix and suffix in one piece.
#include <simdattn/simdattn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "command_line.h"

namespace sa = simdattn;

namespace {

constexpr int64_t kSequences = 6, kHeads = 8, kKvHeads = 2, kDim = 64;
constexpr int64_t kPrefix = 700, kSuffix = 90;  // keys; the longest suffix
// The sequence's own tokens so far. One has only the prefix: its part is empty, with log-sum-exp -inf.
constexpr int32_t kLengths[kSequences] = {90, 1, 33, 0, 64, 17};

void check(const sa::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "shared_prefix: %s\n", status.detail);
  std::exit(1);
}

void attention(const sa::AttentionProblem& problem) {
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan));
  std::vector<std::byte> workspace(plan.workspace_bytes);
  check(sa::attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}));
}

std::vector<float> data(int64_t n, uint32_t state) {  // anything between -1 and 1
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x) f = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

/// [kSequences, kKvHeads, kPrefix + kSuffix, kDim]: the prefix repeated before every suffix.
std::vector<float> in_one_piece(const std::vector<float>& prefix, const std::vector<float>& suffix) {
  std::vector<float> whole;
  for (int64_t s = 0; s < kSequences; ++s) {
    for (int64_t h = 0; h < kKvHeads; ++h) {
      const auto p = prefix.begin() + h * kPrefix * kDim, t = suffix.begin() + (s * kKvHeads + h) * kSuffix * kDim;
      whole.insert(whole.end(), p, p + kPrefix * kDim);
      whole.insert(whole.end(), t, t + kSuffix * kDim);
    }
  }
  return whole;
}

constexpr char kUsage[] =
    "usage: shared_prefix\n"
    "Attends to a prefix that sequences share once for all of them, and compares with one call over prefix and suffix.";

int run(int argc, char** argv) {
  if (!CommandLine(kUsage).parse(argc, argv).empty()) throw std::runtime_error(kUsage);
  constexpr int64_t kRows = kSequences * kHeads;
  const auto q = data(kRows * kDim, 1);
  const auto prefix_k = data(kKvHeads * kPrefix * kDim, 2), prefix_v = data(kKvHeads * kPrefix * kDim, 3);
  const auto suffix_k = data(kSequences * kKvHeads * kSuffix * kDim, 4);
  const auto suffix_v = data(kSequences * kKvHeads * kSuffix * kDim, 5);

  // Queries and outputs are [kSequences, kHeads, 1, kDim] in memory. Strides show them also as one batch entry whose
  // rows are the sequences; the log-sum-exp is stored in that order, [kHeads, kSequences].
  const std::array<int64_t, 4> as_rows = {kRows * kDim, kDim, kHeads * kDim, 1};
  std::vector<float> parts(2 * kRows * kDim), lse(2 * kRows), out(kRows * kDim);
  // Part 0. Every row sees the whole prefix, so nothing is masked.
  attention({.q = {q.data(), sa::DType::kF32, {1, kHeads, kSequences, kDim}, as_rows},
             .k = sa::view(prefix_k.data(), {1, kKvHeads, kPrefix, kDim}),
             .v = sa::view(prefix_v.data(), {1, kKvHeads, kPrefix, kDim}),
             .out = {parts.data(), sa::DType::kF32, {1, kHeads, kSequences, kDim}, as_rows},
             .lse = sa::view(lse.data(), {1, kHeads, kSequences})});
  // Part 1.
  attention({.q = sa::view(q.data(), {kSequences, kHeads, 1, kDim}),
             .k = sa::view(suffix_k.data(), {kSequences, kKvHeads, kSuffix, kDim}),
             .v = sa::view(suffix_v.data(), {kSequences, kKvHeads, kSuffix, kDim}),
             .out = sa::view(parts.data() + kRows * kDim, {kSequences, kHeads, 1, kDim}),
             .lse = sa::view(lse.data() + kRows, {kSequences, kHeads, 1}, {1, kSequences, 1}),
             .scoring = {.kv_length = kLengths}});
  check(sa::attention_merge(
      sa::view(parts.data(), {2, 1, kHeads, kSequences, kDim}, {kRows * kDim, 0, kDim, kHeads * kDim, 1}),
      sa::view(lse.data(), {2, 1, kHeads, kSequences}),
      {out.data(), sa::DType::kF32, {1, kHeads, kSequences, kDim}, as_rows}));

  const auto k = in_one_piece(prefix_k, suffix_k), v = in_one_piece(prefix_v, suffix_v);
  std::vector<float> expected(out.size());
  int32_t lengths[kSequences];
  for (int64_t s = 0; s < kSequences; ++s) lengths[s] = static_cast<int32_t>(kPrefix) + kLengths[s];
  attention({.q = sa::view(q.data(), {kSequences, kHeads, 1, kDim}),
             .k = sa::view(k.data(), {kSequences, kKvHeads, kPrefix + kSuffix, kDim}),
             .v = sa::view(v.data(), {kSequences, kKvHeads, kPrefix + kSuffix, kDim}),
             .out = sa::view(expected.data(), {kSequences, kHeads, 1, kDim}),
             .scoring = {.kv_length = lengths}});

  float largest = 0;
  bool finite = true;  // std::max would lose a NaN
  for (size_t i = 0; i < out.size(); ++i) {
    largest = std::max(largest, std::fabs(out[i] - expected[i]));
    finite = finite && std::isfinite(out[i]);
  }
  // Some 800 values below 1 in an f32 average: an error of 1e-5 would be a hundred roundings.
  const bool good = finite && largest < 1e-5f;
  std::printf("%d sequences over a shared prefix of %d keys: largest difference from one piece %.2g: %s\n",
              static_cast<int>(kSequences), static_cast<int>(kPrefix), static_cast<double>(largest),
              good ? "good" : "BAD");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("shared_prefix", [&] { return run(argc, argv); });
}
