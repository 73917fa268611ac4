// Operations that some instruction sets lack. They are declared for all, for templates that name them, and called where
// they exist: kernels ask the constants of machine.h first.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_
#define SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

template <class P>
Ints two_rows(P first, P second);
template <bool kWeights>
void add_matrix_products(Ints& sum, Ints rows, Ints columns);
template <bool kOdd>
Floats mul_add_pairs(float factor, Floats pairs, Floats sum);
template <class P>
Floats load_in_order(P p);
template <class R>
void add_three(const float* x, R& column, Floats& a0, Floats& a1, Floats& a2);
template <class V>
Floats lane_of(Floats table, V index);
template <class P>
void widen_four(uint64_t f16_bits, P p);
template <int k>
Bits16 upper_bytes(Bits32 v);
template <class P>
Bits16 load_scaled_bytes(P p, int n);
template <class P>
Floats load_cells(P p, int64_t n);

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_
