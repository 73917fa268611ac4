// The rules on arrays and stores, and the sentences that name them. Everything is checked before the first write.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "include/simdattn/simdattn.h"
#include "lib/contract/steps.h"
#include "lib/rules/overlap.h"

namespace simdattn {

/// Largest size of a dimension: positions and their differences fit 32 bits.
inline constexpr int64_t kMaxSize = (int64_t{1} << 30) - 1;
constexpr bool is_size(int64_t n) { return n >= 0 && n <= kMaxSize; }
/// Largest |offset|.
inline constexpr int64_t kMaxOffset = int64_t{1} << 30;

#define SIMDATTN_CHECK(...)                                                \
  do {                                                                     \
    if (const ::simdattn::Status status_ = (__VA_ARGS__); !status_.ok()) { \
      return status_;                                                      \
    }                                                                      \
  } while (false)

/// One rule. The sentence comes last: it may have commas.
#define SIMDATTN_REQUIRE(condition, code, ...)                                        \
  do {                                                                                \
    if (!(condition)) return ::simdattn::Status{::simdattn::Code::code, __VA_ARGS__}; \
  } while (false)

/// A text as a template argument.
template <size_t kSize>
struct Text {
  char text[kSize];
  constexpr Text(const char (&of)[kSize]) { std::copy_n(of, kSize, text); }
  constexpr operator std::string_view() const { return {text, kSize - 1}; }
};

template <Text... kParts>
inline constexpr auto kJoined = [] {
  std::array<char, (sizeof(kParts) + ...)> text{};
  char* end = text.data();
  for (const std::string_view part : {std::string_view(kParts)...}) end = std::copy(part.begin(), part.end(), end);
  return text;
}();
/// A sentence: one text after the other. A constant: no call puts sentences together.
template <Text... kParts>
inline constexpr const char* kSentence = kJoined<kParts...>.data();

/// How many names "a, b, c" has.
constexpr size_t names_in(std::string_view names) {
  return static_cast<size_t>(std::count(names.begin(), names.end(), ',')) + 1;
}
/// The first of them. std::string_view::find() is no constant expression in gcc 12 with -fsanitize=undefined.
constexpr std::string_view first_name(std::string_view names) {
  size_t n = 0;
  while (n < names.size() && names[n] != ',') ++n;
  return {names.data(), n};
}
/// A sentence about each name of such a list: what comes before it, the name, what comes after it. One lies behind the
/// other, since rows of a fixed length would be twice as large.
template <Text kSubject, Text kVerb, Text kNames, Text kAfter>
struct Sentences {
  static constexpr size_t kCount = names_in(kNames);
  static constexpr size_t kAround = sizeof(kSubject) + sizeof(kVerb) + sizeof(kAfter) - 3;
  char text[kCount * (kAround + 1) + sizeof(kNames) - 1 - 2 * (kCount - 1)] = {};
  uint16_t first[kCount] = {};

