// weighted_values(): probabilities times values.
#include <algorithm>

#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/fetch.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Accumulators live on the stack (8 KiB) unless the output can hold them.
constexpr int64_t kAccumulators = 2048;
constexpr int64_t kRows = 8;
/// Values larger than this are prefetched; those of one f32 row that is wider than a tile are read in the order of memory instead.
/// The bound is above the size of an L2 (2 MiB are common), from which prefetches only cost.
constexpr int64_t kStreamBytes = int64_t{3} << 20;
constexpr int64_t kColumns = kAccumulators / kRows;

/// In other arithmetics: rows that share the packing of a block of values.
constexpr int64_t kPackedRows = 64;

struct ValueBuffers {
  char* block;
  char* rows;
  char* masked;
  float* weights;  // [kPackedRows][kKeyBlock]
  float* o;
  int64_t ldo;
  size_t bytes;

  /// Enough for every target: none has operands wider than f32.
  ValueBuffers(void* memory, int64_t d_v) {
    Workspace w(memory);
    ldo = (d_v + kValueGroup - 1) / kValueGroup * kValueGroup;
    block = w.take<char>((4 * ldo + 4) * kKeyBlock);
    rows = w.take<char>(kLoadedRows * 4 * d_v);
    masked = w.take<char>((4 * kValueGroup + 4) * kKeyBlock);
    weights = w.take<float>(kPackedRows * kKeyBlock);
    o = w.take<float>(kPackedRows * ldo);
    bytes = w.bytes();
  }
};

/// A value of weight zero has no influence, NaN or not. Row r has its weights at w + r * ld.
auto not_zero(const float* w, int64_t ld) {
  return [w, ld](int64_t r, int64_t key) { return w[r * ld + key] != 0.0f; };
}

/// `tile` row by row around weights of zero. Not inlined: 33 KiB of stack, of 48 in all.
[[gnu::noinline]] void add_around_zeros(const UKernels& uk, const AttentionKernels& ops, const ValueTile& tile,
                                        KvType type) {
  alignas(64) char masked[kValueGroup * kKeyBlock * sizeof(float)];
  ConstKv kv;
  kv.data = tile.v;
  kv.type = type;
  kv.tokens = tile.keys;
  kv.dim = tile.dim;
  kv.token_stride = tile.key_stride;
  HeadOperands(uk, ops, kv, 0, 0, 0, nullptr).add_visible(0, tile, masked, not_zero(tile.w, tile.ldw));
}

void weighted_values_f32(const UKernels& uk, const ConstView<4>& p, const ConstView<4>& v, const View<4>& out) {
  const AttentionKernels& ops = uk.attention[slot(Arithmetic::kF32)];
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
  const Fetch fetch = fetch_of(bytes_of(v), static_cast<double>(kStreamBytes));
  // f32 is summed where it will stand: 8 lines of L1 less for each row of 128. Only where a row is whole groups, as add_visible() writes those, and not
  // from beyond L2: rows in the order of memory want sums at multiples of 64 bytes.
  const bool in_place = out.dtype == DType::kF32 && dim % kValueGroup == 0 && fetch == Fetch::kNone;
  const KvOperands& operands = ops.kv[slot(kv_type_of(v.dtype))];
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
            char* const out_at = out0 + (i * out_stride + c) * out_size;
            ValueTile tile = {.w = nullptr,
                              .ldw = p_stride,
                              .rows = rows,
                              .v = nullptr,
                              .first_key = 0,
                              .key_stride = token_stride * v_size,
                              .group_stride = kValueGroup * v_size,
                              .keys = 0,
                              .dim = columns,
                              .o = in_place ? reinterpret_cast<float*>(out_at) : accumulators,
                              .ldo = in_place ? out_stride : kColumns,
                              .alpha = nullptr,
                              .fetch = fetch};
            for (int64_t r = 0; r < rows; ++r) std::fill_n(tile.o + r * tile.ldo, columns, 0.0f);
            // Without weights of zero there is nothing to hide, and one call takes all keys.
            const auto any_zero = [&](int64_t key, int64_t keys) {
              bool found = false;
              for (int64_t r = 0; r < rows && !found; ++r) found = uk.any_zero(w0 + (i + r) * p_stride + key, keys);
              return found;
            };
            const bool zeros = any_zero(0, n_kv);
            const int64_t block = zeros ? kKeyBlock : n_kv;
            for (int64_t j = 0; j < n_kv; j += block) {
              const int64_t keys = std::min(block, n_kv - j);
              tile.w = w0 + i * p_stride + j;
              tile.v = v0 + (j * token_stride + c) * v_size;
              tile.keys = keys;
              // Blocks of values that no zero hides are not looked at.
              if (zeros && any_zero(j, keys) &&
                  !uk.kv[slot(kv_type_of(v.dtype))].all_finite(
                      {.rows = tile.v, .token_stride = tile.key_stride, .keys = keys, .dim = columns})) {
                add_around_zeros(uk, ops, tile, kv_type_of(v.dtype));
              } else {
                operands.value_tile(tile);
              }
            }
            for (int64_t r = 0; r < rows; ++r) {
              uk.finish[slot(out.dtype)](tile.o + r * tile.ldo, 1.0f, out_at + r * out_stride * out_size, columns);
            }
          }
        }
      }
    }
  }
}

