/* simdattn: types and options, the same for C (from C99 on) and C++ (from C++17 on).
 *
 * Include <simdattn/simdattn.h> (C++) or <simdattn/simdattn_c.h> (C). Both compile this file, so an option is written
 * and explained once. SIMDATTN_STRUCT(simdattn_scoring, Scoring) begins simdattn::Scoring in C++ and simdattn_scoring
 * in C. SIMDATTN_DEFAULT(x) is the member's default in C++; in C, SIMDATTN_SCORING_INIT gives the same defaults.
 *
 * Structs begin with their size, so that they can grow. A newer library gives the members that an older caller lacks
 * their defaults. An older library takes a larger struct if all bytes beyond its own are 0. Refused are a size of 0 (a
 * struct that was only cleared) and any other size of a plan. A struct inside another one has this version's size and
 * grows into `reserved`, which must stay 0.
 */
#ifndef SIMDATTN_TYPES_H_
#define SIMDATTN_TYPES_H_

#include <stddef.h>
#include <stdint.h>

/* ---- Version ----------------------------------------------------------------------------------------------------- */

/** Version of these headers, by SemVer. version() is that of the library that was linked. */
#define SIMDATTN_VERSION_MAJOR 0
/** Minor version of these headers. */
#define SIMDATTN_VERSION_MINOR 3
/** Patch version of these headers. */
#define SIMDATTN_VERSION_PATCH 0

/* Marks the functions that a shared library exports. It exports nothing else. */
#if defined(SIMDATTN_SHARED_LIBRARY) && (defined(_WIN32) || defined(__CYGWIN__))
#if defined(SIMDATTN_BUILDING)
#define SIMDATTN_API __declspec(dllexport)
#else
#define SIMDATTN_API __declspec(dllimport)
#endif
#elif defined(SIMDATTN_SHARED_LIBRARY) && defined(__GNUC__)
#define SIMDATTN_API __attribute__((visibility("default")))
#else
#define SIMDATTN_API
#endif

#ifdef __cplusplus

#include <array>
#include <type_traits>
#include <utility>

#define SIMDATTN_STRUCT(c_name, cpp_name) struct cpp_name
#define SIMDATTN_DEFAULT(value) = value
#define SIMDATTN_ARRAY(type, name, n) std::array<type, n> name

#else

#include <stdbool.h>

#define SIMDATTN_STRUCT(c_name, cpp_name) \
  typedef struct c_name c_name;           \
  struct c_name
#define SIMDATTN_DEFAULT(value)
#define SIMDATTN_ARRAY(type, name, n) type name[n]

#endif

/* ---- Enumerations ------------------------------------------------------------------------------------------------ */

