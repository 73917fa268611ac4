// weighted_values(): probabilities times values.
#include <algorithm>

#include "dispatch/environment.h"
#include "lib/contract/operand_bytes.h"
#include "lib/contract/steps.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/operands.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Accumulators live on the stack (8 KiB).
constexpr int64_t kAccumulators = 2048;
constexpr int64_t kRows = 8;
/// Values larger than this are prefetched; those of one f32 row that is wider than a tile are read in the order of
/// memory instead. The bound is above the size of an L2 (2 MiB are common), from which prefetches only cost.
constexpr int64_t kFetchedValueBytes = int64_t{3} << 20;
constexpr int64_t kColumns = kAccumulators / kRows;

/// Of arithmetics other than f32, enough for every target.
struct ValueBuffers {
  Workspace w;
  int64_t d_v;
  int64_t ldo = round_up(d_v, kValueGroup);
  char* packed = w.take<char>(most_values_bytes(d_v));
  char* rows = w.take<char>(kLoadedRows * 4 * d_v);
  char* masked = w.take<char>(most_values_bytes(kValueGroup));
  float* weights = w.take<float>(GroupedRows::kPacked * kKeyBlock);
  float* o = w.take<float>(GroupedRows::kPacked * ldo);
};

/// A value of weight zero has no influence, NaN or not. Row r has its weights at w + r * ld.
auto not_zero(const float* w, int64_t ld) {
  return [w, ld](int64_t r, int64_t key) { return w[r * ld + key] != 0.0f; };
}

/// `tile`, of these values, row by row around weights of zero. Not inlined: 33 KiB of stack, of 48 in all.
[[gnu::noinline]] void add_around_zeros(const UKernels& uk, const AttentionKernels& ops, const ValueTile& tile,
                                        const ConstKv& values) {
  alignas(64) char masked[kValueGroup * kKeyBlock * sizeof(float)];
  const KvStore store(values, 0, 0);
  const Operands operands = {uk, ops, values.type, values.dim, nullptr};
  operands.add_visible({store, 0}, tile, masked, not_zero(tile.w, tile.ldw));
}