/// In other arithmetics: values are packed a block of keys at a time. `negative`: weights may be; else prepared ones hide
/// a value where they are 0.
void weighted_values_packed(const UKernels& uk, const AttentionKernels& ops, const ConstView<4>& p,
                            const ConstView<4>& v, const View<4>& out, const ValueBuffers& w, bool negative) {
  const ConstKv kv(v);
  const int64_t n_kv = v.shape[2];
  const int64_t group = group_of(p.shape[1], v.shape[1]);
  const int64_t out_size = size_of(out.dtype);
  for (int64_t b = 0; b < p.shape[0]; ++b) {
    for (int64_t kv_head = 0; kv_head < v.shape[1]; ++kv_head) {
      const HeadOperands values(uk, ops, kv, b, kv_head, 0, w.rows);
      // Rows are those of all heads of the group.
      const int64_t n_rows = group * p.shape[2];
      const auto row = [&](const auto& view, int64_t r) {
        const int64_t h = kv_head * group + r / p.shape[2];
        return b * view.stride[0] + h * view.stride[1] + r % p.shape[2] * view.stride[2];
      };
      for (int64_t i = 0; i < n_rows; i += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, n_rows - i);
        std::fill_n(w.o, rows * w.ldo, 0.0f);
        for (int64_t j = 0; j < n_kv; j += kKeyBlock) {
          const int64_t keys = std::min(kKeyBlock, n_kv - j);
          values.pack_block(j, 0, keys, w.block);
          const bool finite = values.finite(j, 0, keys);
          for (int64_t r = 0; r < rows;) {
            // Rows of one head are one tile: they have a stride.
            const int64_t n = std::min(rows - r, p.shape[2] - (i + r) % p.shape[2]);
            const float* weights = static_cast<const float*>(p.data) + row(p, i + r) + j;
            ValueTile tile = {.w = weights,
                              .ldw = step_of(p, 2),
                              .rows = n,
                              .v = w.block,
                              .first_key = 0,
                              .key_stride = 0,
                              .group_stride = 0,
                              .keys = keys,
                              .dim = v.shape[3],
                              .o = w.o + r * w.ldo,
                              .ldo = w.ldo,
                              .alpha = nullptr};
            if (ops.prepare_weights != nullptr) {
              tile.w = w.weights;
              tile.ldw = kKeyBlock;
              for (int64_t x = 0; x < n; ++x) {
                ops.prepare_weights(weights + x * step_of(p, 2), w.weights + x * kKeyBlock, keys);
              }
            }
            if (finite) {
              ops.value_packed(tile);
            } else if (negative) {
              values.add_visible(j, tile, w.masked, not_zero(weights, step_of(p, 2)));
            } else {
              values.add_visible(j, tile, w.masked, not_zero(tile.w, tile.ldw));
            }
            r += n;
          }
        }
        for (int64_t r = 0; r < rows; ++r) {
          uk.finish[slot(out.dtype)](w.o + r * w.ldo, 1.0f, static_cast<char*>(out.data) + row(out, i + r) * out_size,
                                     v.shape[3]);
        }
      }
    }
  }
}

void run(const UKernels& uk, const ConstView<4>& p, const ConstView<4>& v, const View<4>& out, Arithmetic arithmetic,
         const Exec& exec) {
  if (arithmetic == Arithmetic::kF32) {
    weighted_values_f32(uk, p, v, out);
  } else {
    const AttentionKernels& ops = uk.attention[slot(arithmetic)];
    const KernelHooks hooks(ops);
    weighted_values_packed(uk, ops, p, v, out, ValueBuffers(exec.workspace, v.shape[3]),
                           arithmetic != Arithmetic::kInt8);
  }
}

}  // namespace

size_t drivers::weighted_values_workspace(Arithmetic arithmetic, int64_t d_v) {
  return arithmetic == Arithmetic::kF32 ? 0 : ValueBuffers(nullptr, std::clamp(d_v, int64_t{0}, kMaxSize)).bytes;
}

Status drivers::weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                                const ValueOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_CHECK(check_weighted_values(p, v, out, options, exec,
                                       drivers::weighted_values_workspace(options.arithmetic, v.shape[3])));
  if (is_empty(out)) return {};
  const Environment environment;
  if (is_empty(v)) {  // no keys: rows of zeros; data may be null
    ConstView<4> no_p = p, no_v = v;
    no_p.stride = no_v.stride = {};
    run(*uk, no_p, no_v, out, options.arithmetic, exec);
  } else {
    run(*uk, p, v, out, options.arithmetic, exec);
  }
  return {};
}

}  // namespace simdattn
