#include "lib/drivers/scoring.h"

#include <algorithm>
#include <limits>

#include "lib/dtypes.h"

namespace simdattn {

SequenceRules sequence_rules(const Scoring& s, int64_t sequence, int64_t n_q, int64_t n_kv) {
  SequenceRules r;
  r.length = s.kv_length != nullptr ? s.kv_length[sequence] : n_kv;
  r.start = s.kv_start != nullptr ? s.kv_start[sequence] : 0;
  r.offset = s.offset == kBottomRight ? r.length - n_q : s.offset;
  r.prefix_end = s.prefix_end != nullptr ? s.prefix_end[sequence] : 0;
  return r;
}

Interval visible_interval(const Scoring& s, const SequenceRules& rules, int64_t row) {
  const int64_t p = row + rules.offset;
  Interval v = {rules.start, rules.length};
  if (s.causal || s.prefix_end != nullptr) v.hi = std::min(v.hi, std::max(p, rules.prefix_end - 1) + 1);
  if (s.window_left >= 0) v.lo = std::max(v.lo, p - std::min(s.window_left, int64_t{1} << 32));
  if (s.window_right >= 0) v.hi = std::min(v.hi, p + std::min(s.window_right, int64_t{1} << 32) + 1);
  if (s.chunk > 0) {
    const int64_t chunk = std::min(s.chunk, int64_t{1} << 32);
    const int64_t index = p >= 0 ? p / chunk : -((-p + chunk - 1) / chunk);  // floor
    v.lo = std::max(v.lo, index * chunk);
    v.hi = std::min(v.hi, (index + 1) * chunk);
  }
  v.lo = std::clamp(v.lo, int64_t{0}, rules.length);
  v.hi = std::clamp(v.hi, v.lo, rules.length);
  return v;
}

bool has_modifiers(const Scoring& s) {
  return s.softcap > 0.0f || s.alibi_slopes != nullptr || s.bias.data != nullptr || s.keep.data != nullptr ||
         s.bits.data != nullptr;
}

RowModifiers row_modifiers(const Scoring& s, const SequenceRules& rules, int64_t head, int64_t row, int64_t mask_batch,
                           int64_t mask_row) {
  RowModifiers m = {};
  m.softcap = s.softcap;
  m.slope = s.alibi_slopes != nullptr ? s.alibi_slopes[head] : 0.0f;
  m.position = static_cast<int32_t>(row + rules.offset);
  if (s.bias.data != nullptr) {
    const auto& t = s.bias.stride;
    const int64_t elements = mask_batch * t[0] + head * t[1] + mask_row * t[2];
    m.bias = static_cast<const char*>(s.bias.data) + elements * size_of(s.bias.dtype);
    m.bias_dtype = s.bias.dtype;
  }
  if (s.keep.data != nullptr) {
    const auto& t = s.keep.stride;
    m.keep = static_cast<const uint8_t*>(s.keep.data) + mask_batch * t[0] + head * t[1] + mask_row * t[2];
  }
  if (s.bits.data != nullptr) {
    const auto& t = s.bits.stride;
    m.bits = s.bits.data + mask_batch * t[0] + head * t[1] + mask_row * t[2];
    m.first_bit = rules.length - s.bits.columns;
  }
  return m;
}

bool mask_allows(const RowModifiers& m, int64_t key) {
  if (m.bias != nullptr) {
    const float b =
        with_storage(m.bias_dtype, [&](auto t) { return to_f32(static_cast<const decltype(t)*>(m.bias)[key]); });
    if (b == -std::numeric_limits<float>::infinity()) return false;
  }
  if (m.keep != nullptr && m.keep[key] == 0) return false;
  if (m.bits != nullptr && key >= m.first_bit) {
    const int64_t bit = key - m.first_bit;
    return (m.bits[bit / 8] >> (bit % 8) & 1) != 0;
  }
  return true;
}

}  // namespace simdattn
