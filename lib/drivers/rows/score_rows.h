// The walk over rows that scores() and its relatives share.
#ifndef SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_

#include <algorithm>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/rows/fetch.h"
#include "lib/drivers/rows/rows.h"

namespace simdattn {

/// Query rows of 16-bit types are widened to f32 on the stack: up to this many elements (32 KiB) and rows at a time.
inline constexpr int64_t kQueryElements = 8192;
inline constexpr int64_t kQueryRows = 8;

/// kernel(call, head, next_head) for all rows of q, at most `at_once` at a time: row r is of head `head + r * next_head`.
/// They are widened into `buffer`; null: they stay where they are, in their type.
template <class Kernel>
void for_query_rows(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, float factor,
                    float* buffer, int64_t at_once, const Kernel& kernel) {
  const int64_t dim = q.shape[3];
  const GroupedRows grouped = {q, k.shape[1]};
  const int64_t q_stride = grouped.stride(q);
  ScoreRows call = {.q = buffer,
                    .ldq = buffer == nullptr ? q_stride : dim,
                    .n_q = 0,
                    .k = nullptr,
                    .ldk = step_of(k, 2),
                    .n_k = k.shape[2],
                    .dim = dim,
                    .scale = factor,
                    .s = nullptr,
                    .lds = grouped.stride(out),
                    .fetch = fetch_of(bytes_of(k), kCacheBytes)};
  grouped.for_each([&](int64_t b, int64_t kv_head, int64_t h) {
    call.k = row_of(k, b, kv_head, 0);
    for (int64_t i = 0; i < grouped.rows; i += call.n_q) {
      const char* const rows = row_of(q, b, h, 0) + i * q_stride * size_of(q.dtype);
      call.n_q = std::min(at_once, grouped.rows - i);
      call.s = f32_row_of(out, b, h, 0) + i * call.lds;
      if (buffer == nullptr) call.q = reinterpret_cast<const float*>(rows);
      for (int64_t r = 0; buffer != nullptr && r < call.n_q; ++r) {
        uk.widen[slot(q.dtype)](rows + r * q_stride * size_of(q.dtype), buffer + r * dim, dim);
      }
      kernel(call, h + i * grouped.next_head, grouped.next_head);
    }
  });
}

/// Scores of all rows of q, whose dimension is that of k. definition(q, k, head) is the kernel's sum, for rows of 16-bit
/// types that do not fit the buffer: the same bits, not fast. Not inlined: the buffer takes stack only where it is used.
template <class Kernel, class Definition>
[[gnu::noinline]] void score_all_rows(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k,
                                      const View<4>& out, float factor, Kernel&& kernel, Definition&& definition) {
  alignas(64) float buffer[kQueryElements];
  if (q.dtype == DType::kF32) return for_query_rows(uk, q, k, out, factor, nullptr, kMaxSize, kernel);
  const int64_t at_once = std::min(kQueryRows, kQueryElements / q.shape[3]);
  if (at_once > 0) return for_query_rows(uk, q, k, out, factor, buffer, at_once, kernel);
  for_query_rows(uk, q, k, out, factor, nullptr, 1, [&](const ScoreRows& call, int64_t head, int64_t) {
    with_storage(q.dtype, [&](auto tq) {
      with_storage(k.dtype, [&](auto tk) {
        const auto* const row = reinterpret_cast<const decltype(tq)*>(call.q);
        const auto* const keys = static_cast<const decltype(tk)*>(call.k);
        for (int64_t j = 0; j < call.n_k; ++j)
          call.s[j] = canonical(definition(row, keys + j * call.ldk, head) * factor);
      });
    });
  });
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROWS_SCORE_ROWS_H_
