// Which keys the rules let a row see. Causality, lengths, windows, chunks and prefixes are an interval of keys for each
// row.
#ifndef SIMDATTN_LIB_DRIVERS_SHARED_INTERVALS_H_
#define SIMDATTN_LIB_DRIVERS_SHARED_INTERVALS_H_

#include <cstdint>

#include "include/simdattn/simdattn.h"

namespace simdattn {

/// Half-open range of keys; empty if hi <= lo.
struct Interval {
  int64_t lo;
  int64_t hi;

  bool operator==(const Interval&) const = default;
  bool has(int64_t key) const { return key >= lo && key < hi; }
  int64_t size() const { return hi - lo; }
};

/// Scoring as it applies to one sequence.
struct SequenceRules {
  int64_t start;       // keys below are invisible
  int64_t length;      // keys at and past it are invisible
  int64_t offset;      // position of query row 0
  int64_t prefix_end;  // 0: none
};

SequenceRules sequence_rules(const Scoring& scoring, int64_t sequence, int64_t n_q, int64_t n_kv);

/// Causality, window, chunk, prefix and lengths are all intervals of keys; this is their intersection for row i.
/// Both ends are within 0 .. length, and neither decreases from one row to the next.
Interval visible_interval(const Scoring& scoring, const SequenceRules& rules, int64_t row);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_SHARED_INTERVALS_H_
