// Attention over some of the key splits of a sequence: a raw state (maximum, accumulator, sum) for each split, and how
// states are joined with the bits of one call over all keys. Knows nothing of machines.
#pragma once

#include <simdattn/simdattn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

namespace sa = simdattn;

/// The query rows are the last positions of the sequence.
struct Layer {
  int64_t keys = 65537, rows = 1, heads = 8, kv_heads = 2, dim = 64;

  int64_t group() const { return heads / kv_heads; }
  int64_t splits() const { return (keys + sa::kKeySplit - 1) / sa::kKeySplit; }
};

/// What is done now and then during long work.
using Look = std::function<void()>;

inline size_t count(int64_t n) { return static_cast<size_t>(n); }
inline void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}

/// A number between -1 and 1 for each place, the same whichever rank asks.
inline float number_at(uint64_t what, uint64_t position, uint64_t head, uint64_t column) {
  uint64_t x = ((what * 0x100000000u + position) * 4096 + head) * 65536 + column + 1;
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1p-31f;
}

/// Rows [n, heads, dim] of positions first, first + 1, ...
inline std::vector<float> rows_at(uint64_t what, int64_t first, int64_t n, int64_t heads, int64_t dim) {
  std::vector<float> rows;
  rows.reserve(count(n * heads * dim));
  for (int64_t i = first; i < first + n; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        rows.push_back(number_at(what, static_cast<uint64_t>(i), static_cast<uint64_t>(h), static_cast<uint64_t>(d)));
      }
    }
  }
  return rows;
}

/// Splits first .. last-1 of the sequence, keys in panels and values in rows of f16.
struct Share {
  int64_t first, last;
  std::vector<std::byte> key_bytes, value_bytes;
  sa::Kv keys, values;

  Share(const Layer& o, int64_t first_split, int64_t last_split, const Look& look)
      : first(first_split), last(last_split) {
    const int64_t capacity = splits() * sa::kKeySplit;
    const auto store = [&](std::vector<std::byte>& bytes, sa::KvLayout layout) {
      bytes.resize(count(sa::kv_bytes(sa::KvType::kF16, layout, 1, o.kv_heads, capacity, o.dim)));
      return sa::contiguous_kv(bytes.data(), sa::KvType::kF16, layout, 1, o.kv_heads, capacity, o.dim);
    };
    keys = store(key_bytes, sa::KvLayout::kPanels);
    values = store(value_bytes, sa::KvLayout::kRows);
    for (int64_t s = first; s < last; ++s) {
      const int64_t position = s * sa::kKeySplit, n = std::min(sa::kKeySplit, o.keys - position);
      for (const uint64_t what : {uint64_t{1}, uint64_t{2}}) {  // keys, values
        const auto rows = rows_at(what, position, n, o.kv_heads, o.dim);
        const auto view = sa::view(rows.data(), {1, o.kv_heads, n, o.dim}, {0, o.dim, o.kv_heads * o.dim, 1});
        check(sa::kv_append(view, {}, what == 1 ? keys : values, {.start = position - first * sa::kKeySplit}));
      }
      look();
    }
  }
  int64_t splits() const { return last - first; }
};

// ---- States ---------------------------------------------------------------------------------------------------------

/// The query rows that go round together: `rows` positions from `first_row` on, of the heads that share a key head.
struct Piece {
  int64_t kv_head, first_row, rows;
};

inline std::vector<Piece> pieces_of(const Layer& o) {
  constexpr int64_t kRows = 64;  // positions of a piece: its states are kept until those of the ranks before it come
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < o.rows; i += kRows) {
    for (int64_t h = 0; h < o.kv_heads; ++h) pieces.push_back({h, i, std::min(kRows, o.rows - i)});
  }
  return pieces;
}

/// The first split of a rank: shares differ by one split at most.
inline int64_t share_begin(int64_t splits, int64_t rank, int64_t ranks) { return splits * rank / ranks; }

/// Memory for a call.
inline sa::Exec exec_for(const sa::Plan& plan) {
  static std::vector<std::byte> workspace;
  if (workspace.size() < plan.workspace_bytes) workspace.resize(plan.workspace_bytes);
  return {.workspace = workspace.data(), .workspace_bytes = workspace.size()};
}

/// attention(), task by task, with a look at the neighbours between them.
inline void run(const sa::AttentionProblem& problem, const Look& look) {
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan));
  std::vector<std::byte> partial(plan.partial_bytes);
  const sa::Exec exec = exec_for(plan);
  for (int64_t t = 0; t < plan.tasks; ++t) {
    check(sa::attention_range(plan, t, t + 1, partial.data(), partial.size(), exec));
    look();
  }
  check(sa::attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec));
}

/// The states of one piece: one for each split of this rank, and two more to join them in. A state is what a message
/// holds: a maximum for each row, then for each row its accumulator with the sum behind it.
class States {
 public:
  States(const Layer& o, const Share& share, const Piece& piece)
      : o_(o), share_(share), piece_(piece), rows_(o.group() * piece.rows), size_(rows_ * (o.dim + 2)) {}

  int64_t size() const { return size_; }

