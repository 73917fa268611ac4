// f32, bf16 and f16 memory as batches of float. `part` is All or Lanes.
#pragma once

#include "lib/simd/lanes.h"

namespace simdattn {
namespace {

/// f(index, part) over n elements: whole batches, then the lanes that are left.
template <class F>
SIMDATTN_INLINE void for_each_batch(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, All());
  if (i < n) f(i, first_lanes(n - i));
}

/// The same with one of kChains chains as a type, for reductions: f(index, part, chain).
template <int64_t kChains = 4, class F>
SIMDATTN_INLINE void for_each_batch_in_chains(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    unroll<kChains>([&](auto chain) SIMDATTN_LAMBDA { f(i + chain * kLanes, All(), chain); });
  }
  for (; i + kLanes <= n; i += kLanes) f(i, All(), constant<0>);
  if (i < n) f(i, first_lanes(n - i), constant<0>);
}

SIMDATTN_INLINE Floats load(const float* p, All = {}) { return Floats::load_unaligned(p); }
SIMDATTN_INLINE void store(Floats v, float* p, All = {}) { v.store_unaligned(p); }

#if SIMDATTN_F16_BY_INTEGERS
constexpr bool kNativeF16 = false;
// Without conversions of the CPU: sequences and constants of lib/contract/dtypes.h.
SIMDATTN_INLINE Floats f32_from_f16(Halves v) {
  const Bits32 u = widen_bits(v);
  const Bits32 magnitude = u & Bits32(0x7FFFu);
  const Bits32 sign = (u ^ magnitude) << 16;
  const Bits32 shifted = magnitude << 13;
  const Bits32 finite = bits_of(float_of(shifted) * Floats(0x1p112f));
  const Mask is_special = greater(cast_bits<int32_t>(magnitude), Ints(0x7BFF));
  return float_of(sign | select(is_special, shifted | Bits32(0x7F800000u), finite));
}
SIMDATTN_INLINE Halves f16_from_f32(Floats v) {  // NaN is the canonical one
  const Bits32 b = bits_of(v);
  const Bits32 magnitude = b & Bits32(0x7FFFFFFFu);
  const Bits32 sign = (b ^ magnitude) >> 16;
  const Bits32 small = bits_of(float_of(magnitude) + Floats(0.5f)) - Bits32(0x3F000000u);
  // 65536 becomes infinity by rounding.
  const Ints most = min(cast_bits<int32_t>(magnitude), Ints(0x47800000));
  const Bits32 bits = cast_bits<uint32_t>(most);
  const Bits32 normal = (bits + Bits32(0xFFFu - 0x38000000u) + ((bits >> 13) & Bits32(1u))) >> 13;
  const Mask is_small = greater(Ints(0x38800000), most);
  const Bits32 number = select(is_small, small, normal) | sign;
  return narrow_bits(select(v == v, number, Bits32(0x7E00u)));
}
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return f16_from_f32(v); }
#else
constexpr bool kNativeF16 = true;
SIMDATTN_INLINE Halves f16_from_f32(Floats v) { return f16_of_number(canonical_nan(v)); }
#endif

#if SIMDATTN_AVX512
/// Four f16 to f32 at p.
template <class P>
SIMDATTN_INLINE void widen_four(uint64_t f16_bits, P p) {
  const VectorOf<uint64_t, sizeof(Halves)>::type four = {f16_bits};
  const Floats v = f32_from_f16(__builtin_bit_cast(Halves, four));
  __builtin_memcpy(p, &v, 4 * sizeof *p);
}
#endif
/// Of the f16 in the first, or second, half of a register.
template <bool kSecond, class V>
SIMDATTN_INLINE Floats f32_of_half(V v) {
#if SIMDATTN_HIGHWAY_LANES && SIMDATTN_F16_BY_INTEGERS
  const auto halves = hn::BitCast(Tag<uint16_t>(), lib(v));
  return f32_from_f16(kSecond ? hn::UpperHalf(Small<uint16_t>(), halves) : hn::LowerHalf(Small<uint16_t>(), halves));
#elif SIMDATTN_HIGHWAY_LANES && !SIMDATTN_NEON  // FCVTL2 takes a tile of f16 10 % longer by the model of V1
  const auto halves = hn::BitCast(Tag<hwy::float16_t>(), lib(v));
  return kSecond ? hn::PromoteUpperTo(Tag<float>(), halves) : hn::PromoteLowerTo(Tag<float>(), halves);
#else
  if constexpr (sizeof(Halves) == sizeof(Floats)) {
    const Floats none(0.0f);
    return f32_from_f16(bits_of(kSecond ? zip_upper<uint16_t>(v, none) : zip_lower<uint16_t>(v, none)));
  } else {
    return [&]<int... kLane>(std::integer_sequence<int, kLane...>) SIMDATTN_LAMBDA {
      constexpr int kFirst = kSecond ? kLanes / 2 : 0;
      const auto half = __builtin_shufflevector(v.numbers(), v.numbers(), kFirst + kLane...);
      return f32_from_f16(__builtin_bit_cast(Halves, half));
    }(std::make_integer_sequence<int, kLanes / 2>());
  }
#endif
}

