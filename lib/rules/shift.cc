#include "lib/rules/shift.h"

#include <cstdlib>

#include "lib/rules/hadamard.h"
#include "lib/rules/positions.h"

namespace simdattn {
namespace {

constexpr KvText kText = SIMDATTN_KV_TEXT("kv");

}  // namespace

Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope, bool* empty) {
  ByteSet ek, scales, ec, es;
  // The scale of a token moves with it.
  const bool moves_scales = writes_scales(kv.type) || (kv.scales != nullptr && kv.scale_token_stride != 0);
  SIMDATTN_CHECK(check_kv(kv, {.output = true, .output_scales = moves_scales}, kText, &ek, &scales));
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
                         kText.pages);
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
