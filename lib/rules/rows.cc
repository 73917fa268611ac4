#include "lib/contract/dtypes.h"
#include "lib/rules/attention.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// An array of the call, and the sentence that says that the workspace overlaps it.
struct BesideWorkspace {
  const ByteSet& bytes;
  const char* sentence;
};

/// `memory`: the bytes of the workspace that the call uses.
Status check_workspace(const Exec& exec, size_t needed, const BesideWorkspace (&arrays)[3], ByteSet* memory) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace,
                   "exec.workspace: null; the function ending in _workspace tells the size");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, Code::kWorkspace,
                   "exec.workspace_bytes: less than the function ending in _workspace tells");
  *memory = ByteSet::of(exec.workspace, static_cast<int64_t>(needed));
  for (const BesideWorkspace& a : arrays) {
    SIMDATTN_REQUIRE(!share_bytes(*memory, a.bytes), Code::kOverlap, a.sentence);
  }
  return {};
}

/// The bytes of the arrays that all score functions have.
struct ScoreBytes {
  ByteSet q;
  ByteSet k;
  ByteSet out;
};

/// Everything about q, k and out but the relation of the dimensions of q and k.
Status check_score_arrays(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, ScoreBytes* bytes) {
  SIMDATTN_CHECK(check_view(q, Accept::kElements, SIMDATTN_ARGUMENT("q"), &bytes->q));
  SIMDATTN_CHECK(check_view(k, Accept::kElements, SIMDATTN_ARGUMENT("k"), &bytes->k));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &bytes->out));
  SIMDATTN_REQUIRE(q.shape[3] >= 1, Code::kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(k.shape[3] >= 1, Code::kShape, "k.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(k.shape[0] == q.shape[0], Code::kShape, "k.shape[0] != q.shape[0]");
  SIMDATTN_REQUIRE(k.shape[1] >= 1, Code::kShape, "k.shape[1]: there must be at least one key head");
  SIMDATTN_REQUIRE(group_of(q.shape[1], k.shape[1]) >= 0, Code::kShape,
                   "q.shape[1]: query heads must be a multiple of key heads");
  SIMDATTN_REQUIRE(out.shape[0] == q.shape[0] && out.shape[1] == q.shape[1] && out.shape[2] == q.shape[2] &&
                       out.shape[3] == k.shape[2],
                   Code::kShape, "out.shape: must be [q.shape[0], q.shape[1], q.shape[2], k.shape[2]]");
  SIMDATTN_REQUIRE(!share_bytes(bytes->out, bytes->q), Code::kOverlap, "out: overlaps q");
  SIMDATTN_REQUIRE(!share_bytes(bytes->out, bytes->k), Code::kOverlap, "out: overlaps k");
  return {};
}

Status check_scale(const ScoreOptions& options) {
  SIMDATTN_REQUIRE(!options.scale || is_finite(*options.scale), Code::kRange, "options.scale: must be finite");
  return {};
}
/// Of functions that compute in f32 alone.
Status check_score_options(const ScoreOptions& options) {
  SIMDATTN_REQUIRE(options.arithmetic == Arithmetic::kF32, Code::kRange,
                   "options.arithmetic: not one of this function");
  return check_scale(options);
}

Status check_workspace(const Exec& exec, size_t needed, const ScoreBytes& arrays, ByteSet* memory) {
  return check_workspace(exec, needed,
                         {{arrays.q, "exec.workspace: overlaps q"},
                          {arrays.k, "exec.workspace: overlaps k"},
                          {arrays.out, "exec.workspace: overlaps out"}},
                         memory);
}

}  // namespace

Status check_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                    const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_REQUIRE(k.shape[3] == q.shape[3], Code::kShape, "k.shape[3] != q.shape[3]");
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), Code::kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_scale(options));
  if (options.arithmetic == Arithmetic::kF32) return {};
  ByteSet memory;
  return check_workspace(exec, needed, bytes, &memory);
}

Status check_gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options) {
  ScoreBytes bytes;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_REQUIRE(k.shape[3] == q.shape[3], Code::kShape, "k.shape[3] != q.shape[3]");
  return check_score_options(options);
}

Status check_bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options, const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  ByteSet em;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_CHECK(check_view(m, Accept::kElements, SIMDATTN_ARGUMENT("m"), &em));
  const int64_t heads = q.shape[1];
  const int64_t d_q = q.shape[3];
  const int64_t d_k = k.shape[3];
  SIMDATTN_REQUIRE(m.shape[0] == heads && m.shape[1] == d_q && m.shape[2] == d_k, Code::kShape,
                   "m.shape: must be [q.shape[1], q.shape[3], k.shape[3]]; broadcast over heads by stride 0");
  SIMDATTN_CHECK(check_score_options(options));
  SIMDATTN_REQUIRE(!share_bytes(bytes.out, em), Code::kOverlap, "out: overlaps m");
  ByteSet memory;
  SIMDATTN_CHECK(check_workspace(exec, needed, bytes, &memory));
  SIMDATTN_REQUIRE(!share_bytes(memory, em), Code::kOverlap, "exec.workspace: overlaps m");
  return {};
}

