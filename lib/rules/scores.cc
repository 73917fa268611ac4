#include "lib/rules/scores.h"

#include "lib/contract/dtypes.h"
#include "lib/rules/workspace.h"

namespace simdattn {
namespace {

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

}  // namespace simdattn
