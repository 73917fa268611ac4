// The rules on what selects keys.
#include <algorithm>

#include "lib/contract/dtypes.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Largest number of keys that positions are counted in.
constexpr int64_t kMaxKeys = int64_t{1} << 30;

template <class Options>
Status check_positions(const Options& o, int64_t batch) {
  SIMDATTN_REQUIRE(o.offset == kBottomRight || (o.offset >= -kMaxOffset && o.offset <= kMaxOffset), kRange,
                   "options.offset: must be kBottomRight or within +-2^30");
  SIMDATTN_REQUIRE(o.keys >= -1 && o.keys <= kMaxKeys, kRange,
                   "options.keys: must be -1, or in 0 .. the keys that there are");
  for (int64_t b = 0; b < batch; ++b) {
    SIMDATTN_REQUIRE(o.kv_length == nullptr || (o.kv_length[b] >= 0 && o.kv_length[b] <= kMaxKeys), kRange,
                     "options.kv_length: must be in 0 .. the keys that there are");
    SIMDATTN_REQUIRE(o.offsets == nullptr || (o.offsets[b] >= -kMaxOffset && o.offsets[b] <= kMaxOffset), kRange,
                     "options.offsets: must be within +-2^30");
  }
  return {};
}

}  // namespace

Status check_index_scores(const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights, const View<4>& scores,
                          const IndexOptions& options, const Exec& exec, size_t needed) {
  ByteSet eq, ek, ew, es, scales;
  SIMDATTN_REQUIRE(is_zero(options.reserved), kStructSize, "options.reserved: must be 0");
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_REQUIRE(is_enumerator(options.combine, IndexCombine::kEach), kRange, "options.combine: not an IndexCombine");
  SIMDATTN_REQUIRE(!options.scale || is_finite(*options.scale), kRange, "options.scale: must be finite");
  SIMDATTN_CHECK(check_view(q, Accept::kElements, kArgument<"q">, &eq));
  SIMDATTN_CHECK(check_kv(k, {}, Store::kK, &ek, &scales));
  SIMDATTN_CHECK(check_view(weights, Accept::kF32, kArgument<"weights">, &ew));
  SIMDATTN_CHECK(check_view(scores, Accept::kF32, kArgument<"scores">, &es));
  const auto [batch, heads, n, dim] = q.shape;
  const bool each = options.combine == IndexCombine::kEach;
  SIMDATTN_REQUIRE(heads >= 1, kShape, "q.shape[1]: there must be at least one head");
  SIMDATTN_REQUIRE(k.dim == dim, kShape, "k.dim != q.shape[3]");
  if (!can_multiply(options.arithmetic, dim)) return kTooManyForInt8;
  SIMDATTN_REQUIRE(k.heads == 1, kShape, "k.heads: must be 1");
  SIMDATTN_REQUIRE(k.batch == batch, kShape, "k.batch: must be q.shape[0]");
  SIMDATTN_REQUIRE(k.ring == 0, kRange, "k.ring: must be 0");
  SIMDATTN_REQUIRE(options.keys_per_row >= 1 && options.keys_per_row <= kMaxKeys, kRange,
                   "options.keys_per_row: must be in 1 .. 2^30");
  SIMDATTN_REQUIRE(
      options.block_size >= 1 && options.block_size <= kMaxKeys && options.block_size % options.keys_per_row == 0,
      kRange, "options.block_size: must be a multiple of keys_per_row in 1 .. 2^30");
  const int64_t rows = options.block_size / options.keys_per_row;  // of a candidate
  const int64_t candidates = steps_of(k.keys(), rows);
  SIMDATTN_REQUIRE(scores.shape[0] == batch && scores.shape[1] == (each ? heads : 1) && scores.shape[2] == n, kShape,
                   "scores.shape: must be [batch, 1, rows, candidates], with kEach [batch, heads, rows, candidates]");
  SIMDATTN_REQUIRE(options.first >= 0 && options.first <= candidates, kRange,
                   "options.first: must be in 0 .. the candidates that k has");
  SIMDATTN_REQUIRE(scores.shape[3] <= candidates - options.first, kShape,
                   "scores.shape[3]: more candidates than there are from options.first on");
  if (weights.data != nullptr) {
    SIMDATTN_REQUIRE(same_numbers(weights.shape, {batch, n, heads}), kShape,
                     "weights.shape: must be [q.shape[0], q.shape[2], q.shape[1]]");
    SIMDATTN_REQUIRE(options.combine == IndexCombine::kSum, kRange, "weights: given although there is no sum");
  }
  SIMDATTN_CHECK(check_positions(options, batch));
  if (es.empty()) return {};
  for (int64_t b = 0; b < batch && k.page_size > 0; ++b) {
    const int64_t keys = length_of(options, b, k.keys() * options.keys_per_row);
    const int64_t length = std::min(keys / options.keys_per_row, k.keys());
    for (int64_t t = 0; t < length; t += k.page_size) {
      const int64_t page = page_of(k, b, t);
      SIMDATTN_REQUIRE(page >= 0 && page < k.n_pages, kRange, page_sentence(Store::kK));
    }
  }
  const ByteSet lengths = ByteSet::of(options.kv_length, batch * 4), offsets = ByteSet::of(options.offsets, batch * 4);
  const ByteSet table = table_bytes(k);
  SIMDATTN_CHECK(check_apart<"scores", "q, k, k.scales, k.block_table, weights, options.kv_length, options.offsets">(
      es, {&eq, &ek, &scales, &table, &ew, &lengths, &offsets}));
  return check_workspace<"scores, q, k, k.scales, k.block_table, weights, options.kv_length, options.offsets">(
      exec, needed, {&es, &eq, &ek, &scales, &table, &ew, &lengths, &offsets});
}

