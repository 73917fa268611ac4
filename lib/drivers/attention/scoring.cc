#include "lib/drivers/attention/scoring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/rules/views.h"

namespace simdattn {
namespace {

/// Elements before the row of a mask.
int64_t offset_of(const ConstView<4>& mask, int64_t batch, int64_t head, int64_t row) {
  return batch * step_of(mask, 0) + head * step_of(mask, 1) + row * step_of(mask, 2);
}

/// -inf as an integer, and an element.
constexpr uint32_t lowest_of(DType t) { return t == DType::kF32 ? 0xFF800000u : t == DType::kBF16 ? 0xFF80u : 0xFC00u; }
uint32_t bias_at(const void* p, int64_t i, DType t) {
  return t == DType::kF32 ? static_cast<const uint32_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
}

/// What masks and bias do to a key. A bias of +0 changes -0 to +0, whose exponential is the same, and nothing else.
enum Does : uint8_t { kHides = 0, kChanges = 1, kNothing = 3 };
/// Eight of them.
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
Does what_masks_do(const RowModifiers& m, Interval keys) {
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
void what_masks_do(const RowModifiers& m, int64_t key, int64_t n, uint8_t* does) {
  std::memset(does, m.keep != nullptr && m.one_keep && *m.keep == 0 ? kHides : kNothing, static_cast<size_t>(n));
  const auto of_bias = [&](const auto* bias, auto lowest) {
    using T = decltype(lowest);
    const auto of = [&](T b) {
      return static_cast<uint8_t>(b == lowest ? T{kHides} : b == 0 ? T{kNothing} : T{kChanges});
    };
    if (m.one_bias) {
      for (int64_t j = 0; j < n; ++j) does[j] &= of(*bias);
    } else {
      for (int64_t j = 0; j < n; ++j) does[j] &= of(bias[key + j]);
    }
  };
  if (m.bias != nullptr && m.bias_dtype == DType::kF32) {
    of_bias(static_cast<const uint32_t*>(m.bias), lowest_of(m.bias_dtype));
  } else if (m.bias != nullptr) {
    of_bias(static_cast<const uint16_t*>(m.bias), static_cast<uint16_t>(lowest_of(m.bias_dtype)));
  }
  for (int64_t j = 0; m.keep != nullptr && !m.one_keep && j < n; ++j) {
    does[j] &= m.keep[key + j] == 0 ? uint8_t{kHides} : uint8_t{kNothing};
  }
  for (int64_t j = m.bits == nullptr ? n : std::max(m.first_bit - key, int64_t{0}); j < n;) {
    // Up to the end of a byte.
    const int64_t bit = key + j - m.first_bit;
    const int64_t end = std::min(j + 8 - bit % 8, n);
    const uint64_t byte = static_cast<uint64_t>(m.bits[bit / 8]) >> bit % 8;
    uint64_t eight = 0;
    std::memcpy(&eight, does + j, static_cast<size_t>(end - j));
    // Bit k alone in byte k, then all bits of it.
    eight &= (((byte * kEight & 0x8040201008040201u) + 0x7F * kEight) >> 7 & kEight) * 0xFF;
    std::memcpy(does + j, &eight, static_cast<size_t>(end - j));
    j = end;
  }
}

}  // namespace

SequenceRules sequence_rules(const Scoring& s, int64_t sequence, int64_t n_q, int64_t n_kv) {
  SequenceRules r;
  r.length = s.kv_length != nullptr ? s.kv_length[sequence] : n_kv;
  r.start = s.kv_start != nullptr ? s.kv_start[sequence] : 0;
  r.offset = s.offsets != nullptr ? s.offsets[sequence] : s.offset == kBottomRight ? r.length - n_q : s.offset;
  r.prefix_end = s.prefix_end != nullptr ? s.prefix_end[sequence] : 0;
  return r;
}

Interval visible_interval(const Scoring& s, const SequenceRules& rules, int64_t row) {
  const int64_t p = row + rules.offset;
  Interval v = {rules.start, rules.length};
  if (s.causal || s.prefix_end != nullptr) v.hi = std::min(v.hi, std::max(p, rules.prefix_end - 1) + 1);
  if (s.window_left >= 0) v.lo = std::max(v.lo, p - std::min(s.window_left, int64_t{1} << 32));
  if (s.window_right >= 0) v.hi = std::min(v.hi, p + std::min(s.window_right, int64_t{1} << 32) + 1);
  if (s.chunk > 0) {
    const int64_t chunk = std::min(s.chunk, int64_t{1} << 32);
    const int64_t index = p >= 0 ? p / chunk : -((-p + chunk - 1) / chunk);  // floor
    v.lo = std::max(v.lo, index * chunk);
    v.hi = std::min(v.hi, (index + 1) * chunk);
  }
  v.lo = std::clamp(v.lo, int64_t{0}, rules.length);
  v.hi = std::clamp(v.hi, v.lo, rules.length);
  return v;
}

bool has_masks(const Scoring& s) {
  return s.bias.data != nullptr || s.mask.data != nullptr || s.packed_mask.data != nullptr;
}
bool has_modifiers(const Scoring& s) { return s.softcap > 0.0f || s.alibi_slopes != nullptr || has_masks(s); }
bool modifies_heads_alike(const Scoring& s) {
  return s.bias_scale == nullptr && s.alibi_slopes == nullptr && step_of(s.bias, 1) == 0 && step_of(s.mask, 1) == 0 &&
         s.packed_mask.stride[1] == 0;
}

RowModifiers row_modifiers(const Scoring& s, const SequenceRules& rules, int64_t head, int64_t row, int64_t mask_batch,
                           int64_t mask_row) {
  RowModifiers m = {};
  m.softcap = s.softcap;
  m.bias_scale = s.bias_scale != nullptr ? s.bias_scale[head] : 1.0f;
  m.slope = s.alibi_slopes != nullptr ? s.alibi_slopes[head] : 0.0f;
  m.position = static_cast<int32_t>(row + rules.offset);
  if (s.bias.data != nullptr) {
    m.bias =
        static_cast<const char*>(s.bias.data) + offset_of(s.bias, mask_batch, head, mask_row) * size_of(s.bias.dtype);
    m.bias_dtype = s.bias.dtype;
    m.one_bias = s.bias.shape[3] == 1;
  }
  if (s.mask.data != nullptr) {
    m.keep = static_cast<const uint8_t*>(s.mask.data) + offset_of(s.mask, mask_batch, head, mask_row);
    m.one_keep = s.mask.shape[3] == 1;
  }
  if (s.packed_mask.data != nullptr) {
    const auto& t = s.packed_mask.stride;
    m.bits = s.packed_mask.data + mask_batch * t[0] + head * t[1] + mask_row * t[2];
    m.first_bit = rules.length - s.packed_mask.columns;
  }
  return m;
}

ModifyResult modify(const UKernels& uk, const ModifyRow& a) {
  const RowModifiers& m = a.row;
  if (!m.one_bias && !m.one_keep) return uk.modify_row(a);
  // The number is repeated for some keys. As a slot counts keys from 0, it is given the address that key 0 would have.
  constexpr int64_t kRepeats = 256;
  alignas(64) char biases[kRepeats * 4];
  alignas(64) uint8_t keeps[kRepeats];
  const size_t size = static_cast<size_t>(size_of(m.bias_dtype));
  for (size_t i = 0; m.one_bias && i < kRepeats; ++i) std::memcpy(biases + i * size, m.bias, size);
  if (m.one_keep) std::memset(keeps, *m.keep, kRepeats);
  ModifyResult result = {-std::numeric_limits<float>::infinity(), false};
  ModifyRow part = a;
  for (part.lo = a.lo; part.lo < a.hi; part.lo = part.hi) {
    part.hi = std::min(part.lo + kRepeats, a.hi);
    const size_t key = static_cast<size_t>(a.first_key + part.lo);
    if (m.one_bias) part.row.bias = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(biases) - key * size);
    if (m.one_keep) part.row.keep = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(keeps) - key);
    const ModifyResult of_part = uk.modify_row(part);
    result = {std::max(result.max, of_part.max), result.masked || of_part.masked};
  }
  return result;
}

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
    for (int64_t i = 0; p != nullptr && i < kKeyBlock * size; i += 64)
      __builtin_prefetch(
          reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<size_t>(key * size + i)));
  };
  for (int64_t r = rows.lo; r < rows.hi; r += step) {
    const RowModifiers& m = all[r];
    if (r > 0 && same_masks(m, all[r - 1])) continue;
    if (!m.one_bias) prefetch(m.bias, size_of(m.bias_dtype));
    if (!m.one_keep) prefetch(m.keep, 1);
  }
}

