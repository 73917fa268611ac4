#include "lib/rules/merge.h"

#include "lib/contract/dtypes.h"

namespace simdattn {

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
