#include "tests/conformance/conformance_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/support/bounds.h"

namespace conformance {

using simdattn::DType;
using simdattn::Scoring;
using simdattn::Status;
using simdattn::View;

namespace {

class LibraryEngine : public Engine {
 public:
  explicit LibraryEngine(const simdattn::Target& target) : target_(&target) { exec_.target = target_; }

  std::string name() const override { return simdattn::target_name(*target_); }
  const simdattn::Target* target() const override { return target_; }
  bool float64() const override { return false; }

  Tensor scores(const Slice<4>& q, const Slice<4>& k, double scale) override;
  Tensor softmax(const Slice<2>& x, Tensor* lse) override;
  Tensor masked_softmax(const Slice<4>& x, const Scoring& scoring, double scale, Tensor* lse) override;
  Tensor weighted_values(const Slice<4>& p, const Slice<4>& v) override;
  Tensor rope(const Slice<4>& x, const Slice<2>& cos, const Slice<2>& sin, const std::vector<int64_t>& positions,
              const simdattn::RopeOptions& options) override;
  Tensor rope_frequencies(const simdattn::RopeTableOptions& options, int64_t rotary_dim) override;
  void rope_table(const simdattn::RopeTableOptions& options, int64_t rotary_dim,
                  const std::vector<std::vector<int64_t>>& positions, Tensor* cos, Tensor* sin) override;
  Tensor sinusoidal_table(int64_t d, const std::vector<int64_t>& positions) override;
  Tensor alibi_slopes(int64_t heads) override;
  AttentionOutputs attention(const AttentionCall& call) override;
  AttentionOutputs attention_merge(const Slice<5>& parts, const Slice<4>& part_lse) override;
  Operand append(const Slice<4>& past, const Slice<4>& now) override;

 private:
  // Storage for one output. It starts as all ones, a NaN in every floating-point type, so that an element that a call
  // forgets to write fails its comparison.
  template <int kRank>
  struct Buffer {
    std::vector<unsigned char> bytes;
    View<kRank> view;

    explicit Buffer(const std::array<int64_t, kRank>& shape, DType dtype = DType::kF32) {
      int64_t elements = 1;
      for (const int64_t n : shape) elements *= n;
      bytes.assign(std::max<size_t>(static_cast<size_t>(elements) * reference::bytes(dtype), 1), 0xFF);
      view = View<kRank>(bytes.data(), dtype, shape);
    }
    Buffer(const Buffer&) = delete;
    Tensor tensor() const { return reference::read(view); }
  };

  // A cache, filled by kv_append.
  struct Cache {
    std::vector<unsigned char> bytes;
    std::vector<int32_t> pages;
    simdattn::Kv kv;
  };

  void check(const Status& status, const char* function) const {
    if (!status.ok()) throw EngineError(std::string(function) + ": " + status.detail);
  }
  template <int kRank>
  void check_same(const Buffer<kRank>& want, const Buffer<kRank>& got, const char* what) const {
    const Tensor a = want.tensor();
    const Tensor b = got.tensor();  // contiguous, whatever the strides of the views
    for (int64_t i = 0; i < a.size(); ++i) {
      // Widening is injective on numbers, infinities and the sign of zero; any NaN of an f16 counts as the same.
      if (std::bit_cast<uint64_t>(a[i]) == std::bit_cast<uint64_t>(b[i])) continue;
      throw EngineError(std::string(what) + ": other bits at element " + std::to_string(i) + ", " +
                        std::to_string(a[i]) + " became " + std::to_string(b[i]));
    }
  }
  // The problem in another arithmetic against the formula over its operands, within the bounds of docs/numerics.md.
  void check_arithmetic(const AttentionCall& call, simdattn::AttentionProblem problem,
                        simdattn::Arithmetic arithmetic) const;
  // Every token of `rows` in a cache of its type.
  void fill(Cache* cache, const Slice<4>& rows) const;
  void make_panels(Cache* cache, const Slice<4>& rows) const;
  void make_pages(Cache* cache, const Slice<4>& rows, simdattn::KvLayout layout, int64_t page_size) const;
  bool make_ring(Cache* cache, const Slice<4>& rows, simdattn::KvLayout layout, int64_t needed) const;
  void run(simdattn::AttentionProblem problem, View<4> out, View<3> lse) const;
  void run_in_pieces(simdattn::AttentionProblem problem, View<4> out, View<3> lse) const;

