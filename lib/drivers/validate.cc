#include "lib/drivers/validate.h"

#include <cmath>
#include <numeric>

#include "lib/dtypes.h"

namespace simdattn {
namespace {

bool accepted(DType t, Accept accept) {
  return static_cast<unsigned>(t) < 8 && (static_cast<unsigned>(accept) >> static_cast<unsigned>(t) & 1) != 0;
}

/// Greatest common divisor of the outer strides in bytes; 0 for a single row.
uint64_t common_step(const Extent& e) {
  uint64_t step = 0;
  for (int i = 0; i < e.outer; ++i) {
    if (e.shape[i] > 1) step = std::gcd(step, static_cast<uint64_t>(std::abs(e.stride[i]) * e.size));
  }
  return step;
}

/// True if two elements of an output may be the same: taken by growing stride, every dimension must step over all that
/// the smaller ones reach.
template <int kRank>
bool coincide(const int64_t* shape, const int64_t* stride) {
  bool taken[kRank] = {};
  int64_t reached = shape[kRank - 1];
  for (int n = 0; n < kRank - 1; ++n) {
    int best = -1;
    for (int i = 0; i < kRank - 1; ++i) {
      if (taken[i] || shape[i] == 1) continue;
      if (best < 0 || std::abs(stride[i]) < std::abs(stride[best])) best = i;
    }
    if (best < 0) break;
    taken[best] = true;
    const int64_t s = std::abs(stride[best]);
    if (s < reached) return true;
    reached += s * (shape[best] - 1);
  }
  return false;
}

constexpr Argument kBias = SIMDATTN_ARGUMENT_TEXT("scoring.bias");
constexpr Argument kKeep = SIMDATTN_ARGUMENT_TEXT("scoring.keep");

Extent bits_extent(const BitMask& m, const ScoringShape& shape) {
  const int64_t sizes[3] = {shape.mask_batch, shape.heads, shape.mask_rows};
  int64_t low = 0;
  int64_t high = (m.columns + 7) / 8;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t reach = m.stride[i] * (sizes[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  return extent_of(m.data + low, high - low);
}

}  // namespace

Extent extent_of(const void* data, int64_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  const uint64_t n = data == nullptr || bytes <= 0 ? 0 : static_cast<uint64_t>(bytes);
  return {first, first + n, first, n, nullptr, nullptr, 0, 0};
}

template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, Extent* extent) {
  constexpr int kLast = kRank - 1;
  const int64_t* shape = v.shape.data();
  const int64_t* stride = v.stride.data();
  extent->clear();
  if (!accepted(v.dtype, accept)) return {Code::kDType, argument.dtype};
  uint64_t sizes = 0;  // one comparison for all: the limit is a power of two less one
  bool empty = false;
  for (int i = 0; i < kRank; ++i) {
    sizes |= static_cast<uint64_t>(shape[i]);
    empty = empty || shape[i] == 0;
  }
  if (sizes > static_cast<uint64_t>(kMaxSize)) return {Code::kShape, argument.shape};
  if (empty) return {};
  if (v.data == nullptr) return {Code::kNullPointer, argument.null};
  if (stride[kLast] != 1 && shape[kLast] > 1) return {Code::kStride, argument.stride};

  const int64_t size = size_of(v.dtype);
  // 2^55 bytes are beyond every address space in use; sums of five such terms cannot overflow.
  constexpr int64_t kMaxReach = int64_t{1} << 55;
  int64_t low = 0;
  int64_t high = shape[kLast];
  // Whether every stride steps over all that the dimensions inside reach.
  bool nested = true;
  for (int i = kLast - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    int64_t reach;
    if (__builtin_mul_overflow(stride[i], shape[i] - 1, &reach) || reach > kMaxReach || reach < -kMaxReach) {
      return {Code::kStride, argument.range};
    }
    nested = nested && stride[i] >= high;
    const int64_t downwards = reach >> 63 & reach;
    low += downwards;
    high += reach - downwards;
  }
  if (!kConst && !nested && coincide<kRank>(shape, stride)) return {Code::kStride, argument.self_overlap};
  const uintptr_t base = reinterpret_cast<uintptr_t>(v.data);
  extent->first = base + static_cast<uintptr_t>(low * size);
  extent->last = base + static_cast<uintptr_t>(high * size);
  extent->data = base;
  extent->row_bytes = static_cast<uint64_t>(shape[kLast] * size);
  extent->shape = shape;
  extent->stride = stride;
  extent->outer = kLast;
  extent->size = size;
  return {};
}
#define SIMDATTN_CHECK_VIEW(rank)                                                                   \
  template Status check_view<rank, true>(const ConstView<rank>&, Accept, const Argument&, Extent*); \
  template Status check_view<rank, false>(const View<rank>&, Accept, const Argument&, Extent*);
SIMDATTN_CHECK_VIEW(1)
SIMDATTN_CHECK_VIEW(2)
SIMDATTN_CHECK_VIEW(3)
SIMDATTN_CHECK_VIEW(4)
SIMDATTN_CHECK_VIEW(5)
#undef SIMDATTN_CHECK_VIEW

bool overlap_inside(const Extent& a, const Extent& b) {
  const uint64_t step = std::gcd(common_step(a), common_step(b));
  if (step == 0) return true;  // two single rows whose extents meet
  // A row of b begins `distance` bytes after the beginning of some row of a (as far as the common step can tell).
  const uint64_t distance = b.data >= a.data ? (b.data - a.data) % step : (step - (a.data - b.data) % step) % step;
  return distance < a.row_bytes || step - distance < b.row_bytes;
}

Status check_scoring(const Scoring& s, const ScoringShape& shape) {
  SIMDATTN_REQUIRE(!s.scale || std::isfinite(*s.scale), Code::kRange, "scoring.scale: must be finite");
  SIMDATTN_REQUIRE(std::isfinite(s.softcap) && s.softcap >= 0.0f, Code::kRange,
                   "scoring.softcap: must be finite and not negative");
  SIMDATTN_REQUIRE(s.offset == kBottomRight || (s.offset >= -kMaxSize && s.offset <= kMaxSize), Code::kRange,
                   "scoring.offset: must be kBottomRight or within +-(2^30 - 1)");
  SIMDATTN_REQUIRE(s.window_left >= -1 && s.window_right >= -1, Code::kRange,
                   "scoring.window_left, window_right: must be -1 (unbounded) or not negative");
  SIMDATTN_REQUIRE(s.chunk >= 0, Code::kRange, "scoring.chunk: must not be negative");
  Extent unused;
  const std::array<int64_t, 4> wanted = {shape.mask_batch, shape.heads, shape.mask_rows, shape.mask_columns};
  if (s.bias.data != nullptr) {
    SIMDATTN_CHECK(check_view(s.bias, Accept::kStorage, kBias, &unused));
    SIMDATTN_REQUIRE(s.bias.shape == wanted, Code::kShape,
                     "scoring.bias.shape: must be [batch, heads, n_q, n_kv]; broadcast by stride 0");
  }
  if (s.keep.data != nullptr) {
    SIMDATTN_CHECK(check_view(s.keep, Accept::kMask, kKeep, &unused));
    SIMDATTN_REQUIRE(s.keep.shape == wanted, Code::kShape,
                     "scoring.keep.shape: must be [batch, heads, n_q, n_kv]; broadcast by stride 0");
  }
  if (s.bits.data != nullptr) {
    SIMDATTN_REQUIRE(s.bits.columns >= 0 && s.bits.columns <= shape.mask_columns, Code::kRange,
                     "scoring.bits.columns: must be in 0 .. n_kv");
    for (const int64_t stride : s.bits.stride) {
      SIMDATTN_REQUIRE(stride >= -(int64_t{1} << 32) && stride <= (int64_t{1} << 32), Code::kStride,
                       "scoring.bits.stride: must be within +-2^32 bytes");
    }
  } else {
    SIMDATTN_REQUIRE(s.bits.columns == 0, Code::kNullPointer, "scoring.bits.data: null although columns is not 0");
  }
  if (s.alibi_slopes != nullptr) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      SIMDATTN_REQUIRE(std::isfinite(s.alibi_slopes[h]), Code::kRange, "scoring.alibi_slopes: must be finite");
    }
  }
  return {};
}

