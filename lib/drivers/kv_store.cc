#include "lib/drivers/kv_store.h"

namespace simdattn {

/// The store as an array, for its extent: [batch or pages, heads, rows or panels, elements].
Status check_kv(const ConstKv& kv, bool rows_only, bool varlen, bool output, const KvText& text, Extent* extent) {
  extent->clear();
  SIMDATTN_REQUIRE(is_storage(kv.dtype), Code::kDType, text.view.dtype);
  SIMDATTN_REQUIRE(kv.dim >= 1 && kv.dim <= kMaxSize, Code::kShape, text.dim);
  SIMDATTN_REQUIRE(kv.tokens >= 0 && kv.tokens <= kMaxSize, Code::kShape, text.capacity);
  const bool panels = kv.layout == KvLayout::kPanels;
  SIMDATTN_REQUIRE(panels ? !rows_only && !varlen : kv.layout == KvLayout::kRows, Code::kShape, text.layout);
  SIMDATTN_REQUIRE(kv.ring >= 0 && (!panels || kv.ring % kPanelWidth == 0), Code::kRange, text.ring);
  SIMDATTN_REQUIRE((kv.block_table != nullptr) + (kv.ring > 0) + varlen <= 1, Code::kRange, text.both);
  int64_t units = kv.batch;
  int64_t tokens = kv.ring > 0 ? std::min(kv.ring, kv.tokens) : kv.tokens;
  if (kv.block_table != nullptr) {
    SIMDATTN_REQUIRE(kv.page_size >= 1 && (!panels || kv.page_size % kPanelWidth == 0) && kv.n_pages >= 0, Code::kShape,
                     text.page_size);
    units = kv.n_pages;
    tokens = kv.page_size;
  }
  const int64_t width = panels ? panel_elements(kv.dtype, kv.dim) : kv.dim;
  const std::array<int64_t, 4> shape = {units, kv.heads, panels ? (tokens + kPanelWidth - 1) / kPanelWidth : tokens,
                                        width};
  const std::array<int64_t, 4> stride = {kv.batch_stride, kv.head_stride, kv.token_stride, 1};
  const View<4> view(const_cast<void*>(kv.data), kv.dtype, shape, stride);
  SIMDATTN_CHECK(output ? check_view(view, Accept::kStorage, text.view, extent)
                        : check_view(ConstView<4>(view), Accept::kStorage, text.view, extent));
  extent->outer = 0;  // no pointers to these locals: what interleaves is told apart in overlaps_kv
  return {};
}

/// A 4-dimensional view of K or V rows, so that views interleaved in one buffer are told apart exactly.
bool overlaps_kv(const Extent& out, const ConstKv& kv, const Extent& extent) {
  if (!meet(out, extent)) return false;
  const int64_t shape[3] = {kv.batch, kv.heads, kv.tokens};
  const int64_t stride[3] = {kv.batch_stride, kv.head_stride, kv.token_stride};
  Extent e = extent;
  if (kv.layout == KvLayout::kRows && kv.block_table == nullptr && kv.ring == 0) {
    e.shape = shape;
    e.stride = stride;
    e.outer = 3;
  }
  return overlap(out, e);
}

}  // namespace simdattn
