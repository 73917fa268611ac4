// attention_merge(): partial results over disjoint keys, joined by their log-sum-exp.
#include <algorithm>

#include "lib/definition/math.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Columns joined at a time: accumulator and widened part on the stack (2 x 4 KiB).
constexpr int64_t kColumns = 1024;

}  // namespace

Status drivers::attention_merge(const UKernels& uk, const ConstView<5>& parts, const ConstView<4>& part_lse,
                                const View<4>& out, const View<3>& lse, const float* sinks) {
  SIMDATTN_CHECK(check_attention_merge(parts, part_lse, out, lse, sinks));

  const auto [n_parts, batch, heads, rows, dim] = parts.shape;
  const int64_t part_size = size_of(parts.dtype), out_size = size_of(out.dtype);
  alignas(64) float acc[kColumns];
  alignas(64) float part[kColumns];
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        const float* row_lse = static_cast<const float*>(part_lse.data);
        if (n_parts > 0) row_lse += b * part_lse.stride[1] + h * part_lse.stride[2] + i;
        const auto lse_of = [&](int64_t p) { return row_lse[p * part_lse.stride[0]]; };
        const float sink = sinks != nullptr ? sinks[h] : -kInf;
        float m = sink;
        for (int64_t p = 0; p < n_parts; ++p) m = lse_of(p) > m ? lse_of(p) : m;
        // Relative to the maximum; 0 for parts without a visible key.
        const auto weight = [&](float of) { return scalar::exp(of - (m == -kInf ? 0.0f : m)); };
        float sum = weight(sink);
        for (int64_t p = 0; p < n_parts; ++p) sum += weight(lse_of(p));
        const float factor = sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum;
        const int64_t row = b * parts.stride[1] + h * parts.stride[2] + i * parts.stride[3];
        for (int64_t c = 0; c < dim; c += kColumns) {
          const int64_t n = std::min(kColumns, dim - c);
          std::fill_n(acc, n, 0.0f);
          for (int64_t p = 0; p < n_parts; ++p) {
            const float w = weight(lse_of(p));
            if (w == 0.0f) continue;  // what an empty part holds has no influence
            const int64_t at = p * parts.stride[0] + row + c;
            uk.widen[index_of(parts.dtype)](static_cast<const char*>(parts.data) + at * part_size, part, n);
            uk.merge(acc, 1.0f, part, w, n);
          }
          uk.finish[index_of(out.dtype)](acc, factor, row_of(out, b, h, i) + c * out_size, n);
        }
        if (lse.data != nullptr) {
          static_cast<float*>(lse.data)[b * lse.stride[0] + h * lse.stride[1] + i * lse.stride[2]] =
              canonical(scalar::log_sum_exp(m, sum));
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
