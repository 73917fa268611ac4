#include "lib/rules/softmax.h"

#include "lib/rules/scoring.h"

namespace simdattn {

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

}  // namespace simdattn
