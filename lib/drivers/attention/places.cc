// The entries of block tables and lists, which a run follows to keys and values.
#include "lib/contract/steps.h"
#include "lib/drivers/attention/division.h"

namespace simdattn {
namespace {

/// True if masks and bias hide these keys from rows [first_row, last_row) of all heads.
bool hidden(const AttentionProblem& a, const Division& d, const Sequence& seq, int64_t first_row, int64_t last_row,
            Interval keys) {
  if (!modifiers_of(a.scoring).hides) return false;
  for (int64_t i = first_row; i < last_row; ++i) {
    const Interval seen = visible_interval(a.scoring, seq.rules, i) & keys;
    for (int64_t h = 0; h < d.sizes.heads && seen.lo < seen.hi; ++h) {
      const RowModifiers m = row_modifiers(a.scoring, place_of(seq, h, i));
      for (int64_t j = seen.lo; j < seen.hi; ++j) {
        if (mask_allows(m, j)) return false;
      }
    }
  }
  return true;
}

/// Checks the pages of keys `seen`, which rows [first_row, last_row) see.
Status check_pages(const AttentionProblem& a, const Division& d, const Sequence& seq, int64_t first_row,
                   int64_t last_row, Interval seen) {
  for (const ConstKv* kv : {&a.k, &a.v}) {
    if (kv->page_size == 0 || seen.lo >= seen.hi) continue;
    const int32_t* table = kv->block_table + seq.index * table_stride(*kv);
    for (int64_t i = seen.lo / kv->page_size; i * kv->page_size < seen.hi; ++i) {
      if (static_cast<uint32_t>(table[i]) < static_cast<uint32_t>(kv->n_pages)) continue;
      const Interval keys = seen & Interval{i * kv->page_size, (i + 1) * kv->page_size};
      SIMDATTN_REQUIRE(table[i] < 0 && hidden(a, d, seq, first_row, last_row, keys), kRange,
                       page_sentence(kv == &a.k ? Store::kK : Store::kV));
    }
  }
  return {};
}

/// Checks that each entry of a row's list is -1 or names keys, neighbours differ, and the keys that it sees have pages.
Status check_list(const AttentionProblem& a, const Division& d, const Sequence& seq, int64_t row, const int32_t* list) {
  const int64_t entries = steps_of(seq.n_kv, a.lists.block_size);  // that name keys: 0 .. entries - 1
  const bool pages = a.k.page_size > 0 || a.v.page_size > 0;
  const Interval seen = visible_interval(a.scoring, seq.rules, row);
  int64_t last = -1;  // no fault: any number that no entry has
  for (int64_t i = 0; i < a.lists.length; ++i) {
    const int64_t e = list[i];
    if (e == -1) continue;
    if (e < 0 || e >= entries) return kNoKeyOfList;
    if (e == last) return kEntryTwice;
    last = e;
    const Interval keys = seen & Interval{e * a.lists.block_size, (e + 1) * a.lists.block_size};
    if (pages) SIMDATTN_CHECK(check_pages(a, d, seq, row, row + 1, keys));
  }
  return {};
}

}  // namespace

Status check_places(const AttentionProblem& a, const Division& d, int64_t s, Interval list_heads, int64_t first_row,
                    int64_t last_row) {
  if (first_row >= last_row) return {};
  const Sequence seq = sequence_of(a, s);
  if (has_lists(a)) {
    for (int64_t h = list_heads.lo; h < list_heads.hi; ++h) {
      for (int64_t i = first_row; i < last_row; ++i) {
        // Each row by itself, also where rows share a list, because a later row may see keys on further pages.
        SIMDATTN_CHECK(check_list(a, d, seq, i, list_of(a, seq, h, i)));
      }
    }
    return {};
  }
  // Neither end of the interval decreases from row to row.
  return check_pages(
      a, d, seq, first_row, last_row,
      {visible_interval(a.scoring, seq.rules, first_row).lo, visible_interval(a.scoring, seq.rules, last_row - 1).hi});
}

}  // namespace simdattn
