// linear_attention(): attention whose past is a state.
// A task has up to kStateColumns columns of one state. Tokens are prepared in chunks: rows as f32, decays as factors. A
// slot then runs them over the columns, which stay in L1 meanwhile. Tasks of one state are treated together.
#include <algorithm>
#include <cmath>

#include "lib/contract/steps.h"
#include "lib/definition/math.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Tokens that are prepared at a time. Of several queries for a state one: their outputs are as many rows.
constexpr int64_t kChunk = 32;
/// States of one call that are larger than this come from beyond L2.
constexpr double kFetchedStateBytes = 1 << 20;

/// States before the tokens, and after them, at different places.
bool moves(const LinearAttentionProblem& a) {
  return a.state_in.data != nullptr && a.state.data != nullptr && a.state_in.data != a.state.data;
}

/// A size that may break any rule, as one that can be multiplied by two others.
int64_t size(int64_t n) { return is_size(n) ? n : 0; }

struct Buffers {
  const LinearAttentionProblem& a;
  Workspace w;
  int64_t heads = size(a.v.shape[1]), d_k = size(a.q.shape[3]), d_v = size(a.v.shape[3]);
  int64_t pieces = steps_of(d_v, kStateColumns);
  int64_t queries = std::clamp(size(a.q.shape[1]) / std::max<int64_t>(heads, 1), int64_t{1}, kMaxStateQueries);
  int64_t chunk = queries > 1 ? 1 : kChunk;
  int64_t columns = pieces * kStateColumns;
  float* state = w.take<float>(d_k * columns);
  float* q = w.take<float>(chunk * queries * d_k);
  float* k = w.take<float>(chunk * d_k);
  float* v = w.take<float>(chunk * columns);
  float* o = w.take<float>(chunk * queries * kStateColumns);
  float* decay = w.take<float>(chunk * d_k);
  float* beta = w.take<float>(chunk);
  uint8_t* clears = w.take<uint8_t>(chunk);
};

/// Columns of one state from `column` on: whole pieces, and what is left of them at the end.
class Columns {
 public:
  Columns(const UKernels& uk, const Buffers& w, int64_t task, int64_t tasks)
      : uk_(uk), w_(w), task_(task), tasks_(tasks) {}

  bool skipped() const { return sequence_.state < 0 || (sequence_.tokens == 0 && !moves(a_)); }
  /// The state before the tokens.
  const float* past() const { return reinterpret_cast<const float*>(row_of(past_, sequence_.state, head_, 0)); }

  /// `next`: the state that is treated after this one, to be prefetched.
  void run(float scale, const float* next) {
    if (moves(a_)) move_state();
    const View<5>& kept = a_.states;
    const int64_t n = sequence_.tokens, many = kept.data == nullptr ? n : std::max<int64_t>(n - kept.shape[1], 0);
    // Transposed columns are panels, which are half as wide.
    const int64_t step = a_.transposed ? kStateGroup : kStateColumns;
    for (int64_t t = 0, tokens; t < n; t += tokens) {
      tokens = t < many ? std::min(w_.chunk, many - t) : 1;
      prepare(t, tokens);
      for (int64_t c = 0; c < columns_; c += step) {
        const int64_t columns = std::min(step, columns_ - c);
        tile_.ahead = next + (column_ + c) * w_.d_k;
        update(c, columns, t, scale);
        if (t < many) continue;
        store_state(place(static_cast<float*>(kept.data) + number_ * step_of(kept, 0) +
                              (kept.shape[1] - n + t) * step_of(kept, 1) + head_ * step_of(kept, 2),
                          step_of(kept, 3), c),
                    columns);
      }
    }
  }

 private:
  StateRows place(float* head, int64_t ld, int64_t c) const {
    return {head + (column_ + c) * (a_.transposed ? ld : 1), ld};
  }
  /// The state that the tokens update, or, if nothing is kept, the one that is only read.
  StateRows here(int64_t c) const {
    const ConstView<4> v = a_.state.data != nullptr ? ConstView<4>(a_.state) : a_.state_in;
    return place(reinterpret_cast<float*>(const_cast<char*>(row_of(v, sequence_.state, head_, 0))), step_of(v, 2), c);
  }
  StateRows scratch(int64_t c) const { return {w_.state + c * w_.d_k, a_.transposed ? kStateGroup : kStateColumns}; }
  /// `rows` rows of n numbers of a state.
  void copy(const StateRows& from, int64_t rows, int64_t n, const StateRows& to) const {
    widen_rows(uk_, DType::kF32, from.s, from.stride, rows, n, to.s, to.stride);
  }
  /// n numbers of each token.
  void load(const ConstView<4>& v, int64_t head, int64_t t, int64_t column, int64_t n, float* out,
            int64_t stride) const {
    const char* const from = row_of(v, sequence_.batch, head, sequence_.first + t) + column * size_of(v.dtype);
    widen_rows(uk_, v.dtype, from, step_of(v, 2), tile_.tokens, n, out, stride);
  }