  const simdattn::Target* target_;
  simdattn::Exec exec_;
};

Tensor LibraryEngine::scores(const Slice<4>& q, const Slice<4>& k, double scale) {
  Buffer<4> out({q.shape[0], q.shape[1], q.shape[2], k.shape[2]});
  check(simdattn::scores(q.view(), k.view(), out.view, {.scale = static_cast<float>(scale)}, exec_), "scores");
  return out.tensor();
}

Tensor LibraryEngine::softmax(const Slice<2>& x, Tensor* lse) {
  Buffer<2> out(x.shape);
  Buffer<1> sums({x.shape[0]});
  check(simdattn::softmax(x.view(), out.view, sums.view, exec_), "softmax");

  Buffer<2> in_place(x.shape);
  if (x.stride == in_place.view.stride) {
    std::copy(x.operand->storage.begin(), x.operand->storage.end(), in_place.bytes.begin());
    check(simdattn::softmax(in_place.view, in_place.view, {}, exec_), "softmax in place");
    check_same(out, in_place, "softmax in place");
  }
  if (lse != nullptr) *lse = sums.tensor();
  return out.tensor();
}

Tensor LibraryEngine::masked_softmax(const Slice<4>& x, const Scoring& scoring, double scale, Tensor* lse) {
  Scoring with_scale = scoring;
  with_scale.scale = static_cast<float>(scale);
  Buffer<4> out(x.shape);
  Buffer<3> sums({x.shape[0], x.shape[1], x.shape[2]});
  check(simdattn::masked_softmax(x.view(), out.view, with_scale, sums.view, exec_), "masked_softmax");

  Buffer<4> in_place(x.shape);
  if (x.stride == in_place.view.stride) {
    std::copy(x.operand->storage.begin(), x.operand->storage.end(), in_place.bytes.begin());
    check(simdattn::masked_softmax(in_place.view, in_place.view, with_scale, {}, exec_), "masked_softmax in place");
    check_same(out, in_place, "masked_softmax in place");
  }
  if (lse != nullptr) *lse = sums.tensor();
  return out.tensor();
}

Tensor LibraryEngine::weighted_values(const Slice<4>& p, const Slice<4>& v) {
  const std::array<int64_t, 4> shape{p.shape[0], p.shape[1], p.shape[2], v.shape[3]};
  Buffer<4> out(shape);
  check(simdattn::weighted_values(p.view(), v.view(), out.view, {}, exec_), "weighted_values");
  if (v.operand->dtype != DType::kF32) {
    Buffer<4> narrow(shape, v.operand->dtype);
    check(simdattn::weighted_values(p.view(), v.view(), narrow.view, {}, exec_), "weighted_values");
    Buffer<4> rounded(shape, v.operand->dtype);
    rounded.bytes = Operand(out.tensor(), v.operand->dtype).storage;
    rounded.view.data = rounded.bytes.data();
    check_same(rounded, narrow, "weighted_values with a narrow output is not the f32 result rounded once");
  }
  return out.tensor();
}

Tensor LibraryEngine::rope(const Slice<4>& x, const Slice<2>& cos, const Slice<2>& sin,
                           const std::vector<int64_t>& positions, const simdattn::RopeOptions& options) {
  simdattn::ConstView<2> rows{};
  if (!positions.empty()) rows = simdattn::view(positions.data(), {x.shape[0], x.shape[2]});
  Buffer<4> out(x.shape);
  check(simdattn::rope(x.view(), cos.view(), sin.view(), rows, out.view, options, exec_), "rope");

  Buffer<4> in_place(x.shape, x.operand->dtype);
  in_place.bytes = x.operand->storage;
  in_place.view.data = in_place.bytes.data();
  in_place.view.stride = x.stride;
  check(simdattn::rope(in_place.view, cos.view(), sin.view(), rows, in_place.view, options, exec_), "rope in place");
  Buffer<4> rounded(x.shape, x.operand->dtype);
  rounded.bytes = Operand(out.tensor(), x.operand->dtype).storage;
  rounded.view.data = rounded.bytes.data();
  check_same(rounded, in_place, "rope in place is not the f32 result rounded once");
  return out.tensor();
}

Tensor LibraryEngine::rope_frequencies(const simdattn::RopeTableOptions& options, int64_t rotary_dim) {
  Tensor result({rotary_dim / 2});
  check(simdattn::rope_frequencies(result.data.data(), rotary_dim / 2, nullptr, options), "rope_frequencies");
  return result;
}

void LibraryEngine::rope_table(const simdattn::RopeTableOptions& options, int64_t rotary_dim,
                               const std::vector<std::vector<int64_t>>& positions, Tensor* cos, Tensor* sin) {
  const int64_t axes = static_cast<int64_t>(positions.size()), n = static_cast<int64_t>(positions[0].size());
  std::vector<int64_t> flat;
  for (const std::vector<int64_t>& axis : positions) flat.insert(flat.end(), axis.begin(), axis.end());
  Buffer<2> c({n, rotary_dim / 2});
  Buffer<2> s({n, rotary_dim / 2});
  check(simdattn::rope_table(c.view, s.view, options, simdattn::ConstView<2>(flat.data(), DType::kI64, {axes, n})),
        "rope_table");
  *cos = c.tensor();
  *sin = s.tensor();
}

Tensor LibraryEngine::sinusoidal_table(int64_t d, const std::vector<int64_t>& positions) {
  const int64_t n = static_cast<int64_t>(positions.size());
  Buffer<2> out({n, d});
  check(simdattn::sinusoidal_table(out.view, 10000, simdattn::view(positions.data(), {n})), "sinusoidal_table");
  return out.tensor();
}

Tensor LibraryEngine::alibi_slopes(int64_t heads) {
  std::vector<float> slopes(static_cast<size_t>(heads));
  check(simdattn::alibi_slopes(heads, slopes.data()), "alibi_slopes");
  return reference::read(simdattn::view(slopes.data(), {heads}));
}

void LibraryEngine::fill(Cache* cache, const Slice<4>& rows) const {
  const int64_t batch = rows.shape[0], n = rows.shape[2];
  std::vector<int64_t> positions(static_cast<size_t>(batch * n));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i) % n;
  check(simdattn::kv_append(rows.view(), simdattn::view(positions.data(), {batch, n}), cache->kv, {}, exec_),
        "kv_append");
  for (int64_t b = 0; b < batch; ++b) {
    const Tensor stored = reference::read(simdattn::ConstKv(cache->kv), b, n);
    for (int64_t h = 0, i = 0; h < rows.shape[1]; ++h) {
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t d = 0; d < rows.shape[3]; ++d, ++i) {
          const double want = rows.operand->exact[b * rows.stride[0] + h * rows.stride[1] + t * rows.stride[2] + d];
          if (stored[i] !=
                  (rows.operand->dtype == DType::kF32 ? static_cast<double>(static_cast<float>(want)) : want) &&
              !(std::isnan(stored[i]) && std::isnan(want))) {
            throw EngineError("kv_append stored another value for token " + std::to_string(t));
          }
        }
      }
    }
  }
}