#ifdef __cplusplus
namespace simdattn {

/** What was wrong with a call. A call that failed has written nothing. */
enum class Code : int32_t {
  kOk = 0,          /* everything was done */
  kNullPointer = 1, /* a pointer is null although its size is not zero */
  kShape = 2,       /* shapes are negative, zero where forbidden, too large, or disagree */
  /** The last dimension is not contiguous, or elements of an output coincide. */
  kStride = 3,
  kDType = 4,   /* the type is not accepted there */
  kOverlap = 5, /* an output shares bytes with another argument */
  /** A number is outside its range (scale, softcap, a position, a table entry). */
  kRange = 6,
  kWorkspace = 7, /* a workspace is null or too small */
  kTarget = 8,    /* unknown target, or one that this CPU cannot run */
  /** No version's struct has this size, or `reserved` is not 0. */
  kStructSize = 9,
  /** Lengths or shapes are not those that the plan was made for. */
  kStalePlan = 10,
};

/** Types of elements of arrays. */
enum class DType : int32_t {
  kF32 = 0,  /* IEEE 754 binary32 */
  kBF16 = 1, /* the upper half of an f32 */
  kF16 = 2,  /* IEEE 754 binary16 */
  kU8 = 3,   /* masks */
  kI32 = 4,  /* positions */
  kI64 = 5,  /* positions */
};

/** How a key or value is stored in a KV cache. */
enum class KvType : int32_t {
  kF32 = 0,  /* IEEE 754 binary32 */
  kBF16 = 1, /* the upper half of an f32 */
  kF16 = 2,  /* IEEE 754 binary16 */
  /** int8 in -127 .. 127, times one f32 scale per token and head (Kv::scales). */
  kInt8 = 3,
  /** 8-bit floating point (e4m3fn): 4 exponent bits, bias 7, largest 448, no infinity. Times a scale in Kv::scales,
   *  which tokens and heads may share; without scales times 1. */
  kFp8E4M3 = 4,
  kFp8E5M2 = 5, /* the same with 5 exponent bits: the upper byte of an f16 */
  /** Blocks of 32 as in ggml (llama.cpp), 34 bytes: an f16 scale d and 32 integers of 8 bits. */
  kQ8_0 = 6,
  /** Blocks of 32 as in ggml, 18 bytes: an f16 scale d and 16 bytes of nibbles, the low ones first, each times d after
   *  8 is subtracted. */
  kQ4_0 = 7,
  /** Blocks of 32 as in ggml, 20 bytes: f16 d and m, then nibbles, each times d, plus m. This type and the next three
   *  are read only, in rows: kv_append and kv_shift refuse them. */
  kQ4_1 = 8,
  /** Blocks of 32 as in ggml, 22 bytes: f16 d, the fifth bits, nibbles; each times d after 16 is subtracted. */
  kQ5_0 = 9,
  /** Blocks of 32 as in ggml, 24 bytes: f16 d and m, the fifth bits, nibbles; each times d, plus m. */
  kQ5_1 = 10,
  /** Blocks of 32 as in ggml, 18 bytes: f16 d, nibbles; each chooses one of 16 integers, times d. */
  kIq4Nl = 11,
};

/** How the tokens of a head lie. Values are always rows. */
enum class KvLayout : int32_t {
  kRows = 0,   /* token by token: row_bytes(type, dim) each */
  kPanels = 1, /* keys only; see kPanelWidth */
};

/** How index_scores() joins the heads of a row. */
enum class IndexCombine : int32_t {
  kSum = 0,  /* the sum of weight times score (DSA) */
  kMax = 1,  /* the largest score (MSA in transformers) */
  kEach = 2, /* not at all: each head has a row of its own (MSA in MiniMax's kernels) */
};

/** What multiplies. It changes the result, so it is part of a problem and never chosen silently; arithmetic_for() says
 *  what is fastest here. */
enum class Arithmetic : int32_t {
  kF32 = 0, /* f32 products, f32 sums */
  /** Everything is rounded to bf16 before it is multiplied; f32 sums in the order of AMX's TDPBF16PS. */
  kBF16 = 1,
  /** 8-bit integers with a scale per query, key and value row; sums are exact; d_qk at most 131072. */
  kInt8 = 2,
};

/** How a token changes the state of a linear attention: see LinearAttentionProblem. */
enum class LinearRule : int32_t {
  kLinear = 0,     /* S += k v^T */
  kGated = 1,      /* S decays first (GLA, RetNet, Mamba-2's scalar form) */
  kDelta = 2,      /* S += beta k (v - k^T S)^T (DeltaNet) */
  kGatedDelta = 3, /* both (gated DeltaNet; with a decay per channel KDA) */
};

/** Which head of fewer ones goes with head h of more. */
enum class HeadOrder : int32_t {
  /** h / G: neighbours share one, as everywhere else in this library (transformers, fla, ONNX). */
  kNeighbours = 0,
  kRepeated = 1, /* h % heads: repeated as a whole (ggml) */
};

/** What happens to a row x before it is rotated; r = 1 / sqrt(mean of x^2 + epsilon). */
enum class RowNorm : int32_t {
  kNone = 0,       /* nothing */
  kRms = 1,        /* x * r * weight (Qwen3, GLM) */
  kRmsPlusOne = 2, /* x * r * (1 + weight) (Gemma 3) */
};

/** Which two dimensions of r rotated ones form pair i. */
enum class RopePairing : int32_t {
  kInterleaved = 0, /* (2i, 2i+1): GPT-J, Meta Llama, ONNX interleaved=1 */
  /** (i, i + r/2): GPT-NeoX, Hugging Face rotate_half, ONNX default. */
  kHalfSplit = 1,
};

/** How the inverse frequencies inv_i of a table come from rope_theta; r = 2 * columns, f = factor, i = 0 .. r/2 - 1.
 *  The names are those of "rope_type" in model configuration files; "mrope" is kDefault with mrope_section. */
enum class RopeType : int32_t {
  kDefault = 0, /* rope_theta^(-2i/r) (Su et al. 2021) */
  kLinear = 1,  /* default / f */
  /** Default / f for i < floor(partial_rotary_factor * r/2), 0 from there: no rotation (Gemma). */
  kProportional = 2,
  /** rope_theta * (f L/M - (f-1))^(r/(r-2)) in place of rope_theta, L = max(seq_len, M),
   *  M = max_position_embeddings (dynamic NTK). */
  kDynamic = 3,
  kYarn = 4, /* Peng et al. 2023; needs original_max_position_embeddings */
  /** Llama 3.1; f = 8 and original_max_position_embeddings = 8192 unless given. */
  kLlama3 = 5,
  /** Default / long_factor[i] if seq_len > original_max_position_embeddings, else / short_factor[i]. */
  kLongRope = 6,
};

/** Which position axis a column follows when positions have several (time, height, width). */
enum class MropeLayout : int32_t {
  /** The first mrope_section[0] columns follow axis 0, the next [1] axis 1, ... (Qwen2-VL). */
  kContiguous = 0,
  /** Three axes: column i follows axis 1 if i % 3 == 1 and i < 3 * mrope_section[1], axis 2 if i % 3 == 2 and
   *  i < 3 * mrope_section[2], else axis 0 ("mrope_interleaved", Qwen3-VL). */
  kInterleaved = 1,
  /** Contiguous, and each section is a table of its own with r = 2 * its columns: frequencies start again (vision
   *  encoders: {r/4, r/4} with axes y, x). kDefault and kLinear only. */
  kAxial = 2,
};

}  // namespace simdattn
typedef simdattn::Code simdattn_code;
typedef simdattn::DType simdattn_dtype;
typedef simdattn::KvType simdattn_kv_type;
typedef simdattn::KvLayout simdattn_kv_layout;
typedef simdattn::IndexCombine simdattn_index_combine;
typedef simdattn::Arithmetic simdattn_arithmetic;
typedef simdattn::RowNorm simdattn_row_norm;
typedef simdattn::LinearRule simdattn_linear_rule;
typedef simdattn::HeadOrder simdattn_head_order;
typedef simdattn::RopePairing simdattn_rope_pairing;
typedef simdattn::RopeType simdattn_rope_type;
typedef simdattn::MropeLayout simdattn_mrope_layout;
namespace simdattn {

#else

/* The same enumerations in C, numbered from 0 in the same order. */
typedef int32_t simdattn_code;
enum {
  SIMDATTN_OK,
  SIMDATTN_ERROR_NULL_POINTER,
  SIMDATTN_ERROR_SHAPE,
  SIMDATTN_ERROR_STRIDE,
  SIMDATTN_ERROR_DTYPE,
  SIMDATTN_ERROR_OVERLAP,
  SIMDATTN_ERROR_RANGE,
  SIMDATTN_ERROR_WORKSPACE,
  SIMDATTN_ERROR_TARGET,
  SIMDATTN_ERROR_STRUCT_SIZE,
  SIMDATTN_ERROR_STALE_PLAN
};
typedef int32_t simdattn_dtype;
enum {
  SIMDATTN_DTYPE_F32,
  SIMDATTN_DTYPE_BF16,
  SIMDATTN_DTYPE_F16,
  SIMDATTN_DTYPE_U8,
  SIMDATTN_DTYPE_I32,
  SIMDATTN_DTYPE_I64
};
typedef int32_t simdattn_kv_type;
enum {
  SIMDATTN_KV_TYPE_F32,
  SIMDATTN_KV_TYPE_BF16,
  SIMDATTN_KV_TYPE_F16,
  SIMDATTN_KV_TYPE_INT8,
  SIMDATTN_KV_TYPE_FP8_E4M3,
  SIMDATTN_KV_TYPE_FP8_E5M2,
  SIMDATTN_KV_TYPE_Q8_0,
  SIMDATTN_KV_TYPE_Q4_0,
  SIMDATTN_KV_TYPE_Q4_1,
  SIMDATTN_KV_TYPE_Q5_0,
  SIMDATTN_KV_TYPE_Q5_1,
  SIMDATTN_KV_TYPE_IQ4_NL
};
typedef int32_t simdattn_kv_layout;
enum { SIMDATTN_KV_LAYOUT_ROWS, SIMDATTN_KV_LAYOUT_PANELS };
typedef int32_t simdattn_index_combine;
enum { SIMDATTN_INDEX_COMBINE_SUM, SIMDATTN_INDEX_COMBINE_MAX, SIMDATTN_INDEX_COMBINE_EACH };
typedef int32_t simdattn_arithmetic;
enum { SIMDATTN_ARITHMETIC_F32, SIMDATTN_ARITHMETIC_BF16, SIMDATTN_ARITHMETIC_INT8 };
typedef int32_t simdattn_row_norm;
enum { SIMDATTN_ROW_NORM_NONE, SIMDATTN_ROW_NORM_RMS, SIMDATTN_ROW_NORM_RMS_PLUS_ONE };
typedef int32_t simdattn_linear_rule;
enum {
  SIMDATTN_LINEAR_RULE_LINEAR,
  SIMDATTN_LINEAR_RULE_GATED,
  SIMDATTN_LINEAR_RULE_DELTA,
  SIMDATTN_LINEAR_RULE_GATED_DELTA
};
typedef int32_t simdattn_head_order;
enum { SIMDATTN_HEAD_ORDER_NEIGHBOURS, SIMDATTN_HEAD_ORDER_REPEATED };
typedef int32_t simdattn_rope_pairing;
enum { SIMDATTN_ROPE_PAIRING_INTERLEAVED, SIMDATTN_ROPE_PAIRING_HALF_SPLIT };
typedef int32_t simdattn_rope_type;
enum {
  SIMDATTN_ROPE_TYPE_DEFAULT,
  SIMDATTN_ROPE_TYPE_LINEAR,
  SIMDATTN_ROPE_TYPE_PROPORTIONAL,
  SIMDATTN_ROPE_TYPE_DYNAMIC,
  SIMDATTN_ROPE_TYPE_YARN,
  SIMDATTN_ROPE_TYPE_LLAMA3,
  SIMDATTN_ROPE_TYPE_LONG_ROPE
};
typedef int32_t simdattn_mrope_layout;
enum { SIMDATTN_MROPE_LAYOUT_CONTIGUOUS, SIMDATTN_MROPE_LAYOUT_INTERLEAVED, SIMDATTN_MROPE_LAYOUT_AXIAL };

#endif

/* ---- Element and storage types ----------------------------------------------------------------------------------- */

#ifdef __cplusplus

/// The upper half of an f32: 8 exponent bits, 7 stored significand bits.
struct bf16 {
  uint16_t bits;  // sign, exponent and significand, from the highest bit
};
/// IEEE 754 binary16.
struct f16 {
  uint16_t bits;  // sign, exponent and significand, from the highest bit
};

/// The DType of float, bf16, f16, uint8_t, bool (kU8), int32_t or int64_t, const or not. Other types do not compile.
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return DType::kF32;
  else if constexpr (std::is_same_v<U, bf16>) return DType::kBF16;
  else if constexpr (std::is_same_v<U, f16>) return DType::kF16;
  else if constexpr (std::is_same_v<U, uint8_t> || std::is_same_v<U, bool>) return DType::kU8;
  else if constexpr (std::is_same_v<U, int32_t>) return DType::kI32;
  else {
    static_assert(std::is_same_v<U, int64_t>, "not an element type of simdattn");
    return DType::kI64;
  }
}
/// dtype_of() as a constant.
template <class T>
inline constexpr DType kDTypeOf = dtype_of<T>();

