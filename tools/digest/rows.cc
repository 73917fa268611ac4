// Lines of the unfused functions.
#include "tools/digest/run.h"

namespace simdattn::digest {
namespace {

bool run_scores(Run& run, DType q_type, DType k_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 70), dim = run.size(1, 140);
  const Values values = run.values();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  const Exec exec = run.exec_with(scores_workspace(run.arithmetic, dim));
  if (!run.ok(scores(q.view, k.view, out.view, {.arithmetic = run.arithmetic}, exec))) return false;
  run.add(out.buffer);
  return true;
}

bool run_softmax(Run& run) {
  Random& random = run.random;
  const int64_t rows = random.integer(1, 8), n = run.size(1, 600);
  Array<2> x(DType::kF32, {rows, n}), out(DType::kF32, {rows, n});
  Array<1> lse(DType::kF32, {rows});
  x.buffer.fill(random, run.values());
  if (random.one_in(2)) {  // a wider spread: magnitudes up to 2^6
    for (int64_t i = 0; i < x.buffer.count(); ++i) {
      const float f = ordinary(random, 5);
      std::memcpy(static_cast<float*>(x.buffer.data()) + i, &f, sizeof f);
    }
  }
  if (!run.ok(softmax(x.view, out.view, lse.view, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

bool run_masked_softmax(Run& run) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 4), n_q = random.integer(1, 9);
  const int64_t n_kv = run.size(1, 200);
  const Array<4> x = input(random, DType::kF32, {batch, heads, n_q, n_kv}, run.values());
  Options options;
  const Scoring scoring = random_scoring(run, options, batch, heads, n_q, n_kv);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  Array<3> lse(DType::kF32, {batch, heads, n_q});
  if (!run.ok(masked_softmax(x.view, out.view, scoring, lse.view, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

bool run_weighted_values(Run& run, DType v_type, DType out_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 10);
  const int64_t n_kv = run.size(1, 80), dim = run.size(1, 140);
  const Values values = run.values();
  const Array<4> p = input(random, DType::kF32, {batch, heads, n_q, n_kv}, values);
  const Array<4> v = input(random, v_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(out_type, {batch, heads, n_q, dim});
  const Exec exec = run.exec_with(weighted_values_workspace(run.arithmetic, dim));
  if (!run.ok(weighted_values(p.view, v.view, out.view, {.arithmetic = run.arithmetic}, exec))) return false;
  run.add(out.buffer);
  return true;
}

/// index_scores(), and top_k() of its scores.
bool run_selection(Run& run, DType type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 9), n = random.integer(1, 4);
  const int64_t rows = run.size(1, 300), dim = run.size(1, 100), k = random.integer(0, 20);
  const Values values = run.values();
  const Array<4> q = input(random, type, {batch, heads, n, dim}, values);
  const Array<4> keys = input(random, type, {batch, 1, rows, dim}, values);
  Array<3> weights(DType::kF32, {batch, n, heads});
  weights.buffer.fill(random, Values::kOrdinary);
  IndexOptions o;
  o.arithmetic = run.arithmetic;
  o.combine = random.of({IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach});
  o.relu = random.one_in(2);
  o.causal = random.one_in(2);
  o.block_size = random.of({int64_t{1}, int64_t{4}, int64_t{32}});
  const int64_t lists = o.combine == IndexCombine::kEach ? heads : 1;
  const ConstView<3> w = o.combine == IndexCombine::kSum ? ConstView<3>(weights.view) : ConstView<3>();
  Array<4> scores(DType::kF32, {batch, lists, n, (rows + o.block_size - 1) / o.block_size});
  Array<4> list(DType::kI32, {batch, lists, n, k + 1});
  if (!run.ok(index_scores(q.view, keys.view, w, scores.view, o,
                           run.exec_with(index_scores_workspace(o.arithmetic, heads, dim))))) {
    return false;
  }
  const TopKOptions options = {.block_size = o.block_size, .local_blocks = random.integer(0, 2), .tail = true};
  if (!run.ok(top_k(scores.view, k, list.view, options, run.exec_with(top_k_workspace(k))))) return false;
  run.add(scores.buffer);
  run.add(list.buffer);
  return true;
}

bool run_gaussian_scores(Run& run, DType q_type, DType k_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 3), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 50), dim = run.size(1, 100);
  const Values values = run.values();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  if (!run.ok(gaussian_scores(q.view, k.view, out.view, {}, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

/// With weights: bilinear scores; else additive ones, with or without projections.
bool run_weighted_scores(Run& run, bool bilinear) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 3), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 40), d = run.size(1, 60);
  const bool with_wq = random.one_in(2), with_wk = random.one_in(2);
  const int64_t d_q = bilinear || with_wq ? run.size(1, 60) : d, d_k = bilinear || with_wk ? run.size(1, 60) : d;
  const Values values = run.values();
  const DType q_type = random.storage(), k_type = random.storage(), w_type = random.storage();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, d_q}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, d_k}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  Exec exec = run.exec();
  const size_t bytes = bilinear ? bilinear_scores_workspace(d_q, d_k)
                                : additive_scores_workspace(with_wq ? d_q : 0, with_wk ? d_k : 0, d);
  std::vector<unsigned char> workspace(bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  if (bilinear) {
    Array<3> m(w_type, {heads, d_q, d_k});
    m.buffer.fill(random, Values::kOrdinary);
    if (!run.ok(bilinear_scores(q.view, m.view, k.view, out.view, {}, exec))) return false;
  } else {
    Array<2> w(DType::kF32, {heads, d});
    Array<3> wq(w_type, {heads, d, d_q}), wk(w_type, {kv_heads, d, d_k});
    w.buffer.fill(random, Values::kOrdinary);
    wq.buffer.fill(random, Values::kOrdinary);
    wk.buffer.fill(random, Values::kOrdinary);
    const ConstView<3> absent;
    if (!run.ok(additive_scores(q.view, k.view, w.view, out.view, with_wq ? ConstView<3>(wq.view) : absent,
                                with_wk ? ConstView<3>(wk.view) : absent, exec)))
      return false;
  }
  run.add(out.buffer);
  return true;
}

bool run_add_rows(Run& run, DType x_type, DType out_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(1, 6);
  const int64_t dim = run.size(1, 140);
  const DType p_type = random.storage();
  const Values values = run.values();
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, values);
  Array<4> p = input(random, p_type, {batch, heads, n, dim}, values);
  if (random.one_in(2)) p.view.stride[1] = 0;
  Array<4> out(out_type, {batch, heads, n, dim});
  if (!run.ok(add_rows(x.view, p.view, out.view, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

}  // namespace

void add_row_lines(Lines* lines) {
  const auto add = [&](const std::string& name, int problems, std::function<bool(Run&)> run) {
    lines->push_back({name, problems, std::move(run)});
  };
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      const std::string types = std::string(" ") + type_name(a) + " " + type_name(b);
      add("scores" + types, 20, [=](Run& r) { return run_scores(r, a, b); });
      add("weighted_values" + types, 20, [=](Run& r) { return run_weighted_values(r, a, b); });
      add("gaussian_scores" + types, 8, [=](Run& r) { return run_gaussian_scores(r, a, b); });
      add("add_rows" + types, 8, [=](Run& r) { return run_add_rows(r, a, b); });
    }
  }
  for (int i = 1; i <= 3; ++i) {
    add("bilinear_scores " + std::to_string(i), 8, [](Run& r) { return run_weighted_scores(r, true); });
    add("additive_scores " + std::to_string(i), 8, [](Run& r) { return run_weighted_scores(r, false); });
  }
  for (int i = 1; i <= 4; ++i) add("softmax " + std::to_string(i), 20, run_softmax);
  for (int i = 1; i <= 8; ++i) add("masked_softmax " + std::to_string(i), 20, run_masked_softmax);
  for (const auto& [arithmetic, in] : kArithmetics) {
    for (const DType type : kTypes) {
      const std::string name = type_name(type);
      add_in(lines, arithmetic, "selection " + name, in, 12, [=](Run& r) { return run_selection(r, type); });
      if (arithmetic == Arithmetic::kF32) continue;  // above
      add_in(lines, arithmetic, "scores " + name, in, 20, [=](Run& r) { return run_scores(r, type, type); });
      add_in(lines, arithmetic, "weighted_values " + name, in, 20,
             [=](Run& r) { return run_weighted_values(r, type, type); });
    }
  }
}

}  // namespace simdattn::digest
