// rope(): rotates rows by the angles of their positions.
#include "lib/rules/rope.h"

#include <algorithm>

#include "dispatch/cpu.h"
#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/dtypes.h"
#include "lib/environment.h"
#include "lib/rules/positions.h"
#include "lib/stream_fence.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr int64_t kCache = int64_t{16} << 20;  // bytes beyond which rows come from memory
/// Bytes of rows that are then taken at once, of f32; of 16 bits in place, and out of place: with 1024 of these the tables are prepared too often
/// (1.02 - 1.2 of the time, 4096 x 32 rows on a Zen 4).
constexpr int64_t kFewBytes[] = {1024, 4096, 2048};
/// Rows that so many bytes of others come before are prefetched, but for those in place on a Zen 4: they take 1.12 - 1.24 of the time so.
constexpr int64_t kAheadBytes = 16384;

}  // namespace

Status drivers::rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                     const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_rope(x, cos, sin, positions, out, options, &empty));
  if (empty) return {};

  const Environment environment;
  const int64_t n = x.shape[2];
  const int64_t x_size = size_of(x.dtype);
  const int64_t out_size = size_of(out.dtype);
  const auto kernel = uk->rope_heads[slot(x.dtype)][slot(out.dtype)];
  const int64_t row_bytes = x.shape[3] * std::max(x_size, out_size);
  const int64_t bytes = x.shape[0] * n * x.shape[1] * row_bytes * (x.data == out.data ? 1 : 2);
  const bool stream = bytes > kCache && x.data != out.data;
  int64_t later = n;
  RopeHeads call;  // member by member: an initialiser would clear it first
  call.x_stride = x.stride[1];
  call.y_stride = out.stride[1];
  call.heads = x.shape[1];
  call.dim = x.shape[3];
  call.first = options.first_dim;
  call.half = cos.shape[1];
  call.interleaved = options.pairing == RopePairing::kInterleaved;
  call.inverse = options.inverse;
  call.stream = stream;
  if (bytes > kCache) {
    const int kind = std::max(x_size, out_size) == 4 ? 0 : x.data == out.data ? 1 : 2;
    call.few = std::max<int64_t>(kFewBytes[kind] / row_bytes, 1);
    if (x.data != out.data || !is_zen4()) later = (kAheadBytes - 1) / (x.shape[1] * x.shape[3] * x_size) + 1;
  }
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, options.start, b, i);
      call.x = static_cast<const char*>(x.data) + (b * x.stride[0] + i * x.stride[2]) * x_size;
      call.y = static_cast<char*>(out.data) + (b * out.stride[0] + i * out.stride[2]) * out_size;
      call.cos = table_row(cos, p);
      call.sin = table_row(sin, p);
      call.ahead = i < n - later ? later * x.stride[2] * x_size : 0;
      kernel(call);
    }
  }
  if (stream) stream_fence();
  return {};
}

}  // namespace simdattn