/// The storage of an ordinary array of this type. Of another type than f32, bf16 and f16: a number that every call
/// refuses.
constexpr KvType kv_type_of(DType t) {
  return t == DType::kF32    ? KvType::kF32
         : t == DType::kBF16 ? KvType::kBF16
         : t == DType::kF16  ? KvType::kF16
                             : static_cast<KvType>(-1);
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

/// An array of `kRank` dimensions: data, type, shape and strides; it owns nothing. `data == nullptr` means "absent"
/// where an argument is optional. Sizes are 0 or more, strides any number. A call that takes a view says which types
/// and shapes it accepts. C: simdattn_view1 .. 5 and simdattn_const_view1 .. 5, with these members.
template <int kRank, bool kConst>
struct BasicView {
  using Pointer = std::conditional_t<kConst, const void*, void*>;  // const void* of a ConstView
  using Sizes = std::array<int64_t, static_cast<size_t>(kRank)>;   // one number for each dimension
  Pointer data = nullptr;     // the element whose indices are all 0, aligned as its type needs
  DType dtype = DType::kF32;  // type of the elements
  Sizes shape{};              // elements in each dimension
  Sizes stride{};             // elements from one index to the next, in each dimension; the last must be 1

  constexpr BasicView() = default;  // absent
  /// Data, type, shape, strides.
  constexpr BasicView(Pointer d, DType t, const Sizes& sh, const Sizes& st)
      : data(d), dtype(t), shape(sh), stride(st) {}
  /// Contiguous, last dimension fastest.
  constexpr BasicView(Pointer d, DType t, const Sizes& sh)
      : data(d), dtype(t), shape(sh), stride(contiguous(sh, std::make_index_sequence<static_cast<size_t>(kRank)>())) {}
  /// A mutable view converts to a const one.
  template <bool kOther, class = std::enable_if_t<kConst && !kOther>>
  constexpr BasicView(const BasicView<kRank, kOther>& v)  // NOLINT(google-explicit-constructor): as T* to const T*
      : data(v.data), dtype(v.dtype), shape(v.shape), stride(v.stride) {}

 private:
  // Unsigned: a nonsensical shape wraps here, and the call that takes the view refuses it. No loop: a vector copy of
  // strides that were just stored one by one would wait for these stores.
  template <size_t kDim>
  static constexpr uint64_t step_of(const Sizes& sh) {
    if constexpr (kDim + 1 == static_cast<size_t>(kRank)) {
      return 1;
    } else {
      return static_cast<uint64_t>(sh[kDim + 1]) * step_of<kDim + 1>(sh);
    }
  }
  template <size_t... kDims>
  static constexpr Sizes contiguous(const Sizes& sh, std::index_sequence<kDims...>) {
    return {{static_cast<int64_t>(step_of<kDims>(sh))...}};
  }
};
/// An array that a call writes.
template <int kRank>
using View = BasicView<kRank, false>;
/// An array that a call reads. A View converts to it.
template <int kRank>
using ConstView = BasicView<kRank, true>;

/// A number, or nothing. C: simdattn_optional_float and simdattn_optional_double, as in {0.5f, 1} or {0}.
template <class T>
struct Optional {
  T value{};          // the number; not looked at if it is not given
  int32_t given = 0;  // 0: nothing

  constexpr Optional() = default;  // nothing
  /// A number.
  constexpr Optional(T x) : value(x), given(1) {}  // NOLINT(google-explicit-constructor): as std::optional
  constexpr explicit operator bool() const { return given != 0; }             // true if it is a number
  constexpr T operator*() const { return value; }                             // the number
  constexpr T value_or(T other) const { return given != 0 ? value : other; }  // the number, or `other`
};

/// Numbers of the caller's: any container with data() and size(). They must live as long as the call.
struct Doubles {
  const double* data = nullptr;  // null if there are none
  int64_t size = 0;              // how many

  constexpr Doubles() = default;                                       // none
  constexpr Doubles(const double* d, int64_t n) : data(d), size(n) {}  // n numbers at d
  /// Those of a container.
  template <class C, class = decltype(static_cast<const double*>(std::declval<const C&>().data()))>
  constexpr Doubles(const C& c)  // NOLINT(google-explicit-constructor): as std::span
      : data(c.data()), size(static_cast<int64_t>(c.size())) {}
  constexpr bool empty() const { return size == 0; }                // true if there are none
  constexpr double operator[](int64_t i) const { return data[i]; }  // number i
  constexpr const double* begin() const { return data; }            // the first
  constexpr const double* end() const { return data + size; }       // behind the last
};

/// Where rows stand: `start`, start + 1, ... in every sequence, or at positions of their own. A number and a view of
/// i32 or i64 convert to it. C: simdattn_positions, with these members; NULL: from 0 on.
struct Positions {
  ConstView<3> rows;  // i32 or i64 [axes, batch, rows]; absent: row i of every sequence stands at start + i
  int64_t start = 0;  // not looked at where `rows` is there

  constexpr Positions() = default;  // from 0 on
  /// Row 0 of every sequence stands at `first`.
  constexpr Positions(int64_t first) : start(first) {}  // NOLINT(google-explicit-constructor): as a number
  /// [batch, rows]: one axis.
  template <bool kConst>
  constexpr Positions(const BasicView<2, kConst>& v)  // NOLINT(google-explicit-constructor): the common case
      : rows(v.data, v.dtype, {v.data == nullptr ? 0 : 1, v.shape[0], v.shape[1]}, {0, v.stride[0], v.stride[1]}) {}
  /// [axes, batch, rows].
  template <bool kConst>
  constexpr Positions(const BasicView<3, kConst>& v) : rows(v) {}  // NOLINT(google-explicit-constructor): the same
};

/* ---- Targets ----------------------------------------------------------------------------------------------------- */

/// One implementation of all kernels for one instruction set, such as "highway/avx2" or "scalar". Its members are the
/// library's own. Pointers from targets() and find_target() stay valid as long as the program.
struct Target;

/* Explained below; declared here so that C has its names for them. */
struct Status;
struct Exec;
struct PackedMask;
struct Scoring;
struct ScoreOptions;
struct ValueOptions;
struct RopeOptions;
struct RopeTableOptions;
struct KeyRotation;
struct AppendOptions;
struct KeyLists;
struct AttentionProblem;
struct Plan;
struct IndexOptions;
struct TopKOptions;
struct LinearAttentionProblem;
struct CausalConvProblem;
template <bool kConst>
struct BasicKv;

}  // namespace simdattn

typedef simdattn::View<1> simdattn_view1;
typedef simdattn::View<2> simdattn_view2;
typedef simdattn::View<3> simdattn_view3;
typedef simdattn::View<4> simdattn_view4;
typedef simdattn::View<5> simdattn_view5;
typedef simdattn::ConstView<1> simdattn_const_view1;
typedef simdattn::ConstView<2> simdattn_const_view2;
typedef simdattn::ConstView<3> simdattn_const_view3;
typedef simdattn::ConstView<4> simdattn_const_view4;
typedef simdattn::ConstView<5> simdattn_const_view5;
typedef simdattn::Optional<float> simdattn_optional_float;
typedef simdattn::Optional<double> simdattn_optional_double;
typedef simdattn::Doubles simdattn_doubles;
typedef simdattn::Positions simdattn_positions;
typedef simdattn::Target simdattn_target;
typedef simdattn::Status simdattn_status;
typedef simdattn::Exec simdattn_exec;
typedef simdattn::PackedMask simdattn_packed_mask;
typedef simdattn::Scoring simdattn_scoring;
typedef simdattn::ScoreOptions simdattn_score_options;
typedef simdattn::ValueOptions simdattn_value_options;
typedef simdattn::RopeOptions simdattn_rope_options;
typedef simdattn::RopeTableOptions simdattn_rope_table_options;
typedef simdattn::BasicKv<false> simdattn_kv;
typedef simdattn::BasicKv<true> simdattn_const_kv;
typedef simdattn::KeyRotation simdattn_key_rotation;
typedef simdattn::AppendOptions simdattn_append_options;
typedef simdattn::KeyLists simdattn_key_lists;
typedef simdattn::AttentionProblem simdattn_attention_problem;
typedef simdattn::Plan simdattn_plan;
typedef simdattn::IndexOptions simdattn_index_options;
typedef simdattn::TopKOptions simdattn_top_k_options;
typedef simdattn::LinearAttentionProblem simdattn_linear_attention_problem;
typedef simdattn::CausalConvProblem simdattn_causal_conv_problem;

namespace simdattn {

#else

/* An array: data, type, shape, and strides in elements; it owns nothing. data == NULL means "absent" where an argument
   is optional. */
/* clang-format off */
typedef struct { void* data; simdattn_dtype dtype; int64_t shape[1]; int64_t stride[1]; } simdattn_view1;
typedef struct { void* data; simdattn_dtype dtype; int64_t shape[2]; int64_t stride[2]; } simdattn_view2;
typedef struct { void* data; simdattn_dtype dtype; int64_t shape[3]; int64_t stride[3]; } simdattn_view3;
typedef struct { void* data; simdattn_dtype dtype; int64_t shape[4]; int64_t stride[4]; } simdattn_view4;
typedef struct { void* data; simdattn_dtype dtype; int64_t shape[5]; int64_t stride[5]; } simdattn_view5;
typedef struct { const void* data; simdattn_dtype dtype; int64_t shape[1]; int64_t stride[1]; } simdattn_const_view1;
typedef struct { const void* data; simdattn_dtype dtype; int64_t shape[2]; int64_t stride[2]; } simdattn_const_view2;
typedef struct { const void* data; simdattn_dtype dtype; int64_t shape[3]; int64_t stride[3]; } simdattn_const_view3;
typedef struct { const void* data; simdattn_dtype dtype; int64_t shape[4]; int64_t stride[4]; } simdattn_const_view4;
typedef struct { const void* data; simdattn_dtype dtype; int64_t shape[5]; int64_t stride[5]; } simdattn_const_view5;
/* clang-format on */

/* A number, or nothing: {0.5f, 1} or {0}. */
typedef struct {
  float value;
  int32_t given;
} simdattn_optional_float;
typedef struct {
  double value;
  int32_t given;
} simdattn_optional_double;

typedef struct {
  const double* data;
  int64_t size;
} simdattn_doubles;

/* Where rows stand: at `rows`, i32 or i64 [axes, batch, rows], or where that is absent at start, start + 1, ... */
typedef struct {
  simdattn_const_view3 rows;
  int64_t start;
} simdattn_positions;

typedef struct simdattn_target simdattn_target;

#endif

/* ---- Status and execution ---------------------------------------------------------------------------------------- */

/** The outcome of a call. */
#ifdef __cplusplus
struct [[nodiscard]] Status {
  Code code = Code::kOk;    // kOk, or what was wrong
  const char* detail = "";  // the argument and the rule that it breaks, in static storage; "" if all is well
  constexpr bool ok() const { return code == Code::kOk; }  // true if all was done
};
#else
typedef struct simdattn_status {
  simdattn_code code;
  const char* detail;
} simdattn_status;
#endif

/** How to execute a call. */
SIMDATTN_STRUCT(simdattn_exec, Exec) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(Exec));
  const simdattn_target* target SIMDATTN_DEFAULT(nullptr); /* null: the default target */
  void* workspace SIMDATTN_DEFAULT(nullptr);  /* bytes of any alignment, needed only by the functions that say so */
  size_t workspace_bytes SIMDATTN_DEFAULT(0); /* size of the workspace; too few bytes are kWorkspace */
  /** attention_plan: how many threads will run the tasks; 0: not known. Tasks are as many and as large as suits so many
   *  threads. Others may run them as well: no result depends on it. >= 0. */
  int64_t threads SIMDATTN_DEFAULT(0);
};
#define SIMDATTN_EXEC_INIT {.struct_size = sizeof(simdattn_exec)}

