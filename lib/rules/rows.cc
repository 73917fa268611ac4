#include "lib/contract/dtypes.h"
#include "lib/rules/attention.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// The bytes of the arrays that all score functions have.
struct ScoreBytes {
  ByteSet q, k, out;
};
/// Everything about q, k and out but the relation of the dimensions of q and k.
Status check_score_arrays(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, ScoreBytes* bytes) {
  SIMDATTN_CHECK(check_view(q, Accept::kElements, kArgument<"q">, &bytes->q));
  SIMDATTN_CHECK(check_view(k, Accept::kElements, kArgument<"k">, &bytes->k));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, kArgument<"out">, &bytes->out));
  SIMDATTN_REQUIRE(q.shape[3] >= 1, kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(k.shape[3] >= 1, kShape, "k.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(k.shape[0] == q.shape[0], kShape, "k.shape[0] != q.shape[0]");
  SIMDATTN_REQUIRE(k.shape[1] >= 1, kShape, "k.shape[1]: there must be at least one key head");
  SIMDATTN_REQUIRE(group_of(q.shape[1], k.shape[1]) >= 0, kShape,
                   "q.shape[1]: query heads must be a multiple of key heads");
  SIMDATTN_REQUIRE(same_numbers(out.shape, {q.shape[0], q.shape[1], q.shape[2], k.shape[2]}), kShape,
                   "out.shape: must be [q.shape[0], q.shape[1], q.shape[2], k.shape[2]]");
  return check_apart<"out", "q, k">(bytes->out, {&bytes->q, &bytes->k});
}

Status check_score_options(const ScoreOptions& options, bool f32_alone) {
  SIMDATTN_REQUIRE(options.arithmetic == Arithmetic::kF32 || !f32_alone, kRange,
                   "options.arithmetic: not one of this function");
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_REQUIRE(!options.scale || is_finite(*options.scale), kRange, "options.scale: must be finite");
  return {};
}

}  // namespace

Status check_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                    bool f32_alone, const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_REQUIRE(k.shape[3] == q.shape[3], kShape, "k.shape[3] != q.shape[3]");
  SIMDATTN_CHECK(check_score_options(options, f32_alone));
  if (options.arithmetic == Arithmetic::kF32) return {};
  if (!can_multiply(options.arithmetic, q.shape[3])) return kTooManyForInt8;
  return check_workspace<"q, k, out">(exec, needed, {&bytes.q, &bytes.k, &bytes.out});
}

Status check_bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options, const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  ByteSet em;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_CHECK(check_view(m, Accept::kElements, kArgument<"m">, &em));
  SIMDATTN_REQUIRE(same_numbers(m.shape, {q.shape[1], q.shape[3], k.shape[3]}), kShape,
                   "m.shape: must be [q.shape[1], q.shape[3], k.shape[3]]; broadcast over heads by stride 0");
  SIMDATTN_CHECK(check_score_options(options, true));
  SIMDATTN_CHECK(check_apart<"out", "m">(bytes.out, {&em}));
  return check_workspace<"q, k, out, m">(exec, needed, {&bytes.q, &bytes.k, &bytes.out, &em});
}

Status check_additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                             const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec, size_t needed) {
  ScoreBytes bytes;
  ByteSet ew, ewq, ewk;
  SIMDATTN_CHECK(check_score_arrays(q, k, out, &bytes));
  SIMDATTN_CHECK(check_view(w, Accept::kF32, kArgument<"w">, &ew));
  SIMDATTN_CHECK(check_view(wq, Accept::kElements, kArgument<"wq">, &ewq));
  SIMDATTN_CHECK(check_view(wk, Accept::kElements, kArgument<"wk">, &ewk));
  const int64_t heads = q.shape[1];
  const int64_t d = w.shape[1];
  SIMDATTN_REQUIRE(w.shape[0] == heads, kShape, "w.shape[0] != q.shape[1]; broadcast over heads by stride 0");
  SIMDATTN_REQUIRE(d >= 1, kShape, "w.shape[1]: the dimension must be at least 1");
  SIMDATTN_REQUIRE(wq.data == nullptr || same_numbers(wq.shape, {heads, d, q.shape[3]}), kShape,
                   "wq.shape: must be [q.shape[1], w.shape[1], q.shape[3]]; broadcast over heads by stride 0");
  SIMDATTN_REQUIRE(wq.data != nullptr || q.shape[3] == d, kShape, "q.shape[3] != w.shape[1] although there is no wq");
  SIMDATTN_REQUIRE(wk.data == nullptr || same_numbers(wk.shape, {k.shape[1], d, k.shape[3]}), kShape,
                   "wk.shape: must be [k.shape[1], w.shape[1], k.shape[3]]; broadcast over heads by stride 0");
  SIMDATTN_REQUIRE(wk.data != nullptr || k.shape[3] == d, kShape, "k.shape[3] != w.shape[1] although there is no wk");
  SIMDATTN_CHECK(check_apart<"out", "w, wq, wk">(bytes.out, {&ew, &ewq, &ewk}));
  if (wq.data == nullptr && wk.data == nullptr) return {};
  return check_workspace<"q, k, out, w, wq, wk">(exec, needed, {&bytes.q, &bytes.k, &bytes.out, &ew, &ewq, &ewk});
}

