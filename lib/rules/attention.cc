// What is refused of an attention problem, and in which words. SIMDATTN_REQUIRE(condition, code, sentence) is one rule
// (views.h).
//
// ProblemBytes collects the bytes of the arrays, to find overlaps: next() is an empty place that a check fills, keep()
// keeps it under the array's name. Outputs come last, and each is compared with everything that is kept before it.
#include "lib/rules/attention.h"

#include <algorithm>

#include "lib/contract/dtypes.h"

namespace simdattn {
namespace {

/// Largest |stride| of a packed mask in bytes: products with sizes stay below 2^63.
constexpr int64_t kMaxBitStride = int64_t{1} << 32;

Status check_numbers(const float* numbers, int64_t n, const char* sentence) {
  for (int64_t h = 0; h < n && numbers != nullptr; ++h) {
    SIMDATTN_REQUIRE(is_finite(numbers[h]), kRange, sentence);
  }
  return {};
}

/// A bias or mask. Without data it is absent, or its data come later, as its shape tells. Sizes of 1 broadcast.
template <Text kName>
Status check_mask(const ConstView<4>& mask, Accept accept, const std::array<int64_t, 4>& wanted, Data data,
                  ProblemBytes* bytes) {
  if (mask.data == nullptr && (data == Data::kNeeded || mask.shape[0] == 0)) return {};
  SIMDATTN_CHECK(check_view(mask, accept, kArgument<kName>, bytes->next(), data));
  for (size_t i = 0; i < 4; ++i) {
    SIMDATTN_REQUIRE(
        mask.shape[i] == wanted[i] || mask.shape[i] == 1, kShape,
        kSentence<kName, ".shape: must be [batch, heads, n_q, n_kv]; sizes of 1 and strides of 0 broadcast">);
  }
  bytes->keep(kName.text);
  return {};
}

/// The lists, but for their entries: a run checks those (check_places).
Status check_lists(const AttentionProblem& a, Data data, ProblemBytes* bytes) {
  const KeyLists& lists = a.lists;
  if (lists.heads == 0) {
    SIMDATTN_REQUIRE(lists.data == nullptr, kShape, "lists.heads: 0 although there are data");
    return {};
  }
  SIMDATTN_REQUIRE(lists.heads == 1 || lists.heads == a.k.heads, kShape, "lists.heads: must be 0, 1 or k.heads");
  SIMDATTN_REQUIRE(is_size(lists.length), kShape, "lists.length: must be in 0 .. 2^30 - 1");
  SIMDATTN_REQUIRE(lists.block_size >= 1 && lists.block_size <= kMaxSize, kRange,
                   "lists.block_size: must be in 1 .. 2^30 - 1");
  const int64_t sizes[3] = {a.q.shape[0], lists.heads, a.q.shape[2]};
  if (lists.length == 0 || sizes[0] == 0 || sizes[2] == 0) return {};
  SIMDATTN_REQUIRE(lists.data != nullptr || data == Data::kLater, kNullPointer,
                   "lists.data: null although the lists have entries");
  ByteSet* const set = bytes->next();
  set->restart(lists.data, lists.length * 4);
  for (size_t i = 3; i-- > 0;) {
    SIMDATTN_REQUIRE(set->add(sizes[i], lists.stride[i], 4), kStride, "lists.stride: too large for 64-bit addresses");
  }
  if (lists.data == nullptr) set->clear();
  bytes->keep("lists");
  return {};
}

/// An output: its shape, and that it shares no byte with what is kept so far.
template <Text kName, int kRank>
Status check_output(const View<kRank>& view, const typename View<kRank>::Sizes& shape, Accept accept, Data data,
                    ProblemBytes* bytes) {
  if (view.data == nullptr && (data == Data::kNeeded || view.shape[kRank - 1] == 0)) return {};
  SIMDATTN_CHECK(check_view(view, accept, kArgument<kName>, bytes->next(), data));
  SIMDATTN_REQUIRE(same_numbers(view.shape, shape), kShape,
                   kRank == 4 ? kSentence<kName, ".shape: must be [q.shape[0], q.shape[1], q.shape[2], v.dim]">
                              : kSentence<kName, ".shape: must be the first three sizes of q">);
  SIMDATTN_CHECK(check_apart<kName>(*bytes->next(), *bytes));
  bytes->keep(kName.text);
  return {};
}

}  // namespace

Status check_scoring(const Scoring& s, int64_t sequences, const std::array<int64_t, 4>& shape, Data data,
                     ProblemBytes* bytes) {
  SIMDATTN_REQUIRE(s.struct_size == sizeof(Scoring), kStructSize,
                   "scoring.struct_size: inside another struct it is that of this version");
  SIMDATTN_REQUIRE(is_zero(s.reserved), kStructSize, "scoring.reserved: must be 0");
  SIMDATTN_REQUIRE(!s.scale || is_finite(*s.scale), kRange, "scoring.scale: must be finite");
  SIMDATTN_REQUIRE(is_finite(s.softcap) && !is_below_zero(s.softcap), kRange,
                   "scoring.softcap: must be finite and not negative");
  SIMDATTN_REQUIRE(s.offset == kBottomRight || (s.offset >= -kMaxOffset && s.offset <= kMaxOffset), kRange,
                   "scoring.offset: must be kBottomRight or within +-2^30");
  SIMDATTN_REQUIRE(s.window_left >= -1 && s.window_right >= -1, kRange,
                   "scoring.window_left, window_right: must be -1 (unbounded) or not negative");
  SIMDATTN_REQUIRE(s.chunk >= 0, kRange, "scoring.chunk: must not be negative");
  const auto [batch, heads, n_q, n_kv] = shape;
  SIMDATTN_CHECK(check_mask<"scoring.bias">(s.bias, Accept::kElements, shape, data, bytes));
  SIMDATTN_CHECK(check_mask<"scoring.mask">(s.mask, Accept::kMask, shape, data, bytes));
  if (s.packed_mask.data != nullptr || data == Data::kLater) {
    SIMDATTN_REQUIRE(s.packed_mask.columns >= 0 && s.packed_mask.columns <= n_kv, kRange,
                     "scoring.packed_mask.columns: must be in 0 .. n_kv");
    for (const int64_t stride : s.packed_mask.stride) {
      SIMDATTN_REQUIRE(stride >= -kMaxBitStride && stride <= kMaxBitStride, kStride,
                       "scoring.packed_mask.stride: must be within +-2^32 bytes");
    }
  } else {
    SIMDATTN_REQUIRE(s.packed_mask.columns == 0, kNullPointer,
                     "scoring.packed_mask.data: null although columns is not 0");
  }
  SIMDATTN_CHECK(check_numbers(s.alibi_slopes, heads, "scoring.alibi_slopes: must be finite"));
  SIMDATTN_CHECK(check_numbers(s.bias_scale, heads, "scoring.bias_scale: must be finite"));
  if (s.packed_mask.data != nullptr) {
    ByteSet* const set = bytes->next();
    set->restart(s.packed_mask.data, (s.packed_mask.columns + 7) / 8);
    for (size_t i = 3; i-- > 0 && !set->empty();) {
      if (shape[i] == 0 || !set->add(shape[i], s.packed_mask.stride[i])) set->clear();
    }
    bytes->keep("scoring.packed_mask");
  }
  bytes->keep("scoring.bias_scale", s.bias_scale, heads * 4);
  bytes->keep("scoring.alibi_slopes", s.alibi_slopes, heads * 4);
  bytes->keep("scoring.sinks", s.sinks, heads * 4);
  bytes->keep("scoring.offsets", s.offsets, sequences * 4);
  bytes->keep("scoring.prefix_end", s.prefix_end, sequences * 4);
  bytes->keep("scoring.kv_start", s.kv_start, sequences * 4);
  bytes->keep("scoring.kv_length", s.kv_length, sequences * 4);
  return {};
}

Status check_sequence(const Scoring& s, int64_t b, int64_t n_kv) {
  const int64_t length = length_of(s, b, n_kv);
  SIMDATTN_REQUIRE(length >= 0 && length <= n_kv, kRange, "scoring.kv_length: must be in 0 .. n_kv");
  SIMDATTN_REQUIRE(s.kv_start == nullptr || s.kv_start[b] >= 0, kRange, "scoring.kv_start: must not be negative");
  SIMDATTN_REQUIRE(s.prefix_end == nullptr || s.prefix_end[b] >= 0, kRange, "scoring.prefix_end: must not be negative");
  SIMDATTN_REQUIRE(s.offsets == nullptr || (s.offsets[b] >= -kMaxOffset && s.offsets[b] <= kMaxOffset), kRange,
                   "scoring.offsets: must be within +-2^30");
  SIMDATTN_REQUIRE(s.packed_mask.columns <= length, kRange,
                   "scoring.packed_mask.columns: more columns than keys of a sequence");
  return {};
}

Status check_attention(const AttentionProblem& a, Data data, AttentionSizes* sizes, ProblemBytes* bytes) {
  AttentionSizes& p = *sizes;
  SIMDATTN_REQUIRE(is_arithmetic(a.arithmetic), kRange, "arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_view(a.q, Accept::kElements, kArgument<"q">, bytes->next(), data));
  bytes->keep("q");
  const bool varlen = a.cu_q != nullptr;
  SIMDATTN_REQUIRE(varlen || a.cu_k == nullptr, kNullPointer, "cu_q: null although cu_k is given");
  KvUse use;
  use.varlen = a.cu_k != nullptr;
  use.data = data;
  ByteSet scales;
  SIMDATTN_CHECK(check_kv(a.k, use, Store::kK, bytes->next(), &scales));
  bytes->keep("k");
  bytes->keep("k.scales", scales);
  use.rows_only = true;
  SIMDATTN_CHECK(check_kv(a.v, use, Store::kV, bytes->next(), &scales));
  bytes->keep("v");
  bytes->keep("v.scales", scales);

  const auto [q_batch, heads, n_q, d_qk] = a.q.shape;
  p = {varlen ? a.n_sequences : q_batch, heads, a.k.heads, 0, d_qk, a.v.dim};
  SIMDATTN_REQUIRE(d_qk >= 1, kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(a.k.dim == p.d_qk, kShape, "k.dim != q.shape[3]");
  if (!can_multiply(a.arithmetic, d_qk)) return kTooManyForInt8;
  SIMDATTN_REQUIRE(p.kv_heads >= 1, kShape, "k.heads: there must be at least one key head");
  SIMDATTN_REQUIRE(a.v.heads == p.kv_heads, kShape, "v.heads != k.heads");
  SIMDATTN_REQUIRE(a.v.keys() == a.k.keys(), kShape,
                   a.v.length < 0 ? "v.capacity: not as many as k has" : "v.length: not as many as k has");
  p.group = group_of(p.heads, p.kv_heads);
  SIMDATTN_REQUIRE(p.group >= 0, kShape, "q.shape[1]: query heads must be a multiple of key heads");

  int64_t longest = a.k.keys();
  if (varlen) {
    SIMDATTN_CHECK(check_cu_q<"q", "q.shape[2]">(a.cu_q, a.n_sequences, q_batch, n_q));
    bytes->keep("cu_q", a.cu_q, (a.n_sequences + 1) * 4);
  }
  if (a.cu_k != nullptr) {
    SIMDATTN_REQUIRE(a.k.batch == 1 && a.v.batch == 1, kShape, "k.batch, v.batch: must be 1 with cu_k");
    longest = 0;
    SIMDATTN_CHECK(check_offsets<"cu_k", "the tokens of k">(a.cu_k, a.n_sequences, a.k.keys(), &longest));
    bytes->keep("cu_k", a.cu_k, (a.n_sequences + 1) * 4);
  } else {
    SIMDATTN_CHECK(check_cu_q_given(a, q_batch, a.k.batch));
    SIMDATTN_REQUIRE(a.k.batch == p.sequences, kShape, "k.batch: must be the number of sequences");
    SIMDATTN_REQUIRE(a.v.batch == p.sequences, kShape, "v.batch: must be the number of sequences");
  }
  if (a.k.page_size > 0) bytes->keep("k.block_table", table_bytes(a.k));
  if (a.v.page_size > 0) bytes->keep("v.block_table", table_bytes(a.v));
  SIMDATTN_CHECK(check_lists(a, data, bytes));
  SIMDATTN_CHECK(check_scoring(a.scoring, p.sequences, {q_batch, heads, n_q, longest}, data, bytes));

  const bool rows = q_batch > 0 && heads > 0 && n_q > 0;
  const bool output = a.out.data != nullptr || a.lse.data != nullptr || a.acc.data != nullptr;
  SIMDATTN_REQUIRE(output || !rows || data == Data::kLater, kNullPointer,
                   "out: null, and so are lse and the raw state: there is nothing to write");
  const bool raw = a.acc.data != nullptr || a.max.data != nullptr || a.sum.data != nullptr;
  SIMDATTN_REQUIRE(!raw || !rows || (a.acc.data != nullptr && a.max.data != nullptr && a.sum.data != nullptr),
                   kNullPointer, "acc, max, sum: the raw state is all three of them");
  const std::array<int64_t, 4> out_shape = {q_batch, heads, n_q, p.d_v};
  const std::array<int64_t, 3> row_shape = {q_batch, heads, n_q};
  SIMDATTN_CHECK(check_output<"out">(a.out, out_shape, Accept::kElements, data, bytes));
  SIMDATTN_CHECK(check_output<"lse">(a.lse, row_shape, Accept::kF32, Data::kNeeded, bytes));
  SIMDATTN_CHECK(check_output<"acc">(a.acc, out_shape, Accept::kF32, Data::kNeeded, bytes));
  SIMDATTN_CHECK(check_output<"max">(a.max, row_shape, Accept::kF32, Data::kNeeded, bytes));
  return check_output<"sum">(a.sum, row_shape, Accept::kF32, Data::kNeeded, bytes);
}

Status check_attention_memory(const ProblemBytes& bytes, const ByteSet& workspace, const ByteSet& partial) {
  SIMDATTN_CHECK(check_apart<"exec.workspace", "partial">(workspace, {&partial}));
  SIMDATTN_CHECK(check_apart<"exec.workspace">(workspace, bytes));
  return check_apart<"partial">(partial, bytes);
}

Status check_attention_workspace(const Exec& exec, size_t needed) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, kWorkspace, "exec.workspace: null; see Plan::workspace_bytes");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, kWorkspace, "exec.workspace_bytes: less than Plan::workspace_bytes");
  return {};
}

}  // namespace simdattn