  /// Brings what is past to where it is updated. Whole rows are copied first, because the hardware fetches ahead for
  /// such a copy: stores of the slot, and those of transposed panels, would wait for memory at each line.
  void move_state() const {
    const int64_t rows = a_.transposed ? columns_ : w_.d_k, n = a_.transposed ? w_.d_k : columns_;
    copy(place(const_cast<float*>(past()), step_of(a_.state_in, 2), 0), rows, n, here(0));
  }
  /// Whole groups are updated where they lie, with scratch memory between two tokens. Others are copied there and back.
  void update(int64_t c, int64_t columns, int64_t t, float scale) {
    const bool whole = !a_.transposed && columns % kStateGroup == 0;
    // A state that is only read must not be cleared where it lies.
    const bool read_there = whole && (a_.state.data != nullptr || w_.clears[0] == 0);
    const bool first = t == 0, last = t + tile_.tokens == sequence_.tokens && a_.state.data != nullptr;
    tile_.scratch = scratch(c);
    tile_.from = first && read_there ? here(c) : tile_.scratch;
    tile_.to = last && whole ? here(c) : tile_.scratch;
    tile_.groups = steps_of(columns, kStateGroup);
    tile_.v = w_.v + c;
    if (first && !read_there) load_state(here(c), columns);
    uk_.update_state(tile_);
    const auto finish = uk_.finish[index_of(a_.out.dtype)];
    for (int64_t row = 0; row < tile_.tokens * w_.queries; ++row) {
      char* const out =
          row_of(a_.out, sequence_.batch, out_head(row % w_.queries), sequence_.first + t + row / w_.queries);
      finish(w_.o + row * kStateColumns, scale, out + (column_ + c) * size_of(a_.out.dtype), columns);
    }
    if (last && !whole) store_state(here(c), columns);
  }
  void load_state(const StateRows& from, int64_t columns) const {
    const StateRows& to = tile_.scratch;
    if (columns % kStateGroup != 0) std::fill_n(to.s, to.stride * w_.d_k, 0.0f);
    if (!a_.transposed) return copy(from, w_.d_k, columns, to);
    uk_.kv[index_of(KvType::kF32)].store_panels(
        {.rows = from.s, .ld = 4 * from.stride, .tokens = columns, .dim = w_.d_k, .out = to.s, .as_stored = true});
  }
  /// What the last call of the slot has left.
  void store_state(const StateRows& to, int64_t columns) const {
    const StateRows& from = tile_.to;
    if (!a_.transposed) return copy(from, w_.d_k, columns, to);
    uk_.kv[index_of(KvType::kF32)].load_panels(
        {.in = from.s, .tokens = columns, .dim = w_.d_k, .rows = to.s, .ld = 4 * to.stride, .as_stored = true});
  }

  /// The head of `fewer` that goes with one of `heads`; output x of this state.
  int64_t shared(int64_t head, int64_t heads, int64_t fewer) const {
    return a_.head_order == HeadOrder::kRepeated ? head % fewer : head / (heads / fewer);
  }
  int64_t out_head(int64_t x) const {
    return a_.head_order == HeadOrder::kRepeated ? head_ + x * w_.heads : head_ * w_.queries + x;
  }

