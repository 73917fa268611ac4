// The walk over batches, heads and rows that scores() and its relatives share.
#ifndef SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_

#include <algorithm>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/rows/fetch.h"
#include "lib/rules/views.h"

namespace simdattn {

/// Query rows of 16-bit types are widened to f32 on the stack: up to this many elements (32 KiB) and rows at a time.
inline constexpr int64_t kQueryElements = 8192;
inline constexpr int64_t kQueryRows = 8;

/// f(q, k) with the rows' types.
template <class F>
float with_rows(const void* q, DType q_type, const void* k, DType k_type, const F& f) {
  return with_storage(q_type, [&](auto tq) {
    return with_storage(
        k_type, [&](auto tk) { return f(static_cast<const decltype(tq)*>(q), static_cast<const decltype(tk)*>(k)); });
  });
}

/// Scores of all rows of q, whose dimension is that of k. kernel(call, head, next_head) computes a block of rows: row r is
/// of head `head + r * next_head`. definition(q, k, head) is the sum that the kernel forms, for rows of 16-bit types that do
/// not fit the buffer: the same bits, not fast. Not inlined: the buffer takes stack only where it is used.
template <class Kernel, class Definition>
[[gnu::noinline]] void score_all_rows(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k,
                                      const View<4>& out, float factor, Kernel&& kernel, Definition&& definition) {
  const int64_t dim = q.shape[3];
  const int64_t group = group_of(q.shape[1], k.shape[1]);
  const int64_t q_size = size_of(q.dtype);
  const int64_t k_size = size_of(k.dtype);
  const bool direct = q.dtype == DType::kF32;
  alignas(64) float buffer[kQueryElements];
  // A single query row per head (decode): the heads of a group are the rows, and their keys are read once.
  const bool grouped = q.shape[2] == 1;
  const int64_t rows = grouped ? group : q.shape[2];
  const int64_t q_stride = step_of(q, grouped ? 1 : 2);
  const int64_t k_stride = step_of(k, 2);
  const int64_t out_stride = step_of(out, grouped ? 1 : 2);
  const int64_t next_head = grouped ? 1 : 0;
  const Fetch fetch = fetch_of(bytes_of(k), kCacheBytes);
  const int64_t rows_at_once = direct ? rows : std::min(kQueryRows, kQueryElements / dim);

  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t kv_head = 0; kv_head < k.shape[1]; ++kv_head) {
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h += grouped ? group : 1) {
        const char* keys = static_cast<const char*>(k.data) + (b * k.stride[0] + kv_head * k.stride[1]) * k_size;
        const char* queries = static_cast<const char*>(q.data) + (b * q.stride[0] + h * q.stride[1]) * q_size;
        float* s = static_cast<float*>(out.data) + b * out.stride[0] + h * out.stride[1];
        ScoreRows call = {.q = buffer,
                          .ldq = dim,
                          .n_q = 0,
                          .k = keys,
                          .ldk = k_stride,
                          .n_k = k.shape[2],
                          .dim = dim,
                          .scale = factor,
                          .s = s,
                          .lds = out_stride,
                          .fetch = fetch};
        if (rows_at_once == 0 && rows > 0) {
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < k.shape[2]; ++j) {
              const float sum =
                  with_rows(queries + i * q_stride * q_size, q.dtype, keys + j * k_stride * k_size, k.dtype,
                            [&](const auto* row, const auto* key) { return definition(row, key, h + i * next_head); });
              s[i * out_stride + j] = canonical(sum * factor);
            }
          }
          continue;
        }
        for (int64_t i = 0; i < rows; i += call.n_q) {
          call.n_q = std::min(rows_at_once, rows - i);
          call.s = s + i * out_stride;
          if (direct) {
            call.q = reinterpret_cast<const float*>(queries) + i * q_stride;
            call.ldq = q_stride;
          } else {
            for (int64_t r = 0; r < call.n_q; ++r) {
              uk.widen[slot(q.dtype)](queries + (i + r) * q_stride * q_size, buffer + r * dim, dim);
            }
          }
          kernel(call, h + i * next_head, next_head);
        }
      }
    }
  }
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_
