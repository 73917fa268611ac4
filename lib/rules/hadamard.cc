#include "lib/rules/hadamard.h"

namespace simdattn {

namespace {

bool is_block(int64_t block, int64_t dim) {
  if (block == 0) return true;
  return block > 0 && block <= kMaxHadamardBlock && (block & (block - 1)) == 0 && dim % block == 0;
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

}  // namespace simdattn
