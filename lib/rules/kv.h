// The rules on stores of keys and values.
#ifndef SIMDATTN_LIB_RULES_KV_H_
#define SIMDATTN_LIB_RULES_KV_H_

#include "lib/rules/views.h"

namespace simdattn {

/// Which argument a store is: sentences begin with its name.
enum class Store : uint8_t { kK, kV, kKv };
#define SIMDATTN_OF_STORE(store, rule) (store == Store::kK ? "k" rule : store == Store::kV ? "v" rule : "kv" rule)
constexpr const char* page_sentence(Store store) {
  return SIMDATTN_OF_STORE(store, ".block_table: a page that the call touches is outside 0 .. n_pages-1");
}

/// How a call uses a store.
struct KvUse {
  bool rows_only = false;      // panels are not accepted
  bool varlen = false;         // a tensor of many sequences
  bool output = false;         // tokens must not coincide
  bool output_scales = false;  // nor must scales
  bool by_place = false;       // pages are named by the caller, not by the table
  Data data = Data::kNeeded;
};

/// Checks a store on its own, and computes its bytes and those of its scales.
Status check_kv(const ConstKv& kv, const KvUse& use, Store store, ByteSet* bytes, ByteSet* scales);

/// The bytes of the block table; none without pages.
ByteSet table_bytes(const ConstKv& kv);

/// Entries between the tables of two sequences.
template <bool kConst>
int64_t table_stride(const BasicKv<kConst>& kv) {
  return kv.block_table_stride >= 0 ? kv.block_table_stride : (kv.capacity + kv.page_size - 1) / kv.page_size;
}

/// The page of `token`, or a negative number.
template <bool kConst>
int64_t page_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  return kv.block_table[sequence * table_stride(kv) + token / kv.page_size];
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_KV_H_
