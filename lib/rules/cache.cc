#include <algorithm>
#include <cstdlib>
#include <limits>

#include "lib/contract/ukernels.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// The page of each of these tokens of every sequence is `lowest` or more, and one that there is.
template <bool kConst>
Status check_token_pages(const BasicKv<kConst>& kv, int64_t first, int64_t last, int64_t lowest) {
  for (int64_t b = 0; kv.block_table != nullptr && b < kv.batch; ++b) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t page = page_of(kv, b, t);
      SIMDATTN_REQUIRE(page >= lowest && page < kv.n_pages, kRange, page_sentence(Store::kKv));
    }
  }
  return {};
}

}  // namespace

Status check_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                    const AppendOptions& options) {
  const KeyRotation& rope = options.rope;
  const bool by_place = options.slots.data != nullptr;
  ByteSet er, ek, scales, ep, ec, es, en, slots;
  SIMDATTN_CHECK(check_view(rows, Accept::kElements, kArgument<"rows">, &er));
  const KvUse use = {.output = true, .output_scales = writes_scales(kv.type), .by_place = by_place};
  SIMDATTN_CHECK(check_kv(kv, use, Store::kKv, &ek, &scales));
  const int64_t batch = rows.shape[0];
  const int64_t n = rows.shape[2];
  SIMDATTN_REQUIRE(kv.batch == batch, kShape, "kv.batch: must be rows.shape[0]");
  SIMDATTN_REQUIRE(kv.heads == rows.shape[1], kShape, "kv.heads: must be rows.shape[1]");
  SIMDATTN_REQUIRE(kv.dim == rows.shape[3], kShape, "kv.dim: must be rows.shape[3]");
  SIMDATTN_CHECK(check_key_rotation(rope, kv.dim, Rotation::kAppend, &ec, &es, &en));
  const AppendedRows appended = {positions, kv, options, n};
  int64_t limit = by_place ? std::numeric_limits<int64_t>::max() : kv.capacity;
  if (appended.rotates()) limit = std::min(limit, rope.cos.shape[0]);
  if (positions.data != nullptr) {
    SIMDATTN_CHECK(
        check_indices(positions, batch, n, kArgument<"positions">, "positions.shape: must be [batch, rows]", &ep));
  }
  if (by_place) {
    SIMDATTN_CHECK(check_indices(options.slots, batch, n, kArgument<"options.slots">,
                                 "options.slots.shape: must be [batch, rows]", &slots));
    SIMDATTN_REQUIRE(kv.page_size > 0, kRange, "options.slots: name places in pages, and kv.page_size is 0");
  }

  const int64_t pool = by_place ? kv.n_pages * kv.page_size : 0;  // below 2^60
  const bool asks_positions = !by_place || appended.rotates();
  const bool given = positions.data != nullptr, pages = kv.block_table != nullptr && !by_place;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t count = appended.count(b), start = appended.start(b);
    SIMDATTN_REQUIRE(count >= 0 && count <= n, kRange,
                     "options.counts: a sequence's rows that count must be in 0 .. rows.shape[2]");
    for (int64_t i = 0; by_place && i < count; ++i) {
      SIMDATTN_REQUIRE(position_at(options.slots, 0, b, i) < pool, kRange,
                       "options.slots: at or past kv.n_pages * kv.page_size");
    }
    SIMDATTN_REQUIRE(given || !asks_positions || count == 0 || (start >= 0 && start <= limit && count <= limit - start),
                     kRange,
                     options.starts != nullptr
                         ? "options.starts: rows from there on do not fit kv.capacity, or the rows of options.rope.cos"
                         : "options.start: rows from there on do not fit kv.capacity, or the rows of options.rope.cos");
    for (int64_t i = 0; given && asks_positions && i < count; ++i) {
      SIMDATTN_REQUIRE(appended.position(b, i) < limit, kRange,
                       "positions: at or past kv.capacity, or the rows of options.rope.cos");
    }
    for (int64_t i = 0; pages && i < count; ++i) {
      SIMDATTN_REQUIRE(appended.place(b, i).unit < kv.n_pages, kRange, page_sentence(Store::kKv));
    }
  }

  if (ek.empty()) return {};
  SIMDATTN_CHECK(check_apart<"kv", "kv.scales">(ek, {&scales}));
  const ByteSet starts = ByteSet::of(options.starts, batch * 4), counts = ByteSet::of(options.counts, batch * 4);
  const ByteSet table = by_place ? ByteSet() : table_bytes(kv);
  const ByteSet* const read[] = {&er, &ep, &slots, &starts, &counts, &ec, &es, &en, &table};
  static constexpr Text kRead =
      "rows, positions, options.slots, options.starts, options.counts, options.rope.cos or options.rope.sin, "
      "options.rope.cos or options.rope.sin, options.rope.options.norm_weight, kv.block_table";
  SIMDATTN_CHECK(check_apart<"kv", kRead>(ek, read));
  return writes_scales(kv.type) ? check_apart<"kv.scales", kRead>(scales, read) : Status();
}

