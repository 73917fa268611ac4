// Where the keys and values of a key block lie, by value: a store and lists are the ways to find them.
#pragma once

#include "lib/drivers/shared/gathered_rows.h"

namespace simdattn {

/// The keys or the values of one key block, by column.
class BlockTokens {
 public:
  /// Column c is token `first` + c of a store.
  BlockTokens(const KvStore& store, int64_t first) : store_(&store), first_(first) {}
  /// Column c is place c of a list, from `part` bytes inside its row on.
  explicit BlockTokens(GatheredRows& gathered, int64_t part = 0) : gathered_(&gathered), part_(part) {}

  bool panels() const { return gathered_ == nullptr ? store_->panels() : gathered_->whole_panels(); }
  /// See KvStore::run() and GatheredRows::run().
  TokenRun run(int64_t column, int64_t most, float* scratch) const {
    if (gathered_ == nullptr) return store_->run(first_ + column, most, scratch);
    TokenRun run = gathered_->run(column, most);
    run.data += part_;
    return run;
  }
  /// See GatheredRows::listed().
  const char* const* listed(int64_t column) const {
    return gathered_ == nullptr || part_ != 0 ? nullptr : gathered_->listed(column);
  }
  /// True if every run but the first one begins at a multiple of `step`.
  bool whole_steps(int64_t step) const {
    return gathered_ == nullptr ? store_->whole_steps(step) : kPanelWidth % step == 0;
  }

 private:
  const KvStore* store_ = nullptr;
  int64_t first_ = 0;
  GatheredRows* gathered_ = nullptr;
  int64_t part_ = 0;
};

/// The first column of the panel that holds column c.
inline int64_t panel_start(int64_t c) { return c / kPanelWidth * kPanelWidth; }

/// f(first column, run) for columns [columns.lo, columns.hi) of a key block, in runs.
template <class F>
void for_each_run(const BlockTokens& tokens, Interval columns, const F& f) {
  float scratch[kKeyBlock];
  for (int64_t c = columns.lo; c < columns.hi;) {
    const TokenRun run = tokens.run(c, columns.hi - c, scratch);
    f(c, run);
    c += run.tokens;
  }
}

}  // namespace simdattn
