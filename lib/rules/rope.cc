#include "lib/contract/dtypes.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

#define SIMDATTN_OF_ROTATION(of, rule) \
  (of == Rotation::kRope ? rule : of == Rotation::kAppend ? "options.rope." rule : "rope." rule)

/// Requires of a rotation.
#define SIMDATTN_ROTATION(condition, code, rule) SIMDATTN_REQUIRE(condition, code, SIMDATTN_OF_ROTATION(of, rule))

const Argument* const kCos[] = {&kArgument<"cos">, &kArgument<"options.rope.cos">, &kArgument<"rope.cos">};
const Argument* const kSin[] = {&kArgument<"sin">, &kArgument<"options.rope.sin">, &kArgument<"rope.sin">};
constexpr const char* kSinShape[] = {"sin.shape != cos.shape", "options.rope.sin.shape != options.rope.cos.shape",
                                     "rope.sin.shape != rope.cos.shape"};

Status check_rope_options(const RopeOptions& options, int64_t pairs, int64_t dim, Rotation of, const char* too_many) {
  SIMDATTN_ROTATION(is_enumerator(options.pairing, RopePairing::kHalfSplit), kRange,
                    "options.pairing: not a RopePairing");
  SIMDATTN_ROTATION(options.first_dim >= 0 && options.first_dim <= dim, kRange,
                    "options.first_dim: must be in 0 .. head dimension");
  SIMDATTN_REQUIRE(pairs <= (dim - options.first_dim) / 2, kShape, too_many);
  return {};
}

/// The norm of rows of `dim` numbers, and the bytes of its weights.
Status check_norm(const RopeOptions& o, int64_t dim, Rotation of, ByteSet* weights) {
  SIMDATTN_ROTATION(is_enumerator(o.norm, RowNorm::kRmsPlusOne), kRange, "options.norm: not a RowNorm");
  SIMDATTN_ROTATION(o.norm == RowNorm::kNone || of != Rotation::kShift, kRange,
                    "options.norm: keys in a cache are not normed again");
  SIMDATTN_ROTATION(is_finite(o.norm_epsilon) && !is_below_zero(o.norm_epsilon), kRange,
                    "options.norm_epsilon: must be finite and not negative");
  SIMDATTN_ROTATION(o.norm != RowNorm::kRmsPlusOne || o.norm_weight != nullptr, kNullPointer,
                    "options.norm_weight: null although 1 is added to it");
  SIMDATTN_ROTATION(!has_norm(o) || dim <= kMaxNormDim, kShape, "options.norm: rows of more than 2048 numbers");
  *weights = has_norm(o) ? ByteSet::of(o.norm_weight, dim * 4) : ByteSet();
  return {};
}

Status check_angles(const ConstView<2>& cos, const ConstView<2>& sin, const RopeOptions& options, int64_t dim,
                    Rotation of, ByteSet* cos_bytes, ByteSet* sin_bytes) {
  const auto name = static_cast<size_t>(of);
  SIMDATTN_CHECK(check_view(cos, Accept::kF32, *kCos[name], cos_bytes));
  SIMDATTN_CHECK(check_view(sin, Accept::kF32, *kSin[name], sin_bytes));
  SIMDATTN_REQUIRE(same_numbers(cos.shape, sin.shape), kShape, kSinShape[name]);
  return check_rope_options(options, cos.shape[1], dim, of,
                            SIMDATTN_OF_ROTATION(of, "cos.shape[1]: first_dim + 2 * pairs exceeds the head dimension"));
}

bool is_hadamard_block(int64_t block, int64_t dim) {
  if (block == 0) return true;
  if (block < 0 || block > kMaxHadamardBlock) return false;
  return (block & (block - 1)) == 0 && dim % block == 0;
}

/// Every position is a row of cos and sin, of which there are `limit`.
Status check_positions(const Positions& p, int64_t batch, int64_t n, int64_t limit, ByteSet* bytes) {
  const int64_t start = p.start;
  if (p.rows.data == nullptr) {
    SIMDATTN_REQUIRE(start >= 0 && (start < limit || (start == limit && n == 0)), kRange,
                     "positions.start: not a row of cos and sin");
    SIMDATTN_REQUIRE(n <= limit - start || batch == 0, kRange,
                     "positions.start: start + rows are more than the rows of cos and sin");
    return {};
  }
  const ConstView<2> positions = of_one_axis(p);
  SIMDATTN_REQUIRE(p.rows.shape[0] == 1, kShape, "positions.shape: must be [1, batch, rows]");
  SIMDATTN_CHECK(
      check_indices(positions, batch, n, kArgument<"positions">, "positions.shape: must be [1, batch, rows]", bytes));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = position_at(positions, start, b, i);
      SIMDATTN_REQUIRE(at >= 0 && at < limit, kRange, "positions: outside the rows 0 .. n_positions-1 of cos and sin");
    }
  }
  return {};
}

}  // namespace

