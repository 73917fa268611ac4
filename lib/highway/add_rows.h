// Rows of f32 added to rows of any element type.
#ifndef SIMDATTN_LIB_HIGHWAY_ADD_ROWS_H_
#define SIMDATTN_LIB_HIGHWAY_ADD_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "lib/highway/loads.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

template <class T>
HWY_INLINE void Add(const AddRows& a) {
  const hn::ScalableTag<float> d;
  const size_t step = hn::Lanes(d);
  const size_t n = static_cast<size_t>(a.dim);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const float* p = a.p + r * a.p_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    size_t i = 0;
    for (; i + step <= n; i += step) StoreRounded(d, hn::Add(LoadWide(d, x + i), hn::LoadU(d, p + i)), y + i);
    if (i < n) StoreRoundedN(d, hn::Add(LoadWideN(d, x + i, n - i), hn::LoadN(d, p + i, n - i)), y + i, n - i);
  }
}

void AddRowsF32(const AddRows& a) { Add<float>(a); }
void AddRowsBF16(const AddRows& a) { Add<bf16>(a); }
void AddRowsF16(const AddRows& a) { Add<f16>(a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_ADD_ROWS_H_