  void prepare(int64_t t, int64_t tokens) {
    const ConstView<4>&decays = a_.decay, &betas = a_.beta;
    const bool gated = decays.data != nullptr, by_row = gated && decays.shape[3] > 1;
    const int64_t d_k = w_.d_k, each = by_row ? d_k : 1;
    tile_ = {.dim = d_k,
             .tokens = tokens,
             .queries = w_.queries,
             .q = w_.q,
             .k = w_.k,
             .v_stride = w_.columns,
             .o = w_.o,
             .decay = w_.decay,
             .by_row = by_row,
             .clears = w_.clears,
             .beta = is_delta(a_.rule) ? w_.beta : nullptr};
    for (int64_t x = 0; x < w_.queries; ++x) {
      load(a_.q, shared(out_head(x), a_.out.shape[1], a_.q.shape[1]), t, 0, d_k, w_.q + x * d_k, w_.queries * d_k);
    }
    load(a_.k, shared(head_, w_.heads, a_.k.shape[1]), t, 0, d_k, w_.k, d_k);
    if (columns_ % kStateGroup != 0) std::fill_n(w_.v, tokens * w_.columns, 0.0f);
    load(a_.v, head_, t, column_, columns_, w_.v, w_.columns);
    std::fill_n(w_.beta, tokens, 1.0f);
    if (betas.data != nullptr) load(betas, betas.shape[1] == 1 ? 0 : head_, t, 0, 1, w_.beta, 1);
    std::fill_n(w_.clears, tokens, uint8_t{0});
    std::fill_n(w_.decay, tokens, 1.0f);
    if (!gated) return;
    // The library's exponential is defined up to 88.
    constexpr float kMost = 88.0f;
    const float most = scalar::exp(kMost);
    float* const decay = w_.decay;
    const int64_t n = tokens * each;
    load(decays, head_, t, 0, each, decay, each);
    // Almost always there is none, and a kernel looks faster than these loops write.
    const bool large = uk_.above(decay, std::nextafter(kMost, 0.0f), n, 0, nullptr) > 0;
    for (int64_t i = 0; large && i < n; ++i) decay[i] = decay[i] > kMost ? kMost : decay[i];
    uk_.exp(decay, decay, n);
    for (int64_t i = 0; large && i < n; ++i) decay[i] = decay[i] >= most ? kInf : decay[i];
    for (int64_t i = 0; i < tokens; ++i) w_.clears[i] = uk_.any_zero(decay + i * each, each);
  }

  const UKernels& uk_;
  const Buffers& w_;
  int64_t task_, tasks_;
  const LinearAttentionProblem& a_ = w_.a;
  int64_t number_ = task_ / w_.pieces / w_.heads, head_ = task_ / w_.pieces % w_.heads;
  int64_t column_ = task_ % w_.pieces * kStateColumns;
  int64_t columns_ = std::min(tasks_ * kStateColumns, w_.d_v - column_);
  StateSequence sequence_ = sequence_of(a_, number_, a_.q.shape[2]);
  ConstView<4> past_ = a_.state_in.data != nullptr ? a_.state_in : ConstView<4>(a_.state);
  StateTile tile_{};
};

}  // namespace

size_t drivers::linear_attention_workspace(const LinearAttentionProblem& a) {
  return Buffers{a, Workspace(nullptr)}.w.bytes();
}

int64_t drivers::linear_attention_tasks(const LinearAttentionProblem& a) {
  const Buffers w = {a, Workspace(nullptr)};
  int64_t tasks = size(sequences_of(a, a.q.shape[0])) * w.heads;
  return __builtin_mul_overflow(tasks, w.pieces, &tasks) ? 0 : tasks;
}

Status drivers::linear_attention(const UKernels& uk, const LinearAttentionProblem& a, int64_t first, int64_t last,
                                 const Exec& exec) {
  SIMDATTN_CHECK(check_linear_attention(a, exec, drivers::linear_attention_workspace(a)));
  const int64_t tasks = drivers::linear_attention_tasks(a);
  SIMDATTN_REQUIRE(last <= tasks || a.cu_q != nullptr || a.n_sequences <= a.q.shape[0], kNullPointer,
                   "cu_q: null although there are n_sequences");
  SIMDATTN_REQUIRE(first >= 0 && first <= last && last <= tasks, kRange,
                   "first, last: must be 0 <= first <= last <= linear_attention_tasks()");
  if (is_empty(a.v) && !moves(a)) return {};

  const Buffers w = {a, Workspace(exec.workspace)};
  const float scale = scale_of(a.scale, w.d_k);
  const double bytes = 4.0 * static_cast<double>(w.d_k) * static_cast<double>((last - first) * kStateColumns);
  const bool fetches = fetch_of(bytes, kFetchedStateBytes) != Fetch::kNone;
  for (int64_t task = first, next; task < last; task = next) {
    next = std::min((task / w.pieces + 1) * w.pieces, last);
    Columns columns(uk, w, task, next - task);
    if (columns.skipped()) continue;
    const Columns after(uk, w, fetches && next < last ? next : task, 1);
    columns.run(scale, (after.skipped() ? columns : after).past());
  }
  return {};
}

}  // namespace simdattn