/* ---- Scoring ----------------------------------------------------------------------------------------------------- */

/** Value of `offset`: row i stands at position i + n_kv - n_q, so the last row at the last key; n_kv is the sequence's
 *  length. */
#define SIMDATTN_BOTTOM_RIGHT INT64_MIN
#ifdef __cplusplus
inline constexpr int64_t kBottomRight = SIMDATTN_BOTTOM_RIGHT;  // SIMDATTN_BOTTOM_RIGHT
#endif

/** A mask of bits, the lowest bit of a byte first; rows begin at a byte; 1 = attend. Column c is key `n_kv - columns +
 *  c`. Keys before the first column are visible: `columns = n_kv` is a full mask, a smaller number the tail of a token
 *  tree. `columns` is at most the length of every sequence. */
SIMDATTN_STRUCT(simdattn_packed_mask, PackedMask) {
  const uint8_t* data SIMDATTN_DEFAULT(nullptr); /* null: no mask */
  int64_t columns SIMDATTN_DEFAULT(0);           /* bits of a row */
  /** Bytes between batches, heads and rows, within +-2^32; 0 broadcasts. */
  SIMDATTN_ARRAY(int64_t, stride, 3) SIMDATTN_DEFAULT({});
};

/** What happens to a score between the dot product and the exponential, and which keys a row sees.
 *
 *  For score s of query row i, key j, with p = i + offset, in this order:
 *    t = scale * s;  t = softcap * tanh(t / softcap) if softcap > 0;  t += -(slope_h * |p - j|);
 *    t += bias_scale_h * bias_ij
 *  A key is visible if every rule given below allows it. Rows without a visible key give output 0 and lse = -inf (with
 *  a sink: lse = sink). Arrays indexed by sequence have one entry per batch entry. Sizes of 1 in `bias` and `mask`
 *  broadcast, as strides of 0 do. */
SIMDATTN_STRUCT(simdattn_scoring, Scoring) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(Scoring));
  simdattn_optional_float scale SIMDATTN_DEFAULT({}); /* finite, any sign; default 1/sqrt(d_qk), for masked_softmax 1 */
  float softcap SIMDATTN_DEFAULT(0);                  /* finite, >= 0; 0 = none */
  bool causal SIMDATTN_DEFAULT(false);                /* j <= p */
  /** Position of row 0; top-left causal is 0; |offset| <= 2^30, never clamped. */
  int64_t offset SIMDATTN_DEFAULT(kBottomRight);
  /** [batch] the same for each sequence, in the place of `offset`; any number within +-2^30. */
  const int32_t* offsets SIMDATTN_DEFAULT(nullptr);
  int64_t window_left SIMDATTN_DEFAULT(-1);  /* j >= p - window_left; -1 = unbounded. "sliding_window = W" is W - 1 */
  int64_t window_right SIMDATTN_DEFAULT(-1); /* j <= p + window_right; -1 = unbounded */
  int64_t chunk SIMDATTN_DEFAULT(0);         /* floor(j / chunk) == floor(p / chunk); 0 = none */
  /** [batch] prefix-LM: j <= max(p, prefix_end - 1), >= 0; takes the place of causal. */
  const int32_t* prefix_end SIMDATTN_DEFAULT(nullptr);
  const int32_t* kv_start SIMDATTN_DEFAULT(nullptr); /* [batch] j >= kv_start, >= 0 */
  /** [batch] j < kv_length; in 0 .. n_kv. kBottomRight and PackedMask take it for n_kv. */
  const int32_t* kv_length SIMDATTN_DEFAULT(nullptr);
  simdattn_const_view4 bias SIMDATTN_DEFAULT({}); /* f32, bf16 or f16, [batch, heads, n_q, n_kv]; -inf = masked */
  /** [heads] finite; multiplies the bias, but for -inf, which masks. Default 1. */
  const float* bias_scale SIMDATTN_DEFAULT(nullptr);
  simdattn_const_view4 mask SIMDATTN_DEFAULT({});        /* u8, the same shape; 0 = masked, anything else attends */
  simdattn_packed_mask packed_mask SIMDATTN_DEFAULT({}); /* a bit for each row and key, or for the last keys alone */
  const float* alibi_slopes SIMDATTN_DEFAULT(nullptr);   /* [heads], finite */
  /** [heads] one more logit in the denominator; not scaled, capped or masked. */
  const float* sinks SIMDATTN_DEFAULT(nullptr);
  SIMDATTN_ARRAY(uint64_t, reserved, 4) SIMDATTN_DEFAULT({});
};
#define SIMDATTN_SCORING_INIT \
  {.struct_size = sizeof(simdattn_scoring), .offset = SIMDATTN_BOTTOM_RIGHT, .window_left = -1, .window_right = -1}

/** Options of the score functions beside attention. */
SIMDATTN_STRUCT(simdattn_score_options, ScoreOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(ScoreOptions));
  simdattn_optional_float scale SIMDATTN_DEFAULT({}); /* finite; the default stands beside each function */
  simdattn_arithmetic arithmetic SIMDATTN_DEFAULT(Arithmetic::kF32); /* others than kF32: scores() alone */
};
#define SIMDATTN_SCORE_OPTIONS_INIT {.struct_size = sizeof(simdattn_score_options)}

/** Options of weighted_values. */
SIMDATTN_STRUCT(simdattn_value_options, ValueOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(ValueOptions));
  simdattn_arithmetic arithmetic SIMDATTN_DEFAULT(Arithmetic::kF32); /* what multiplies weights and values */
};
#define SIMDATTN_VALUE_OPTIONS_INIT {.struct_size = sizeof(simdattn_value_options)}

/* ---- Rotary position embedding ----------------------------------------------------------------------------------- */

/** How rows are rotated. */
SIMDATTN_STRUCT(simdattn_rope_options, RopeOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(RopeOptions));
  simdattn_rope_pairing pairing SIMDATTN_DEFAULT(RopePairing::kHalfSplit); /* which dimensions form a pair */
  bool inverse SIMDATTN_DEFAULT(false);                                    /* rotate by the negative angle */
  int64_t first_dim SIMDATTN_DEFAULT(0); /* rotated dimensions are [first_dim, first_dim + 2 * table columns) */
  /** In f32, over the whole row, of at most 2048 numbers. kv_append does it without a table too; kv_shift refuses
   *  it. */
  simdattn_row_norm norm SIMDATTN_DEFAULT(RowNorm::kNone);
  float norm_epsilon SIMDATTN_DEFAULT(0);             /* finite, not negative */
  const float* norm_weight SIMDATTN_DEFAULT(nullptr); /* [d]; null: 1, of kRms alone */
};
#define SIMDATTN_ROPE_OPTIONS_INIT \
  {.struct_size = sizeof(simdattn_rope_options), .pairing = SIMDATTN_ROPE_PAIRING_HALF_SPLIT}

/** The frequencies of a table of angles. Members are named like those of model configuration files ("rope_scaling",
 *  "rope_parameters"); docs/guide-rope.md has a line for every well-known family. Numbers are checked in every type,
 *  arrays where they are used. */
