#include <algorithm>
#include <cstdlib>
#include <limits>

#include "lib/rules/rules.h"

namespace simdattn {
namespace {

constexpr KvText kKvText = SIMDATTN_KV_TEXT("kv");

/// What a call must not write over.
struct AppendOverlaps {
  const char* rows;
  const char* positions;
  const char* slots;
  const char* starts;
  const char* counts;
  const char* rope;
  const char* table;
};
#define SIMDATTN_APPEND_OVERLAPS(output)                                                         \
  {output ": overlaps rows",           output ": overlaps positions",                            \
   output ": overlaps options.slots",  output ": overlaps options.starts",                       \
   output ": overlaps options.counts", output ": overlaps options.rope.cos or options.rope.sin", \
   output ": overlaps kv.block_table"}

/// One index per row of a call.
Status check_indices(const ConstView<2>& v, int64_t batch, int64_t n, const Argument& argument, const char* shape,
                     ByteSet* bytes) {
  SIMDATTN_CHECK(check_view(v, Accept::kIndex, argument, bytes));
  SIMDATTN_REQUIRE(v.shape[0] == batch && v.shape[1] == n, Code::kShape, shape);
  return {};
}

}  // namespace

Status check_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                    const AppendOptions& options) {
  const KeyRotation& rope = options.rope;
  const bool by_slot = options.slots.data != nullptr;
  ByteSet er, ek, scales, ep, ec, es, slots;
  SIMDATTN_CHECK(check_view(rows, Accept::kElements, SIMDATTN_ARGUMENT("rows"), &er));
  SIMDATTN_CHECK(check_kv(kv, {.output = true, .output_scales = writes_scales(kv.type), .by_slot = by_slot}, kKvText,
                          &ek, &scales));
  const int64_t batch = rows.shape[0];
  const int64_t n = rows.shape[2];
  SIMDATTN_REQUIRE(kv.batch == batch, Code::kShape, "kv.batch: must be rows.shape[0]");
  SIMDATTN_REQUIRE(kv.heads == rows.shape[1], Code::kShape, "kv.heads: must be rows.shape[1]");
  SIMDATTN_REQUIRE(kv.dim == rows.shape[3], Code::kShape, "kv.dim: must be rows.shape[3]");
  SIMDATTN_CHECK(
      check_key_hadamard(rope.hadamard_block, kv.dim, SIMDATTN_KEY_HADAMARD_TEXT("options.rope.hadamard_block")));
  const AppendedRows appended(positions, kv, options, n);
  int64_t limit = by_slot ? std::numeric_limits<int64_t>::max() : kv.tokens;
  if (appended.rotates()) {
    SIMDATTN_CHECK(check_rope_table(rope.cos, rope.sin, rope.options, kv.dim, kAppendRope, &ec, &es));
    limit = std::min(limit, rope.cos.shape[0]);
  }
  if (positions.data != nullptr) {
    SIMDATTN_CHECK(check_indices(positions, batch, n, SIMDATTN_ARGUMENT("positions"),
                                 "positions.shape: must be [batch, rows]", &ep));
  }
  if (by_slot) {
    SIMDATTN_CHECK(check_indices(options.slots, batch, n, SIMDATTN_ARGUMENT("options.slots"),
                                 "options.slots.shape: must be [batch, rows]", &slots));
    SIMDATTN_REQUIRE(kv.page_size > 0, Code::kRange, "options.slots: name places in pages, and kv.page_size is 0");
  }

  const int64_t pool = by_slot ? kv.n_pages * kv.page_size : 0;  // below 2^60
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t count = appended.count(b);
    SIMDATTN_REQUIRE(count >= 0 && count <= n, Code::kRange,
                     "options.counts: a sequence's rows that count must be in 0 .. rows.shape[2]");
    if (count == 0) continue;
    if (by_slot) {
      for (int64_t i = 0; i < count; ++i) {
        SIMDATTN_REQUIRE(position_at(options.slots, 0, b, i) < pool, Code::kRange,
                         "options.slots: at or past kv.n_pages * kv.page_size");
      }
      if (!appended.rotates()) continue;  // nobody asks for positions
    }
    if (positions.data == nullptr) {
      const int64_t start = appended.start(b);
      SIMDATTN_REQUIRE(start >= 0 && start <= limit && count <= limit - start, Code::kRange,
                       options.starts != nullptr
                           ? "options.starts: rows from there on do not fit kv.tokens, or the rows of options.rope.cos"
                           : "options.start: rows from there on do not fit kv.tokens, or the rows of options.rope.cos");
    } else {
      for (int64_t i = 0; i < count; ++i) {
        SIMDATTN_REQUIRE(appended.position(b, i) < limit, Code::kRange,
                         "positions: at or past kv.tokens, or the rows of options.rope.cos");
      }
    }
    if (kv.block_table == nullptr || by_slot) continue;
    for (int64_t i = 0; i < count; ++i) {
      SIMDATTN_REQUIRE(appended.place(b, i).unit < kv.n_pages, Code::kRange, kKvText.pages);
    }
  }

  if (ek.empty()) return {};
  SIMDATTN_REQUIRE(!share_bytes(scales, ek), Code::kOverlap, "kv: overlaps kv.scales");
  const auto numbers = [&](const int32_t* p) { return ByteSet::of(p, batch * 4); };
  static constexpr AppendOverlaps kData = SIMDATTN_APPEND_OVERLAPS("kv"),
                                  kScales = SIMDATTN_APPEND_OVERLAPS("kv.scales");
  for (const bool data : {true, false}) {
    if (!data && !writes_scales(kv.type)) break;
    const ByteSet& written = data ? ek : scales;
    const AppendOverlaps& text = data ? kData : kScales;
    SIMDATTN_REQUIRE(!share_bytes(er, written), Code::kOverlap, text.rows);
    SIMDATTN_REQUIRE(!share_bytes(ep, written), Code::kOverlap, text.positions);
    SIMDATTN_REQUIRE(!share_bytes(slots, written), Code::kOverlap, text.slots);
    SIMDATTN_REQUIRE(!share_bytes(numbers(options.starts), written), Code::kOverlap, text.starts);
    SIMDATTN_REQUIRE(!share_bytes(numbers(options.counts), written), Code::kOverlap, text.counts);
    SIMDATTN_REQUIRE(!share_bytes(ec, written) && !share_bytes(es, written), Code::kOverlap, text.rope);
    SIMDATTN_REQUIRE(by_slot || !share_bytes(table_bytes(kv), written), Code::kOverlap, text.table);
  }
  return {};
}