void weighted_values_f32(const UKernels& uk, const AttentionKernels& ops, const ConstView<4>& p, const ConstView<4>& v,
                         const View<4>& out) {
  const KvType type = kv_type_of(v.dtype);
  const int64_t n_kv = v.shape[2];
  const int64_t dim = v.shape[3];
  const int64_t v_size = size_of(v.dtype);
  const GroupedRows grouped = {p, v.shape[1]};
  const int64_t p_stride = grouped.stride(p);
  const int64_t out_stride = grouped.stride(out);
  const int64_t key_stride = step_of(v, 2) * v_size;
  const Fetch fetch = fetch_of(bytes_of(v), static_cast<double>(kFetchedValueBytes));
  alignas(64) float accumulators[kAccumulators];
  grouped.for_each(kRows, [&](int64_t b, int64_t kv_head, int64_t h, int64_t i, int64_t rows) {
    const float* const w = reinterpret_cast<const float*>(row_of(p, b, h, 0)) + i * p_stride;
    // Without weights of zero there is nothing to hide, and one call takes all keys.
    const auto any_zero = [&](int64_t key, int64_t keys) {
      bool found = false;
      for (int64_t r = 0; r < rows && !found; ++r) found = uk.any_zero(w + r * p_stride + key, keys);
      return found;
    };
    const bool zeros = any_zero(0, n_kv);
    const int64_t at_once = zeros ? kKeyBlock : n_kv;
    for (int64_t c = 0; c < dim; c += kColumns) {
      ValueTile tile = {.w = nullptr,
                        .ldw = p_stride,
                        .rows = rows,
                        .v = nullptr,
                        .key_stride = key_stride,
                        .group_stride = kValueGroup * v_size,
                        .keys = 0,
                        .dim = std::min(kColumns, dim - c),
                        .o = accumulators,
                        .ldo = kColumns,
                        .fetch = fetch};
      for (int64_t r = 0; r < rows; ++r) std::fill_n(tile.o + r * tile.ldo, tile.dim, 0.0f);
      for (int64_t j = 0; j < n_kv; j += at_once) {
        tile.w = w + j;
        tile.v = row_of(v, b, kv_head, 0) + j * key_stride + c * v_size;
        tile.keys = std::min(at_once, n_kv - j);
        // Values that no zero hides are not looked at.
        if (zeros && any_zero(j, tile.keys) &&
            !uk.kv[index_of(type)].all_finite(
                {.rows = tile.v, .token_stride = key_stride, .keys = tile.keys, .dim = tile.dim})) {
          add_around_zeros(uk, ops, tile, ConstKv(part_of(v, {b, kv_head, j, c}, {1, 1, tile.keys, tile.dim})));
        } else {
          ops.kv[index_of(type)].value_tile(tile);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        char* const to = row_of(out, b, h, 0) + ((i + r) * out_stride + c) * size_of(out.dtype);
        uk.finish[index_of(out.dtype)](tile.o + r * tile.ldo, 1.0f, to, tile.dim);
      }
    }
  });
}

/// In other arithmetics values are packed a key block at a time. `negative`: weights may be; else prepared ones of 0
/// hide a value.
void weighted_values_packed(const UKernels& uk, const AttentionKernels& ops, const ConstView<4>& p,
                            const ConstView<4>& v, const View<4>& out, const ValueBuffers& w, bool negative) {
  const ConstKv kv(v);
  const int64_t n_kv = v.shape[2];
  const int64_t p_stride = step_of(p, 2);
  const GroupedRows grouped = {p, v.shape[1]};
  grouped.for_each_block([&](int64_t b, int64_t kv_head, int64_t i, int64_t rows) {
    const KvStore store(kv, b, kv_head);
    const Operands operands = {uk, ops, kv.type, kv.dim, w.rows};
    std::fill_n(w.o, rows * w.ldo, 0.0f);
    for (int64_t j = 0; j < n_kv; j += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, n_kv - j);
      const BlockTokens values(store, j);
      operands.pack_values(values, {0, keys}, 0, kv.dim, w.packed);
      const bool finite = operands.finite(values, {0, keys});
      for (int64_t r = 0; r < rows;) {
        // Rows of one head are one tile: they have a stride.
        const int64_t n = std::min(rows - r, p.shape[2] - (i + r) % p.shape[2]);
        const float* weights = reinterpret_cast<const float*>(grouped.row(p, b, kv_head, i + r)) + j;
        ValueTile tile = {.w = weights,
                          .ldw = p_stride,
                          .rows = n,
                          .v = w.packed,
                          .keys = keys,
                          .dim = w.d_v,
                          .o = w.o + r * w.ldo,
                          .ldo = w.ldo};
        if (ops.prepare_weights != nullptr) {
          tile.w = w.weights;
          tile.ldw = kKeyBlock;
          for (int64_t x = 0; x < n; ++x) {
            ops.prepare_weights(weights + x * p_stride, w.weights + x * kKeyBlock, keys);
          }
        }
        if (finite) {
          ops.value_packed(tile);
        } else {
          operands.add_visible(values, tile, w.masked,
                               negative ? not_zero(weights, p_stride) : not_zero(tile.w, tile.ldw));
        }
        r += n;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      uk.finish[index_of(out.dtype)](w.o + r * w.ldo, 1.0f, grouped.row(out, b, kv_head, i + r), w.d_v);
    }
  });
}

}  // namespace

size_t drivers::weighted_values_workspace(Arithmetic arithmetic, int64_t d_v) {
  if (arithmetic == Arithmetic::kF32) return 0;
  return ValueBuffers{Workspace(nullptr), std::clamp(d_v, int64_t{0}, kMaxSize)}.w.bytes();
}

Status drivers::weighted_values(const UKernels& uk, const ConstView<4>& weights, const ConstView<4>& values,
                                const View<4>& out, const ValueOptions& options, const Exec& exec) {
  SIMDATTN_CHECK(check_weighted_values(weights, values, out, options, exec,
                                       drivers::weighted_values_workspace(options.arithmetic, values.shape[3])));
  if (is_empty(out)) return {};
  const Environment environment;
  ConstView<4> p = weights, v = values;
  if (is_empty(v)) p.stride = v.stride = {};  // no keys: rows of zeros; data may be null
  const AttentionKernels& ops = uk.attention[index_of(options.arithmetic)];
  if (options.arithmetic == Arithmetic::kF32) {
    weighted_values_f32(uk, ops, p, v, out);
  } else {
    const KernelHooks hooks(ops);
    weighted_values_packed(uk, ops, p, v, out, {Workspace(exec.workspace), v.shape[3]},
                           options.arithmetic != Arithmetic::kInt8);
  }
  return {};
}

}  // namespace simdattn