SIMDATTN_STRUCT(simdattn_rope_table_options, RopeTableOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(RopeTableOptions));
  double rope_theta SIMDATTN_DEFAULT(10000); /* base of the powers, in [1, 1e15]; > 1 for kYarn */
  simdattn_rope_type rope_type SIMDATTN_DEFAULT(RopeType::kDefault); /* how frequencies come from rope_theta */
  double factor SIMDATTN_DEFAULT(0); /* in [1e-3, 1e6], or 0 = not given: kLinear, kDynamic and kYarn need it */
  /** Length of pre-training; kYarn: else max_position_embeddings. */
  int64_t original_max_position_embeddings SIMDATTN_DEFAULT(0);
  /** kDynamic; kLongRope: its ratio to the original one replaces factor. */
  int64_t max_position_embeddings SIMDATTN_DEFAULT(0);
  int64_t seq_len SIMDATTN_DEFAULT(0); /* kDynamic, kLongRope: length that the table is for; 0 = short */
  /** In (0, 1e6]; multiplies cos and sin; default: see rope_frequencies. */
  simdattn_optional_double attention_factor SIMDATTN_DEFAULT({});
  double beta_fast SIMDATTN_DEFAULT(32);       /* kYarn: rotations in the original length, beta_fast >= beta_slow > 0 */
  double beta_slow SIMDATTN_DEFAULT(1);        /* kYarn: the same, at the other end of the ramp */
  double mscale SIMDATTN_DEFAULT(0);           /* kYarn: used if this and mscale_all_dim are given (not 0) */
  double mscale_all_dim SIMDATTN_DEFAULT(0);   /* kYarn: see mscale */
  bool truncate SIMDATTN_DEFAULT(true);        /* kYarn: round the ends of the ramp to whole columns */
  double low_freq_factor SIMDATTN_DEFAULT(1);  /* kLlama3: high_freq_factor >= low_freq_factor > 0 */
  double high_freq_factor SIMDATTN_DEFAULT(4); /* kLlama3: see low_freq_factor */
  simdattn_doubles short_factor SIMDATTN_DEFAULT({}); /* kLongRope: both, r/2 numbers in [1e-3, 1e6] */
  simdattn_doubles long_factor SIMDATTN_DEFAULT({});  /* kLongRope: see short_factor */
  /** Any type: inv_i / freq_factors[i]; r/2 numbers in [1e-3, 1e6] or none. */
  simdattn_doubles freq_factors SIMDATTN_DEFAULT({});
  /** kDefault: these instead of powers; r/2 numbers, 0 or in [1e-20, 1e3]. */
  simdattn_doubles inv_freq SIMDATTN_DEFAULT({});
  /** kProportional, in (0, 1]. The other types take r as the rotated part. */
  double partial_rotary_factor SIMDATTN_DEFAULT(1);
  /** Columns per position axis, summing to r/2; all 0 = one axis. */
  SIMDATTN_ARRAY(int64_t, mrope_section, 4) SIMDATTN_DEFAULT({});
  simdattn_mrope_layout mrope_layout SIMDATTN_DEFAULT(MropeLayout::kContiguous); /* which columns follow which axis */
  /** Everything in f32, as PyTorch models compute it and were trained with: frequencies in Hugging Face's order of
   *  operations, the angle fl(fl(position) * inv_i), its cosine, times fl(attention factor). Cosines differ from the
   *  exact ones by up to 8e-3 at position 131071. */
  bool f32_angles SIMDATTN_DEFAULT(false);
};
#define SIMDATTN_ROPE_TABLE_OPTIONS_INIT               \
  {.struct_size = sizeof(simdattn_rope_table_options), \
   .rope_theta = 10000,                                \
   .beta_fast = 32,                                    \
   .beta_slow = 1,                                     \
   .truncate = true,                                   \
   .low_freq_factor = 1,                               \
   .high_freq_factor = 4,                              \
   .partial_rotary_factor = 1}

/* ---- Storage of keys and values ---------------------------------------------------------------------------------- */

/** Keys per panel. A panel holds 32 keys dimension by dimension, so that the lanes of a vector are keys:
 *    f32 and f16: [panel][d][32];   bf16: [panel][ceil(d/2)][32][2], an odd last dimension paired with zero.
 *  Narrower types: the bytes of a row's codes in units of four, [panel][unit][32][4], the last unit filled up with
 *  zeros. Types with blocks: the codes of all blocks first, then their scales, [block][32] f16.
 *  It is part of a file format: the same on every CPU and in every version. */
#define SIMDATTN_PANEL_WIDTH 32
/** Keys per block of the online softmax. Part of the definition of the result. */
#define SIMDATTN_KEY_BLOCK 256
/** Keys per split, whose softmax state is computed by itself. Part of the definition of the result. */
#define SIMDATTN_KEY_SPLIT 1024
#ifdef __cplusplus
inline constexpr int64_t kPanelWidth = SIMDATTN_PANEL_WIDTH;  // SIMDATTN_PANEL_WIDTH
inline constexpr int64_t kKeyBlock = SIMDATTN_KEY_BLOCK;      // SIMDATTN_KEY_BLOCK
inline constexpr int64_t kKeySplit = SIMDATTN_KEY_SPLIT;      // SIMDATTN_KEY_SPLIT

namespace detail {
/// A storage type as data: sizes, rules and has_scales() derive from its row of the table.
struct KvFormat {
  static constexpr int kBlock = 32;

  KvType type;
  int bits;            // of the code of a number
  int block;           // numbers of a row that share scales: kBlock; 1: none do, or Kv::scales has them
  int block_scales;    // f16 numbers that a block begins with: none, d, or d and m
  int zero;            // the code that stands for 0 in types with blocks
  int in_panel;        // dimensions of a key side by side in a panel; 0: there are no panels of this type
  bool written;        // by kv_append and kv_shift; else read only
  bool scales_apart;   // in Kv::scales
  bool scales_chosen;  // kv_append computes and writes Kv::scales; else it divides by those that are there

  constexpr int64_t block_bytes() const { return kBlock / 8 * bits + 2 * block_scales; }
};
/// In the order of KvType.
inline constexpr KvFormat kKvFormats[] = {
    // type, bits, block, block_scales, zero, in_panel, written, scales_apart, scales_chosen
    {KvType::kF32, 32, 1, 0, 0, 1, true, false, false},
    {KvType::kBF16, 16, 1, 0, 0, 2, true, false, false},
    {KvType::kF16, 16, 1, 0, 0, 1, true, false, false},
    {KvType::kInt8, 8, 1, 0, 0, 4, true, true, true},
    {KvType::kFp8E4M3, 8, 1, 0, 0, 4, true, true, false},
    {KvType::kFp8E5M2, 8, 1, 0, 0, 4, true, true, false},
    {KvType::kQ8_0, 8, KvFormat::kBlock, 1, 0, 1, true, false, false},
    {KvType::kQ4_0, 4, KvFormat::kBlock, 1, 8, 1, true, false, false},
    {KvType::kQ4_1, 4, KvFormat::kBlock, 2, 0, 0, false, false, false},
    {KvType::kQ5_0, 5, KvFormat::kBlock, 1, 16, 0, false, false, false},
    {KvType::kQ5_1, 5, KvFormat::kBlock, 2, 0, 0, false, false, false},
    {KvType::kIq4Nl, 4, KvFormat::kBlock, 1, 0, 0, false, false, false},
};
constexpr bool kv_formats_are_good() {
  uint32_t i = 0;
  for (const KvFormat& f : kKvFormats) {
    const bool blocks = f.block == KvFormat::kBlock || (f.block == 1 && f.bits % 8 == 0);
    if (static_cast<uint32_t>(f.type) != i++ || !blocks) return false;
  }
  return i <= 32;
}
static_assert(kv_formats_are_good(), "indexed by KvType; codes fill bytes, in a row or in each block; a bit for each");
constexpr bool is_kv_type(KvType type) { return static_cast<uint32_t>(type) < sizeof(kKvFormats) / sizeof(KvFormat); }
/// The row of a type that there is.
constexpr const KvFormat& kv_format(KvType type) { return kKvFormats[static_cast<uint32_t>(type)]; }
/// A bit for each type that has a property, so that a call asks for it without reading the table.
template <class Has>
constexpr uint32_t kv_types_with(Has has) {
  uint32_t bits = 0;
  for (const KvFormat& f : kKvFormats) bits |= uint32_t{has(f)} << static_cast<uint32_t>(f.type);
  return bits;
}
constexpr bool is_among(uint32_t types, KvType type) {
  return is_kv_type(type) && (types >> static_cast<uint32_t>(type) & 1) != 0;
}
}  // namespace detail

/// True for types whose scales stand apart, in Kv::scales.
constexpr bool has_scales(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return f.scales_apart; });
  return detail::is_among(kTypes, type);
}
/// Bytes of a key or value of `dim` numbers in rows; 0 for an unknown type.
constexpr int64_t row_bytes(KvType type, int64_t dim) {
  if (!detail::is_kv_type(type)) return 0;
  const detail::KvFormat& f = detail::kv_format(type);
  return f.block == 1 ? dim * (f.bits / 8) : dim / detail::KvFormat::kBlock * f.block_bytes();
}
/// Bytes of a panel of kPanelWidth keys; 0 for an unknown type.
constexpr int64_t panel_bytes(KvType type, int64_t dim) {
  const int64_t in_panel = detail::is_kv_type(type) ? detail::kv_format(type).in_panel : 0;
  const int64_t together = in_panel > 0 ? in_panel : 1;
  return kPanelWidth * row_bytes(type, (dim + together - 1) / together * together);
}

