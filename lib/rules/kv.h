// The rules on stores of keys and values.
#ifndef SIMDATTN_LIB_RULES_KV_H_
#define SIMDATTN_LIB_RULES_KV_H_

#include "lib/rules/views.h"

namespace simdattn {

/// The sentences about a store.
struct KvText {
  const char* struct_size;
  const char* reserved;
  const char* type;
  const char* layout;
  const char* rows_only;
  const char* dim;
  const char* batch;
  const char* heads;
  const char* tokens;
  const char* length;
  const char* alignment;
  const char* null;
  const char* too_large;
  const char* coincide;
  const char* pages;
  const char* page_size;
  const char* table;
  const char* table_stride;
  const char* ring;
  const char* both;
  const char* narrow_dim;
  const char* block_dim;
  const char* read_only;
  const char* row_type;
  const char* no_scales;
  const char* scales_null;
  const char* scale_stride;
  const char* scales_coincide;
};
#define SIMDATTN_KV_TEXT(name)                                                                               \
  {name ".struct_size: not that of this version",                                                            \
   name ".reserved: must be 0",                                                                              \
   name ".type: not a storage type of keys and values",                                                      \
   name ".layout: not a KvLayout",                                                                           \
   name ".layout: values are always rows, and a varlen tensor (cu_k) too",                                   \
   name ".dim: must be in 1 .. 2^30 - 1, and the last dimension contiguous",                                 \
   name ".batch: must be in 0 .. 2^30 - 1",                                                                  \
   name ".heads: must be in 0 .. 2^30 - 1",                                                                  \
   name ".tokens: must be in 0 .. 2^30 - 1",                                                                 \
   name ".length: must be -1 (all tokens) or in 0 .. tokens",                                                \
   name ".batch_stride, head_stride, token_stride: bytes, must be multiples of the element size",            \
   name ".data: null although the store is not empty",                                                       \
   name ".batch_stride, head_stride, token_stride: too large for 64-bit addresses",                          \
   name ".batch_stride, head_stride, token_stride: tokens that a call writes must not coincide",             \
   name ".block_table: a page that the call touches is outside 0 .. n_pages-1",                              \
   name ".page_size, n_pages: must be in 0 .. 2^30 - 1, and for panels page_size a multiple of kPanelWidth", \
   name ".block_table, page_size: pages need both",                                                          \
   name ".block_table_stride: must be in -1 .. 2^30 - 1",                                                    \
   name ".ring: must be in 0 .. 2^30 - 1, and for panels a multiple of kPanelWidth",                         \
   name ".page_size, ring: pages and a ring exclude each other and cu_k",                                    \
   name ".dim: types narrower than 16 bits hold at most 8192 numbers a row",                                 \
   name ".dim: must be a multiple of 32, the block of the type",                                             \
   name ".type: can be read only",                                                                           \
   name ".layout: this type is stored in rows only",                                                         \
   name ".scales: not null, and the type has no scales that stand apart",                                    \
   name ".scales: null although the type has a scale per token and head",                                    \
   name ".scale_batch_stride, scale_head_stride, scale_token_stride: bytes, must be multiples of 4",         \
   name ".scale_batch_stride, scale_head_stride, scale_token_stride: scales that a call writes must not coincide"}

/// How a call uses a store.
struct KvUse {
  bool rows_only = false;      // panels are not accepted
  bool varlen = false;         // a tensor of many sequences
  bool output = false;         // tokens must not coincide
  bool output_scales = false;  // nor must scales
  bool by_slot = false;        // pages are named by the caller, not by the table
  Data data = Data::kNeeded;
};

/// Checks a store on its own, and computes its bytes and those of its scales.
Status check_kv(const ConstKv& kv, const KvUse& use, const KvText& text, ByteSet* bytes, ByteSet* scales);

/// True if a call that writes tokens writes their scales too.
constexpr bool writes_scales(KvType type) { return type == KvType::kInt8; }

/// The bytes of the block table; none without pages.
ByteSet table_bytes(const ConstKv& kv);

/// Entries between the tables of two sequences.
template <bool kConst>
int64_t table_stride(const BasicKv<kConst>& kv) {
  return kv.block_table_stride >= 0 ? kv.block_table_stride : (kv.tokens + kv.page_size - 1) / kv.page_size;
}

/// The page of `token`, or a negative number.
template <bool kConst>
int64_t page_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  return kv.block_table[sequence * table_stride(kv) + token / kv.page_size];
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_KV_H_
