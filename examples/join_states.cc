#include "join_states.h"

namespace sa = simdattn;

// The join of two states,
//   m = max(m1, m2),  O = O1 exp(m1 - m) + O2 exp(m2 - m),  the sum alike,
// is attention itself: of the query 1 over the "keys" m1 and m2, whose "values" are O1 and O2. Its raw accumulator is
// O. The later part comes first, because a chain of multiply-adds begins with a product that is rounded, and the
// definition rounds the later one.
void StateJoin::operator()(const TwoStates& s, float* out, const Run& run) {
  const auto store = [&](const float* data, int64_t dim, int64_t row, int64_t head, int64_t part) {
    constexpr int64_t kBytes = sizeof(float);
    sa::ConstKv kv =
        sa::contiguous_kv(static_cast<const void*>(data), sa::KvType::kF32, sa::KvLayout::kRows, s.n, s.heads, 2, dim);
    kv.batch_stride = row * kBytes;  // every row of the states is a sequence of two keys
    kv.head_stride = head * kBytes;
    kv.token_stride = part * kBytes;
    return kv;
  };
  max_.resize(static_cast<size_t>(s.n * s.heads));
  sum_.resize(max_.size());
  denominator_.resize(max_.size());

  static constexpr float kOne = 1;
  sa::AttentionProblem join{.q = sa::view(&kOne, {s.n, s.heads, 1, 1}, {0, 0, 0, 1}),
                            .k = store(s.max, 1, 1, s.rows, s.heads * s.rows),
                            .v = store(s.acc, s.d, s.heads * s.d, s.d, s.rows * s.heads * s.d)};
  join.scoring.scale = 1.0f;
  join.acc = sa::view(out, {s.n, s.heads, 1, s.d});
  join.max = sa::view(max_.data(), {s.n, s.heads, 1});  // of the join, and the sum of its two weights: not needed
  join.sum = sa::view(sum_.data(), {s.n, s.heads, 1});
  run(0, join);
  join.v = store(s.sum, 1, 1, s.rows, s.heads * s.rows);
  join.acc = sa::view(denominator_.data(), {s.n, s.heads, 1, 1});
  run(1, join);

  for (size_t i = 0; i < denominator_.size(); ++i, out += s.d) {             // the end of the definition
    const float factor = denominator_[i] == 0 ? 0 : 1.0f / denominator_[i];  // 0: no visible key
    for (int64_t e = 0; e < s.d; ++e) out[e] = (out[e] + 0.0f) * factor;
  }
}