Status check_additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                             const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  ByteSet ew, ewq, ewk;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_CHECK(check_view(w, Accept::kF32, SIMDATTN_ARGUMENT("w"), &ew));
  SIMDATTN_CHECK(check_view(wq, Accept::kElements, SIMDATTN_ARGUMENT("wq"), &ewq));
  SIMDATTN_CHECK(check_view(wk, Accept::kElements, SIMDATTN_ARGUMENT("wk"), &ewk));
  const int64_t heads = q.shape[1];
  const int64_t d = w.shape[1];
  const bool project_q = wq.data != nullptr;
  const bool project_k = wk.data != nullptr;
  SIMDATTN_REQUIRE(w.shape[0] == heads, Code::kShape, "w.shape[0] != q.shape[1]; broadcast over heads by stride 0");
  SIMDATTN_REQUIRE(d >= 1, Code::kShape, "w.shape[1]: the dimension must be at least 1");
  if (project_q) {
    SIMDATTN_REQUIRE(wq.shape[0] == heads && wq.shape[1] == d && wq.shape[2] == q.shape[3], Code::kShape,
                     "wq.shape: must be [q.shape[1], w.shape[1], q.shape[3]]; broadcast over heads by stride 0");
  } else {
    SIMDATTN_REQUIRE(q.shape[3] == d, Code::kShape, "q.shape[3] != w.shape[1] although there is no wq");
  }
  if (project_k) {
    SIMDATTN_REQUIRE(wk.shape[0] == k.shape[1] && wk.shape[1] == d && wk.shape[2] == k.shape[3], Code::kShape,
                     "wk.shape: must be [k.shape[1], w.shape[1], k.shape[3]]; broadcast over heads by stride 0");
  } else {
    SIMDATTN_REQUIRE(k.shape[3] == d, Code::kShape, "k.shape[3] != w.shape[1] although there is no wk");
  }
  SIMDATTN_REQUIRE(!share_bytes(bytes.out, ew), Code::kOverlap, "out: overlaps w");
  SIMDATTN_REQUIRE(!share_bytes(bytes.out, ewq), Code::kOverlap, "out: overlaps wq");
  SIMDATTN_REQUIRE(!share_bytes(bytes.out, ewk), Code::kOverlap, "out: overlaps wk");
  if (!project_q && !project_k) return {};

  ByteSet memory;
  SIMDATTN_CHECK(check_workspace(exec, needed, bytes, &memory));
  SIMDATTN_REQUIRE(!share_bytes(memory, ew), Code::kOverlap, "exec.workspace: overlaps w");
  SIMDATTN_REQUIRE(!share_bytes(memory, ewq), Code::kOverlap, "exec.workspace: overlaps wq");
  SIMDATTN_REQUIRE(!share_bytes(memory, ewk), Code::kOverlap, "exec.workspace: overlaps wk");
  return {};
}

Status check_softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse) {
  ByteSet ex, eo, el;
  SIMDATTN_CHECK(check_view(x, Accept::kF32, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  if (lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &el));
    SIMDATTN_REQUIRE(lse.shape[0] == x.shape[0], Code::kShape, "lse.shape[0] != x.shape[0]");
    SIMDATTN_REQUIRE(!share_bytes(el, ex), Code::kOverlap, "lse: overlaps x");
    SIMDATTN_REQUIRE(!share_bytes(el, eo), Code::kOverlap, "lse: overlaps out");
  }
  return {};
}

