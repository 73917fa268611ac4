#include "lib/drivers/attention/scoring.h"

#include <algorithm>
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

bool has_modifiers(const Scoring& s) {
  return s.softcap > 0.0f || s.alibi_slopes != nullptr || s.bias.data != nullptr || s.keep.data != nullptr ||
         s.bits.data != nullptr;
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
  if (s.keep.data != nullptr) {
    m.keep = static_cast<const uint8_t*>(s.keep.data) + offset_of(s.keep, mask_batch, head, mask_row);
    m.one_keep = s.keep.shape[3] == 1;
  }
  if (s.bits.data != nullptr) {
    const auto& t = s.bits.stride;
    m.bits = s.bits.data + mask_batch * t[0] + head * t[1] + mask_row * t[2];
    m.first_bit = rules.length - s.bits.columns;
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
  if (m.bias != nullptr) {
    const float b = with_storage(
        m.bias_dtype, [&](auto t) { return to_f32(static_cast<const decltype(t)*>(m.bias)[m.one_bias ? 0 : key]); });
    if (b == -std::numeric_limits<float>::infinity()) return false;
  }
  if (m.keep != nullptr && m.keep[m.one_keep ? 0 : key] == 0) return false;
  if (m.bits != nullptr && key >= m.first_bit) {
    const int64_t bit = key - m.first_bit;
    return (m.bits[bit / 8] >> (bit % 8) & 1) != 0;
  }
  return true;
}

}  // namespace simdattn
