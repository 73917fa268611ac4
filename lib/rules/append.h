// The rules on new tokens: where they go, and what they may not overlap.
#ifndef SIMDATTN_LIB_RULES_APPEND_H_
#define SIMDATTN_LIB_RULES_APPEND_H_

#include "lib/rules/kv.h"
#include "lib/rules/positions.h"

namespace simdattn {

/// Where one token is: `inside` counts in the tensor of its sequence, the ring or the page, and so does `unit`: sequences or
/// pages. A negative unit: nowhere.
struct TokenPlace {
  int64_t unit;
  int64_t inside;
};

inline TokenPlace place_of(const Kv& kv, int64_t sequence, int64_t token) {
  if (kv.page_size > 0) return {page_of(kv, sequence, token), token % kv.page_size};
  return {sequence, kv.ring > 0 ? token % kv.ring : token};
}

/// The rows of an append that passed the rules.
class AppendedRows {
 public:
  AppendedRows(const ConstView<2>& positions, const Kv& kv, const AppendOptions& options, int64_t rows)
      : positions_(positions), kv_(kv), options_(options), rows_(rows) {}

  int64_t count(int64_t b) const { return options_.counts != nullptr ? options_.counts[b] : rows_; }
  int64_t position(int64_t b, int64_t i) const { return position_at(positions_, start(b), b, i); }
  int64_t start(int64_t b) const { return options_.starts != nullptr ? options_.starts[b] : options_.start; }
  /// A negative unit: skipped.
  TokenPlace place(int64_t b, int64_t i) const {
    if (options_.slots.data != nullptr) {
      const int64_t at = position_at(options_.slots, 0, b, i);
      if (at < 0 || (rotates() && position(b, i) < 0)) return {-1, 0};
      return {at / kv_.page_size, at % kv_.page_size};
    }
    const int64_t p = position(b, i);
    return p < 0 ? TokenPlace{-1, 0} : place_of(kv_, b, p);
  }
  bool rotates() const { return options_.rope.cos.data != nullptr || options_.rope.sin.data != nullptr; }

 private:
  const ConstView<2>& positions_;
  const Kv& kv_;
  const AppendOptions& options_;
  int64_t rows_;
};

/// Everything that kv_append() demands of its arguments.
Status check_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                    const AppendOptions& options);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_APPEND_H_