void LibraryEngine::make_panels(Cache* cache, const Slice<4>& rows) const {
  const auto [batch, heads, n, dim] = rows.shape;
  const simdattn::KvType type = simdattn::kv_type_of(rows.operand->dtype);
  const simdattn::KvLayout layout = simdattn::KvLayout::kPanels;
  cache->bytes.assign(static_cast<size_t>(simdattn::kv_bytes(type, layout, batch, heads, n, dim)), 0xFF);
  cache->kv = simdattn::contiguous_kv(cache->bytes.data(), type, layout, batch, heads, n, dim);
  fill(cache, rows);
}

void LibraryEngine::make_pages(Cache* cache, const Slice<4>& rows, simdattn::KvLayout layout, int64_t page_size) const {
  const auto [batch, heads, n, dim] = rows.shape;
  const simdattn::KvType type = simdattn::kv_type_of(rows.operand->dtype);
  const int64_t n_pages = batch * ((n + page_size - 1) / page_size);
  cache->bytes.assign(static_cast<size_t>(simdattn::kv_bytes(type, layout, n_pages, heads, page_size, dim)), 0xFF);
  simdattn::Kv& kv = cache->kv;
  kv = simdattn::contiguous_kv(cache->bytes.data(), type, layout, n_pages, heads, page_size, dim);
  kv.batch = batch;
  kv.capacity = n;
  kv.page_size = page_size;
  kv.n_pages = n_pages;
  for (int64_t page = kv.n_pages; page-- > 0;) cache->pages.push_back(static_cast<int32_t>(page));  // backwards
  kv.block_table = cache->pages.data();
  fill(cache, rows);
}