/// A store: where keys or values lie, in one tensor, a ring, or pages behind a block table. Values are always rows.
/// Strides count bytes. Kv is a store that a call writes, ConstKv one that it reads.
/// C: simdattn_kv and simdattn_const_kv, with these members; both start from SIMDATTN_KV_INIT.
template <bool kConst>
struct BasicKv {
  using Pointer = std::conditional_t<kConst, const void*, void*>;  // const void* of a ConstKv
  size_t struct_size = sizeof(BasicKv);
  Pointer data = nullptr;             // the first byte of the first token
  KvType type = KvType::kF32;         // how a number is stored
  KvLayout layout = KvLayout::kRows;  // rows, or panels of keys
  int64_t batch = 0;                  // sequences (pages do not count here)
  int64_t heads = 0;                  // key/value heads
  int64_t capacity = 0;  // tokens per sequence that have a place; of a ring: tokens that positions may count to
  int64_t length = -1;   // tokens per sequence that attention sees (its n_kv), <= capacity; -1: capacity
  int64_t dim = 0;       // numbers of a key or value; a multiple of 32 where types have blocks of 32
  /// The next three strides are multiples of 4 for f32, of 2 for bf16, f16 and types with blocks, any number for int8
  /// and fp8.
  int64_t batch_stride = 0;  // bytes between sequences; with pages, between pages
  int64_t head_stride = 0;   // bytes between heads
  int64_t token_stride = 0;  // bytes between tokens; of panels, between panels
  /// f32 of any sign, one per token and head, of types that has_scales() names; else null. Strides are multiples of 4;
  /// 0: shared. Pages and rings are counted as in `data`, tokens one by one in panels too.
  Pointer scales = nullptr;
  int64_t scale_batch_stride = 0;  // bytes of scales between sequences; with pages, between pages
  int64_t scale_head_stride = 0;   // bytes of scales between heads
  int64_t scale_token_stride = 0;  // bytes of scales between tokens
  /// Pages, if page_size > 0: token t of sequence b is token t % page_size of page block_table[b * block_table_stride +
  /// t / page_size]. Entries that no call looks at may hold anything.
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = -1;  // entries between sequences; -1: ceil(capacity / page_size); 0: one table for all
  int64_t page_size = 0;            // tokens per page; panels: a multiple of kPanelWidth; 0: no pages
  int64_t n_pages = 0;              // pages in `data`: entries of the block table are below it
  /// > 0: token t is at t % ring, and only the last `ring` tokens exist. Panels: a multiple of kPanelWidth. 0: no ring.
  int64_t ring = 0;
  std::array<uint64_t, 4> reserved{};

  constexpr BasicKv() = default;  // of no sequence
  /// A plain tensor [batch, heads, tokens, dim] of f32, bf16 or f16.
  template <bool kOther, class = std::enable_if_t<kConst || !kOther>>
  constexpr BasicKv(const BasicView<4, kOther>& v) {  // NOLINT(google-explicit-constructor): the common case
    *this = v;
  }
  /// A Kv converts to a ConstKv.
  template <bool kOther, class = std::enable_if_t<kConst && !kOther>>
  constexpr BasicKv(const BasicKv<kOther>& o) {  // NOLINT(google-explicit-constructor): as T* to const T*
    *this = o;
  }
  // Assigned member by member: a vector copy of a store whose members were just written one by one would wait for these
  // stores.
  /// The store that the constructor makes of it.
  template <bool kOther, class = std::enable_if_t<kConst || !kOther>>
  constexpr BasicKv& operator=(const BasicView<4, kOther>& v) {
    struct_size = sizeof(BasicKv);
    data = v.data;
    type = kv_type_of(v.dtype);
    layout = KvLayout::kRows;
    batch = v.shape[0];
    heads = v.shape[1];
    capacity = v.shape[2];
    length = -1;
    // A store cannot express a last dimension that is not contiguous: dim -1 makes every call refuse it.
    dim = v.stride[3] != 1 && v.shape[3] > 1 ? -1 : v.shape[3];
    batch_stride = times(v.stride[0], row_bytes(type, 1));
    head_stride = times(v.stride[1], row_bytes(type, 1));
    token_stride = times(v.stride[2], row_bytes(type, 1));
    scales = nullptr;
    scale_batch_stride = scale_head_stride = scale_token_stride = 0;
    block_table = nullptr;
    block_table_stride = -1;
    page_size = n_pages = ring = 0;
    reserved = {};
    return *this;
  }
  /// The ConstKv that the constructor makes of it.
  template <bool kOther, class = std::enable_if_t<kConst && !kOther>>
  constexpr BasicKv& operator=(const BasicKv<kOther>& o) {
    struct_size = sizeof(BasicKv);
    data = o.data;
    type = o.type;
    layout = o.layout;
    batch = o.batch;
    heads = o.heads;
    capacity = o.capacity;
    length = o.length;
    dim = o.dim;
    batch_stride = o.batch_stride;
    head_stride = o.head_stride;
    token_stride = o.token_stride;
    scales = o.scales;
    scale_batch_stride = o.scale_batch_stride;
    scale_head_stride = o.scale_head_stride;
    scale_token_stride = o.scale_token_stride;
    block_table = o.block_table;
    block_table_stride = o.block_table_stride;
    page_size = o.page_size;
    n_pages = o.n_pages;
    ring = o.ring;
    reserved = o.reserved;
    return *this;
  }

  /// The n_kv of a problem.
  constexpr int64_t keys() const { return length < 0 ? capacity : length; }

 private:
  /// In bytes; a product that is too large becomes a stride that every call refuses.
  static constexpr int64_t times(int64_t stride, int64_t size) {
    constexpr int64_t kMost = INT64_MAX / 8;
    return stride > kMost || stride < -kMost ? INT64_MAX : stride * size;
  }
};
using Kv = BasicKv<false>;      // a store that a call writes
using ConstKv = BasicKv<true>;  // a store that a call reads; a Kv or a ConstView<4> converts to it
#else
/* Members are explained at BasicKv above. Both structs have the same ones: memcpy makes a simdattn_const_kv of a
 * simdattn_kv. */
typedef struct {
  size_t struct_size;
  void* data;
  simdattn_kv_type type;
  simdattn_kv_layout layout;
  int64_t batch;
  int64_t heads;
  int64_t capacity;
  int64_t length;
  int64_t dim;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
  void* scales;
  int64_t scale_batch_stride;
  int64_t scale_head_stride;
  int64_t scale_token_stride;
  const int32_t* block_table;
  int64_t block_table_stride;
  int64_t page_size;
  int64_t n_pages;
  int64_t ring;
  uint64_t reserved[4];
} simdattn_kv;
typedef struct {
  size_t struct_size;
  const void* data;
  simdattn_kv_type type;
  simdattn_kv_layout layout;
  int64_t batch;
  int64_t heads;
  int64_t capacity;
  int64_t length;
  int64_t dim;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
  const void* scales;
  int64_t scale_batch_stride;
  int64_t scale_head_stride;
  int64_t scale_token_stride;
  const int32_t* block_table;
  int64_t block_table_stride;
  int64_t page_size;
  int64_t n_pages;
  int64_t ring;
  uint64_t reserved[4];
} simdattn_const_kv;
#endif
#define SIMDATTN_KV_INIT {.struct_size = sizeof(simdattn_kv), .length = -1, .block_table_stride = -1}

/** Rotates keys: table and options as for rope(). No table: no RoPE. */
SIMDATTN_STRUCT(simdattn_key_rotation, KeyRotation) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(KeyRotation));
  simdattn_const_view2 cos SIMDATTN_DEFAULT({});      /* f32 [n_positions, r/2]; absent: no RoPE */
  simdattn_const_view2 sin SIMDATTN_DEFAULT({});      /* of the same shape */
  simdattn_rope_options options SIMDATTN_DEFAULT({}); /* pairs, and where in a row they begin */
  /** > 0: after RoPE rows are multiplied by a Hadamard matrix, in f32, as by hadamard() with blocks of this size: a
   *  power of two up to 4096 that divides dim, which is then at most 8192. Rotate queries alike; where values are
   *  rotated, the output. kv_shift takes the matrix away, rotates, and puts it back: give it the block of the keys. 0:
   *  no matrix. */
  int64_t hadamard_block SIMDATTN_DEFAULT(0);
  SIMDATTN_ARRAY(uint64_t, reserved, 2) SIMDATTN_DEFAULT({});
};
#define SIMDATTN_KEY_ROTATION_INIT {.struct_size = sizeof(simdattn_key_rotation), .options = SIMDATTN_ROPE_OPTIONS_INIT}

/** Where kv_append puts its rows, and what happens to them on the way. */
SIMDATTN_STRUCT(simdattn_append_options, AppendOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(AppendOptions));
  simdattn_key_rotation rope SIMDATTN_DEFAULT({}); /* rotates keys by their positions; values: leave it absent */
  int64_t start SIMDATTN_DEFAULT(0); /* without positions row i of a sequence goes to position start + i */
  const int32_t* starts SIMDATTN_DEFAULT(nullptr); /* [batch] the same for each sequence, in the place of `start` */
  /** [batch] rows of each sequence that count, 0 .. n; the others are padding. */
  const int32_t* counts SIMDATTN_DEFAULT(nullptr);
  /** i32 or i64 [batch, rows]: page * page_size + place in the page, instead of the block table (vLLM's slot_mapping).
   *  A row with a negative one is skipped. Positions then serve the rotation alone. */
  simdattn_const_view2 slots SIMDATTN_DEFAULT({});
};
#define SIMDATTN_APPEND_OPTIONS_INIT \
  {.struct_size = sizeof(simdattn_append_options), .rope = SIMDATTN_KEY_ROTATION_INIT}

