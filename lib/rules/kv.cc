#include "lib/rules/kv.h"

#include <algorithm>

#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

bool size_ok(int64_t n) { return n >= 0 && n <= kMaxSize; }

/// What strides are multiples of: the element size; rows of narrow types are bytes, or blocks that begin with an f16.
int64_t alignment_of(KvType type) {
  if (is_narrow(type)) return block_of(type) > 1 ? 2 : 1;
  return row_bytes(type, 1);
}

/// The scales of a store, of so many tokens and sequences or pages.
Status check_scales(const ConstKv& kv, const KvUse& use, const KvText& text, int64_t tokens, int64_t units, bool empty,
                    ByteSet* scales) {
  SIMDATTN_REQUIRE(kv.scales != nullptr || !writes_scales(kv.type) || use.data == Data::kLater || empty,
                   Code::kNullPointer, text.scales_null);
  ByteSet& set = *scales;
  set.restart(&kv, sizeof(float));
  const char* wrong = nullptr;
  const auto repeat = [&](int64_t count, int64_t stride) {
    if (count > 1 && stride % static_cast<int64_t>(sizeof(float)) != 0 && !empty) wrong = text.scale_stride;
    if (count > 0 && !set.add(count, stride)) wrong = text.too_large;
  };
  repeat(tokens, kv.scale_token_stride);
  repeat(kv.heads, kv.scale_head_stride);
  repeat(units, kv.scale_batch_stride);
  if (wrong == nullptr && use.output_scales && !empty && self_overlap(set)) wrong = text.scales_coincide;
  if (wrong != nullptr || kv.scales == nullptr || empty) set.clear();
  SIMDATTN_REQUIRE(wrong == nullptr, Code::kStride, wrong);
  set.first += reinterpret_cast<uintptr_t>(kv.scales) - reinterpret_cast<uintptr_t>(&kv);
  return {};
}

}  // namespace

Status check_kv(const ConstKv& kv, const KvUse& use, const KvText& text, ByteSet* bytes, ByteSet* scales) {
  scales->clear();
  bytes->clear();
  SIMDATTN_REQUIRE(kv.struct_size == sizeof(ConstKv), Code::kStructSize, text.struct_size);
  SIMDATTN_REQUIRE((kv.reserved[0] | kv.reserved[1] | kv.reserved[2] | kv.reserved[3]) == 0, Code::kStructSize,
                   text.reserved);
  SIMDATTN_REQUIRE(static_cast<uint32_t>(kv.type) < kKvTypes, Code::kDType, text.type);
  SIMDATTN_REQUIRE(has_scales(kv.type) || kv.scales == nullptr, Code::kDType, text.no_scales);
  SIMDATTN_REQUIRE(kv.layout == KvLayout::kRows || kv.layout == KvLayout::kPanels, Code::kShape, text.layout);
  const bool panels = kv.layout == KvLayout::kPanels;
  SIMDATTN_REQUIRE(!use.output || !is_read_only(kv.type), Code::kDType, text.read_only);
  SIMDATTN_REQUIRE(!panels || !is_read_only(kv.type), Code::kShape, text.row_type);
  SIMDATTN_REQUIRE(!panels || (!use.rows_only && !use.varlen), Code::kShape, text.rows_only);
  SIMDATTN_REQUIRE(kv.dim >= 1 && kv.dim <= kMaxSize, Code::kShape, text.dim);
  SIMDATTN_REQUIRE(!is_narrow(kv.type) || kv.dim <= kMaxNarrowDim, Code::kShape, text.narrow_dim);
  SIMDATTN_REQUIRE((kv.dim & (block_of(kv.type) - 1)) == 0, Code::kShape, text.block_dim);
  SIMDATTN_REQUIRE(size_ok(kv.batch), Code::kShape, text.batch);
  SIMDATTN_REQUIRE(size_ok(kv.heads), Code::kShape, text.heads);
  SIMDATTN_REQUIRE(size_ok(kv.tokens), Code::kShape, text.tokens);
  SIMDATTN_REQUIRE(kv.length >= -1 && kv.length <= kv.tokens, Code::kShape, text.length);
  SIMDATTN_REQUIRE(size_ok(kv.ring) && (!panels || kv.ring % kPanelWidth == 0), Code::kRange, text.ring);
  SIMDATTN_REQUIRE(size_ok(kv.page_size) && size_ok(kv.n_pages) && (!panels || kv.page_size % kPanelWidth == 0),
                   Code::kShape, text.page_size);
  const bool paged = kv.page_size > 0;
  SIMDATTN_REQUIRE(paged + (kv.ring > 0) + use.varlen <= 1, Code::kRange, text.both);
  SIMDATTN_REQUIRE(paged || kv.block_table == nullptr, Code::kRange, text.table);
  SIMDATTN_REQUIRE(
      !paged || kv.block_table != nullptr || use.by_slot || use.data == Data::kLater || kv.batch == 0 || kv.tokens == 0,
      Code::kNullPointer, text.table);
  SIMDATTN_REQUIRE(kv.block_table_stride >= -1 && kv.block_table_stride <= kMaxSize, Code::kShape, text.table_stride);

  const int64_t units = paged ? kv.n_pages : kv.batch;
  const int64_t tokens = paged ? kv.page_size : kv.ring > 0 ? std::min(kv.ring, kv.tokens) : kv.tokens;
  // Slots name places of pages, whatever the length of a sequence.
  const bool empty = units == 0 || kv.heads == 0 || tokens == 0 || (kv.tokens == 0 && !use.by_slot);
  SIMDATTN_REQUIRE(kv.data != nullptr || use.data == Data::kLater || empty, Code::kNullPointer, text.null);
  const int64_t element = alignment_of(kv.type);
  ByteSet& set = *bytes;
  set.restart(&kv, panels ? panel_bytes(kv.type, kv.dim) : row_bytes(kv.type, kv.dim));
  const char* wrong = nullptr;
  const auto repeat = [&](int64_t count, int64_t stride) {  // a list of pairs would be loaded before it is stored
    if (count > 1 && (stride & (element - 1)) != 0 && !empty) wrong = text.alignment;
    if (count > 0 && !set.add(count, stride)) wrong = text.too_large;
  };
  repeat(panels ? (tokens + kPanelWidth - 1) / kPanelWidth : tokens, kv.token_stride);
  repeat(kv.heads, kv.head_stride);
  repeat(units, kv.batch_stride);
  if (wrong == nullptr && use.output && !empty && self_overlap(set)) wrong = text.coincide;
  if (wrong != nullptr || kv.data == nullptr || empty) set.clear();
  SIMDATTN_REQUIRE(wrong == nullptr, Code::kStride, wrong);
  set.first += reinterpret_cast<uintptr_t>(kv.data) - reinterpret_cast<uintptr_t>(&kv);
  return has_scales(kv.type) ? check_scales(kv, use, text, tokens, units, empty, scales) : Status();
}

ByteSet table_bytes(const ConstKv& kv) {
  if (kv.block_table == nullptr || kv.page_size == 0 || kv.batch == 0) return {};
  const int64_t entries = (kv.tokens + kv.page_size - 1) / kv.page_size;
  ByteSet bytes = ByteSet::of(kv.block_table, entries * 4);
  if (!bytes.empty() && !bytes.add(kv.batch, table_stride(kv), 4)) bytes.clear();
  return bytes;
}

}  // namespace simdattn