Status check_top_k(const ConstView<4>& scores, int64_t k, const View<4>& lists, const TopKOptions& options,
                   const Exec& exec, size_t needed) {
  ByteSet es, el;
  SIMDATTN_REQUIRE(is_zero(options.reserved), kStructSize, "options.reserved: must be 0");
  SIMDATTN_CHECK(check_view(scores, Accept::kF32, kArgument<"scores">, &es));
  SIMDATTN_CHECK(check_view(lists, Accept::kIndex, kArgument<"lists">, &el));
  SIMDATTN_REQUIRE(lists.dtype == DType::kI32, kDType, "lists.dtype: must be kI32");
  SIMDATTN_REQUIRE(is_size(k), kRange, "k: must be in 0 .. 2^30 - 1");
  for (size_t i = 0; i < 3; ++i) {
    SIMDATTN_REQUIRE(lists.shape[i] == scores.shape[i], kShape,
                     "lists.shape: its first three sizes must be those of scores");
  }
  SIMDATTN_REQUIRE(k + options.tail <= lists.shape[3], kShape,
                   "k: more than lists.shape[3], of which options.tail takes one");
  SIMDATTN_REQUIRE(options.block_size >= 1 && options.block_size <= kMaxKeys, kRange,
                   "options.block_size: must be in 1 .. 2^30");
  SIMDATTN_REQUIRE(options.local_blocks >= 0, kRange, "options.local_blocks: must not be negative");
  // A tail may begin behind the last score.
  SIMDATTN_CHECK(check_positions(options, scores.shape[0]));
  const ByteSet lengths = ByteSet::of(options.kv_length, scores.shape[0] * 4);
  const ByteSet offsets = ByteSet::of(options.offsets, scores.shape[0] * 4);
  SIMDATTN_CHECK(check_apart<"lists", "scores, options.kv_length, options.offsets">(el, {&es, &lengths, &offsets}));
  if (el.empty()) return {};
  return check_workspace<"scores, lists, options.kv_length, options.offsets">(exec, needed,
                                                                              {&es, &el, &lengths, &offsets});
}

}  // namespace simdattn
