// Which keys the rules let a row see: causality, lengths, windows, chunks and prefixes are an interval of keys a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lib/rules/views.h"

namespace simdattn {

/// Half-open range of keys; empty if hi <= lo.
struct Interval {
  int64_t lo;
  int64_t hi;

  bool operator==(const Interval&) const = default;
  bool has(int64_t key) const { return key >= lo && key < hi; }
  int64_t size() const { return hi - lo; }
};
inline Interval operator&(const Interval& a, const Interval& b) { return {std::max(a.lo, b.lo), std::min(a.hi, b.hi)}; }

/// Scoring as it applies to one sequence.
struct SequenceRules {
  int64_t start;       // keys below are invisible
  int64_t length;      // keys at and past it are invisible
  int64_t offset;      // position of query row 0
  int64_t prefix_end;  // 0: none
};
inline SequenceRules sequence_rules(const Scoring& s, int64_t sequence, int64_t n_q, int64_t n_kv) {
  const int64_t length = length_of(s, sequence, n_kv);
  return {.start = s.kv_start != nullptr ? s.kv_start[sequence] : 0,
          .length = length,
          .offset = first_position(s, sequence, length, n_q),
          .prefix_end = s.prefix_end != nullptr ? s.prefix_end[sequence] : 0};
}

/// The keys that row i sees. Both ends are within 0 .. length, and neither decreases from one row to the next.
inline Interval visible_interval(const Scoring& s, const SequenceRules& rules, int64_t row) {
  const int64_t p = row + rules.offset;
  Interval v = {rules.start, rules.length};
  if (s.causal || s.prefix_end != nullptr) v.hi = std::min(v.hi, std::max(p, rules.prefix_end - 1) + 1);
  if (s.window_left >= 0) v.lo = std::max(v.lo, p - std::min(s.window_left, int64_t{1} << 32));
  if (s.window_right >= 0) v.hi = std::min(v.hi, p + std::min(s.window_right, int64_t{1} << 32) + 1);
  if (s.chunk > 0) {
    const int64_t chunk = std::min(s.chunk, int64_t{1} << 32);
    const int64_t index = p >= 0 ? p / chunk : -((-p + chunk - 1) / chunk);  // floor
    v = v & Interval{index * chunk, (index + 1) * chunk};
  }
  v.lo = std::clamp(v.lo, int64_t{0}, rules.length);
  return {v.lo, std::clamp(v.hi, v.lo, rules.length)};
}

}  // namespace simdattn
