// The element types and their scalar conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "include/simdattn/simdattn.h"

namespace simdattn {

inline constexpr uint32_t kCanonicalNaN = 0x7FC00000u;

constexpr int64_t size_of(DType t) { return dtype_bytes(t); }
/// Index of an element type, an arithmetic or a KV storage type in an array of slots.
constexpr size_t index_of(auto type) { return static_cast<size_t>(type); }

// The helpers below are internal to each object that includes this header (`static`): an object built for a newer CPU
// must not supply them to the others.

static inline constexpr bool is_nan(float x) { return x != x; }
/// By its bits, because rules run in the caller's floating-point environment: where that traps, a comparison with NaN
/// would raise a signal.
static inline constexpr bool is_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u; }
/// Magnitudes from here on are NaN, infinite, or round to an infinity of bf16: what a weight of 0 does not hide in
/// every arithmetic.
template <class T>
inline constexpr uint32_t kUnhidden = std::is_same_v<T, bf16>  ? 0x7F80u
                                      : std::is_same_v<T, f16> ? 0x7C00u
                                                               : 0x7F7F8000u;
static inline constexpr bool is_below_zero(float x) { return std::bit_cast<uint32_t>(x) > 0x80000000u; }
static inline constexpr float canonical(float x) { return is_nan(x) ? std::bit_cast<float>(kCanonicalNaN) : x; }

static inline constexpr float to_f32(float x) { return x; }
static inline constexpr float to_f32(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
static inline constexpr float to_f32(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // As f32 bits the magnitude is 2^-112 too small; the multiplication is exact and also right for subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

template <class T>
static inline constexpr T from_f32(float x);
template <>
inline constexpr float from_f32<float>(float x) {
  return canonical(x);
}
template <>
inline constexpr bf16 from_f32<bf16>(float x) {
  if (is_nan(x)) return {0x7FC0};
  const uint32_t b = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((b + 0x7FFFu + (b >> 16 & 1u)) >> 16)};
}
template <>
inline constexpr f16 from_f32<f16>(float x) {
  if (is_nan(x)) return {0x7E00};
  const uint32_t b = std::bit_cast<uint32_t>(x);
  const uint32_t sign = b >> 16 & 0x8000u;
  const uint32_t magnitude = b & 0x7FFFFFFFu;
  // 65520 and above round to infinity.
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal result: adding 0.5 puts the rounding position of f16 (2^-24) at the last bit of the f32 sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return {static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13)};
}

/// Calls f with a value of the C++ type of element type `t`.
template <class F>
static inline constexpr auto with_storage(DType t, F&& f) {
  switch (t) {
    case DType::kBF16: return f(bf16{});
    case DType::kF16: return f(f16{});
    default: return f(float{});
  }
}

}  // namespace simdattn