/// Rounded to nearest even to a number of bf16, anything below it; NaN becomes the canonical one. By integers: the
/// CPUs' own instructions flush subnormal numbers.
SIMDATTN_INLINE Bits32 rounded_above(Floats v) {
  const Bits32 b = bits_of(v);
  const Bits32 rounded = b + (((b >> 16) & Bits32(1u)) + Bits32(0x7FFFu));
  return bits_of(select(v == v, float_of(rounded), float_of(Bits32(kCanonicalNaN))));
}
SIMDATTN_INLINE Floats rounded_to_bf16(Floats v) { return float_of(rounded_above(v) & Bits32(0xFFFF0000u)); }
#if !SIMDATTN_MASK_REGISTERS
SIMDATTN_INLINE Halves upper_bits(Bits32 v) { return narrow_bits(v >> 16); }
#endif

SIMDATTN_INLINE const uint16_t* raw(const bf16* p) { return reinterpret_cast<const uint16_t*>(p); }
SIMDATTN_INLINE const uint16_t* raw(const f16* p) { return reinterpret_cast<const uint16_t*>(p); }
SIMDATTN_INLINE uint16_t* raw(bf16* p) { return reinterpret_cast<uint16_t*>(p); }
SIMDATTN_INLINE uint16_t* raw(f16* p) { return reinterpret_cast<uint16_t*>(p); }

#if !SIMDATTN_AVX2
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) { return float_of(widen_bits(v) << 16); }
#endif
SIMDATTN_INLINE Halves bf16_from_f32(Floats v) { return upper_bits(rounded_above(v)); }

/// Widened; lanes that take no part are 0.
template <class Part = All>
SIMDATTN_INLINE Floats load(const bf16* p, Part part = {}) {
  return f32_from_bf16(load_halves(raw(p), part));
}
template <class Part = All>
SIMDATTN_INLINE Floats load(const f16* p, Part part = {}) {
  return f32_from_f16(load_halves(raw(p), part));
}

/// Rounded to nearest even; NaN is stored as the canonical one of the type.
template <class Part = All>
SIMDATTN_INLINE void store_rounded(Floats v, float* p, Part part = {}) {
  store(canonical_nan(v), p, part);
}
template <class Part = All>
SIMDATTN_INLINE void store_rounded(Floats v, bf16* p, Part part = {}) {
  store_halves(bf16_from_f32(v), raw(p), part);
}
template <class Part = All>
SIMDATTN_INLINE void store_rounded(Floats v, f16* p, Part part = {}) {
  store_halves(f16_from_f32(v), raw(p), part);
}

#if !SIMDATTN_MASK_REGISTERS
/// Lanes whose byte is not 0.
template <class Part>
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, Part part) {
  return greater(cast_bits<int32_t>(load_bytes(p, part)), Ints(0));
}
SIMDATTN_INLINE Bits32 lane_bits() {
  alignas(64) static constexpr uint32_t kBits[16] = {0x1,   0x2,   0x4,   0x8,   0x10,   0x20,   0x40,   0x80,
                                                     0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000};
  return Bits32::load_unaligned(kBits);
}
/// Lanes whose bit of `word` is 1.
SIMDATTN_INLINE Mask one_bits(uint32_t word) {
  const Bits32 own = lane_bits();
  return equal(Bits32(word) & own, own);
}
#if !SIMDATTN_X86 && (SIMDATTN_NEON || !SIMDATTN_HIGHWAY_ORDER)
/// Bit i: lane i.
SIMDATTN_INLINE uint32_t word_of(Mask m) {
  return fold_lanes(select(m, lane_bits(), Bits32(0u)), [](Bits32 a, Bits32 b) SIMDATTN_LAMBDA { return a | b; });
}
#endif
#endif

