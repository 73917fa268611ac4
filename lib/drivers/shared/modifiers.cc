#include "lib/drivers/shared/modifiers.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "lib/contract/dtypes.h"
#include "lib/drivers/shared/rows.h"

namespace simdattn {
namespace {

/// Elements before the row of a mask.
int64_t offset_of(const ConstView<4>& mask, const RowPlace& row) {
  return row.q_batch * step_of(mask, 0) + row.head * step_of(mask, 1) + row.q_row * step_of(mask, 2);
}

void set_bias(const Scoring& s, const RowPlace& row, RowModifiers* m) {
  m->bias = static_cast<const char*>(s.bias.data) + offset_of(s.bias, row) * size_of(s.bias.dtype);
  m->bias_dtype = s.bias.dtype;
  m->bias_scale = s.bias_scale != nullptr ? s.bias_scale[row.head] : 1.0f;
  m->one_bias = s.bias.shape[3] == 1;
}
void set_mask(const Scoring& s, const RowPlace& row, RowModifiers* m) {
  m->keep = static_cast<const uint8_t*>(s.mask.data) + offset_of(s.mask, row);
  m->one_keep = s.mask.shape[3] == 1;
}
void set_packed_mask(const Scoring& s, const RowPlace& row, RowModifiers* m) {
  const auto& stride = s.packed_mask.stride;
  m->bits = s.packed_mask.data + row.q_batch * stride[0] + row.head * stride[1] + row.q_row * stride[2];
  m->first_bit = row.length - s.packed_mask.columns;
}
void set_softcap(const Scoring& s, const RowPlace&, RowModifiers* m) { m->softcap = s.softcap; }
void set_alibi(const Scoring& s, const RowPlace& row, RowModifiers* m) {
  m->slope = s.alibi_slopes[row.head];
  m->position = static_cast<int32_t>(row.position);
}

/// What drivers know of a modifier. See Modifiers for the columns.
struct ModifierRow {
  bool hides;
  bool changes_all;
  bool by_position;
  bool (*given)(const Scoring&);
  bool (*by_head)(const Scoring&);
  void (*set)(const Scoring&, const RowPlace&, RowModifiers*);  // its members, if it is given
};

/// In the order in which they apply.
constexpr ModifierRow kModifiers[] = {
    // hides, changes_all, by_position, given, by_head, set
    {false, true, false, [](const Scoring& s) { return s.softcap > 0.0f; }, [](const Scoring&) { return false; },
     set_softcap},
    {false, true, true, [](const Scoring& s) { return s.alibi_slopes != nullptr; }, [](const Scoring&) { return true; },
     set_alibi},
    {true, false, true, [](const Scoring& s) { return s.bias.data != nullptr; },
     [](const Scoring& s) { return s.bias_scale != nullptr || step_of(s.bias, 1) != 0; }, set_bias},
    {true, false, true, [](const Scoring& s) { return s.mask.data != nullptr; },
     [](const Scoring& s) { return step_of(s.mask, 1) != 0; }, set_mask},
    {true, false, true, [](const Scoring& s) { return s.packed_mask.data != nullptr; },
     [](const Scoring& s) { return s.packed_mask.stride[1] != 0; }, set_packed_mask},
};
static_assert(std::ranges::count(kModifiers, true, &ModifierRow::hides) == 3,
              "masks.cc looks at each modifier that hides keys, in every function");

/// f(row) for each. Unrolled, so that the functions of the rows are inlined.
template <class F>
void for_each_modifier(const F& f) {
  [&]<size_t... kRow>(std::index_sequence<kRow...>) {
    (f(kModifiers[kRow]), ...);
  }(std::make_index_sequence<std::size(kModifiers)>());
}

/// A member that is not named here does not compile. One of Scoring is a rule of intervals, or has a row above, which
/// sets those of RowModifiers.
[[maybe_unused]] void names_all_members(const Scoring& scoring, const RowModifiers& row) {
  [[maybe_unused]] const auto& [struct_size, scale, softcap, causal, offset, offsets, window_left, window_right, chunk,
                                prefix_end, kv_start, kv_length, bias, bias_scale, mask, packed_mask, alibi_slopes,
                                sinks, reserved] = scoring;
  [[maybe_unused]] const auto& [cap, slope, position, row_bias_scale, bias_dtype, row_bias, keep, bits, first_bit,
                                one_bias, one_keep] = row;
}

}  // namespace

Modifiers modifiers_of(const Scoring& s) {
  Modifiers all;
  for_each_modifier([&](const ModifierRow& row) {
    if (!row.given(s)) return;
    all.any = true;
    all.hides |= row.hides;
    all.changes_all |= row.changes_all;
    all.by_position |= row.by_position;
    all.by_head |= row.by_head(s);
  });
  return all;
}

RowModifiers row_modifiers(const Scoring& s, const RowPlace& place) {
  RowModifiers m = {};
  for_each_modifier([&](const ModifierRow& row) {
    if (row.given(s)) row.set(s, place, &m);
  });
  return m;
}

ModifyResult modify(const UKernels& uk, const ModifyRow& a) {
  if (!a.row.one_bias && !a.row.one_keep) return uk.modify_row(a);
  // A number for all keys is repeated for some of them, which are counted from 0: so no pointer lies before its array.
  constexpr int64_t kRepeats = 256;
  alignas(64) char biases[kRepeats * 4];
  alignas(64) uint8_t keeps[kRepeats];
  const int64_t size = size_of(a.row.bias_dtype);
  for (int64_t i = 0; a.row.one_bias && i < kRepeats; ++i) {
    std::memcpy(biases + i * size, a.row.bias, static_cast<size_t>(size));
  }
  if (a.row.one_keep) std::memset(keeps, *a.row.keep, kRepeats);
  ModifyResult result = {-kInf, false};
  ModifyRow part = a;
  for (part.lo = a.lo; part.lo < a.hi; part.lo = part.hi) {
    part.hi = std::min(part.lo + kRepeats, a.hi);
    part.first_key = -part.lo;
    const int64_t key = a.first_key + part.lo;
    RowModifiers& m = part.row;
    m = a.row;
    m.position = static_cast<int32_t>(m.position - key);
    m.first_bit -= key;
    if (m.bias != nullptr) m.bias = m.one_bias ? biases : static_cast<const char*>(m.bias) + key * size;
    if (m.keep != nullptr) m.keep = m.one_keep ? keeps : m.keep + key;
    const ModifyResult of_part = uk.modify_row(part);
    result = {std::max(result.max, of_part.max), result.masked || of_part.masked};
  }
  return result;
}

}  // namespace simdattn
