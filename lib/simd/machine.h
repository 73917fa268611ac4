// The machine that this object is compiled for: vector types of the adapter that SIMDATTN_ADAPTER names, and the facts
// that kernels ask for.
#pragma once

#include SIMDATTN_ADAPTER

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/simd/registers.h"

namespace simdattn {
namespace {

// Nothing outside of lib/simd asks for the macros.
enum class Instructions { kPlain, kSse, kAvx2, kAvx512, kSve, kNeon, kHighway };
#if defined(SIMDATTN_PLAIN)
constexpr auto kInstructions = Instructions::kPlain;
#elif defined(__AVX512F__)
constexpr auto kInstructions = Instructions::kAvx512;
#define SIMDATTN_X86 1
#define SIMDATTN_AVX2 1
#define SIMDATTN_AVX512 1
#elif defined(__AVX2__)
constexpr auto kInstructions = Instructions::kAvx2;
#define SIMDATTN_X86 1
#define SIMDATTN_AVX2 1
#elif defined(__SSE2__)
constexpr auto kInstructions = Instructions::kSse;
#define SIMDATTN_X86 1
#elif defined(__ARM_FEATURE_SVE)
constexpr auto kInstructions = Instructions::kSve;
#define SIMDATTN_SVE 1
#elif defined(__aarch64__)
constexpr auto kInstructions = Instructions::kNeon;
#define SIMDATTN_NEON 1
#elif SIMDATTN_HIGHWAY
constexpr auto kInstructions = Instructions::kHighway;
#else
#error "an instruction set that neither library has"
#endif
#if SIMDATTN_HIGHWAY && !SIMDATTN_SVE
#define SIMDATTN_HIGHWAY_LANES 1
#endif
#if SIMDATTN_SVE || (SIMDATTN_HIGHWAY && SIMDATTN_AVX2)
#define SIMDATTN_MASKED_ACCESS 1  // of f32
#endif
#if SIMDATTN_HIGHWAY && SIMDATTN_AVX512
#define SIMDATTN_MASK_REGISTERS 1  // access to some lanes of any size
#endif
#if SIMDATTN_PLAIN || (SIMDATTN_X86 && !SIMDATTN_AVX2) || defined(__riscv) || defined(__wasm__)
#define SIMDATTN_F16_BY_INTEGERS 1
#endif
#if SIMDATTN_HIGHWAY_LANES && !HWY_HAVE_SCALABLE
#define SIMDATTN_HIGHWAY_ORDER 1
#endif
#if SIMDATTN_HIGHWAY_LANES && !SIMDATTN_X86 && !defined(__ARM_FEATURE_DOTPROD)
#define SIMDATTN_PAIRS_OF_HIGHWAY 1
#endif

constexpr int64_t kLanes = static_cast<int64_t>(Floats::size);
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);
/// Vectors that hold one of each of the 16 partial sums.
constexpr int64_t kParts = 16 / kLanes;

template <int64_t kCount, class V = Floats>
using Registers = RegistersOf<V, kCount>;

constexpr bool kX86 = kInstructions >= Instructions::kSse && kInstructions <= Instructions::kAvx512;
constexpr bool kAvx512 = kInstructions == Instructions::kAvx512;
/// Vector registers that a tile counts on.
constexpr int64_t kRegisters = kInstructions >= Instructions::kAvx512 ? 32 : 16;
/// Four bytes of several rows are put together while loading, and transposed in registers: not with fixed-length SVE.
constexpr bool kLoadsBlocks = kInstructions != Instructions::kSve;
/// A few query rows take keys in rows as they are. With 16 registers of four lanes it is no faster than packing.
constexpr bool kScoresKeyRows = kLoadsBlocks && (kLanes > 4 || !kX86);

/// How integers of 8 bits are multiplied (native/products.h): as numbers of 16 bits, two by two; four bytes by four,
/// or by those of one lane; eight bytes of two rows by those of two columns.
enum class Products { kPairs, kDot, kDotLanes, kMatrix };
#if SIMDATTN_PLAIN
constexpr Products kProducts = Products::kPairs;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
constexpr Products kProducts = Products::kMatrix;
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr Products kProducts = Products::kDot;
#elif defined(__ARM_FEATURE_DOTPROD) || SIMDATTN_SVE
constexpr Products kProducts = Products::kDotLanes;
#else
constexpr Products kProducts = Products::kPairs;
#endif
/// Pairs of bf16 are multiplied as they are.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && !defined(SIMDATTN_PLAIN)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif
/// Values of few rows are multiplied where they are stored. Of `plain` with 16 lanes too, so that any CPU can test it.
constexpr bool kMultipliesStored = kInstructions == Instructions::kPlain
                                       ? kLanes == 16
                                       : kX86 && (kAvx512 || (kLanes == 8 && kProducts == Products::kDot));

/// Query rows of one register tile: with two vectors of columns it fills the registers.
constexpr int64_t kTileRows = kAvx512 ? 8 : kRegisters == 32 || (kX86 && kLanes == 8) ? 6 : 4;

SIMDATTN_INLINE Bits32 bits_of(Floats v) { return cast_bits<uint32_t>(v); }
SIMDATTN_INLINE Floats float_of(Bits32 v) { return cast_bits<float>(v); }
SIMDATTN_INLINE Ints ints_of(Floats v) { return cast_bits<int32_t>(bits_of(v)); }
SIMDATTN_INLINE Bits32 select(Mask m, Bits32 yes, Bits32 no) { return bits_of(select(m, float_of(yes), float_of(no))); }
/// True where either is NaN.
SIMDATTN_INLINE Mask operator!=(Floats a, Floats b) { return ~(a == b); }
SIMDATTN_INLINE Mask operator>(Floats a, Floats b) { return b < a; }
SIMDATTN_INLINE Mask at_least(Ints a, Ints b) { return ~greater(b, a); }
SIMDATTN_INLINE bool all(Mask m) { return !any(~m); }
SIMDATTN_INLINE Ints min(Ints a, Ints b) { return ~max(~a, ~b); }
/// x > m ? x : m: a NaN in x is ignored, m must not be NaN. MAXPS returns its second operand if either is NaN.
SIMDATTN_INLINE Floats max_number(Floats x, Floats m) { return kX86 ? max(x, m) : select(x > m, x, m); }
SIMDATTN_INLINE Floats abs(Floats v) { return float_of(bits_of(v) & Bits32(0x7FFFFFFFu)); }
SIMDATTN_INLINE Ints abs(Ints v) { return max(v, -v); }
SIMDATTN_INLINE Floats canonical_nan(Floats v) { return select(v == v, v, float_of(Bits32(kCanonicalNaN))); }

/// 0, 1, 2, ...
SIMDATTN_INLINE Ints lane_numbers() {
  alignas(64) static constexpr int32_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Ints::load_unaligned(kNumbers);
}

/// All lanes of a vector take part in a load or store; Lanes (native/): some of them.
struct All {};

}  // namespace
}  // namespace simdattn
