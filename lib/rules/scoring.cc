#include "lib/rules/attention.h"

#include "lib/contract/dtypes.h"

namespace simdattn {
namespace {

constexpr Argument kBias = SIMDATTN_ARGUMENT_TEXT("scoring.bias");
constexpr Argument kKeep = SIMDATTN_ARGUMENT_TEXT("scoring.keep");
constexpr int64_t kMaxBitStride = int64_t{1} << 32;

ByteSet bits_bytes(const BitMask& m, const ScoringShape& shape) {
  ByteSet bytes = ByteSet::of(m.data, (m.columns + 7) / 8);
  const int64_t sizes[3] = {shape.mask_batch, shape.heads, shape.mask_rows};
  for (size_t i = 3; i-- > 0 && !bytes.empty();) {
    if (sizes[i] == 0 || !bytes.add(sizes[i], m.stride[i])) bytes.clear();
  }
  return bytes;
}

/// Sizes of 1 broadcast.
bool mask_shape(const ConstView<4>& mask, const std::array<int64_t, 4>& wanted) {
  for (size_t i = 0; i < 4; ++i) {
    if (mask.shape[i] != wanted[i] && mask.shape[i] != 1) return false;
  }
  return true;
}

Status check_numbers(const float* numbers, int64_t n, const char* sentence) {
  for (int64_t h = 0; h < n && numbers != nullptr; ++h) {
    SIMDATTN_REQUIRE(is_finite(numbers[h]), Code::kRange, sentence);
  }
  return {};
}

}  // namespace

Status check_scoring(const Scoring& s, const ScoringShape& shape, Data data) {
  SIMDATTN_REQUIRE(s.struct_size == sizeof(Scoring), Code::kStructSize,
                   "scoring.struct_size: inside another struct it is that of this version");
  SIMDATTN_REQUIRE((s.reserved[0] | s.reserved[1] | s.reserved[2] | s.reserved[3]) == 0, Code::kStructSize,
                   "scoring.reserved: must be 0");
  SIMDATTN_REQUIRE(!s.scale || is_finite(*s.scale), Code::kRange, "scoring.scale: must be finite");
  SIMDATTN_REQUIRE(is_finite(s.softcap) && !is_below_zero(s.softcap), Code::kRange,
                   "scoring.softcap: must be finite and not negative");
  SIMDATTN_REQUIRE(s.offset == kBottomRight || (s.offset >= -kMaxOffset && s.offset <= kMaxOffset), Code::kRange,
                   "scoring.offset: must be kBottomRight or within +-2^30");
  SIMDATTN_REQUIRE(s.window_left >= -1 && s.window_right >= -1, Code::kRange,
                   "scoring.window_left, window_right: must be -1 (unbounded) or not negative");
  SIMDATTN_REQUIRE(s.chunk >= 0, Code::kRange, "scoring.chunk: must not be negative");
  ByteSet unused;
  const std::array<int64_t, 4> wanted = {shape.mask_batch, shape.heads, shape.mask_rows, shape.mask_columns};
  // A mask without data is none, or one that comes later: its shape tells.
  if (s.bias.data != nullptr || (data == Data::kLater && s.bias.shape[0] != 0)) {
    SIMDATTN_CHECK(check_view(s.bias, Accept::kElements, kBias, &unused, data));
    SIMDATTN_REQUIRE(mask_shape(s.bias, wanted), Code::kShape,
                     "scoring.bias.shape: must be [batch, heads, n_q, n_kv]; sizes of 1 and strides of 0 broadcast");
  }
  if (s.keep.data != nullptr || (data == Data::kLater && s.keep.shape[0] != 0)) {
    SIMDATTN_CHECK(check_view(s.keep, Accept::kMask, kKeep, &unused, data));
    SIMDATTN_REQUIRE(mask_shape(s.keep, wanted), Code::kShape,
                     "scoring.keep.shape: must be [batch, heads, n_q, n_kv]; sizes of 1 and strides of 0 broadcast");
  }
  if (s.bits.data != nullptr || data == Data::kLater) {
    SIMDATTN_REQUIRE(s.bits.columns >= 0 && s.bits.columns <= shape.mask_columns, Code::kRange,
                     "scoring.bits.columns: must be in 0 .. n_kv");
    for (const int64_t stride : s.bits.stride) {
      SIMDATTN_REQUIRE(stride >= -kMaxBitStride && stride <= kMaxBitStride, Code::kStride,
                       "scoring.bits.stride: must be within +-2^32 bytes");
    }
  } else {
    SIMDATTN_REQUIRE(s.bits.columns == 0, Code::kNullPointer, "scoring.bits.data: null although columns is not 0");
  }
  SIMDATTN_CHECK(check_numbers(s.alibi_slopes, shape.heads, "scoring.alibi_slopes: must be finite"));
  return check_numbers(s.bias_scale, shape.heads, "scoring.bias_scale: must be finite");
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
  if (s.offsets != nullptr) {
    SIMDATTN_REQUIRE(s.offsets[b] >= -kMaxOffset && s.offsets[b] <= kMaxOffset, Code::kRange,
                     "scoring.offsets: must be within +-2^30");
  }
  if (s.bits.columns > 0) {
    const int64_t n = s.kv_length != nullptr ? s.kv_length[b] : n_kv;
    SIMDATTN_REQUIRE(s.bits.columns <= n, Code::kRange, "scoring.bits.columns: more columns than keys of a sequence");
  }
  return {};
}

ByteSet scoring_bytes(const Scoring& s, const ScoringShape& shape, int array) {
  ByteSet bytes;
  const auto numbers = [](const void* data, int64_t n) { return ByteSet::of(data, n * 4); };
  switch (array) {
    // Views were checked before, so neither check fails.
    case 0:
      return s.bias.data != nullptr && check_view(s.bias, Accept::kElements, kBias, &bytes).ok() ? bytes : ByteSet();
    case 1: return s.keep.data != nullptr && check_view(s.keep, Accept::kMask, kKeep, &bytes).ok() ? bytes : ByteSet();
    case 2: return bits_bytes(s.bits, shape);
    case 3: return numbers(s.bias_scale, shape.heads);
    case 4: return numbers(s.alibi_slopes, shape.heads);
    case 5: return numbers(s.sinks, shape.heads);
    case 6: return numbers(s.offsets, shape.sequences);
    case 7: return numbers(s.prefix_end, shape.sequences);
    case 8: return numbers(s.kv_start, shape.sequences);
    default: return numbers(s.kv_length, shape.sequences);
  }
}

int overlapped_scoring(const ByteSet& output, const Scoring& s, const ScoringShape& shape) {
  const void* const arrays[kScoringArrays] = {s.bias.data, s.keep.data, s.bits.data,  s.bias_scale, s.alibi_slopes,
                                              s.sinks,     s.offsets,   s.prefix_end, s.kv_start,   s.kv_length};
  if (output.empty()) return -1;
  for (int i = 0; i < kScoringArrays; ++i) {
    if (arrays[i] != nullptr && share_bytes(output, scoring_bytes(s, shape, i))) return i;
  }
  return -1;
}

}  // namespace simdattn