// The last `needed` tokens, rounded up to whole panels, written over the earlier ones; false if that is all of them.
bool LibraryEngine::make_ring(Cache* cache, const Slice<4>& rows, simdattn::KvLayout layout, int64_t needed) const {
  const auto [batch, heads, n, dim] = rows.shape;
  const int64_t ring = (needed + simdattn::kPanelWidth - 1) / simdattn::kPanelWidth * simdattn::kPanelWidth;
  if (ring >= n) return false;
  const simdattn::KvType type = simdattn::kv_type_of(rows.operand->dtype);
  cache->bytes.assign(static_cast<size_t>(simdattn::kv_bytes(type, layout, batch, heads, ring, dim)), 0xFF);
  simdattn::Kv& kv = cache->kv;
  kv = simdattn::contiguous_kv(cache->bytes.data(), type, layout, batch, heads, ring, dim);
  kv.capacity = n;
  kv.ring = ring;
  for (int64_t first = 0; first < n; first += ring) {
    const int64_t count = std::min(ring, n - first);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < batch * count; ++i) positions.push_back(static_cast<int32_t>(first + i % count));
    simdattn::ConstView<4> part = rows.view();
    part.data = static_cast<const unsigned char*>(part.data) +
                first * part.stride[2] * static_cast<int64_t>(reference::bytes(part.dtype));
    part.shape[2] = count;
    check(simdattn::kv_append(part, simdattn::view(positions.data(), {batch, count}), kv, {}, exec_), "kv_append");
  }
  return true;
}

void LibraryEngine::run(simdattn::AttentionProblem problem, View<4> out, View<3> lse) const {
  problem.out = out;
  problem.lse = lse;
  simdattn::Plan plan;
  check(simdattn::attention_plan(problem, &plan, exec_), "attention_plan");
  std::vector<unsigned char> workspace(plan.workspace_bytes);
  simdattn::Exec exec = exec_;
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  check(simdattn::attention(problem, exec), "attention");
}

void LibraryEngine::run_in_pieces(simdattn::AttentionProblem problem, View<4> out, View<3> lse) const {
  problem.out = out;
  problem.lse = lse;
  simdattn::Plan plan;
  check(simdattn::attention_plan(problem, &plan, exec_), "attention_plan");
  std::vector<unsigned char> workspace(plan.workspace_bytes);
  std::vector<unsigned char> partial(plan.partial_bytes);
  simdattn::Exec exec = exec_;
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  for (int64_t task = plan.tasks; task-- > 0;) {
    check(simdattn::attention_range(plan, task, task + 1, partial.data(), partial.size(), exec), "attention_range");
  }
  for (int64_t task = plan.reduce_tasks; task-- > 0;) {
    check(simdattn::attention_reduce(plan, task, task + 1, partial.data(), partial.size(), exec), "attention_reduce");
  }
}