Status check_kv_read(const ConstKv& kv, int64_t first, const View<4>& out) {
  ByteSet ek, scales, eo;
  SIMDATTN_CHECK(check_kv(kv, {}, Store::kKv, &ek, &scales));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, kArgument<"out">, &eo));
  SIMDATTN_REQUIRE(out.shape[0] == kv.batch && out.shape[1] == kv.heads && out.shape[3] == kv.dim, kShape,
                   "out.shape: must be [kv.batch, kv.heads, tokens, kv.dim]");
  const int64_t n = out.shape[2];
  SIMDATTN_REQUIRE(first >= 0 && first <= kv.capacity && n <= kv.capacity - first, kRange,
                   "first: tokens from there on do not fit kv.capacity");
  SIMDATTN_REQUIRE(kv.ring == 0 || n <= kv.ring, kRange, "out.shape: more tokens than the ring holds");
  if (eo.empty()) return {};
  SIMDATTN_CHECK(check_token_pages(kv, first, first + n, 0));
  const ByteSet table = table_bytes(kv);
  return check_apart<"out", "kv, kv.scales, kv.block_table">(eo, {&ek, &scales, &table});
}

Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope) {
  ByteSet ek, scales, ec, es, en;
  // The scale of a token moves with it.
  const bool moves_scales = writes_scales(kv.type) || (kv.scales != nullptr && kv.scale_token_stride != 0);
  SIMDATTN_CHECK(check_kv(kv, {.output = true, .output_scales = moves_scales}, Store::kKv, &ek, &scales));
  SIMDATTN_REQUIRE(0 <= first && first <= last && last <= kv.capacity, kRange,
                   "first, last: must be in 0 <= first <= last <= kv.capacity");
  SIMDATTN_REQUIRE(delta >= -kMaxSize && delta <= kMaxSize, kRange, "delta: must be within +-(2^30 - 1)");
  SIMDATTN_REQUIRE(first == last || (first + delta >= 0 && last + delta <= kv.capacity), kRange,
                   "delta: moves tokens outside 0 .. kv.capacity-1");
  SIMDATTN_CHECK(check_key_rotation(rope, kv.dim, Rotation::kShift, &ec, &es, &en));
  if (has_table(rope)) {
    SIMDATTN_REQUIRE(std::abs(delta) < rope.cos.shape[0], kRange, "delta: rope.cos and rope.sin have no row |delta|");
    SIMDATTN_CHECK(check_apart<"kv", "rope.cos or rope.sin, rope.cos or rope.sin">(ek, {&ec, &es}));
    if (moves_scales)
      SIMDATTN_CHECK(check_apart<"kv.scales", "rope.cos or rope.sin, rope.cos or rope.sin">(scales, {&ec, &es}));
  }
  SIMDATTN_REQUIRE(kv.ring == 0 || last - first <= kv.ring, kRange, "first, last: more tokens than the ring holds");
  SIMDATTN_CHECK(check_token_pages(kv, first, last, std::numeric_limits<int32_t>::min()));
  SIMDATTN_CHECK(check_token_pages(kv, first + delta, last + delta, std::numeric_limits<int32_t>::min()));
  const ByteSet table = table_bytes(kv);
  SIMDATTN_CHECK(check_apart<"kv", "kv.scales, kv.block_table">(ek, {&scales, &table}));
  if (moves_scales) SIMDATTN_CHECK(check_apart<"kv.scales", "kv.block_table">(scales, {&table}));
  return {};
}

}  // namespace simdattn