Status check_indices(const ConstView<2>& v, int64_t batch, int64_t n, const Argument& argument, const char* shape,
                     ByteSet* bytes) {
  SIMDATTN_CHECK(check_view(v, Accept::kIndex, argument, bytes));
  SIMDATTN_REQUIRE(v.shape[0] == batch && v.shape[1] == n, kShape, shape);
  return {};
}

Status check_key_rotation(const KeyRotation& r, int64_t dim, Rotation of, ByteSet* cos, ByteSet* sin, ByteSet* norm) {
  SIMDATTN_ROTATION(r.struct_size == sizeof r, kStructSize,
                    "struct_size: inside another struct it is that of this version");
  SIMDATTN_ROTATION(is_zero(r.reserved), kStructSize, "reserved: must be 0");
  SIMDATTN_ROTATION(r.options.struct_size == sizeof r.options, kStructSize,
                    "options.struct_size: inside another struct it is that of this version");
  SIMDATTN_CHECK(check_norm(r.options, dim, of, norm));
  SIMDATTN_ROTATION(
      is_hadamard_block(r.hadamard_block, dim) && (r.hadamard_block == 0 || dim <= kMaxHadamardRow), kRange,
      "hadamard_block: must be 0, or a power of two up to 4096 that divides kv.dim, which is then at most 8192");
  return has_table(r) ? check_angles(r.cos, r.sin, r.options, dim, of, cos, sin) : Status();
}

Status check_hadamard(const ConstView<4>& x, const View<4>& out, int64_t block) {
  ByteSet ex, eo;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kElements, &ex, &eo));
  SIMDATTN_REQUIRE(x.shape[3] >= 1, kShape, "x.shape[3]: the dimension must be at least 1");
  SIMDATTN_REQUIRE(is_hadamard_block(block, x.shape[3]), kRange,
                   "block: must be 0, or a power of two up to 4096 that divides the dimension");
  return {};
}

Status check_add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out) {
  ByteSet ex, ep, eo;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kElements, &ex, &eo));
  SIMDATTN_CHECK(check_view(p, Accept::kElements, kArgument<"p">, &ep));
  SIMDATTN_REQUIRE(same_numbers(p.shape, x.shape), kShape, "p.shape != x.shape; broadcast by stride 0");
  return check_apart<"out", "p">(eo, {&ep});
}

Status check_rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin, const Positions& positions,
                  const View<4>& out, const RopeOptions& options) {
  ByteSet ex, eo, ec, es, ep, en;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kElements, &ex, &eo));
  SIMDATTN_CHECK(check_norm(options, x.shape[3], Rotation::kRope, &en));
  SIMDATTN_CHECK(check_angles(cos, sin, options, x.shape[3], Rotation::kRope, &ec, &es));
  SIMDATTN_CHECK(check_positions(positions, x.shape[0], x.shape[2], cos.shape[0], &ep));
  SIMDATTN_REQUIRE(!share_bytes(eo, ec) && !share_bytes(eo, es) && !share_bytes(eo, ep), kOverlap,
                   "out: overlaps cos, sin or positions");
  return check_apart<"out", "options.norm_weight">(eo, {&en});
}

Status check_rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                         const Positions& positions, const View<4>& out, const RopeOptions& options, const Exec& exec,
                         size_t needed) {
  ByteSet ex, eo, ep, en;
  SIMDATTN_CHECK(check_rows(x, out, Accept::kElements, &ex, &eo));
  SIMDATTN_CHECK(check_norm(options, x.shape[3], Rotation::kRope, &en));
  SIMDATTN_REQUIRE(pairs >= 1 && pairs <= kMaxColumns, kRange, "pairs: must be in 1 .. 2^20");
  SIMDATTN_CHECK(check_rope_options(options, pairs, x.shape[3], Rotation::kRope,
                                    "pairs: first_dim + 2 * pairs exceeds the head dimension"));
  SIMDATTN_CHECK(check_rope_table_options(table, pairs, true));
  const int64_t n = x.shape[2];
  const ConstView<3>& rows = positions.rows;
  if (rows.data != nullptr) {
    SIMDATTN_REQUIRE(rows.shape[0] == 1 || rows.shape[0] == axes_of(table), kShape,
                     "positions.shape[0]: must be 1 or the number of position axes in table.mrope_section");
    SIMDATTN_REQUIRE(rows.shape[1] == x.shape[0] && rows.shape[2] == n, kShape,
                     "positions.shape: must be [axes, batch, rows]");
  }
  SIMDATTN_CHECK(
      check_table_positions(rows, positions.start, n, "positions.start: every position must be in (-2^31, 2^31)", &ep));
  SIMDATTN_CHECK(check_apart<"out", "positions, options.norm_weight">(eo, {&ep, &en}));
  SIMDATTN_REQUIRE(!overlaps_options(eo, table), kOverlap, "out: overlaps an array of table");
  if (needed == 0) return {};
  SIMDATTN_CHECK(check_workspace<"out, x, positions">(exec, needed, {&eo, &ex, &ep}));
  SIMDATTN_REQUIRE(!overlaps_options(workspace_bytes(exec, needed), table), kOverlap,
                   "exec.workspace: overlaps an array of table");
  return {};
}

}  // namespace simdattn