SeenColumns seen_columns(const RowModifiers& m, int64_t base, Interval keys, bool few, uint8_t* list) {
  const int64_t first = keys.lo - base;
  const int64_t n = keys.hi - keys.lo;
  if (n <= 0) return {};
  const auto column = [&](int64_t j) { return static_cast<int32_t>(first + std::min(j, n)); };
  const Does to_head = what_masks_do(m, {keys.lo, std::min(keys.lo + kPanelWidth, keys.hi)});
  const Does to_all = to_head == kChanges ? kChanges : what_masks_do(m, keys);
  if (to_all == kHides) return {};
  if (to_all == kNothing) return all_columns(base, keys);
  // Most masks hide keys here and there, which is not worth a full look. They change both ends of `keys`. One mask alone then shows some key
  // there; of several the first and last key must be visible. A sample tells whether most keys are hidden.
  bool dense = to_head == kChanges && list == nullptr &&
               what_masks_do(m, {std::max(keys.hi - kPanelWidth, keys.lo), keys.hi}) == kChanges;
  if ((m.bias != nullptr) + (m.keep != nullptr) + (m.bits != nullptr) > 1) {
    dense = dense && mask_allows(m, keys.lo) && mask_allows(m, keys.hi - 1);
  }
  int64_t balance = 1;
  for (int64_t key = keys.lo; dense && few && key < keys.hi; key += kPanelWidth + 1)
    balance += mask_allows(m, key) ? 1 : -1;
  if (dense && balance > 0) return {column(0), column(n), column(0), column(n), column(n) - column(0)};
  uint8_t does[kKeyBlock];
  what_masks_do(m, keys.lo, n, does);
  const int64_t end = (n + 7) / 8 * 8;
  std::memset(does + n, does[n - 1], static_cast<size_t>(end - n));
  const auto eight_at = [&](int64_t j) {
    uint64_t eight;
    std::memcpy(&eight, does + j, 8);
    return eight;
  };
  const auto without_ends = [&](Interval of, uint64_t eight) {
    while (of.lo < of.hi && eight_at(of.lo) == eight) of.lo += 8;
    while (of.lo < of.hi && eight_at(of.hi - 8) == eight) of.hi -= 8;
    return of;
  };
  uint16_t visible = 0;
  for (int64_t j = 0; j < n; ++j) visible = static_cast<uint16_t>(visible + (does[j] & 1));
  if (visible == 0) return {};
  Interval seen = without_ends({0, end}, kHides * kEight);
  if (seen.lo < kPanelWidth) seen.lo = 0;
  if (seen.hi > end - kPanelWidth) seen.hi = end;
  const Interval changed = without_ends(seen, kNothing * kEight);
  int64_t same = 0;
  while (same < n && does[same] == kNothing) ++same;
  for (int64_t j = 0, i = 0; list != nullptr && j < n; j += 8) {
    for (uint64_t eight = eight_at(j) & kEight; eight != 0 && i < visible; eight &= eight - 1) {
      list[i++] = static_cast<uint8_t>(first + j + std::countr_zero(eight) / 8);
    }
  }
  if (same == visible && same <= n - kPanelWidth) return {column(0), column(same), column(same), column(same), visible};
  return {column(seen.lo), column(seen.hi), column(changed.lo), column(changed.hi), visible};
}

bool sees_alike(const RowModifiers& m, int64_t base, Interval keys, bool in_tile, SeenColumns* seen) {
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
  const auto all = [&](int64_t first, int64_t last, Does does) {
    return first >= last || what_masks_do(m, {first, last}) == does;
  };
  if (!all(keys.lo, base + s.lo, kHides) || !all(base + s.hi, keys.hi, kHides) ||
      !all(base + s.lo, base + s.from, kNothing) || !all(base + s.to, base + s.hi, kNothing)) {
    return false;
  }
  *seen = s;
  return true;
}

}  // namespace simdattn
