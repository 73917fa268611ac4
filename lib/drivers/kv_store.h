// Where the bytes of a token are: one tensor, a ring, or pages behind a table.
#ifndef SIMDATTN_LIB_DRIVERS_KV_STORE_H_
#define SIMDATTN_LIB_DRIVERS_KV_STORE_H_

#include <algorithm>
#include <limits>

#include "include/simdattn/simdattn.h"
#include "lib/drivers/validate.h"
#include "lib/dtypes.h"

namespace simdattn {

/// The sentences about a key or value store.
struct KvText {
  Argument view;
  const char* layout;
  const char* pages;
  const char* page_size;
  const char* ring;
  const char* both;
  const char* dim;
  const char* capacity;
};
#define SIMDATTN_KV_TEXT(name)                                                                            \
  {SIMDATTN_ARGUMENT_TEXT(name),                                                                          \
   name ".layout: values are always rows, and a varlen tensor (cu_k) too",                                \
   name ".block_table: a page that the call touches is outside 0 .. n_pages-1",                           \
   name ".page_size: must be at least 1, for panels a multiple of kPanelWidth, and n_pages not negative", \
   name ".ring: must not be negative, and for panels a multiple of kPanelWidth",                          \
   name ": a block table and a ring exclude each other and cu_k",                                         \
   name ".dim: must be at least 1, and the last dimension contiguous",                                    \
   name ".tokens: more than fits 0 .. 2^30-1"}

/// Checks a store on its own. `rows_only`: panels are not accepted; `varlen`: it is a tensor of many sequences;
/// `output`: tokens must not coincide.
Status check_kv(const ConstKv& kv, bool rows_only, bool varlen, bool output, const KvText& text, Extent* extent);

/// True if an output may share bytes with the store.
bool overlaps_kv(const Extent& out, const ConstKv& kv, const Extent& extent);

/// The page of `token`, or -1.
template <bool kConst>
int64_t page_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  return kv.block_table[sequence * kv.block_table_stride + token / kv.page_size];
}

/// Elements between neighbouring keys of a panel.
template <class T>
inline constexpr int64_t kPanelColumn = std::is_same_v<T, bf16> ? 2 : 1;
/// Where element d of a key is in its panel, relative to the key's element 0.
template <class T>
int64_t panel_step(int64_t d) {
  return std::is_same_v<T, bf16> ? d / 2 * 2 * kPanelWidth + d % 2 : d * kPanelWidth;
}

/// One head of one sequence of a cache. `first_token` is where the sequence begins in a varlen tensor.
template <bool kConst>
class KvStore {
 public:
  using Byte = std::conditional_t<kConst, const char, char>;

  KvStore(const BasicKv<kConst>& kv, int64_t sequence, int64_t head, int64_t first_token = 0)
      : kv_(kv), size_(size_of(kv.dtype)), sequence_(sequence), first_token_(first_token) {
    head_ = static_cast<Byte*>(kv.data) + head * kv.head_stride * size_;
    if (kv.block_table == nullptr) head_ += sequence * kv.batch_stride * size_;
  }

  /// The address of a token's row or, with panels, of the panel that begins at it. `run`: how many tokens from here on
  /// follow at kv.token_stride (panels: a multiple of the panel width).
  Byte* at(int64_t token, int64_t* run) const {
    int64_t inside = token + first_token_;
    *run = std::numeric_limits<int64_t>::max();
    Byte* base = head_;
    if (kv_.block_table != nullptr) {
      base += page_of(kv_, sequence_, token) * kv_.batch_stride * size_;
      inside = token % kv_.page_size;
      *run = kv_.page_size - inside;
    } else if (kv_.ring > 0) {
      inside = token % kv_.ring;
      *run = kv_.ring - inside;
    }
    if (kv_.layout == KvLayout::kPanels) inside /= kPanelWidth;
    return base + inside * kv_.token_stride * size_;
  }

  DType dtype() const { return kv_.dtype; }
  int64_t token_stride() const { return kv_.token_stride; }
  bool panels() const { return kv_.layout == KvLayout::kPanels; }
  int64_t dim() const { return kv_.dim; }

 private:
  const BasicKv<kConst>& kv_;
  int64_t size_;
  int64_t sequence_;
  int64_t first_token_;
  Byte* head_;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_KV_STORE_H_