Status check_masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse) {
  ByteSet ex, eo, el;
  SIMDATTN_CHECK(check_view(x, Accept::kF32, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  const int64_t batch = x.shape[0];
  const int64_t heads = x.shape[1];
  const int64_t n_q = x.shape[2];
  const int64_t n_kv = x.shape[3];
  const ScoringShape shape = {batch, batch, heads, n_q, n_kv};
  static constexpr const char* kOut[kScoringArrays] = SIMDATTN_OVERLAPS_SCORING("out");
  static constexpr const char* kLse[kScoringArrays] = SIMDATTN_OVERLAPS_SCORING("lse");
  SIMDATTN_CHECK(check_scoring(scoring, shape));
  for (int64_t b = 0; b < batch; ++b) SIMDATTN_CHECK(check_sequence(scoring, b, n_kv));
  const bool arrays = has_arrays(scoring);
  const int overlapped = arrays ? overlapped_scoring(eo, scoring, shape) : -1;
  SIMDATTN_REQUIRE(overlapped < 0, Code::kOverlap, kOut[overlapped]);
  if (lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &el));
    SIMDATTN_REQUIRE(lse.shape[0] == batch && lse.shape[1] == heads && lse.shape[2] == n_q, Code::kShape,
                     "lse.shape: must be the first three sizes of x");
    SIMDATTN_REQUIRE(!share_bytes(el, ex), Code::kOverlap, "lse: overlaps x");
    SIMDATTN_REQUIRE(!share_bytes(el, eo), Code::kOverlap, "lse: overlaps out");
    const int lse_overlapped = arrays ? overlapped_scoring(el, scoring, shape) : -1;
    SIMDATTN_REQUIRE(lse_overlapped < 0, Code::kOverlap, kLse[lse_overlapped]);
  }
  return {};
}

Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed) {
  ByteSet ep, ev, eo;
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), Code::kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_view(p, Accept::kF32, SIMDATTN_ARGUMENT("p"), &ep));
  SIMDATTN_CHECK(check_view(v, Accept::kElements, SIMDATTN_ARGUMENT("v"), &ev));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(v.shape[0] == p.shape[0], Code::kShape, "v.shape[0] != p.shape[0]");
  SIMDATTN_REQUIRE(v.shape[1] >= 1, Code::kShape, "v.shape[1]: there must be at least one value head");
  SIMDATTN_REQUIRE(group_of(p.shape[1], v.shape[1]) >= 0, Code::kShape,
                   "p.shape[1]: query heads must be a multiple of value heads");
  SIMDATTN_REQUIRE(v.shape[2] == p.shape[3], Code::kShape, "v.shape[2] != p.shape[3]");
  SIMDATTN_REQUIRE(v.shape[3] >= 1, Code::kShape, "v.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(out.shape[0] == p.shape[0] && out.shape[1] == p.shape[1] && out.shape[2] == p.shape[2] &&
                       out.shape[3] == v.shape[3],
                   Code::kShape, "out.shape: must be [p.shape[0], p.shape[1], p.shape[2], v.shape[3]]");
  SIMDATTN_REQUIRE(!share_bytes(eo, ep), Code::kOverlap, "out: overlaps p");
  SIMDATTN_REQUIRE(!share_bytes(eo, ev), Code::kOverlap, "out: overlaps v");
  if (options.arithmetic == Arithmetic::kF32) return {};
  ByteSet memory;
  return check_workspace(
      exec, needed,
      {{ep, "exec.workspace: overlaps p"}, {ev, "exec.workspace: overlaps v"}, {eo, "exec.workspace: overlaps out"}},
      &memory);
}

Status check_attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                             const View<3>& lse, const float* sinks) {
  ByteSet ep, el, eo, es;
  SIMDATTN_CHECK(check_view(parts, Accept::kElements, SIMDATTN_ARGUMENT("parts"), &ep));
  SIMDATTN_CHECK(check_view(part_lse, Accept::kF32, SIMDATTN_ARGUMENT("part_lse"), &el));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  const int64_t n_parts = parts.shape[0];
  const std::array<int64_t, 4> row_shape = {n_parts, parts.shape[1], parts.shape[2], parts.shape[3]};
  const std::array<int64_t, 4> out_shape = {parts.shape[1], parts.shape[2], parts.shape[3], parts.shape[4]};
  SIMDATTN_REQUIRE(part_lse.shape == row_shape, Code::kShape, "part_lse.shape: must be the first four sizes of parts");
  SIMDATTN_REQUIRE(out.shape == out_shape, Code::kShape, "out.shape: must be the last four sizes of parts");
  SIMDATTN_REQUIRE(parts.shape[4] >= 1, Code::kShape, "parts.shape[4]: the head dimension must be at least 1");
  // Each row is read from all parts before it is written, so `out` may be one of them.
  bool is_part = false;
  for (int64_t p = 0; p < n_parts && !is_part; ++p) {
    const char* data = static_cast<const char*>(parts.data) + p * step_of(parts, 0) * size_of(parts.dtype);
    is_part = out.data == data && out.dtype == parts.dtype && out.stride[0] == parts.stride[1] &&
              out.stride[1] == parts.stride[2] && out.stride[2] == parts.stride[3];
  }
  SIMDATTN_REQUIRE(is_part || !share_bytes(eo, ep), Code::kOverlap, "out: overlaps parts without being one of them");
  SIMDATTN_REQUIRE(!share_bytes(eo, el), Code::kOverlap, "out: overlaps part_lse");
  const ByteSet sinks_extent = ByteSet::of(sinks, parts.shape[2] * 4);
  SIMDATTN_REQUIRE(!share_bytes(eo, sinks_extent), Code::kOverlap, "out: overlaps sinks");
  if (lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &es));
    SIMDATTN_REQUIRE(lse.shape[0] == out_shape[0] && lse.shape[1] == out_shape[1] && lse.shape[2] == out_shape[2],
                     Code::kShape, "lse.shape: must be the first three sizes of out");
    SIMDATTN_REQUIRE(!share_bytes(es, ep), Code::kOverlap, "lse: overlaps parts");
    SIMDATTN_REQUIRE(!share_bytes(es, el), Code::kOverlap, "lse: overlaps part_lse");
    SIMDATTN_REQUIRE(!share_bytes(es, eo), Code::kOverlap, "lse: overlaps out");
    SIMDATTN_REQUIRE(!share_bytes(es, sinks_extent), Code::kOverlap, "lse: overlaps sinks");
  }
  return {};
}

}  // namespace simdattn