  consteval Sentences() {
    std::string_view names = kNames;
    char* end = text;
    for (uint16_t& at : first) {
      at = static_cast<uint16_t>(end - text);
      const std::string_view name = first_name(names);
      const std::string_view parts[] = {kSubject, kVerb, name, kAfter};
      for (const std::string_view part : parts) end = std::copy(part.begin(), part.end(), end);
      ++end;  // keeps the zero
      names.remove_prefix(name.size() == names.size() ? name.size() : name.size() + 2);
    }
  }
  template <class Index>
  const char* operator[](Index i) const {
    return text + first[i];
  }
};
/// That an output shares bytes with each array of a list.
template <Text kOutput, Text kNames>
inline constexpr Sentences<kOutput, ": overlaps ", kNames, ""> kOverlaps;

/// True for enumerators, which are numbered from 0 on. `last`: the last one.
template <class Enum>
constexpr bool is_enumerator(Enum e, Enum last) {
  return static_cast<uint32_t>(e) <= static_cast<uint32_t>(last);
}
constexpr bool is_arithmetic(Arithmetic a) { return is_enumerator(a, Arithmetic::kInt8); }
/// Of queries and keys in kInt8: sums of so many products, and 128 times the sum of a query, are below 2^31.
inline constexpr int64_t kMaxInt8Dim = 131072;
constexpr bool can_multiply(Arithmetic a, int64_t dim) { return a != Arithmetic::kInt8 || dim <= kMaxInt8Dim; }
inline constexpr Status kTooManyForInt8 = {Code::kShape, "q.shape[3]: kInt8 multiplies at most 131072 dimensions"};

/// The sentences about one array.
struct Argument {
  const char *null, *dtype, *shape, *stride, *range, *self_overlap;
};
template <Text kName>
inline constexpr Argument kArgument = {kSentence<kName, ".data: null although its shape is not empty">,
                                       kSentence<kName, ".dtype: not a type accepted here">,
                                       kSentence<kName, ".shape: every size must be in 0 .. 2^30 - 1">,
                                       kSentence<kName, ".stride: the last dimension must be contiguous (stride 1)">,
                                       kSentence<kName, ".stride: too large for 64-bit addresses">,
                                       kSentence<kName, ".stride: elements of an output must not coincide">};

inline ByteSet workspace_bytes(const Exec& exec, size_t needed) {
  return ByteSet::of(exec.workspace, static_cast<int64_t>(needed));
}
/// That `written`, the bytes of kOutput, shares none with arrays of which kNames are the names in the same order.
template <Text kOutput, Text kNames>
Status check_apart(const ByteSet& written, const ByteSet* const (&arrays)[names_in(kNames)]) {
  for (size_t i = 0; i < names_in(kNames); ++i) {
    SIMDATTN_REQUIRE(!share_bytes(*arrays[i], written), kOverlap, (kOverlaps<kOutput, kNames>[i]));
  }
  return {};
}

/// That the call has `needed` bytes of workspace, which share none with arrays of which kNames are the names.
template <Text kNames>
Status check_workspace(const Exec& exec, size_t needed, const ByteSet* const (&arrays)[names_in(kNames)]) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, kWorkspace,
                   "exec.workspace: null; the function ending in _workspace tells the size");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, kWorkspace,
                   "exec.workspace_bytes: less than the function ending in _workspace tells");
  return check_apart<"exec.workspace", kNames>(workspace_bytes(exec, needed), arrays);
}

/// kName: where sequences begin among n tokens, which are kTokens. `longest`: tokens of the longest sequence.
template <Text kName, Text kTokens>
Status check_offsets(const int32_t* cu, int64_t n_sequences, int64_t n, int64_t* longest) {
  SIMDATTN_REQUIRE(cu[0] == 0, kRange, kSentence<kName, "[0]: must be 0">);
  SIMDATTN_REQUIRE(cu[n_sequences] == n, kShape, kSentence<kName, ": its last entry must be ", kTokens>);
  int64_t shortest = 0;  // negative if an entry is below the one before it; without a branch a sequence
  for (int64_t s = 0; s < n_sequences; ++s) {
    const int64_t tokens = int64_t{cu[s + 1]} - cu[s];
    shortest = std::min(shortest, tokens);
    *longest = std::max(*longest, tokens);
  }
  SIMDATTN_REQUIRE(shortest == 0, kRange, kSentence<kName, ": must not decrease">);
  return {};
}
/// The same of cu_q, the sequences of the one batch entry of kName.
template <Text kName, Text kTokens>
Status check_cu_q(const int32_t* cu_q, int64_t n_sequences, int64_t batch, int64_t n) {
  SIMDATTN_REQUIRE(is_size(n_sequences), kRange, "n_sequences: must be in 0 .. 2^30 - 1");
  SIMDATTN_REQUIRE(batch == 1, kShape, kSentence<kName, ".shape[0]: must be 1 with cu_q">);
  int64_t longest = 0;
  return check_offsets<"cu_q", kTokens>(cu_q, n_sequences, n, &longest);
}

/// That cu_q was not forgotten, where another argument has `given` sequences, and the batch has not.
template <class Problem>
Status check_cu_q_given(const Problem& a, int64_t batch, int64_t given) {
  SIMDATTN_REQUIRE(a.cu_q != nullptr || given == batch || given == 0 || given != a.n_sequences, kNullPointer,
                   "cu_q: null although there are n_sequences");
  return {};
}

