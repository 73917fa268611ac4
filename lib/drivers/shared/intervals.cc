#include "lib/drivers/shared/intervals.h"

#include <algorithm>

namespace simdattn {

SequenceRules sequence_rules(const Scoring& s, int64_t sequence, int64_t n_q, int64_t n_kv) {
  SequenceRules r;
  r.length = s.kv_length != nullptr ? s.kv_length[sequence] : n_kv;
  r.start = s.kv_start != nullptr ? s.kv_start[sequence] : 0;
  r.offset = s.offsets != nullptr ? s.offsets[sequence] : s.offset == kBottomRight ? r.length - n_q : s.offset;
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

}  // namespace simdattn
