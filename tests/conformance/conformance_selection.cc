// Ops of the vectors that select keys.
#include <algorithm>
#include <numeric>

#include "tests/conformance/conformance_run.h"

namespace conformance {
namespace {

simdattn::Exec exec_of(Run& run, std::vector<char>* workspace, size_t bytes) {
  if (run.engine.float64()) throw NotExpressed("the reference selects no keys");
  simdattn::Exec exec;
  if (!simdattn::find_target(run.engine.name().c_str(), &exec.target).ok()) throw CaseError("a target without a name");
  workspace->resize(bytes);
  exec.workspace = workspace->data();
  exec.workspace_bytes = bytes;
  return exec;
}

void check(const simdattn::Status& status) {
  if (!status.ok()) throw EngineError(status.detail);
}

Tensor tensor_of(const std::vector<int32_t>& list, std::vector<int64_t> shape) {
  Tensor result(std::move(shape));
  std::copy(list.begin(), list.end(), result.data.begin());
  return result;
}

/// Lists of the k best of scores [batch, heads, rows, n], and compares them.
void select(Run& run, const std::vector<float>& scores, const std::array<int64_t, 4>& shape, int64_t k,
            const simdattn::TopKOptions& options) {
  const int64_t list_len = run.test.integer("list_len");
  std::vector<int32_t> lists(static_cast<size_t>(shape[0] * shape[1] * shape[2] * list_len), 77);
  std::vector<char> workspace;
  const simdattn::Exec exec = exec_of(run, &workspace, simdattn::top_k_workspace(k));
  check(simdattn::top_k({scores.data(), simdattn::DType::kF32, shape}, k,
                        {lists.data(), simdattn::DType::kI32, {shape[0], shape[1], shape[2], list_len}}, options,
                        exec));
  const std::vector<int64_t> of_lists = {shape[0], shape[1], shape[2], list_len};
  run.expect("selected", tensor_of(lists, of_lists));
  if (run.test.find_output("ranked") == nullptr) return;
  const int64_t local = options.local_blocks;
  for (int64_t r = 0; r < shape[0] * shape[1] * shape[2]; ++r) {
    const float* row = scores.data() + r * shape[3];
    const auto begin = lists.begin() + r * list_len;
    const auto end = std::find(begin, begin + list_len, -1);
    const int64_t own = options.keys - shape[2] + r % shape[2];
    const auto rank = [&](int32_t c) {
      const int64_t before = own / options.block_size - c;
      return local > 0 && before >= 0 && before < local ? static_cast<float>(kInf) : row[c];
    };
    std::sort(begin, end, [&](int32_t a, int32_t b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; });
  }
  run.expect("ranked", tensor_of(lists, of_lists));
}

/// [B, n, H, d] as [B, H, n, d].
Slice<4> heads_first(const Operand& x) {
  const std::vector<int64_t>& s = x.exact.shape;
  return {&x, {s[0], s[2], s[1], s[3]}, {s[1] * s[2] * s[3], s[3], s[2] * s[3], 1}};
}

void run_indexer(Run& run) {
  const Case& test = run.test;
  const Operand q(test.input("q")), k(test.input("k"));
  const Slice<4> queries = heads_first(q);
  const std::vector<int64_t>& s = k.exact.shape;
  const Slice<4> keys = reshape<4>(k, {s[0], 1, s[1], s[2]});
  const int64_t heads = queries.shape[1], n = queries.shape[2], candidates = test.integer("candidates");
  Operand w;
  simdattn::ConstView<3> weights;
  if (const Array* array = test.find_input("w")) {
    w = Operand(*array);
    weights = {w.storage.data(), simdattn::DType::kF32, {s[0], n, heads}};
  }
  simdattn::IndexOptions options;
  options.scale = static_cast<float>(test.number("scale"));
  options.relu = test.word("activation") == "relu";
  const std::string& combine = test.word("combine");
  options.combine = combine == "sum"   ? simdattn::IndexCombine::kSum
                    : combine == "max" ? simdattn::IndexCombine::kMax
                                       : simdattn::IndexCombine::kEach;
  options.causal = test.word("causal") != "none";
  options.block_size = test.integer("block_size");
  options.keys_per_row = test.integer("keys_per_row");
  options.keys = test.integer("n_kv");
  const std::vector<int32_t> kv_len = integers(test.find_input("kv_len"));
  if (!kv_len.empty()) options.kv_length = kv_len.data();
  const std::array<int64_t, 4> shape = {s[0], test.integer("list_heads"), n, candidates};
  std::vector<float> scores(static_cast<size_t>(shape[0] * shape[1] * n * candidates));
  std::vector<char> workspace;
  const simdattn::Exec exec =
      exec_of(run, &workspace, simdattn::index_scores_workspace(options.arithmetic, heads, queries.shape[3]));
  check(simdattn::index_scores(queries.view(), keys.view(), weights, {scores.data(), simdattn::DType::kF32, shape},
                               options, exec));
  Tensor got({shape[0], shape[1], n, candidates});
  std::copy(scores.begin(), scores.end(), got.data.begin());
  run.expect("scores", got);

  // In parts, as threads would.
  std::vector<float> parts(scores.size(), 5.0f);
  for (int64_t first = 0; first < candidates; first += 100) {
    options.first = first;
    simdattn::View<4> part(parts.data() + first, simdattn::DType::kF32, shape);
    part.shape[3] = std::min<int64_t>(100, candidates - first);
    check(simdattn::index_scores(queries.view(), keys.view(), weights, part, options, exec));
  }
  if (std::memcmp(parts.data(), scores.data(), scores.size() * 4) != 0) throw EngineError("parts have other bits");

  simdattn::TopKOptions selection;
  selection.block_size = options.block_size;
  selection.local_blocks = test.integer("local_blocks");
  selection.tail = test.integer("tail") != 0;
  selection.keys = options.keys;
  selection.kv_length = options.kv_length;
  // Lists of a case end where there is no further candidate.
  const int64_t k_of_list = std::min(test.integer("top_k"), test.integer("list_len") - selection.tail);
  select(run, scores, shape, k_of_list, selection);
}

void run_top_k(Run& run) {
  const std::vector<float> x = floats(&run.test.input("x"));
  const int64_t rows = run.test.integer("rows"), n = run.test.integer("n");
  select(run, x, {1, 1, rows, n}, std::min(run.test.integer("top_k"), n), {});
}

void run_selected_keys(Run& run) {
  const Case& test = run.test;
  if (run.engine.float64()) throw NotExpressed("the reference knows no lists");
  const Operand q(test.input("q")), k(test.input("k"));
  const Operand v = test.integer("v_in_k") != 0 ? Operand() : Operand(test.input("v"));
  AttentionCall call{as_rank4(q), as_rank4(k), {}, {}, test.number("scale"), {}};
  if (test.integer("v_in_k") != 0) {
    call.v = call.k;
    call.v.shape[3] = test.integer("head_dim_v");
  } else {
    call.v = as_rank4(v);
  }
  simdattn::Scoring& scoring = call.scoring;
  scoring.softcap = static_cast<float>(test.number("softcap"));
  scoring.window_left = test.integer("window_left");
  scoring.window_right = test.integer("window_right");
  scoring.causal = test.word("causal") != "none";
  const std::vector<float> slopes = floats(test.find_input("alibi_slopes"));
  const std::vector<float> sinks = floats(test.find_input("sinks"));
  const std::vector<int32_t> kv_len = integers(test.find_input("kv_len"));
  const std::vector<int32_t> selected = integers(&test.input("selected"));
  if (!slopes.empty()) scoring.alibi_slopes = slopes.data();
  if (!sinks.empty()) scoring.sinks = sinks.data();
  if (!kv_len.empty()) scoring.kv_length = kv_len.data();
  simdattn::KeyLists& lists = call.lists;
  lists.data = selected.data();
  lists.heads = test.integer("list_heads");
  lists.length = test.integer("list_len");
  lists.block_size = test.integer("block_size");
  lists.stride = {lists.heads * call.q.shape[2] * lists.length, call.q.shape[2] * lists.length, lists.length};
  const AttentionOutputs fused = run.engine.attention(call);
  run.expect("o", fused.out);
  run.expect("lse", fused.lse);
  if (fused.narrow) run.expect("o", *fused.narrow, "stored in the type of q", run.stored_as(call.q.operand->dtype));
}

}  // namespace

std::vector<Op> selection_ops() {
  return {{"selected_keys", run_selected_keys}, {"indexer", run_indexer}, {"top_k", run_top_k}};
}

}  // namespace conformance
