#include "lib/drivers/shared/masks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/contract/cursor.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/integers.h"

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

/// True if n elements are equal, n > 0.
bool all_equal(const void* p, int64_t n, int64_t size) {
  return std::memcmp(p, static_cast<const char*>(p) + size, static_cast<size_t>((n - 1) * size)) == 0;
}

/// True if bits [first, first + n) are those of `byte`, which is 0 or 0xFF; n > 0.
bool all_bits(const uint8_t* bits, int64_t first, int64_t n, int byte) {
  const int64_t end = first + n;
  const int64_t whole = (first + 7) / 8;  // the first byte of which the range has all bits
  const auto are = [&](int64_t i, int64_t count) {
    return (((bits[i / 8] ^ byte) >> i % 8) & ((1 << count) - 1)) == 0;
  };
  if (first % 8 != 0 && !are(first, std::min(8 * whole - first, n))) return false;
  if (end % 8 != 0 && end > 8 * whole && !are(end / 8 * 8, end % 8)) return false;
  return end / 8 <= whole || (bits[whole] == byte && all_equal(bits + whole, end / 8 - whole, 1));
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
    const int64_t bit = keys.lo - m.first_bit;
    const int byte = bit >= 0 && (m.bits[bit / 8] >> bit % 8 & 1) != 0 ? 0xFF : 0;
    const bool same = bit >= 0 && all_bits(m.bits, bit, n, byte);
    if (same && byte == 0) return kHides;
    nothing = nothing && same;
  }
  return nothing ? kNothing : kChanges;
}

/// The same for n keys from `key` on, one by one. Loops that compilers make vectors of.
void effect_of_masks(const RowModifiers& m, int64_t key, int64_t n, uint8_t* effects) {
  std::memset(effects, m.keep != nullptr && m.one_keep && *m.keep == 0 ? kHides : kNothing, static_cast<size_t>(n));
  const auto of_bias = [&](const auto* bias, auto lowest) {
    using T = decltype(lowest);
    const auto of = [&](T b) {
      return static_cast<uint8_t>(b == lowest ? T{kHides} : b == 0 ? T{kNothing} : T{kChanges});
    };
    if (m.one_bias) {
      for (int64_t j = 0; j < n; ++j) effects[j] &= of(*bias);
    } else {
      for (int64_t j = 0; j < n; ++j) effects[j] &= of(bias[key + j]);
    }
  };
  if (m.bias != nullptr && m.bias_dtype == DType::kF32) {
    of_bias(static_cast<const uint32_t*>(m.bias), lowest_of(m.bias_dtype));
  } else if (m.bias != nullptr) {
    of_bias(static_cast<const uint16_t*>(m.bias), static_cast<uint16_t>(lowest_of(m.bias_dtype)));
  }
  for (int64_t j = 0; m.keep != nullptr && !m.one_keep && j < n; ++j) {
    effects[j] &= m.keep[key + j] == 0 ? uint8_t{kHides} : uint8_t{kNothing};
  }
  for (int64_t j = m.bits == nullptr ? n : std::max(m.first_bit - key, int64_t{0}); j < n;) {
    // Up to the end of a byte.
    const int64_t bit = key + j - m.first_bit;
    const int64_t end = std::min(j + 8 - bit % 8, n);
    const uint64_t byte = static_cast<uint64_t>(m.bits[bit / 8]) >> bit % 8;
    uint64_t eight = 0;
    std::memcpy(&eight, effects + j, static_cast<size_t>(end - j));
    // Bit k alone in byte k, then all bits of it.
    eight &= (((byte * kEight & 0x8040201008040201u) + 0x7F * kEight) >> 7 & kEight) * 0xFF;
    std::memcpy(effects + j, &eight, static_cast<size_t>(end - j));
    j = end;
  }
}

