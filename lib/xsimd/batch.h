// The batch types of the instruction set this object is compiled for (SIMDATTN_XSIMD_ARCH, given by meson.build).
//
// Every header of this folder is included by ukernels.cc alone and puts its names into an unnamed namespace: the object
// exports its table and nothing else, so the linker cannot hand its functions to another CPU.
#ifndef SIMDATTN_LIB_XSIMD_BATCH_H_
#define SIMDATTN_LIB_XSIMD_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "lib/dtypes.h"
#include "lib/ukernels.h"
#include "xsimd/xsimd.hpp"
#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
#include "lib/xsimd/neon_operators.h"
#endif

#define SIMDATTN_INLINE inline __attribute__((always_inline))
#define SIMDATTN_LAMBDA __attribute__((always_inline))
// One body for several callers: gcc would make a copy for each set of constant arguments.
#ifdef __clang__
#define SIMDATTN_SHARED __attribute__((noinline))
#else
#define SIMDATTN_SHARED __attribute__((noinline, noclone))
#endif

namespace simdattn {
namespace {

using Arch = SIMDATTN_XSIMD_ARCH;
static_assert(Arch::supported(), "the compiler flags of this object do not cover its instruction set");

using Floats = xsimd::batch<float, Arch>;
using Bits32 = xsimd::batch<uint32_t, Arch>;
using Ints = xsimd::batch<int32_t, Arch>;
using Bits16 = xsimd::batch<uint16_t, Arch>;
using Mask = xsimd::batch_bool<float, Arch>;

constexpr int64_t kLanes = static_cast<int64_t>(Floats::size);
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);
/// Batches that hold one of each of the 16 partial sums.
constexpr int64_t kParts = 16 / kLanes;

#if XSIMD_WITH_SSE2
constexpr bool kX86 = true;
constexpr bool kAvx512 = std::is_base_of_v<xsimd::avx512f, Arch>;
#else
constexpr bool kX86 = false;
constexpr bool kAvx512 = false;
#endif

/// Query rows of one register tile: with two batches of columns it fills the registers.
constexpr int64_t kTileRows = kAvx512 ? 8 : !kX86 || kLanes == 8 ? 6 : 4;

/// The same register as a batch of another type. (xsimd's bitwise_cast on SVE is a call that clang 19 finds ambiguous; on
/// NEON see neon_operators.h.)
template <class To, class From>
SIMDATTN_INLINE xsimd::batch<To, Arch> cast_bits(xsimd::batch<From, Arch> v) {
#if XSIMD_WITH_SVE
#define SIMDATTN_CAST(to, from) svreinterpret_##to##_##from(v)
#elif XSIMD_WITH_NEON64
#define SIMDATTN_CAST(to, from) vreinterpretq_##to##_##from(v)
#endif
#ifdef SIMDATTN_CAST
  if constexpr (std::is_same_v<To, float>) {
    return SIMDATTN_CAST(f32, u32);
  } else if constexpr (std::is_same_v<To, int32_t>) {
    return SIMDATTN_CAST(s32, u32);
  } else if constexpr (std::is_same_v<To, uint16_t>) {
    return SIMDATTN_CAST(u16, u32);
  } else if constexpr (std::is_same_v<From, uint16_t>) {
    return SIMDATTN_CAST(u32, u16);
  } else {
    return SIMDATTN_CAST(u32, f32);
  }
#undef SIMDATTN_CAST
#else
  return xsimd::bitwise_cast<To>(v);
#endif
}
SIMDATTN_INLINE Bits32 bits_of(Floats v) { return cast_bits<uint32_t>(v); }
SIMDATTN_INLINE Floats float_of(Bits32 v) { return cast_bits<float>(v); }

/// Correctly rounded. xsimd's division of NEON is 32-bit ARM's: an estimate and two steps.
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) {
#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
  return vdivq_f32(a, b);
#else
  return a / b;
#endif
}

SIMDATTN_INLINE Floats canonical_nan(Floats v) { return xsimd::select(v == v, v, float_of(Bits32(kCanonicalNaN))); }

/// 0, 1, 2, ...
SIMDATTN_INLINE Ints lane_numbers() {
  alignas(64) static constexpr int32_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Ints::load_aligned(kNumbers);
}

/// f(0), f(1), ... with the index as a type: a loop that is unrolled before anything else happens.
template <int64_t kCount, class F>
SIMDATTN_INLINE void unroll(const F& f) {
  [&]<int64_t... kIndices>(std::integer_sequence<int64_t, kIndices...>) SIMDATTN_LAMBDA {
    (f(std::integral_constant<int64_t, kIndices>()), ...);
  }(std::make_integer_sequence<int64_t, kCount>());
}

/// kCount batches (or pointers) with names of their own: gcc keeps an array of them in memory (a quarter of the speed).
template <class V, int64_t kIndex>
struct Register {
  V v;
};
template <class V, class Indices>
struct RegisterFile;
template <class V, int64_t... kIndices>
struct RegisterFile<V, std::integer_sequence<int64_t, kIndices...>> : Register<V, kIndices>... {};
template <int64_t kCount, class V = Floats>
using Registers = RegisterFile<V, std::make_integer_sequence<int64_t, kCount>>;

template <int64_t kIndex, class V>
SIMDATTN_INLINE V& reg(Register<V, kIndex>& r) {
  return r.v;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_BATCH_H_