Status check_softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse) {
  ByteSet ex, eo, el;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kF32, &ex, &eo));
  if (lse.data == nullptr) return {};
  SIMDATTN_CHECK(check_view(lse, Accept::kF32, kArgument<"lse">, &el));
  SIMDATTN_REQUIRE(lse.shape[0] == x.shape[0], kShape, "lse.shape[0] != x.shape[0]");
  return check_apart<"lse", "x, out">(el, {&ex, &eo});
}

Status check_masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse) {
  ByteSet ex, eo, el;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kF32, &ex, &eo));
  const auto [batch, heads, n_q, n_kv] = x.shape;
  ProblemBytes arrays;
  SIMDATTN_CHECK(check_scoring(scoring, batch, {batch, heads, n_q, n_kv}, Data::kNeeded, &arrays));
  for (int64_t b = 0; b < batch; ++b) SIMDATTN_CHECK(check_sequence(scoring, b, n_kv));
  SIMDATTN_CHECK(check_apart<"out">(eo, arrays));
  if (lse.data == nullptr) return {};
  SIMDATTN_CHECK(check_view(lse, Accept::kF32, kArgument<"lse">, &el));
  SIMDATTN_REQUIRE(same_numbers(lse.shape, {batch, heads, n_q}), kShape,
                   "lse.shape: must be the first three sizes of x");
  SIMDATTN_CHECK(check_apart<"lse", "x, out">(el, {&ex, &eo}));
  return check_apart<"lse">(el, arrays);
}

Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed) {
  ByteSet ep, ev, eo;
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_view(p, Accept::kF32, kArgument<"p">, &ep));
  SIMDATTN_CHECK(check_view(v, Accept::kElements, kArgument<"v">, &ev));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, kArgument<"out">, &eo));
  SIMDATTN_REQUIRE(v.shape[0] == p.shape[0], kShape, "v.shape[0] != p.shape[0]");
  SIMDATTN_REQUIRE(v.shape[1] >= 1, kShape, "v.shape[1]: there must be at least one value head");
  SIMDATTN_REQUIRE(group_of(p.shape[1], v.shape[1]) >= 0, kShape,
                   "p.shape[1]: query heads must be a multiple of value heads");
  SIMDATTN_REQUIRE(v.shape[2] == p.shape[3], kShape, "v.shape[2] != p.shape[3]");
  SIMDATTN_REQUIRE(v.shape[3] >= 1, kShape, "v.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(same_numbers(out.shape, {p.shape[0], p.shape[1], p.shape[2], v.shape[3]}), kShape,
                   "out.shape: must be [p.shape[0], p.shape[1], p.shape[2], v.shape[3]]");
  SIMDATTN_CHECK(check_apart<"out", "p, v">(eo, {&ep, &ev}));
  if (options.arithmetic == Arithmetic::kF32) return {};
  return check_workspace<"p, v, out">(exec, needed, {&ep, &ev, &eo});
}

Status check_attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                             const View<3>& lse, const float* sinks) {
  ByteSet ep, el, eo, es;
  SIMDATTN_CHECK(check_view(parts, Accept::kElements, kArgument<"parts">, &ep));
  SIMDATTN_CHECK(check_view(part_lse, Accept::kF32, kArgument<"part_lse">, &el));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, kArgument<"out">, &eo));
  const auto [n_parts, batch, heads, rows, dim] = parts.shape;
  SIMDATTN_REQUIRE(same_numbers(part_lse.shape, {n_parts, batch, heads, rows}), kShape,
                   "part_lse.shape: must be the first four sizes of parts");
  SIMDATTN_REQUIRE(same_numbers(out.shape, {batch, heads, rows, dim}), kShape,
                   "out.shape: must be the last four sizes of parts");
  SIMDATTN_REQUIRE(dim >= 1, kShape, "parts.shape[4]: the head dimension must be at least 1");
  // Each row is read from all parts before it is written, so `out` may be one of them.
  bool is_part = false;
  for (int64_t p = 0; p < n_parts && !is_part; ++p) {
    const char* data = static_cast<const char*>(parts.data) + p * step_of(parts, 0) * size_of(parts.dtype);
    is_part = out.data == data && out.dtype == parts.dtype && out.stride[0] == parts.stride[1] &&
              out.stride[1] == parts.stride[2] && out.stride[2] == parts.stride[3];
  }
  SIMDATTN_REQUIRE(is_part || !share_bytes(eo, ep), kOverlap, "out: overlaps parts without being one of them");
  const ByteSet sinks_bytes = ByteSet::of(sinks, heads * 4);
  SIMDATTN_CHECK(check_apart<"out", "part_lse, sinks">(eo, {&el, &sinks_bytes}));
  if (lse.data == nullptr) return {};
  SIMDATTN_CHECK(check_view(lse, Accept::kF32, kArgument<"lse">, &es));
  SIMDATTN_REQUIRE(same_numbers(lse.shape, {batch, heads, rows}), kShape,
                   "lse.shape: must be the first three sizes of out");
  return check_apart<"lse", "parts, part_lse, out, sinks">(es, {&ep, &el, &eo, &sinks_bytes});
}

}  // namespace simdattn