Status check_sequence(const Scoring& s, int64_t b, int64_t n_kv) {
  if (s.kv_length != nullptr) {
    SIMDATTN_REQUIRE(s.kv_length[b] >= 0 && s.kv_length[b] <= n_kv, Code::kRange,
                     "scoring.kv_length: must be in 0 .. n_kv");
  }
  if (s.kv_start != nullptr) {
    SIMDATTN_REQUIRE(s.kv_start[b] >= 0, Code::kRange, "scoring.kv_start: must not be negative");
  }
  if (s.prefix_end != nullptr) {
    SIMDATTN_REQUIRE(s.prefix_end[b] >= 0, Code::kRange, "scoring.prefix_end: must not be negative");
  }
  if (s.bits.data != nullptr) {
    const int64_t n = s.kv_length != nullptr ? s.kv_length[b] : n_kv;
    SIMDATTN_REQUIRE(s.bits.columns <= n, Code::kRange, "scoring.bits.columns: more columns than keys of a sequence");
  }
  return {};
}

bool overlaps_scoring(const Extent& output, const Scoring& s, const ScoringShape& shape) {
  if (output.empty()) return false;
  Extent e;
  if (s.bias.data != nullptr && check_view(s.bias, Accept::kStorage, kBias, &e).ok() && overlap(output, e)) return true;
  if (s.keep.data != nullptr && check_view(s.keep, Accept::kMask, kKeep, &e).ok() && overlap(output, e)) return true;
  if (s.bits.data != nullptr && shape.mask_rows > 0 && overlap(output, bits_extent(s.bits, shape))) return true;
  const auto touches = [&](const void* numbers, int64_t n) {
    return numbers != nullptr && overlap(output, extent_of(numbers, n * 4));
  };
  return touches(s.alibi_slopes, shape.heads) || touches(s.sinks, shape.heads) ||
         touches(s.kv_start, shape.sequences) || touches(s.kv_length, shape.sequences) ||
         touches(s.prefix_end, shape.sequences);
}

}  // namespace simdattn