Status check_dequantise(const ConstKv& kv, int64_t first, const View<4>& out) {
  ByteSet ek, scales, eo;
  SIMDATTN_CHECK(check_kv(kv, {}, kKvText, &ek, &scales));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(out.shape[0] == kv.batch && out.shape[1] == kv.heads && out.shape[3] == kv.dim, Code::kShape,
                   "out.shape: must be [kv.batch, kv.heads, tokens, kv.dim]");
  const int64_t n = out.shape[2];
  SIMDATTN_REQUIRE(first >= 0 && first <= kv.tokens && n <= kv.tokens - first, Code::kRange,
                   "first: tokens from there on do not fit kv.tokens");
  SIMDATTN_REQUIRE(kv.ring == 0 || n <= kv.ring, Code::kRange, "out.shape: more tokens than the ring holds");
  if (eo.empty()) return {};
  for (int64_t b = 0; kv.page_size > 0 && b < kv.batch; ++b) {
    for (int64_t t = first; t < first + n; ++t) {
      const int64_t page = page_of(kv, b, t);
      SIMDATTN_REQUIRE(page >= 0 && page < kv.n_pages, Code::kRange, kKvText.pages);
    }
  }
  SIMDATTN_REQUIRE(!share_bytes(ek, eo), Code::kOverlap, "out: overlaps kv");
  SIMDATTN_REQUIRE(!share_bytes(scales, eo), Code::kOverlap, "out: overlaps kv.scales");
  SIMDATTN_REQUIRE(!share_bytes(table_bytes(kv), eo), Code::kOverlap, "out: overlaps kv.block_table");
  return {};
}

Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope, bool* empty) {
  ByteSet ek, scales, ec, es;
  // The scale of a token moves with it.
  const bool moves_scales = writes_scales(kv.type) || (kv.scales != nullptr && kv.scale_token_stride != 0);
  SIMDATTN_CHECK(check_kv(kv, {.output = true, .output_scales = moves_scales}, kKvText, &ek, &scales));
  *empty = ek.empty();
  SIMDATTN_REQUIRE(0 <= first && first <= last && last <= kv.tokens, Code::kRange,
                   "first, last: must be in 0 <= first <= last <= kv.tokens");
  SIMDATTN_REQUIRE(delta >= -kMaxSize && delta <= kMaxSize, Code::kRange, "delta: must be within +-(2^30 - 1)");
  SIMDATTN_REQUIRE(first == last || (first + delta >= 0 && last + delta <= kv.tokens), Code::kRange,
                   "delta: moves tokens outside 0 .. kv.tokens-1");
  SIMDATTN_CHECK(check_key_hadamard(rope.hadamard_block, kv.dim, SIMDATTN_KEY_HADAMARD_TEXT("rope.hadamard_block")));
  const bool rotate = rope.cos.data != nullptr || rope.sin.data != nullptr;
  const int64_t distance = std::abs(delta);
  if (rotate) {
    SIMDATTN_CHECK(check_rope_table(rope.cos, rope.sin, rope.options, kv.dim, kShiftRope, &ec, &es));
    SIMDATTN_REQUIRE(distance < rope.cos.shape[0], Code::kRange, "delta: rope.cos and rope.sin have no row |delta|");
    SIMDATTN_REQUIRE(!share_bytes(ec, ek) && !share_bytes(es, ek), Code::kOverlap, "kv: overlaps rope.cos or rope.sin");
    SIMDATTN_REQUIRE(!moves_scales || (!share_bytes(ec, scales) && !share_bytes(es, scales)), Code::kOverlap,
                     "kv.scales: overlaps rope.cos or rope.sin");
  }
  SIMDATTN_REQUIRE(kv.ring == 0 || last - first <= kv.ring, Code::kRange,
                   "first, last: more tokens than the ring holds");
  if (kv.block_table != nullptr) {
    for (int64_t b = 0; b < kv.batch; ++b) {
      for (int64_t t = first; t < last; ++t) {
        SIMDATTN_REQUIRE(page_of(kv, b, t) < kv.n_pages && page_of(kv, b, t + delta) < kv.n_pages, Code::kRange,
                         kKvText.pages);
      }
    }
  }
  SIMDATTN_REQUIRE(!share_bytes(scales, ek), Code::kOverlap, "kv: overlaps kv.scales");
  SIMDATTN_REQUIRE(!share_bytes(table_bytes(kv), ek), Code::kOverlap, "kv: overlaps kv.block_table");
  SIMDATTN_REQUIRE(!moves_scales || !share_bytes(table_bytes(kv), scales), Code::kOverlap,
                   "kv.scales: overlaps kv.block_table");
  return {};
}

}  // namespace simdattn