  /// Every split is a sequence of a batch with the same queries: one call makes all states.
  void compute(const std::vector<float>& q, const Look& look) {
    const int64_t n = share_.splits(), columns = o_.dim + 1;
    numbers_.resize(count((n + 2) * size_));
    std::vector<float> sums(count(n * rows_));
    std::vector<int32_t> lengths, offsets;
    for (int64_t s = share_.first; s < share_.last; ++s) {
      const int64_t first_key = s * sa::kKeySplit;
      lengths.push_back(static_cast<int32_t>(std::min(sa::kKeySplit, o_.keys - first_key)));
      // Where row 0 stands, counted from the split's first key.
      offsets.push_back(static_cast<int32_t>(o_.keys - o_.rows + piece_.first_row - first_key));
    }
    const auto batch_of_splits = [&](sa::Kv kv, int64_t strides) {
      kv.data = static_cast<std::byte*>(kv.data) + piece_.kv_head * kv.head_stride;
      kv.batch = n;
      kv.heads = 1;
      kv.capacity = sa::kKeySplit;
      kv.batch_stride = strides * kv.token_stride;
      return kv;
    };
    const float* first_q = q.data() + (piece_.first_row * o_.heads + piece_.kv_head * o_.group()) * o_.dim;
    if (n > 0) {
      run({.q = sa::view(first_q, {n, o_.group(), piece_.rows, o_.dim}, {0, o_.dim, o_.heads * o_.dim, 1}),
           .k = batch_of_splits(share_.keys, sa::kKeySplit / sa::kPanelWidth),
           .v = batch_of_splits(share_.values, sa::kKeySplit),
           .scoring = {.causal = true, .offsets = offsets.data(), .kv_length = lengths.data()},
           .acc = sa::view(numbers_.data() + rows_, {n, o_.group(), piece_.rows, o_.dim},
                           {size_, piece_.rows * columns, columns, 1}),
           .max = sa::view(numbers_.data(), {n, o_.group(), piece_.rows}, {size_, piece_.rows, 1}),
           .sum = sa::view(sums.data(), {n, o_.group(), piece_.rows})},
          look);
    }
    for (int64_t s = 0; s < n; ++s) {
      float* sum = numbers_.data() + s * size_ + rows_ + o_.dim;
      for (int64_t r = 0; r < rows_; ++r) sum[r * columns] = sums[count(s * rows_ + r)];
    }
  }

  /// The state of no keys: (-inf, 0, 0) in every row.
  std::vector<float> empty() const {
    std::vector<float> state(count(size_));
    std::fill_n(state.begin(), rows_, -std::numeric_limits<float>::infinity());
    return state;
  }

  /// The splits of this rank joined to `state`, one after the other: that order is part of the definition of the
  /// result.
  void join_to(std::vector<float>& state, const Look& look) {
    const int64_t n = share_.splits();
    std::copy(state.begin(), state.end(), numbers_.begin() + n * size_);
    for (int64_t s = 0; s < n; ++s) {
      join(s, n + s % 2, n + (s + 1) % 2);
      look();
    }
    std::copy_n(numbers_.begin() + (n + n % 2) * size_, size_, state.begin());
    numbers_ = {};
  }

  /// The output of a row: its accumulator over its sum. Rows that see no key are 0.
  std::vector<float> finish(const std::vector<float>& state) const {
    std::vector<float> out;
    for (int64_t r = 0; r < rows_; ++r) {
      const float* acc = state.data() + rows_ + r * (o_.dim + 1);
      const float sum = acc[o_.dim], factor = sum > 0 ? 1.0f / sum : sum;
      for (int64_t d = 0; d < o_.dim; ++d) out.push_back((acc[d] + 0.0f) * factor);
    }
    return out;
  }

 private:
  /// to = the state `total` joined with that of split s. A join is attention itself over two keys, later keys first:
  /// their scores are the maxima, their values accumulators and sums. So this program has no arithmetic of its own that
  /// could differ in a bit.
  void join(int64_t s, int64_t total, int64_t to) {
    static const float one = 1;
    sums_.resize(count(rows_));
    const int64_t columns = o_.dim + 1, apart = (total - s) * size_;
    const float* newer = numbers_.data() + s * size_;
    float* joined = numbers_.data() + to * size_;
    const sa::AttentionProblem problem{.q = sa::view(&one, {rows_, 1, 1, 1}, {0, 0, 0, 1}),
                                       .k = sa::view(newer, {rows_, 1, 2, 1}, {1, 0, apart, 1}),
                                       .v = sa::view(newer + rows_, {rows_, 1, 2, columns}, {columns, 0, apart, 1}),
                                       .scoring = {.scale = 1.0f},
                                       .acc = sa::view(joined + rows_, {rows_, 1, 1, columns}),
                                       .max = sa::view(joined, {rows_, 1, 1}),
                                       .sum = sa::view(sums_.data(), {rows_, 1, 1})};
    if (join_plan_.workspace_bytes == 0) check(sa::attention_plan(problem, &join_plan_));
    check(sa::attention(problem, exec_for(join_plan_)));
  }

  const Layer& o_;
  const Share& share_;
  Piece piece_;
  int64_t rows_, size_;
  std::vector<float> numbers_, sums_;
  sa::Plan join_plan_;
};
