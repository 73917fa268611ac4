// What the vocabulary is made of beside vectors: attributes, loops unrolled at compile time, and named registers.
//
// Every header of lib/simd and lib/kernels is included by lib/targets/table.cc alone and puts its names into an unnamed
// namespace: an object exports its table and nothing else, so the linker cannot hand its functions to another CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define SIMDATTN_INLINE inline __attribute__((always_inline))
#define SIMDATTN_LAMBDA __attribute__((always_inline))
// One body for several callers: gcc would make a copy for each set of constant arguments. Some targets call none.
#ifdef __clang__
#define SIMDATTN_SHARED __attribute__((noinline, unused))
#else
#define SIMDATTN_SHARED __attribute__((noinline, noclone, unused))
#endif

namespace simdattn {
namespace {

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

template <class Indices>
struct Unroll;
template <int64_t... kIndices>
struct Unroll<std::integer_sequence<int64_t, kIndices...>> {
  template <class F>
  SIMDATTN_INLINE constexpr void operator()(const F& f) const {
    (f(std::integral_constant<int64_t, kIndices>()), ...);
  }
};
/// unroll<kCount>(f): f(0), f(1), ... with the index as a type: a loop that is unrolled before anything else happens.
/// An object: a function would need a second one for the sequence, which gcc optimises before it is inlined.
template <int64_t kCount>
constexpr Unroll<std::make_integer_sequence<int64_t, kCount>> unroll{};

/// A number as a type, as unroll() has it.
template <int64_t k>
constexpr std::integral_constant<int64_t, k> constant{};

/// kCount vectors (or pointers), each a member of its own: gcc keeps an array of them in memory.
template <class V, int64_t kIndex>
struct Register {
  V v;
};
template <class V, class Indices>
struct RegisterFile;
template <class V, int64_t... kIndices>
struct RegisterFile<V, std::integer_sequence<int64_t, kIndices...>> : Register<V, kIndices>... {};
template <class V, int64_t kCount>
using RegistersOf = RegisterFile<V, std::make_integer_sequence<int64_t, kCount>>;

template <int64_t kIndex, class V>
SIMDATTN_INLINE V& reg(Register<V, kIndex>& r) {
  return r.v;
}
/// All of them become 0.
template <class V, int64_t... kIndices>
SIMDATTN_INLINE void clear(RegisterFile<V, std::integer_sequence<int64_t, kIndices...>>& r) {
  ((reg<kIndices>(r) = V(0)), ...);
}

}  // namespace
}  // namespace simdattn
