// The vocabulary without a library and without an instruction set: a vector is SIMDATTN_PLAIN_LANES numbers of the type
// that compilers have for any CPU. It serves CPUs that no library serves, and shows sanitizers every access of kernels.
#pragma once

#define SIMDATTN_PLAIN 1

#include <cmath>

#include "lib/contract/fma.h"
#include "lib/simd/batch.h"

namespace simdattn {
namespace {

template <class T>
struct RegisterType : VectorOf<T, 4 * SIMDATTN_PLAIN_LANES> {
  using raw = NoRaw;
};

/// Lane i is f(i).
template <class V, class F>
SIMDATTN_INLINE V each(const F& f) {
  V v;
  for (size_t i = 0; i < V::size; ++i) v.data[i] = f(i);
  return v;
}

#ifdef __FP_FAST_FMAF
SIMDATTN_INLINE
#else
SIMDATTN_SHARED  // as a function call for each lane it would be most of the code
#endif
void add_product(Floats& sum, const Floats& a, const Floats& b) {
  for (size_t i = 0; i < Floats::size; ++i) sum.data[i] = simdattn::fma(a[i], b[i], sum[i]);
}
/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) {
  add_product(c, a, b);
  return c;
}
SIMDATTN_INLINE Ints nearest(Floats v) {
  return each<Ints>([&](size_t i) SIMDATTN_LAMBDA {
    return std::fabs(v[i]) < 0x1p31f ? static_cast<int32_t>(std::nearbyint(v[i])) : INT32_MIN;
  });
}

}  // namespace
}  // namespace simdattn

#include "lib/simd/vectors.h"  // wants the above