/// Which types an array may have: bit size_t(DType) of those.
enum class Accept : uint8_t {
  kF32 = 1 << static_cast<int>(DType::kF32),
  kElements = 1 << static_cast<int>(DType::kBF16) | 1 << static_cast<int>(DType::kF16) | kF32,
  kIndex = 1 << static_cast<int>(DType::kI32) | 1 << static_cast<int>(DType::kI64),
  kMask = 1 << static_cast<int>(DType::kU8)
};

/// Where an array without data is legal: a plan is made from shapes alone.
enum class Data : uint8_t { kNeeded, kLater };

/// Checks a view on its own and computes the bytes that it touches: none if it is empty or its data comes later. Empty
/// views pass with any pointer, but their strides must not reach further than those of others: drivers multiply them.
/// What is not const is an output.
template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, ByteSet* bytes,
                  Data data = Data::kNeeded) {
  constexpr size_t kLast = kRank - 1;
  bytes->clear();
  const auto type = static_cast<uint32_t>(v.dtype);
  if (type >= 8 || (static_cast<unsigned>(accept) >> type & 1) == 0) return {Code::kDType, argument.dtype};
  // Sizes are looked at one by one: put together, compilers load two at once (see same_numbers).
  bool empty = false;
  for (size_t i = 0; i < kRank; ++i) {
    if (!is_size(v.shape[i])) return {Code::kShape, argument.shape};
    empty = empty || v.shape[i] == 0;
  }
  if (!empty) {
    if (v.data == nullptr && data == Data::kNeeded) return {Code::kNullPointer, argument.null};
    if (v.stride[kLast] != 1 && v.shape[kLast] > 1) return {Code::kStride, argument.stride};
  }
  const int64_t size = dtype_bytes(v.dtype);
  bytes->restart(v.data, v.shape[kLast] * size);  // where it is: no copy (see same_numbers)
  bool reaches = true;
  for (size_t i = kLast; i-- > 0;) reaches = reaches && (v.shape[i] == 0 || bytes->add(v.shape[i], v.stride[i], size));
  const bool coincide = reaches && !empty && !kConst && self_overlap(*bytes);
  if (!reaches || coincide || empty || v.data == nullptr) bytes->clear();
  if (!reaches) return {Code::kStride, argument.range};
  return coincide ? Status{Code::kStride, argument.self_overlap} : Status{};
}

