#include "lib/rules/dequantise.h"

namespace simdattn {
namespace {

constexpr KvText kKvText = SIMDATTN_KV_TEXT("kv");

}  // namespace

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

}  // namespace simdattn
