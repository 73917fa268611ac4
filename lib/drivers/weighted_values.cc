// weighted_values(): probabilities times values.
#include <algorithm>

#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/value_block.h"
#include "lib/dtypes.h"
#include "lib/rules/values.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// Accumulators live on the stack (16 KiB) unless the output itself can hold them.
constexpr int64_t kAccumulators = 4096;
constexpr int64_t kRows = 8;
/// Values larger than this are prefetched: 16-bit ones of 6 MiB are read 20 % faster with AVX2 and as fast with AVX-512. At
/// 2 MiB, the size of one L2, prefetching costs f32 a third.
constexpr int64_t kStreamBytes = int64_t{3} << 20;
constexpr int64_t kColumns = kAccumulators / kRows;

}  // namespace

Status drivers::weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                                const ValueOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_CHECK(check_weighted_values(p, v, out, options));

  const int64_t n_kv = v.shape[2];
  const int64_t dim = v.shape[3];
  const int64_t group = group_of(p.shape[1], v.shape[1]);
  const int64_t v_size = size_of(v.dtype);
  const int64_t out_size = size_of(out.dtype);
  // A single row per head (decode): the heads of a group are the rows, and their values are read once.
  const bool grouped = p.shape[2] == 1;
  const int64_t n_rows = grouped ? group : p.shape[2];
  const int64_t p_stride = step_of(p, grouped ? 1 : 2);
  const int64_t out_stride = step_of(out, grouped ? 1 : 2);
  const int64_t token_stride = step_of(v, 2);
  const bool stream = v.shape[0] * v.shape[1] * n_kv * dim * v_size > kStreamBytes;
  const KvOperands& operands = uk->attention[slot(options.arithmetic)].kv[slot(v.dtype)];
  alignas(64) float accumulators[kAccumulators];

  for (int64_t b = 0; b < p.shape[0]; ++b) {
    for (int64_t kv_head = 0; kv_head < v.shape[1]; ++kv_head) {
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h += grouped ? group : 1) {
        const float* w0 = static_cast<const float*>(p.data) + b * p.stride[0] + h * p.stride[1];
        const char* v0 = static_cast<const char*>(v.data) + (b * v.stride[0] + kv_head * v.stride[1]) * v_size;
        char* out0 = static_cast<char*>(out.data) + (b * out.stride[0] + h * out.stride[1]) * out_size;
        for (int64_t i = 0; i < n_rows; i += kRows) {
          const int64_t rows = std::min(kRows, n_rows - i);
          for (int64_t c = 0; c < dim; c += kColumns) {
            const int64_t columns = std::min(kColumns, dim - c);
            for (int64_t r = 0; r < rows; ++r) std::fill_n(accumulators + r * kColumns, columns, 0.0f);
            for (int64_t j = 0; j < n_kv; j += kKeyBlock) {
              const int64_t keys = std::min(kKeyBlock, n_kv - j);
              const ValueTile tile = {.w = w0 + i * p_stride + j,
                                      .ldw = p_stride,
                                      .rows = rows,
                                      .v = v0 + (j * token_stride + c) * v_size,
                                      .first_key = 0,
                                      .key_stride = token_stride * v_size,
                                      .group_stride = kValueGroup * v_size,
                                      .keys = keys,
                                      .dim = columns,
                                      .o = accumulators,
                                      .ldo = kColumns,
                                      .alpha = nullptr,
                                      .stream = stream};
              bool zero = false;
              for (int64_t r = 0; r < rows && !zero; ++r) zero = uk->any_zero(tile.w + r * tile.ldw, keys);
              if (zero && !uk->kv[slot(v.dtype)].all_finite(tile.v, tile.key_stride, keys, columns)) {
                add_visible_values(operands.value_tile, tile,
                                   [&](int64_t r, int64_t key) { return tile.w[r * tile.ldw + key] != 0.0f; });
              } else {
                operands.value_tile(tile);
              }
            }
            for (int64_t r = 0; r < rows; ++r) {
              uk->finish[slot(out.dtype)](accumulators + r * kColumns, 1.0f,
                                          out0 + ((i + r) * out_stride + c) * out_size, columns);
            }
          }
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