/// Half a unit of bf16 is added to v's bits: the upper words are numbers then, rounded up where the lower ones are 0.
SIMDATTN_INLINE Bits32 plus_half(Floats v) { return bits_of(v) + Bits32(0x8000u); }
/// Vectors without NaN rounded to bf16: side by side, and one behind the other.
SIMDATTN_INLINE void store_pairs(Floats even, Floats odd, bf16* p) {
  const Bits32 e = plus_half(even), o = plus_half(odd);
  ties_to_even(upper_words(e, o), lower_words(e, o)).store_unaligned(raw(p));
}
SIMDATTN_INLINE void store_numbers(Floats v0, Floats v1, bf16* p) {
  const Bits32 b0 = plus_half(v0), b1 = plus_half(v1);
#if SIMDATTN_AVX2 && !SIMDATTN_AVX512
  // Two shuffles sort both halves of all words, which odds() and evens() would do by themselves.
  const auto upper_then_lower = [](Bits32 v) SIMDATTN_LAMBDA {
    return lanes_from<uint8_t>(v, v,
                               [](size_t i) { return i / 16 * 16 + i % 8 / 2 * 4 + (i % 16 < 8 ? 2 : 0) + i % 2; });
  };
  const Bits32 s0 = upper_then_lower(b0), s1 = upper_then_lower(b1);
  const Bits16 blocks =
      ties_to_even(cast_bits<uint16_t>(zip_lo<uint64_t>(s0, s1)), cast_bits<uint16_t>(zip_hi<uint64_t>(s0, s1)));
  lanes_from<uint64_t>(blocks, blocks, [](size_t i) { return i % 2 * 2 + i / 2; }).store_unaligned(raw(p));
#else
  const Bits32 upper = odds<uint16_t>(b0, b1), lower = evens<uint16_t>(b0, b1);
  ties_to_even(cast_bits<uint16_t>(upper), cast_bits<uint16_t>(lower)).store_unaligned(raw(p));
#endif
}

/// kLanes pairs of bf16, and their even and odd numbers: one operation each, where widening in order takes two.
SIMDATTN_INLINE Bits32 load_pairs(const bf16* p) { return cast_bits<uint32_t>(Bits16::load_unaligned(raw(p))); }
SIMDATTN_INLINE Floats shifted_even_of(Bits32 pairs) { return float_of(pairs << 16); }
SIMDATTN_INLINE Floats shifted_odd_of(Bits32 pairs) {
  // Two shifts, as a mask takes a register for its bits; the compiler must not make them a mask.
  Bits32 halves = pairs >> 16;
#if SIMDATTN_NEON || SIMDATTN_SVE
  halves = in_register(halves);
#endif
  return float_of(halves << 16);
}
#if SIMDATTN_NEON || SIMDATTN_SVE
// ARM's cores shift on half of the pipes that multiply and add. All of them put a number behind a zero, which takes a
// register: tiles that have none left take the shifts.
SIMDATTN_INLINE Floats even_of(Bits32 pairs) { return float_of(cast_bits<uint32_t>(lower_words(Bits32(0u), pairs))); }
SIMDATTN_INLINE Floats odd_of(Bits32 pairs) { return float_of(cast_bits<uint32_t>(upper_words(Bits32(0u), pairs))); }
#else
#if !SIMDATTN_AVX2 || SIMDATTN_AVX512
SIMDATTN_INLINE Floats even_of(Bits32 pairs) { return shifted_even_of(pairs); }
#endif
SIMDATTN_INLINE Floats odd_of(Bits32 pairs) { return float_of(pairs & Bits32(0xFFFF0000u)); }
#endif

}  // namespace
}  // namespace simdattn