/* ---- Fused attention --------------------------------------------------------------------------------------------- */

/** Which keys each row attends to. Entry e of a list stands for the keys e * block_size .. e * block_size +
 *  block_size - 1 that exist; -1 is skipped, wherever it stands. The result is that of attention over a cache that
 *  holds the keys of the list in its order. Masks, windows and lengths look at the keys' own positions.
 *  Every call reads the lists before it writes. It refuses an entry that is neither -1 nor of one of the n_kv keys of
 *  its sequence, and two equal neighbours, with -1 between them or not. Other duplicates are not looked for: such keys
 *  count twice. */
SIMDATTN_STRUCT(simdattn_key_lists, KeyLists) {
  const int32_t* data SIMDATTN_DEFAULT(nullptr); /* entries; of a list they are contiguous */
  int64_t heads SIMDATTN_DEFAULT(0);      /* 0: no lists, and no data; 1: all heads share them; else as many as k has */
  int64_t length SIMDATTN_DEFAULT(0);     /* entries of a list, 0 .. 2^30 - 1 */
  int64_t block_size SIMDATTN_DEFAULT(1); /* keys of an entry, 1 .. 2^30 - 1 */
  /** Entries between batches, heads and rows of q; 0 broadcasts. */
  SIMDATTN_ARRAY(int64_t, stride, 3) SIMDATTN_DEFAULT({});
};

/** One attention problem: out = softmax(scoring(q k^T)) v, and its log-sum-exp.
 *  Shapes: q [B,Hq,n_q,d_qk], k [B,Hk,n_kv,d_qk], v [B,Hk,n_kv,d_v], out [B,Hq,n_q,d_v], lse f32 [B,Hq,n_q] (optional);
 *  G = Hq/Hk whole; query head h reads key head h / G. q and out are f32, bf16 or f16; k and v have any storage type;
 *  any mixture. v may alias k. n_kv is k.length (default: k.capacity), and so is that of v.
 *  Varlen: with cu_q, q, out and lse are [1,H,total_q,...], and sequence s has rows cu_q[s] .. cu_q[s+1] - 1. With cu_k
 *  too, k and v are [1,Hk,total_k,...]; without it they are caches whose batch is n_sequences. bias and mask are
 *  [1,Hq,total_q,longest n_kv], and a PackedMask has a row for each row of q.
 *  Raw state: with `acc` (f32 [B,Hq,n_q,d_v]), `max` and `sum` (f32 [B,Hq,n_q]) the un-normalised accumulator, the
 *  maximum and the sum are written there. `out` may be absent where `lse` or the raw state is given.
 *  Arithmetic: every storage type and option goes with each. Error, beyond that of kF32, against the exact result of
 *  what is multiplied (rounded rows; integers times their scales): kBF16 rounds weights, up to 2^-8 * max |v|. kInt8
 *  makes 8-bit integers of them, up to the sum over 256 keys each of (max p_j s_j) / 510 * sum |v8_j|, with s_j the
 *  scale of value j and v8_j its integers. */
SIMDATTN_STRUCT(simdattn_attention_problem, AttentionProblem) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(AttentionProblem));
  simdattn_const_view4 q SIMDATTN_DEFAULT({});   /* f32, bf16 or f16 [B,Hq,n_q,d_qk]: queries */
  simdattn_const_kv k SIMDATTN_DEFAULT({});      /* [B,Hk,n_kv,d_qk]: keys, in rows or panels */
  simdattn_const_kv v SIMDATTN_DEFAULT({});      /* [B,Hk,n_kv,d_v]: values, in rows; may be k */
  simdattn_view4 out SIMDATTN_DEFAULT({});       /* f32, bf16 or f16 [B,Hq,n_q,d_v]; shares no byte with an input */
  simdattn_view3 lse SIMDATTN_DEFAULT({});       /* f32 [B,Hq,n_q]: ln of the sum of exponentials of a row; optional */
  simdattn_scoring scoring SIMDATTN_DEFAULT({}); /* scale, masks, bias and the like */
  simdattn_arithmetic arithmetic SIMDATTN_DEFAULT(Arithmetic::kF32); /* what multiplies */
  const int32_t* cu_q SIMDATTN_DEFAULT(nullptr); /* varlen: [n_sequences + 1], from 0 to total_q, never falling */
  const int32_t* cu_k SIMDATTN_DEFAULT(nullptr); /* the same for keys, from 0 to total_k; null: k and v are caches */
  int64_t n_sequences SIMDATTN_DEFAULT(0);       /* sequences of cu_q */
  /** f32 [B,Hq,n_q,d_v]: sum of exp(t - max) v; all of acc, max and sum, or none. */
  simdattn_view4 acc SIMDATTN_DEFAULT({});
  simdattn_view3 max SIMDATTN_DEFAULT({});       /* f32 [B,Hq,n_q]: the largest t of a row */
  simdattn_view3 sum SIMDATTN_DEFAULT({});       /* f32 [B,Hq,n_q]: sum of exp(t - max) */
  simdattn_key_lists lists SIMDATTN_DEFAULT({}); /* the keys that each row attends to; absent: all */
};
#define SIMDATTN_ATTENTION_PROBLEM_INIT               \
  {.struct_size = sizeof(simdattn_attention_problem), \
   .k = SIMDATTN_KV_INIT,                             \
   .v = SIMDATTN_KV_INIT,                             \
   .scoring = SIMDATTN_SCORING_INIT,                  \
   .lists = {.block_size = 1}}

/** A problem that was checked once, and its division into tasks. The caller owns it and may copy it as bytes; it refers
 *  to the problem's arrays. The division depends on shapes and lengths, not on the machine or the number of threads. */
SIMDATTN_STRUCT(simdattn_plan, Plan) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(Plan));
  int64_t tasks SIMDATTN_DEFAULT(0);          /* run each of 0 .. tasks-1 once, in any order, on any threads */
  int64_t reduce_tasks SIMDATTN_DEFAULT(0);   /* then each of 0 .. reduce_tasks-1 once (0: nothing to reduce) */
  size_t workspace_bytes SIMDATTN_DEFAULT(0); /* Exec::workspace of each thread; it does not depend on lengths */
  size_t partial_bytes SIMDATTN_DEFAULT(0);   /* one buffer that all tasks share; 0 if nothing is reduced */
  SIMDATTN_ARRAY(uint64_t, internal, 512) SIMDATTN_DEFAULT({}); /* the library's own */
};
#define SIMDATTN_PLAN_INIT {.struct_size = sizeof(simdattn_plan)}

/* ---- Which keys a row attends to --------------------------------------------------------------------------------- */

/** How index_scores() scores keys, and which keys a row sees. */
SIMDATTN_STRUCT(simdattn_index_options, IndexOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(IndexOptions));
  simdattn_optional_float scale SIMDATTN_DEFAULT({});                  /* finite; default 1/sqrt(d) */
  simdattn_arithmetic arithmetic SIMDATTN_DEFAULT(Arithmetic::kF32);   /* what multiplies q and k */
  simdattn_index_combine combine SIMDATTN_DEFAULT(IndexCombine::kSum); /* how heads are joined */
  bool relu SIMDATTN_DEFAULT(false);                                   /* max(score, 0) of each head first */
  bool causal SIMDATTN_DEFAULT(false);                                 /* a row sees keys up to its position */
  /** Keys of a candidate, whose score is the largest of theirs; a multiple of keys_per_row, 1 .. 2^30. */
  int64_t block_size SIMDATTN_DEFAULT(1);
  /** Keys that a row of k stands for (pooled keys), 1 .. 2^30. A row of q sees it if it sees all of them. */
  int64_t keys_per_row SIMDATTN_DEFAULT(1);
  int64_t keys SIMDATTN_DEFAULT(-1);                  /* of every sequence; -1: those that the rows of k stand for */
  const int32_t* kv_length SIMDATTN_DEFAULT(nullptr); /* [batch] the same for each sequence, in the place of `keys` */
  int64_t offset SIMDATTN_DEFAULT(kBottomRight);      /* position of row 0; |offset| <= 2^30 */
  const int32_t* offsets SIMDATTN_DEFAULT(nullptr);   /* [batch] the same for each sequence, in the place of `offset` */
  /** Candidate of the first column, so that threads take parts of a long row; 0 .. candidates. */
  int64_t first SIMDATTN_DEFAULT(0);
  SIMDATTN_ARRAY(uint64_t, reserved, 4) SIMDATTN_DEFAULT({});
};
#define SIMDATTN_INDEX_OPTIONS_INIT               \
  {.struct_size = sizeof(simdattn_index_options), \
   .block_size = 1,                               \
   .keys_per_row = 1,                             \
   .keys = -1,                                    \
   .offset = SIMDATTN_BOTTOM_RIGHT}

