#include "lib/rules/views.h"

#include <algorithm>

#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

/// Requires of the argument that `store` says.
#define SIMDATTN_STORE(condition, code, rule) SIMDATTN_REQUIRE(condition, code, SIMDATTN_OF_STORE(store, rule))

#define SIMDATTN_STRIDES ".batch_stride, head_stride, token_stride: "
#define SIMDATTN_SCALES ".scale_batch_stride, scale_head_stride, scale_token_stride: "

/// What strides are multiples of: the element size; rows of narrow types are bytes, or scale blocks that begin with an
/// f16.
int64_t alignment_of(KvType type) {
  if (is_narrow(type)) return block_of(type) > 1 ? 2 : 1;
  return row_bytes(type, 1);
}

/// Sentences on strides.
struct StrideRules {
  const char *multiples, *range, *coincide;
};
/// The bytes of rows: `bytes` of each, repeated by the strides from token to token, from head to head, and from
/// sequence or page to the next. These are multiples of `element`, a power of two. Rows of an `output` must not
/// coincide.
Status check_strides(const void* data, int64_t bytes, const int64_t (&count)[3], const int64_t (&stride)[3],
                     int64_t element, bool empty, bool output, const StrideRules& rules, ByteSet* set) {
  const char* wrong = nullptr;
  set->restart(data, bytes);
  for (int i = 0; i < 3; ++i) {
    if (count[i] > 1 && (stride[i] & (element - 1)) != 0 && !empty) wrong = rules.multiples;
    if (count[i] > 0 && !set->add(count[i], stride[i])) wrong = rules.range;
  }
  if (wrong == nullptr && output && !empty && self_overlap(*set)) wrong = rules.coincide;
  if (wrong != nullptr || data == nullptr || empty) set->clear();
  SIMDATTN_REQUIRE(wrong == nullptr, kStride, wrong);
  return {};
}

}  // namespace

