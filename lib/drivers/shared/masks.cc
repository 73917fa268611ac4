#include "lib/drivers/shared/modifiers.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/contract/steps.h"

namespace simdattn {
namespace {

/// -inf as an integer, and an element.
constexpr uint32_t lowest_of(DType t) { return t == DType::kF32 ? 0xFF800000u : t == DType::kBF16 ? 0xFF80u : 0xFC00u; }
uint32_t bias_at(const void* p, int64_t i, DType t) {
  return t == DType::kF32 ? static_cast<const uint32_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
}

/// What masks and bias do to a key. Of two modifiers the key gets `a & b`, the stronger effect: so bits of the numbers
/// are chosen. A bias of +0 does nothing: it changes -0 to +0, whose exponential is the same.
enum MaskEffect : uint8_t { kHides = 0b00, kChanges = 0b01, kNothing = 0b11 };
/// Times this, a byte stands in each of eight bytes.
constexpr uint64_t kEight = 0x0101010101010101u;

/// Key `key` of a packed mask, of which it is one.
bool bit_at(const RowModifiers& m, int64_t key) {
  const int64_t bit = key - m.first_bit;
  return (m.bits[bit / 8] >> bit % 8 & 1) != 0;
}

/// True if n elements are equal, n > 0.
bool all_equal(const void* p, int64_t n, int64_t size) {
  return std::memcmp(p, static_cast<const char*>(p) + size, static_cast<size_t>((n - 1) * size)) == 0;
}

/// True if bits [first, first + n) are those of `byte`, which is 0 or 0xFF.
bool all_bits(const uint8_t* bits, int64_t first, int64_t n, int byte) {
  for (int64_t i = first, count; i < first + n; i += count) {
    count = std::min(8 - i % 8, first + n - i);
    if ((((bits[i / 8] ^ byte) >> i % 8) & ((1 << count) - 1)) != 0) return false;
  }
  return true;
}

/// What masks and bias do to these keys: kHides or kNothing if they do that to each key, else kChanges.
MaskEffect effect_of_masks(const RowModifiers& m, Interval keys) {
  const int64_t n = keys.hi - keys.lo;
  bool nothing = true;
  if (m.bias != nullptr) {
    const int64_t size = size_of(m.bias_dtype);
    const char* const p = static_cast<const char*>(m.bias) + (m.one_bias ? 0 : keys.lo * size);
    const uint32_t bias = bias_at(p, 0, m.bias_dtype);
    nothing = (bias == 0 || bias == lowest_of(m.bias_dtype)) && (m.one_bias || all_equal(p, n, size));
    if (nothing && bias != 0) return kHides;
  }
  if (m.keep != nullptr) {
    const uint8_t* const p = m.keep + (m.one_keep ? 0 : keys.lo);
    const bool same = m.one_keep || all_equal(p, n, 1);
    if (same && *p == 0) return kHides;
    nothing = nothing && same;
  }
  if (m.bits != nullptr && keys.hi > m.first_bit) {
    const bool whole = keys.lo >= m.first_bit;
    const int byte = whole && bit_at(m, keys.lo) ? 0xFF : 0;
    const bool same = whole && all_bits(m.bits, keys.lo - m.first_bit, n, byte);
    if (same && byte == 0) return kHides;
    nothing = nothing && same;
  }
  return nothing ? kNothing : kChanges;
}

/// The same for n keys from `key` on, one by one. Loops that compilers make vectors of.
void effect_of_masks(const RowModifiers& m, int64_t key, int64_t n, uint8_t* effects) {
  RowModifiers of_all = m;  // what is one number for all keys
  if (!m.one_bias) of_all.bias = nullptr;
  if (!m.one_keep) of_all.keep = nullptr;
  of_all.bits = nullptr;
  std::memset(effects, effect_of_masks(of_all, {key, key + 1}), static_cast<size_t>(n));
  const auto of_bias = [&]<class T>(const T* bias, T lowest) {
    for (int64_t j = 0; j < n; ++j) {
      const T b = bias[key + j];
      effects[j] &= static_cast<uint8_t>(b == lowest ? T{kHides} : b == 0 ? T{kNothing} : T{kChanges});
    }
  };
  if (m.bias != nullptr && !m.one_bias) {
    const uint32_t lowest = lowest_of(m.bias_dtype);
    if (m.bias_dtype == DType::kF32) of_bias(static_cast<const uint32_t*>(m.bias), lowest);
    else of_bias(static_cast<const uint16_t*>(m.bias), static_cast<uint16_t>(lowest));
  }
  for (int64_t j = 0; m.keep != nullptr && !m.one_keep && j < n; ++j) {
    effects[j] &= m.keep[key + j] == 0 ? uint8_t{kHides} : uint8_t{kNothing};
  }
  for (int64_t j = m.bits == nullptr ? n : std::max(m.first_bit - key, int64_t{0}); j < n; ++j) {
    effects[j] &= bit_at(m, key + j) ? uint8_t{kNothing} : uint8_t{kHides};
  }
}

uint64_t eight_at(const uint8_t* p) {
  uint64_t eight;
  std::memcpy(&eight, p, 8);
  return eight;
}

}  // namespace

bool mask_allows(const RowModifiers& m, int64_t key) {
  if (m.bias != nullptr && bias_at(m.bias, m.one_bias ? 0 : key, m.bias_dtype) == lowest_of(m.bias_dtype)) return false;
  if (m.keep != nullptr && m.keep[m.one_keep ? 0 : key] == 0) return false;
  return m.bits == nullptr || key < m.first_bit || bit_at(m, key);
}

SeenColumns seen_columns(const RowModifiers& m, int64_t base, Interval keys) {
  const int64_t n = keys.size();
  if (n <= 0) return {};
  const auto column = [&](int64_t j) { return static_cast<int32_t>(keys.lo - base + std::min(j, n)); };
  const MaskEffect to_all = effect_of_masks(m, keys);
  if (to_all == kHides) return {};
  if (to_all == kNothing) return all_columns(base, keys);
  uint8_t effects[kKeyBlock];
  effect_of_masks(m, keys.lo, n, effects);
  const int64_t end = round_up(n, 8);
  std::memset(effects + n, effects[n - 1], static_cast<size_t>(end - n));
  const auto without_ends = [&](Interval all, uint64_t eight) {
    constexpr int64_t kLeast = kMaskThresholds.least_move;
    Interval of = all;
    while (of.lo < of.hi && eight_at(effects + of.lo) == eight) of.lo += 8;
    while (of.lo < of.hi && eight_at(effects + of.hi - 8) == eight) of.hi -= 8;
    return Interval{of.lo - all.lo < kLeast ? all.lo : of.lo, all.hi - of.hi < kLeast ? all.hi : of.hi};
  };
  uint16_t visible = 0;
  for (int64_t j = 0; j < n; ++j) visible = static_cast<uint16_t>(visible + (effects[j] & 1));
  if (visible == 0) return {};
  int64_t same = 0;
  while (same < n && effects[same] == kNothing) ++same;
  if (same == visible && same <= n - kMaskThresholds.least_move) {
    return {column(0), column(same), column(same), column(same), visible};
  }
  const Interval seen = without_ends({0, end}, kHides * kEight);
  const Interval changed = without_ends(seen, kNothing * kEight);
  return {column(seen.lo), column(seen.hi), column(changed.lo), column(changed.hi), visible};
}

int64_t visible_columns(const RowModifiers& m, int64_t base, Interval keys, uint8_t* list) {
  uint8_t effects[kKeyBlock];
  const int64_t n = keys.size();
  effect_of_masks(m, keys.lo, n, effects);
  std::memset(effects + n, kHides, static_cast<size_t>(round_up(n, 8) - n));
  int64_t count = 0;
  for (int64_t j = 0; j < n; j += 8) {
    for (uint64_t eight = eight_at(effects + j) & kEight; eight != 0; eight &= eight - 1) {
      list[count++] = static_cast<uint8_t>(keys.lo - base + j + std::countr_zero(eight) / 8);
    }
  }
  return count;
}

bool still_sees(const RowModifiers& m, int64_t base, Interval keys, bool in_tile, SeenColumns* seen) {
  SeenColumns s = *seen;
  // Columns [from, to) are looked at again by modify_row, so they may hold anything. Where they are all of the keys,
  // nothing outside of them can differ, and the answer is right. It is also a good one, unless this row begins a tile
  // whose keys at the ends are all hidden: a new look would leave these out.
  if (s.to - s.from > kPanelWidth) {
    const auto shows_one_of_two = [&](int64_t key) { return mask_allows(m, key) || mask_allows(m, key + 1); };
    const bool all_are_changed = base + s.from == keys.lo && base + s.to == keys.hi;
    return all_are_changed && (in_tile || (shows_one_of_two(keys.lo) && shows_one_of_two(keys.hi - 2)));
  }
  // A causal mask shows one key more to each row: then the interval is one longer.
  const int64_t end = base + s.hi;
  const bool nothing_is_changed = s.from == s.hi;
  if (nothing_is_changed && end >= keys.lo && end < keys.hi && mask_allows(m, end)) {
    s.from = s.to = ++s.hi;
    ++s.visible;
  }
  // Four runs of keys around the changed columns must be as they were: hidden, shown, shown, hidden.
  const auto all = [&](int64_t first, int64_t last, MaskEffect effects) {
    return first >= last || effect_of_masks(m, {first, last}) == effects;
  };
  const int64_t seen_from = base + s.lo, changed_from = base + s.from, changed_to = base + s.to, seen_to = base + s.hi;
  if (!all(keys.lo, seen_from, kHides) || !all(seen_from, changed_from, kNothing) ||
      !all(changed_to, seen_to, kNothing) || !all(seen_to, keys.hi, kHides)) {
    return false;
  }
  *seen = s;
  return true;
}

}  // namespace simdattn