/** Which places top_k() takes besides those of the largest scores, and the positions of its rows. */
SIMDATTN_STRUCT(simdattn_top_k_options, TopKOptions) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(TopKOptions));
  /** Keys that a score stands for, 1 .. 2^30: score c is that of keys c * block_size .. (c + 1) * block_size - 1. */
  int64_t block_size SIMDATTN_DEFAULT(1);
  /** So many blocks, as far as they have scores, are taken first and count among the k: that of the row's own position
   *  and those before it. */
  int64_t local_blocks SIMDATTN_DEFAULT(0);
  /** The block of the row's own position is taken besides, and does not count among the k, unless that position is its
   *  last key. It need not have a score. */
  bool tail SIMDATTN_DEFAULT(false);
  /** Keys of every sequence, for kBottomRight; -1: those that the scores stand for. */
  int64_t keys SIMDATTN_DEFAULT(-1);
  const int32_t* kv_length SIMDATTN_DEFAULT(nullptr); /* [batch] the same for each sequence, in the place of `keys` */
  int64_t offset SIMDATTN_DEFAULT(kBottomRight);      /* position of row 0; |offset| <= 2^30 */
  const int32_t* offsets SIMDATTN_DEFAULT(nullptr);   /* [batch] the same for each sequence, in the place of `offset` */
  SIMDATTN_ARRAY(uint64_t, reserved, 4) SIMDATTN_DEFAULT({});
};
#define SIMDATTN_TOP_K_OPTIONS_INIT \
  {.struct_size = sizeof(simdattn_top_k_options), .block_size = 1, .keys = -1, .offset = SIMDATTN_BOTTOM_RIGHT}

/* ---- Attention with a state -------------------------------------------------------------------------------------- */

/** Columns of a state that one task of linear_attention_range() updates. */
#define SIMDATTN_STATE_COLUMNS 64

/** Attention whose past is a state S of d_k x d_v numbers per head of v, in place of keys and values. Every token does,
 *  in this order,
 *    S *= exp(decay)             kGated, kGatedDelta; by row of S where there is a decay per channel of the key
 *    u = v                       kLinear, kGated
 *    u = beta (v - k^T S)        kDelta, kGatedDelta
 *    S += k u^T
 *    out = scale * q^T S
 *  Shapes: q [B,Hq,n,d_k], k [B,Hk,n,d_k], v [B,Hv,n,d_v], out [B,Ho,n,d_v], Ho = max(Hq, Hv); Hv is a multiple of Hk,
 *  Ho one of Hq and Hv; at most 256 heads of q read one state.
 *  q, k, v, decay, beta and out f32, bf16 or f16, any mixture. Keys are used as they are: who wants them of length 1
 *  divides before. Varlen: with cu_q B is 1, and sequence s has tokens cu_q[s] .. cu_q[s+1] - 1. Without it every
 *  sequence has n tokens. A prompt in one call, in chunks or token by token gives the same bits. */
SIMDATTN_STRUCT(simdattn_linear_attention_problem, LinearAttentionProblem) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(LinearAttentionProblem));
  simdattn_linear_rule rule SIMDATTN_DEFAULT(LinearRule::kGatedDelta); /* how a token changes the state */
  /** Of q and k, and of several outputs of a state. */
  simdattn_head_order head_order SIMDATTN_DEFAULT(HeadOrder::kNeighbours);
  simdattn_const_view4 q SIMDATTN_DEFAULT({}); /* queries [B,Hq,n,d_k] */
  simdattn_const_view4 k SIMDATTN_DEFAULT({}); /* keys [B,Hk,n,d_k] */
  simdattn_const_view4 v SIMDATTN_DEFAULT({}); /* values [B,Hv,n,d_v] */
  /** [B,Hv,n,1] or [B,Hv,n,d_k]: logarithms of the factors of S, of a head or of its channels. -inf, and all below
   *  -87.34, clear what they multiply, NaN and infinities too. From 88 on the factor is infinite. kLinear and kDelta:
   *  absent. */
  simdattn_const_view4 decay SIMDATTN_DEFAULT({});
  simdattn_const_view4 beta SIMDATTN_DEFAULT(
      {}); /* [B,Hv,n,1], or [B,1,n,1] for all heads; absent: 1. kLinear and kGated: absent */
  /** f32 [states,Hv,d_k,d_v], or [states,Hv,d_v,d_k] if `transposed`: read, and written in place; with `state_in` only
   *  written. Zeros where nothing is past. */
  simdattn_view4 state SIMDATTN_DEFAULT({});
  bool transposed SIMDATTN_DEFAULT(false); /* states lie as ggml has them */
  /** [sequences] the state of each sequence in `state`, all different; negative: the sequence is skipped, and its
   *  outputs stay as they are. Null: state s is that of sequence s, and there are as many. */
  const int32_t* state_index SIMDATTN_DEFAULT(nullptr);
  simdattn_view4 out SIMDATTN_DEFAULT({});            /* [B,Ho,n,d_v]; shares no byte with an input */
  simdattn_optional_float scale SIMDATTN_DEFAULT({}); /* finite; default 1/sqrt(d_k) */
  const int32_t* cu_q SIMDATTN_DEFAULT(nullptr);      /* varlen: [n_sequences + 1], from 0 to n, never falling */
  int64_t n_sequences SIMDATTN_DEFAULT(0);            /* sequences of cu_q */
  /** f32 [sequences,W,Hv,d_k,d_v], or transposed as `state`: the states after each of a sequence's last W tokens, the
   *  last one at W - 1. A sequence of m < W tokens leaves the first W - m as they are. Optional: speculative decoding
   *  goes back to one of them. */
  simdattn_view5 states SIMDATTN_DEFAULT({});
  SIMDATTN_ARRAY(uint64_t, reserved, 4) SIMDATTN_DEFAULT({});
  /** f32, of the shape of `state`: what is past, read in its place. `state` is then exactly this array, or shares no
   *  byte with it, or is absent: the last state is not kept. A stride of 0 lets all sequences begin with one state. */
  simdattn_const_view4 state_in SIMDATTN_DEFAULT({});
};
#define SIMDATTN_LINEAR_ATTENTION_PROBLEM_INIT \
  {.struct_size = sizeof(simdattn_linear_attention_problem), .rule = SIMDATTN_LINEAR_RULE_GATED_DELTA}

/** The short convolution before such an attention: y[t] = activation(bias + sum over j of weight[j] z[t + j]) for each
 *  channel, where z is the state, the last width - 1 inputs, followed by x. So weight[width - 1] belongs to the token
 *  itself.
 *  Shapes: x and out [B,C,n], or [B,n,C] if channels_last, out the other one if out_transposed; weight [C,width], bias
 *  [C]. x, weight, bias, out f32, bf16 or f16, any mixture.
 *  Varlen: with cu_q B is 1, as in LinearAttentionProblem. */
SIMDATTN_STRUCT(simdattn_causal_conv_problem, CausalConvProblem) {
  size_t struct_size SIMDATTN_DEFAULT(sizeof(CausalConvProblem));
  simdattn_const_view3 x SIMDATTN_DEFAULT({});      /* inputs */
  simdattn_const_view2 weight SIMDATTN_DEFAULT({}); /* [C,width], width in 1 .. 32 */
  simdattn_const_view1 bias SIMDATTN_DEFAULT({});   /* [C]; absent: 0 */
  /** [states,C,width-1], or [states,width-1,C] if channels_last, in the type of x: read, and written in place; with
   *  `state_in` only written. Of width 1: absent, and so are state_in and state_index. */
  simdattn_view3 state SIMDATTN_DEFAULT({});
  const int32_t* state_index SIMDATTN_DEFAULT(nullptr); /* as in LinearAttentionProblem */
  simdattn_view3 out SIMDATTN_DEFAULT({});              /* may be exactly x if types agree, but not out_transposed */
  bool channels_last SIMDATTN_DEFAULT(false);           /* channels are contiguous, not tokens */
  bool silu SIMDATTN_DEFAULT(false);                    /* activation c / (1 + exp(-c)); else none */
  const int32_t* cu_q SIMDATTN_DEFAULT(nullptr);        /* varlen: [n_sequences + 1], from 0 to n, never falling */
  int64_t n_sequences SIMDATTN_DEFAULT(0);              /* sequences of cu_q */
  SIMDATTN_ARRAY(uint64_t, reserved, 4) SIMDATTN_DEFAULT({});
  /** In the type of x, of the shape of `state`: what is past, read in its place; see LinearAttentionProblem. It may
   *  share bytes with x: where the past stands before the tokens in one array, both are parts of it. */
  simdattn_const_view3 state_in SIMDATTN_DEFAULT({});
  /** out has its last two dimensions the other way round than x: x [B,C,n] gives [B,n,C], and [B,n,C] gives [B,C,n]. */
  bool out_transposed SIMDATTN_DEFAULT(false);
};
#define SIMDATTN_CAUSAL_CONV_PROBLEM_INIT {.struct_size = sizeof(simdattn_causal_conv_problem)}

#ifdef __cplusplus
}  // namespace simdattn
#endif

#undef SIMDATTN_STRUCT
#undef SIMDATTN_DEFAULT
#undef SIMDATTN_ARRAY

#endif /* SIMDATTN_TYPES_H_ */
