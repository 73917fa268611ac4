// kv_append(): new tokens into a cache, converted, rotated and laid out on the way.
#include <algorithm>
#include <cmath>

#include "dispatch/target.h"
#include "lib/drivers/kv_store.h"
#include "lib/drivers/positions.h"
#include "lib/drivers/validate.h"
#include "lib/dtypes.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr KvText kCache = SIMDATTN_KV_TEXT("cache");
/// Rows up to this many elements are rotated and converted by the vector kernel, on the stack.
constexpr int64_t kRowElements = 2048;

/// Element d of a row after rotation, in f32: the definition, for rows that do not fit the stack.
template <class X>
float rotated(const X* x, int64_t d, const RopeHeads& r) {
  const int64_t inside = d - r.first;
  if (inside < 0 || inside >= 2 * r.half) return to_f32(x[d]);
  const int64_t pair = r.interleaved ? inside / 2 : inside % r.half;
  const bool second = r.interleaved ? inside % 2 != 0 : inside >= r.half;
  const int64_t d0 = r.first + (r.interleaved ? 2 * pair : pair);
  const float x0 = to_f32(x[d0]);
  const float x1 = to_f32(x[d0 + (r.interleaved ? 1 : r.half)]);
  const float c = r.cos[pair];
  const float s = r.inverse ? -r.sin[pair] : r.sin[pair];
  return second ? std::fma(x0, s, x1 * c) : std::fma(x0, c, -(x1 * s));
}

/// A row of the cache's type into column `column` of a panel.
template <class T>
void store_column(const T* row, int64_t dim, int64_t column, T* panel) {
  if constexpr (std::is_same_v<T, bf16>) {
    for (int64_t d = 0; d < dim; ++d) panel[(d / 2 * kPanelWidth + column) * 2 + d % 2] = row[d];
    if (dim % 2 != 0) panel[(dim / 2 * kPanelWidth + column) * 2 + 1] = bf16{0};
  } else {
    for (int64_t d = 0; d < dim; ++d) panel[d * kPanelWidth + column] = row[d];
  }
}

}  // namespace

Status kv_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& cache, const AppendRope& rope,
                 const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  Extent er, ep, ek, ec, es;
  SIMDATTN_CHECK(check_view(rows, Accept::kStorage, SIMDATTN_ARGUMENT("rows"), &er));
  SIMDATTN_CHECK(check_kv(cache, false, false, true, kCache, &ek));
  const int64_t batch = rows.shape[0];
  const int64_t heads = rows.shape[1];
  const int64_t n = rows.shape[2];
  const int64_t dim = rows.shape[3];
  SIMDATTN_REQUIRE(cache.batch == batch, Code::kShape, "cache.batch != rows.shape[0]");
  SIMDATTN_REQUIRE(cache.heads == heads, Code::kShape, "cache.heads != rows.shape[1]");
  SIMDATTN_REQUIRE(cache.dim == dim, Code::kShape, "cache.dim != rows.shape[3]");
  const bool rotate = rope.cos.data != nullptr || rope.sin.data != nullptr;
  int64_t limit = cache.tokens;
  if (rotate) {
    SIMDATTN_CHECK(check_rope_table(rope.cos, rope.sin, rope.options, dim, &ec, &es));
    limit = std::min(limit, rope.cos.shape[0]);
  }
  SIMDATTN_REQUIRE(positions.data != nullptr || batch == 0 || n == 0, Code::kNullPointer,
                   "positions.data: null although there are rows");
  SIMDATTN_CHECK(check_positions(positions, batch, n, std::numeric_limits<int64_t>::min(), limit, &ep));
  if (cache.block_table != nullptr) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = position_at(positions, b, i);
        SIMDATTN_REQUIRE(p < 0 || page_of(cache, b, p) < cache.n_pages, Code::kRange, kCache.pages);
      }
    }
  }
  SIMDATTN_REQUIRE(!overlaps_kv(er, cache, ek) && !overlaps_kv(ep, cache, ek), Code::kOverlap,
                   "cache: overlaps rows or positions");
  SIMDATTN_REQUIRE(!overlaps_kv(ec, cache, ek) && !overlaps_kv(es, cache, ek), Code::kOverlap,
                   "cache: overlaps rope.cos or rope.sin");
  if (er.empty()) return {};

  // Without a table the same kernel converts: it copies all dimensions that it does not rotate.
  RopeHeads call = {.x = nullptr,
                    .y = nullptr,
                    .x_stride = rows.stride[1],
                    .y_stride = cache.head_stride,
                    .heads = 1,
                    .dim = dim,
                    .first = rotate ? rope.options.first_dim : 0,
                    .half = rotate ? rope.cos.shape[1] : 0,
                    .cos = nullptr,
                    .sin = nullptr,
                    .interleaved = rope.options.pairing == RopePairing::kInterleaved,
                    .inverse = rope.options.inverse};
  const auto kernel = uk->rope_heads[slot(rows.dtype)][slot(cache.dtype)];
  alignas(64) char buffer[kRowElements * 4];
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, b, i);
      if (p < 0 || (cache.block_table != nullptr && page_of(cache, b, p) < 0)) continue;
      if (rotate) {
        call.cos = static_cast<const float*>(rope.cos.data) + p * rope.cos.stride[0];
        call.sin = static_cast<const float*>(rope.sin.data) + p * rope.sin.stride[0];
      }
      for (int64_t h = 0; h < heads; ++h) {
        int64_t run = 0;
        const KvStore<false> store(cache, b, h);
        call.x = static_cast<const char*>(rows.data) +
                 (b * rows.stride[0] + h * rows.stride[1] + i * rows.stride[2]) * size_of(rows.dtype);
        if (!store.panels()) {
          call.y = store.at(p, &run);
          kernel(call);
          continue;
        }
        const int64_t column = p % kPanelWidth;
        char* panel = store.at(p - column, &run);
        if (dim <= kRowElements) {
          call.y = buffer;
          kernel(call);
        }
        with_storage(cache.dtype, [&](auto t) {
          using T = decltype(t);
          if (dim <= kRowElements) {
            store_column(reinterpret_cast<const T*>(buffer), dim, column, reinterpret_cast<T*>(panel));
            return;
          }
          with_storage(rows.dtype, [&](auto x) {
            for (int64_t d = 0; d < dim; ++d) {
              const T value = from_f32<T>(rotated(static_cast<const decltype(x)*>(call.x), d, call));
              if constexpr (std::is_same_v<T, bf16>) {
                reinterpret_cast<T*>(panel)[(d / 2 * kPanelWidth + column) * 2 + d % 2] = value;
              } else {
                reinterpret_cast<T*>(panel)[d * kPanelWidth + column] = value;
              }
            }
            if constexpr (std::is_same_v<T, bf16>) {
              if (dim % 2 != 0) reinterpret_cast<T*>(panel)[(dim / 2 * kPanelWidth + column) * 2 + 1] = T{0};
            }
          });
        });
      }
    }
  }
  return {};
}

}  // namespace simdattn
