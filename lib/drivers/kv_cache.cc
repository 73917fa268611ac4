// kv_append(): new tokens into a cache, converted, rotated and laid out on the way.
#include <algorithm>
#include <cstring>

#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/kv_store.h"
#include "lib/drivers/turn_row.h"
#include "lib/dtypes.h"
#include "lib/rules/positions.h"
#include "lib/rules/views.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr KvText kText = SIMDATTN_KV_TEXT("kv");

/// Elements between neighbouring keys of a panel.
template <class T>
inline constexpr int64_t kPanelColumn = std::is_same_v<T, bf16> ? 2 : 1;
/// Where element d of a key is in its panel, relative to the key's element 0.
template <class T>
int64_t panel_step(int64_t d) {
  return std::is_same_v<T, bf16> ? d / 2 * 2 * kPanelWidth + d % 2 : d * kPanelWidth;
}
/// Converts and rotates a row into column `column` of a panel.
void append_column(const UKernels& uk, const RopeHeads& row, DType from, DType to, int64_t column, char* panel) {
  with_storage(to, [&](auto t) {
    using T = decltype(t);
    T* key = reinterpret_cast<T*>(panel) + column * kPanelColumn<T>;
    const int64_t size = size_of(from);
    turn_row(
        uk, row, from, to,
        [&](int64_t d, int64_t n, char* piece) {
          std::memcpy(piece, static_cast<const char*>(row.x) + d * size, static_cast<size_t>(n * size));
        },
        [&](const char* piece, int64_t d, int64_t n) {
          for (int64_t i = 0; i < n; ++i) key[panel_step<T>(d + i)] = reinterpret_cast<const T*>(piece)[i];
        });
    // An odd last dimension of bf16 is paired with zero.
    if (std::is_same_v<T, bf16> && row.dim % 2 != 0) key[panel_step<T>(row.dim)] = T{};
  });
}

}  // namespace

Status drivers::kv_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& cache,
                          const AppendOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  const KeyRotation& rope = options.rope;
  ByteSet er, ep, ek, ec, es;
  SIMDATTN_CHECK(check_view(rows, Accept::kElements, SIMDATTN_ARGUMENT("rows"), &er));
  SIMDATTN_CHECK(check_kv(cache, {.output = true}, kText, &ek));
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
    SIMDATTN_CHECK(check_rope_table(rope.cos, rope.sin, rope.options, dim, kAppendRope, &ec, &es));
    limit = std::min(limit, rope.cos.shape[0]);
  }
  SIMDATTN_REQUIRE(positions.data != nullptr || batch == 0 || n == 0, Code::kNullPointer,
                   "positions.data: null although there are rows");
  SIMDATTN_CHECK(check_positions(positions, options.start, batch, n, std::numeric_limits<int64_t>::min(), limit, &ep));
  if (cache.block_table != nullptr) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = position_at(positions, options.start, b, i);
        SIMDATTN_REQUIRE(p < 0 || page_of(cache, b, p) < cache.n_pages, Code::kRange, kText.pages);
      }
    }
  }
  SIMDATTN_REQUIRE(!share_bytes(er, ek) && !share_bytes(ep, ek), Code::kOverlap, "cache: overlaps rows or positions");
  SIMDATTN_REQUIRE(!share_bytes(ec, ek) && !share_bytes(es, ek), Code::kOverlap,
                   "cache: overlaps rope.cos or rope.sin");
  if (er.empty()) return {};

  // Without a table the same kernel converts: it copies all dimensions that it does not rotate.
  RopeHeads call = {.x = nullptr,
                    .y = nullptr,
                    .x_stride = rows.stride[1],
                    .y_stride = 0,
                    .heads = 1,
                    .dim = dim,
                    .first = rotate ? rope.options.first_dim : 0,
                    .half = rotate ? rope.cos.shape[1] : 0,
                    .cos = nullptr,
                    .sin = nullptr,
                    .interleaved = rope.options.pairing == RopePairing::kInterleaved,
                    .inverse = rope.options.inverse};
  const auto kernel = uk->rope_heads[slot(rows.dtype)][slot(DType(cache.type))];
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, options.start, b, i);
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
        append_column(*uk, call, rows.dtype, DType(cache.type), column, store.at(p - column, &run));
      }
    }
  }
  return {};
}

}  // namespace simdattn