Status check_kv(const ConstKv& kv, const KvUse& use, Store store, ByteSet* bytes, ByteSet* scales) {
  scales->clear();
  bytes->clear();
  SIMDATTN_STORE(kv.struct_size == sizeof(ConstKv), kStructSize, ".struct_size: not that of this version");
  SIMDATTN_STORE(is_zero(kv.reserved), kStructSize, ".reserved: must be 0");
  SIMDATTN_STORE(detail::is_kv_type(kv.type), kDType, ".type: not a storage type of keys and values");
  SIMDATTN_STORE(has_scales(kv.type) || kv.scales == nullptr, kDType,
                 ".scales: not null, and the type has no scales that stand apart");
  SIMDATTN_STORE(is_enumerator(kv.layout, KvLayout::kPanels), kShape, ".layout: not a KvLayout");
  const bool panels = kv.layout == KvLayout::kPanels;
  SIMDATTN_STORE(!use.output || !is_read_only(kv.type), kDType, ".type: can be read only");
  SIMDATTN_STORE(!panels || has_panels(kv.type), kShape, ".layout: this type is stored in rows only");
  SIMDATTN_STORE(!panels || (!use.rows_only && !use.varlen), kShape,
                 ".layout: values are always rows, and a varlen tensor (cu_k) too");
  SIMDATTN_STORE(kv.dim >= 1 && kv.dim <= kMaxSize, kShape,
                 ".dim: must be in 1 .. 2^30 - 1, and the last dimension contiguous");
  SIMDATTN_STORE(!is_narrow(kv.type) || kv.dim <= kMaxNarrowDim, kShape,
                 ".dim: types narrower than 16 bits hold at most 8192 numbers a row");
  SIMDATTN_STORE((kv.dim & (block_of(kv.type) - 1)) == 0, kShape,
                 ".dim: must be a multiple of 32, the block of the type");
  SIMDATTN_STORE(is_size(kv.batch), kShape, ".batch: must be in 0 .. 2^30 - 1");
  SIMDATTN_STORE(is_size(kv.heads), kShape, ".heads: must be in 0 .. 2^30 - 1");
  SIMDATTN_STORE(is_size(kv.capacity), kShape, ".capacity: must be in 0 .. 2^30 - 1");
  SIMDATTN_STORE(kv.length >= -1 && kv.length <= kv.capacity, kShape,
                 ".length: must be -1 (all tokens) or in 0 .. tokens");
  SIMDATTN_STORE(is_size(kv.ring) && (!panels || kv.ring % kPanelWidth == 0), kRange,
                 ".ring: must be in 0 .. 2^30 - 1, and for panels a multiple of kPanelWidth");
  SIMDATTN_STORE(is_size(kv.page_size) && is_size(kv.n_pages) && (!panels || kv.page_size % kPanelWidth == 0), kShape,
                 ".page_size, n_pages: must be in 0 .. 2^30 - 1, and for panels page_size a multiple of kPanelWidth");
  const bool paged = kv.page_size > 0;
  SIMDATTN_STORE(paged + (kv.ring > 0) + use.varlen <= 1, kRange,
                 ".page_size, ring: pages and a ring exclude each other and cu_k");
  SIMDATTN_STORE(paged || kv.block_table == nullptr, kRange, ".block_table, page_size: pages need both");
  SIMDATTN_STORE(!paged || kv.block_table != nullptr || use.by_place || use.data == Data::kLater || kv.batch == 0 ||
                     kv.capacity == 0,
                 kNullPointer, ".block_table, page_size: pages need both");
  SIMDATTN_STORE(kv.block_table_stride >= -1 && kv.block_table_stride <= kMaxSize, kShape,
                 ".block_table_stride: must be in -1 .. 2^30 - 1");

  const int64_t units = paged ? kv.n_pages : kv.batch;
  const int64_t tokens = paged ? kv.page_size : kv.ring > 0 ? std::min(kv.ring, kv.capacity) : kv.capacity;
  // Slots name places of pages, whatever the length of a sequence.
  const bool empty = units == 0 || kv.heads == 0 || tokens == 0 || (kv.capacity == 0 && !use.by_place);
  SIMDATTN_STORE(kv.data != nullptr || use.data == Data::kLater || empty, kNullPointer,
                 ".data: null although the store is not empty");
  SIMDATTN_CHECK(
      check_strides(kv.data, panels ? panel_bytes(kv.type, kv.dim) : row_bytes(kv.type, kv.dim),
                    {panels ? steps_of(tokens, kPanelWidth) : tokens, kv.heads, units},
                    {kv.token_stride, kv.head_stride, kv.batch_stride}, alignment_of(kv.type), empty, use.output,
                    {SIMDATTN_OF_STORE(store, SIMDATTN_STRIDES "bytes, must be multiples of the element size"),
                     SIMDATTN_OF_STORE(store, SIMDATTN_STRIDES "too large for 64-bit addresses"),
                     SIMDATTN_OF_STORE(store, SIMDATTN_STRIDES "tokens that a call writes must not coincide")},
                    bytes));
  if (!has_scales(kv.type)) return {};
  SIMDATTN_STORE(kv.scales != nullptr || !writes_scales(kv.type) || use.data == Data::kLater || empty, kNullPointer,
                 ".scales: null although the type has a scale per token and head");
  return check_strides(kv.scales, sizeof(float), {tokens, kv.heads, units},
                       {kv.scale_token_stride, kv.scale_head_stride, kv.scale_batch_stride}, 4, empty,
                       use.output_scales,
                       {SIMDATTN_OF_STORE(store, SIMDATTN_SCALES "bytes, must be multiples of 4"),
                        SIMDATTN_OF_STORE(store, SIMDATTN_STRIDES "too large for 64-bit addresses"),
                        SIMDATTN_OF_STORE(store, SIMDATTN_SCALES "scales that a call writes must not coincide")},
                       scales);
}

ByteSet table_bytes(const ConstKv& kv) {
  if (kv.block_table == nullptr || kv.page_size == 0 || kv.batch == 0) return {};
  ByteSet bytes = ByteSet::of(kv.block_table, steps_of(kv.capacity, kv.page_size) * 4);
  if (!bytes.empty() && !bytes.add(kv.batch, table_stride(kv), 4)) bytes.clear();
  return bytes;
}

}  // namespace simdattn
