#include "lib/rules/rules.h"

namespace simdattn {
namespace {

bool is_block(int64_t block, int64_t dim) {
  if (block == 0) return true;
  return block > 0 && block <= kMaxHadamardBlock && (block & (block - 1)) == 0 && dim % block == 0;
}

/// Every position in low .. limit - 1; where the view is absent, positions are start .. start + n - 1.
Status check_positions(const ConstView<2>& positions, int64_t start, int64_t batch, int64_t n, int64_t low,
                       int64_t limit, ByteSet* extent) {
  extent->clear();
  if (positions.data == nullptr) {
    SIMDATTN_REQUIRE(start >= 0 && (start < limit || (start == limit && n == 0)), Code::kRange,
                     "options.start: not a row of cos and sin");
    SIMDATTN_REQUIRE(n <= limit - start || batch == 0, Code::kRange,
                     "options.start: start + rows are more than the rows of cos and sin");
    return {};
  }
  SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), extent));
  SIMDATTN_REQUIRE(positions.shape[0] == batch && positions.shape[1] == n, Code::kShape,
                   "positions.shape: must be [batch, rows]");
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, start, b, i);
      SIMDATTN_REQUIRE(p >= low && p < limit, Code::kRange,
                       "positions: outside the rows 0 .. n_positions-1 of cos and sin");
    }
  }
  return {};
}

}  // namespace

Status check_key_hadamard(int64_t block, int64_t dim, const char* sentence) {
  SIMDATTN_REQUIRE(is_block(block, dim) && (block == 0 || dim <= kMaxHadamardRow), Code::kRange, sentence);
  return {};
}

Status check_hadamard(const ConstView<4>& x, const View<4>& out, int64_t block, bool* empty) {
  ByteSet ex, eo;
  SIMDATTN_CHECK(check_view(x, Accept::kElements, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(x.shape[3] >= 1, Code::kShape, "x.shape[3]: the dimension must be at least 1");
  SIMDATTN_REQUIRE(is_block(block, x.shape[3]), Code::kRange,
                   "block: must be 0, or a power of two up to 4096 that divides the dimension");
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  *empty = eo.empty();
  return {};
}

Status check_rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                  const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, bool* empty) {
  ByteSet ex, eo, ec, es, ep;
  SIMDATTN_CHECK(check_view(x, Accept::kElements, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  const int64_t n = x.shape[2];
  SIMDATTN_CHECK(check_rope_table(cos, sin, options, x.shape[3], kRope, &ec, &es));
  SIMDATTN_CHECK(check_positions(positions, options.start, x.shape[0], n, 0, cos.shape[0], &ep));
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  SIMDATTN_REQUIRE(!share_bytes(eo, ec) && !share_bytes(eo, es) && !share_bytes(eo, ep), Code::kOverlap,
                   "out: overlaps cos, sin or positions");
  *empty = eo.empty();
  return {};
}

Status check_add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, bool* empty) {
  ByteSet ex, ep, eo;
  SIMDATTN_CHECK(check_view(x, Accept::kElements, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(p, Accept::kElements, SIMDATTN_ARGUMENT("p"), &ep));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(p, x), Code::kShape, "p.shape != x.shape; broadcast by stride 0");
  SIMDATTN_REQUIRE(same_shape(out, x), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  SIMDATTN_REQUIRE(!share_bytes(eo, ep), Code::kOverlap, "out: overlaps p");
  *empty = eo.empty();
  return {};
}

Status check_rope_direct_rows(const ConstView<4>& x, int64_t pairs, const View<4>& out, const RopeOptions& options,
                              RopeDirectBytes* bytes) {
  SIMDATTN_CHECK(check_view(x, Accept::kElements, SIMDATTN_ARGUMENT("x"), &bytes->x));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &bytes->out));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(pairs >= 1 && pairs <= kMaxColumns, Code::kRange, "pairs: must be in 1 .. 2^20");
  return check_rope_options(options, pairs, x.shape[3], kRope,
                            "pairs: first_dim + 2 * pairs exceeds the head dimension");
}

Status check_rope_direct_positions(const ConstView<4>& x, const RopeTableOptions& table, int64_t axes,
                                   const ConstView<3>& positions, const View<4>& out, const RopeOptions& options,
                                   const RopeDirectBytes& bytes, const Exec& exec, size_t needed) {
  ByteSet ep;
  const int64_t batch = x.shape[0];
  const int64_t n = x.shape[2];
  const bool given = positions.data != nullptr;
  if (given) {
    SIMDATTN_REQUIRE(positions.shape[0] == 1 || positions.shape[0] == axes, Code::kShape,
                     "positions.shape[0]: must be 1 or the number of position axes in table.mrope_section");
    SIMDATTN_REQUIRE(positions.shape[1] == batch && positions.shape[2] == n, Code::kShape,
                     "positions.shape: must be [axes, batch, rows]");
    SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), &ep));
  } else {
    SIMDATTN_REQUIRE(positions.shape[0] == 0 || positions.shape[1] == 0 || positions.shape[2] == 0, Code::kNullPointer,
                     "positions.data: null although its shape is not empty");
    SIMDATTN_REQUIRE(
        options.start > -kPositionLimit && options.start < kPositionLimit && n <= kPositionLimit - options.start,
        Code::kRange, "options.start: every position must be in (-2^31, 2^31)");
  }
  for (int64_t axis = 0; given && axis < positions.shape[0]; ++axis) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = index_at(positions.data, positions.dtype,
                                   axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2]);
        SIMDATTN_REQUIRE(p > -kPositionLimit && p < kPositionLimit, Code::kRange,
                         "positions: every position must be in (-2^31, 2^31)");
      }
    }
  }
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(bytes.out, bytes.x), Code::kOverlap,
                   "out: overlaps x without being x");
  SIMDATTN_REQUIRE(!share_bytes(bytes.out, ep), Code::kOverlap, "out: overlaps positions");
  SIMDATTN_REQUIRE(!overlaps_options(bytes.out, table), Code::kOverlap, "out: overlaps an array of table");
  if (needed > 0) {
    SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace, "exec.workspace: null; see rope_direct_workspace");
    SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, Code::kWorkspace,
                     "exec.workspace_bytes: less than rope_direct_workspace(pairs)");
    const ByteSet memory = ByteSet::of(exec.workspace, static_cast<int64_t>(needed));
    SIMDATTN_REQUIRE(!share_bytes(memory, bytes.out), Code::kOverlap, "exec.workspace: overlaps out");
    SIMDATTN_REQUIRE(!share_bytes(memory, bytes.x), Code::kOverlap, "exec.workspace: overlaps x");
    SIMDATTN_REQUIRE(!share_bytes(memory, ep), Code::kOverlap, "exec.workspace: overlaps positions");
    SIMDATTN_REQUIRE(!overlaps_options(memory, table), Code::kOverlap, "exec.workspace: overlaps an array of table");
  }
  return {};
}

}  // namespace simdattn
