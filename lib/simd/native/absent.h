// Operations that an instruction set lacks. They are declared, for templates that name them, and never called: kernels ask the constants
// of machine.h first.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_
#define SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if !defined(__ARM_FEATURE_MATMUL_INT8)
template <class P>
Ints two_rows(P first, P second);
template <bool kWeights>
void add_matrix_products(Ints& sum, Ints rows, Ints columns);
template <class V>
V even_pairs(V a, V b);
template <class V>
V odd_pairs(V a, V b);
#endif
#if !SIMDATTN_AVX2 || SIMDATTN_AVX512
template <class V>
Floats pairs_of_rows(V b0, V b1);
template <class P>
Floats load_in_order(P p);
template <class R>
void add_three(const float* x, R& column, Floats& a0, Floats& a1, Floats& a2);
#endif
#if SIMDATTN_SVE
template <int64_t kRows = 4, class P>
Floats load_blocks(P p, int64_t stride);
template <class V>
V zip_lo_blocks(V a, V b);
template <class V>
V zip_hi_blocks(V a, V b);
template <class V>
V zip_lo_pairs(V a, V b);
template <class V>
V zip_hi_pairs(V a, V b);
template <class V>
V even_bytes(V v);
template <class V>
V odd_bytes(V v);
#endif
#if !SIMDATTN_AVX2 && !SIMDATTN_PLAIN
template <int i, class V>
V upper_byte(V v);
template <int kPair, class V>
Bits16 upper_bytes(V v);
template <class P>
Bits16 load_upper_bytes(P p);
template <class V>
V signed_shift(V v, int n);
template <class V>
V max_bytes(V a, V b);
#endif
#if !SIMDATTN_AVX2
template <class V>
Floats f32_of_first(V v);
template <class V>
Floats f32_of_second(V v);
template <int64_t kRows, class P>
void store_blocks(Floats v, P p, int64_t stride);
template <class P>
Floats load_cells(P p, int64_t n);
template <class V>
V zip_lo_bytes(V a, V b);
template <class V>
V zip_hi_bytes(V a, V b);
template <class V>
void order_columns(V& s0, V& s1, V& s2, V& s3);
#if SIMDATTN_SVE
template <class V>
V zip_lo_words(V a, V b);
template <class V>
V zip_hi_words(V a, V b);
#endif
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_ABSENT_H_