double largest_magnitude(const Tensor& x) {
  double largest = 0;
  for (const double value : x.data) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

void LibraryEngine::check_arithmetic(const AttentionCall& call, simdattn::AttentionProblem problem,
                                     simdattn::Arithmetic arithmetic) const {
  problem.arithmetic = arithmetic;
  const auto [batch, heads, n_q, dim] = call.q.shape;
  Buffer<4> out({batch, heads, n_q, call.v.shape[3]});
  Buffer<3> lse({batch, heads, n_q});
  run(problem, out.view, lse.view);

  const Scoring& s = problem.scoring;
  Tensor magnitude;
  reference::scores(reference::operands(call.q.exact(), arithmetic), reference::operands(call.k.exact(), arithmetic),
                    call.scale, &magnitude);
  double slope = 0, extra = 0;
  for (int64_t h = 0; h < heads; ++h) {
    if (s.alibi_slopes != nullptr) slope = std::max(slope, std::fabs(static_cast<double>(s.alibi_slopes[h])));
    if (s.sinks != nullptr) extra = std::max(extra, std::fabs(static_cast<double>(s.sinks[h])));
  }
  if (s.bias.data != nullptr) extra += largest_magnitude(reference::read(s.bias));
  const simdattn::test::AttentionBound bound =
      attention_bound(problem, largest_magnitude(magnitude), slope * static_cast<double>(n_q + call.k.shape[2]), extra,
                      simdattn::test::costs(*exec_.target));
  const reference::AttentionResult want = reference::attention(problem);
  const auto compare = [&](const Tensor& got, const Tensor& expected, const auto& allowed, const char* what) {
    for (int64_t i = 0; i < got.size(); ++i) {
      const bool both_nan = std::isnan(got[i]) && std::isnan(expected[i]);
      if (both_nan || got[i] == expected[i] || std::fabs(got[i] - expected[i]) <= allowed(i)) continue;
      throw EngineError(std::string(arithmetic == simdattn::Arithmetic::kBF16 ? "kBF16, " : "kInt8, ") + what +
                        ", element " + std::to_string(i) + ": " + std::to_string(got[i]) + ", the formula has " +
                        std::to_string(expected[i]) + " +- " + std::to_string(allowed(i)));
    }
  };
  constexpr double kEps = simdattn::test::kEps;
  compare(
      out.tensor(), want.out,
      [&](int64_t i) {
        return bound.out * kEps * want.magnitude[i] + simdattn::test::kWeightSlack * want.weights[i] + bound.tiny;
      },
      "out");
  compare(lse.tensor(), want.lse, [&](int64_t) { return bound.lse * kEps; }, "lse");
}

AttentionOutputs LibraryEngine::attention(const AttentionCall& call) {
  const std::array<int64_t, 4> shape{call.q.shape[0], call.q.shape[1], call.q.shape[2], call.v.shape[3]};
  const std::array<int64_t, 3> rows{shape[0], shape[1], shape[2]};
  simdattn::AttentionProblem problem;
  problem.q = call.q.view();
  problem.k = call.k.view();
  problem.v = call.v.view();
  problem.scoring = call.scoring;
  problem.lists = call.lists;
  problem.scoring.scale = static_cast<float>(call.scale);

  Buffer<4> out(shape);
  Buffer<3> lse(rows);
  run(problem, out.view, lse.view);

  const auto expect_same = [&](const simdattn::AttentionProblem& other, bool in_pieces, const char* what) {
    Buffer<4> other_out(shape);
    Buffer<3> other_lse(rows);
    if (in_pieces) {
      run_in_pieces(other, other_out.view, other_lse.view);
    } else {
      run(other, other_out.view, other_lse.view);
    }
    check_same(out, other_out, what);
    check_same(lse, other_lse, what);
  };
  expect_same(problem, true, "tasks one by one, the last first");

  Cache panels;
  make_panels(&panels, call.k);
  simdattn::AttentionProblem stored = problem;
  stored.k = panels.kv;
  expect_same(stored, false, "key panels");
  expect_same(stored, true, "key panels, tasks one by one");

  Cache key_pages, value_pages;
  make_pages(&key_pages, call.k, simdattn::KvLayout::kPanels, 2 * simdattn::kPanelWidth);
  make_pages(&value_pages, call.v, simdattn::KvLayout::kRows, 2 * simdattn::kPanelWidth);
  stored.k = key_pages.kv;
  stored.v = value_pages.kv;
  expect_same(stored, false, "pages of key panels");

  Cache row_pages, odd_pages;
  make_pages(&row_pages, call.k, simdattn::KvLayout::kRows, 7);
  make_pages(&odd_pages, call.v, simdattn::KvLayout::kRows, 5);
  stored.k = row_pages.kv;
  stored.v = odd_pages.kv;
  expect_same(stored, false, "pages of 7 key and 5 value rows");

  // Where a window keeps every row away from the early keys, a ring need not hold them.
  Cache key_ring, value_ring;
  const int64_t seen = call.scoring.window_left + shape[2];
  if (call.scoring.window_left >= 0 && call.scoring.kv_length == nullptr &&
      call.scoring.offset == simdattn::kBottomRight &&
      make_ring(&key_ring, call.k, simdattn::KvLayout::kPanels, seen) &&
      make_ring(&value_ring, call.v, simdattn::KvLayout::kRows, seen + 1)) {
    stored.k = key_ring.kv;
    stored.v = value_ring.kv;
    expect_same(stored, false, "rings");
  }

  Operand poisoned_k, poisoned_v;
  if (poison_hidden(call, &poisoned_k, &poisoned_v)) {
    simdattn::AttentionProblem poisoned = problem;
    poisoned.k = simdattn::ConstView<4>(poisoned_k.storage.data(), poisoned_k.dtype, call.k.shape);
    poisoned.v = simdattn::ConstView<4>(poisoned_v.storage.data(), poisoned_v.dtype, call.v.shape);
    expect_same(poisoned, false, "NaN in keys and values that no row sees");
  }

  if (call.lists.heads == 0) {  // the formulas know no lists
    check_arithmetic(call, problem, simdattn::Arithmetic::kBF16);
    check_arithmetic(call, problem, simdattn::Arithmetic::kInt8);
  }

  Buffer<4> token_major({shape[0], shape[2], shape[1], shape[3]});
  const auto& s = token_major.view.stride;
  token_major.view.shape = shape;
  token_major.view.stride = {s[0], s[2], s[1], s[3]};
  run(problem, token_major.view, {});
  check_same(out, token_major, "output [batch, token, head, dim] without lse");

  AttentionOutputs result{out.tensor(), lse.tensor(), {}};
  if (const DType dtype = call.q.operand->dtype; dtype != DType::kF32) {
    Buffer<4> narrow(shape, dtype);
    run(problem, narrow.view, {});
    Buffer<4> rounded(shape, dtype);
    rounded.bytes = Operand(result.out, dtype).storage;
    rounded.view.data = rounded.bytes.data();
    check_same(rounded, narrow, "a narrow output is not the f32 result rounded once");
    result.narrow = narrow.tensor();
  }
  return result;
}

AttentionOutputs LibraryEngine::attention_merge(const Slice<5>& parts, const Slice<4>& part_lse) {
  const std::array<int64_t, 4> shape{parts.shape[1], parts.shape[2], parts.shape[3], parts.shape[4]};
  const Tensor weights = part_lse.exact();
  Buffer<4> out(shape);
  Buffer<3> lse({shape[0], shape[1], shape[2]});
  check(simdattn::attention_merge(parts.view(), part_lse.view(), out.view, lse.view, nullptr, exec_),
        "attention_merge");

  // What a part without a visible key holds has no influence, and the result may replace a part.
  Buffer<5> poisoned(parts.shape, parts.operand->dtype);
  const Tensor values = parts.exact();
  for (int64_t i = 0; i < values.size(); ++i) {
    if (weights[i / parts.shape[4]] == -std::numeric_limits<double>::infinity()) continue;
    reference::store(poisoned.bytes.data(), parts.operand->dtype, i, values[i]);
  }
  Buffer<4> from_poisoned(shape);
  check(simdattn::attention_merge(poisoned.view, part_lse.view(), from_poisoned.view, {}, nullptr, exec_),
        "attention_merge");
  check_same(out, from_poisoned, "NaN in empty parts");
  if (parts.operand->dtype == DType::kF32) {
    const View<4> first(poisoned.bytes.data(), DType::kF32, shape);
    check(simdattn::attention_merge(poisoned.view, part_lse.view(), first, {}, nullptr, exec_),
          "attention_merge in place");
    std::copy_n(poisoned.bytes.begin(), from_poisoned.bytes.size(), from_poisoned.bytes.begin());
    check_same(out, from_poisoned, "attention_merge in place");
  }
  return {out.tensor(), lse.tensor(), {}};
}

Operand LibraryEngine::append(const Slice<4>& past, const Slice<4>& now) {
  const std::array<int64_t, 4> shape{now.shape[0], now.shape[1], past.shape[2] + now.shape[2], now.shape[3]};
  const DType dtype = now.operand->dtype;
  Buffer<4> cache(shape, dtype);
  int64_t first = 0;
  for (const Slice<4>* rows : {&past, &now}) {
    const int64_t n = rows->shape[2];
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < shape[0] * n; ++i) positions.push_back(static_cast<int32_t>(first + i % n));
    check(simdattn::kv_append(rows->view(), simdattn::view(positions.data(), {shape[0], n}), cache.view, {}, exec_),
          "kv_append");
    first += n;
  }
  return Operand(cache.tensor(), dtype);
}

}  // namespace

std::unique_ptr<Engine> library_engine(const simdattn::Target& target) {
  return std::make_unique<LibraryEngine>(target);
}

}  // namespace conformance