/// Most masks hide keys here and there, which a full look would not make use of. True if that is likely: both ends of
/// `keys` are changed, and of several masks together the first and last key are visible, as they are of one mask alone.
/// With `few` a sample tells whether most keys are hidden.
bool is_dense(const RowModifiers& m, Interval keys, bool few) {
  if (effect_of_masks(m, {std::max(keys.hi - kPanelWidth, keys.lo), keys.hi}) != kChanges) return false;
  const bool several = (m.bias != nullptr) + (m.keep != nullptr) + (m.bits != nullptr) > 1;
  if (several && !(mask_allows(m, keys.lo) && mask_allows(m, keys.hi - 1))) return false;
  int64_t balance = 1;
  for (int64_t key = keys.lo; few && key < keys.hi; key += kMaskThresholds.sample_step) {
    balance += mask_allows(m, key) ? 1 : -1;
  }
  return balance > 0;
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
  if (m.bits != nullptr && key >= m.first_bit) {
    const int64_t bit = key - m.first_bit;
    return (m.bits[bit / 8] >> (bit % 8) & 1) != 0;
  }
  return true;
}

void prefetch_masks(const RowModifiers* all, Interval rows, int64_t step, int64_t key) {
  const auto prefetch = [&](const void* p, int64_t size) {
    for (int64_t i = 0; p != nullptr && i < kKeyBlock * size; i += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(address_at(static_cast<const char*>(p), key * size + i)));
    }
  };
  for (int64_t r = rows.lo; r < rows.hi; r += step) {
    const RowModifiers& m = all[r];
    if (r > 0 && same_masks(m, all[r - 1])) continue;
    if (!m.one_bias) prefetch(m.bias, size_of(m.bias_dtype));
    if (!m.one_keep) prefetch(m.keep, 1);
  }
}

SeenColumns seen_columns(const RowModifiers& m, int64_t base, Interval keys, bool few) {
  const int64_t n = keys.size();
  if (n <= 0) return {};
  const auto column = [&](int64_t j) { return static_cast<int32_t>(keys.lo - base + std::min(j, n)); };
  const MaskEffect to_head = effect_of_masks(m, {keys.lo, std::min(keys.lo + kPanelWidth, keys.hi)});
  const MaskEffect to_all = to_head == kChanges ? kChanges : effect_of_masks(m, keys);
  if (to_all == kHides) return {};
  if (to_all == kNothing) return all_columns(base, keys);
  if (to_head == kChanges && is_dense(m, keys, few)) {
    return {column(0), column(n), column(0), column(n), static_cast<int32_t>(n)};
  }
  uint8_t effects[kKeyBlock];
  effect_of_masks(m, keys.lo, n, effects);
  const int64_t end = round_up(n, 8);
  std::memset(effects + n, effects[n - 1], static_cast<size_t>(end - n));
  const auto without_ends = [&](Interval of, uint64_t eight) {
    while (of.lo < of.hi && eight_at(effects + of.lo) == eight) of.lo += 8;
    while (of.lo < of.hi && eight_at(effects + of.hi - 8) == eight) of.hi -= 8;
    return of;
  };
  uint16_t visible = 0;
  for (int64_t j = 0; j < n; ++j) visible = static_cast<uint16_t>(visible + (effects[j] & 1));
  if (visible == 0) return {};
  int64_t same = 0;
  while (same < n && effects[same] == kNothing) ++same;
  if (same == visible && same <= n - kMaskThresholds.least_move) {
    return {column(0), column(same), column(same), column(same), visible};
  }
  Interval seen = without_ends({0, end}, kHides * kEight);
  if (seen.lo < kMaskThresholds.least_move) seen.lo = 0;
  if (seen.hi > end - kMaskThresholds.least_move) seen.hi = end;
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
  const auto shows = [&](int64_t key) { return mask_allows(m, key) || mask_allows(m, key + 1); };
  if (s.to - s.from > kPanelWidth) {
    return base + s.from == keys.lo && base + s.to == keys.hi && (in_tile || (shows(keys.lo) && shows(keys.hi - 2)));
  }
  const int64_t end = base + s.hi;
  if (s.from == s.hi && end >= keys.lo && end < keys.hi && mask_allows(m, end)) {
    s.from = s.to = ++s.hi;
    ++s.visible;
  }
  const auto all = [&](int64_t first, int64_t last, MaskEffect effects) {
    return first >= last || effect_of_masks(m, {first, last}) == effects;
  };
  if (!all(keys.lo, base + s.lo, kHides) || !all(base + s.hi, keys.hi, kHides) ||
      !all(base + s.lo, base + s.from, kNothing) || !all(base + s.to, base + s.hi, kNothing)) {
    return false;
  }
  *seen = s;
  return true;
}

}  // namespace simdattn