/// operator== of std::array calls memcmp, which loads several numbers at once. A CPU forwards a store that is not yet
/// in the cache to a load of the same bytes, but not several stores to one wider load, which waits for all of them. A
/// caller has just stored these numbers one by one. So nothing here copies or compares them as vectors.
template <class T, size_t kSize>
bool same_numbers(const std::array<T, kSize>& a, const std::array<T, kSize>& b) {
  T difference = 0;
  for (size_t i = 0; i < kSize; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}
/// Of `reserved`.
template <class T, size_t kSize>
bool is_zero(const std::array<T, kSize>& numbers) {
  return same_numbers(numbers, {});
}

/// Query heads per key head, or -1 if they do not divide. Checked sizes fit 32 bits, whose division takes half the
/// time.
inline int64_t group_of(int64_t heads, int64_t kv_heads) {
  const int64_t group = static_cast<uint32_t>(heads) / static_cast<uint32_t>(kv_heads);
  return group * kv_heads == heads ? group : -1;
}

/// That `out` is x (an in-place call), or shares no byte with it.
template <int kRank>
Status check_in_place(const ConstView<kRank>& x, const View<kRank>& out, const ByteSet& x_bytes,
                      const ByteSet& out_bytes) {
  const bool is_x = x.data == out.data && x.dtype == out.dtype && same_numbers(x.stride, out.stride);
  SIMDATTN_REQUIRE(is_x || !share_bytes(out_bytes, x_bytes), kOverlap, "out: overlaps x without being x");
  return {};
}
/// `x`, and `out` of its shape and in its place or elsewhere.
template <int kRank>
Status check_rows(const ConstView<kRank>& x, const View<kRank>& out, Accept accept, ByteSet* x_bytes,
                  ByteSet* out_bytes) {
  SIMDATTN_CHECK(check_view(x, accept, kArgument<"x">, x_bytes));
  SIMDATTN_CHECK(check_view(out, accept, kArgument<"out">, out_bytes));
  SIMDATTN_REQUIRE(same_numbers(x.shape, out.shape), kShape, "out.shape != x.shape");
  return check_in_place(x, out, *x_bytes, *out_bytes);
}

// ---- Stores of keys and values --------------------------------------------------------------------------------------

/// Which argument a store is: sentences begin with its name.
enum class Store : uint8_t { kK, kV, kKv };
#define SIMDATTN_OF_STORE(store, rule) (store == Store::kK ? "k" rule : store == Store::kV ? "v" rule : "kv" rule)
constexpr const char* page_sentence(Store store) {
  return SIMDATTN_OF_STORE(store, ".block_table: a page that the call touches is outside 0 .. n_pages-1");
}

/// How a call uses a store.
struct KvUse {
  bool rows_only = false;      // panels are not accepted
  bool varlen = false;         // a tensor of many sequences
  bool output = false;         // tokens must not coincide
  bool output_scales = false;  // nor must scales
  bool by_place = false;       // pages are named by the caller, not by the table
  Data data = Data::kNeeded;
};

/// Checks a store on its own, and computes its bytes and those of its scales.
Status check_kv(const ConstKv& kv, const KvUse& use, Store store, ByteSet* bytes, ByteSet* scales);

/// The bytes of the block table; none without pages.
ByteSet table_bytes(const ConstKv& kv);

/// Entries between the tables of two sequences.
template <bool kConst>
int64_t table_stride(const BasicKv<kConst>& kv) {
  return kv.block_table_stride >= 0 ? kv.block_table_stride : steps_of(kv.capacity, kv.page_size);
}

/// The page of `token`, or a negative number.
template <bool kConst>
int64_t page_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  return kv.block_table[sequence * table_stride(kv) + token / kv.page_size];
}

/// All that says where tokens of a store are, but for addresses. A member of BasicKv not named here does not compile.
inline auto places_of(const ConstKv& kv) {
  const auto& [struct_size, data, type, layout, batch, heads, capacity, length, dim, batch_stride, head_stride,
               token_stride, scales, scale_batch_stride, scale_head_stride, scale_token_stride, block_table,
               block_table_stride, page_size, n_pages, ring, reserved] = kv;
  return std::tie(type, layout, batch, heads, capacity, batch_stride, head_stride, token_stride, scale_batch_stride,
                  scale_head_stride, scale_token_stride, block_table_stride, page_size, n_pages, ring);
}

// ---- What drivers ask of views that passed --------------------------------------------------------------------------

/// The stride of a dimension, 0 where it has one element: what such a stride holds means nothing and may be anything.
template <int kRank, bool kConst>
int64_t step_of(const BasicView<kRank, kConst>& v, size_t dimension) {
  return v.shape[dimension] == 1 ? 0 : v.stride[dimension];
}

/// Keys of sequence b, which are `all` where `o`, a Scoring or the options of a function, names none.
template <class Options>
int64_t length_of(const Options& o, int64_t b, int64_t all) {
  if constexpr (requires { o.keys; }) all = o.keys == -1 ? all : o.keys;
  return o.kv_length != nullptr ? o.kv_length[b] : all;
}
/// The position of the first of the `rows` query rows of sequence b, which has `length` keys.
template <class Options>
int64_t first_position(const Options& o, int64_t b, int64_t length, int64_t rows) {
  return o.offsets != nullptr ? o.offsets[b] : o.offset == kBottomRight ? length - rows : o.offset;
}

/// True if there is no element. The data may then be null, to which nothing may be added.
template <int kRank, bool kConst>
bool is_empty(const BasicView<kRank, kConst>& v) {
  return std::find(v.shape.begin(), v.shape.end(), 0) != v.shape.end();
}

}  // namespace simdattn
