// What instruction sets have in common and Highway has for all of them: some lanes, bytes and 16-bit numbers, blocks,
// order. native/ may have its own for a target, with the reason. Not for SVE, whose loads convert (native/sve.h).
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// As many lanes as Floats have, of another size.
template <class T>
using Small = hn::Rebind<T, Tag<float>>;

#if SIMDATTN_AVX2
struct Lanes {
  Mask mask;
  int64_t from, to;  // for types without masked access
};
#if SIMDATTN_AVX512
/// Lanes whose bit of `word` is 1. Masks are numbers here, whatever the size of a lane.
SIMDATTN_INLINE Mask one_bits(uint32_t word) {
  uint8_t bytes[8] = {};
  __builtin_memcpy(bytes, &word, sizeof word);
  return Mask(hn::LoadMaskBits(Tag<float>(), bytes));
}
#endif
SIMDATTN_INLINE Mask first_of(int64_t n) {
  // FirstN takes any number: three instructions more, unless compilers know better, which costs AVX-512 some in loops.
#if SIMDATTN_AVX512
  return one_bits((1u << n) - 1);
#else
  if (n < 0 || n > kLanes) __builtin_unreachable();
  return Mask(hn::FirstN(Tag<float>(), static_cast<size_t>(n)));
#endif
}
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {first_of(n), 0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) {
  return {Mask(hn::AndNot(lib(first_of(from)), lib(first_of(to)))), from, to};
}
SIMDATTN_INLINE Mask mask_of(Lanes part) { return part.mask; }
SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return hn::MaskedLoad(lib(part.mask), Tag<float>(), p); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  hn::BlendedStore(lib(v), lib(part.mask), Tag<float>(), p);
}
#endif

using Halves = hn::Vec<Small<uint16_t>>;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return hn::LoadU(Small<uint16_t>(), p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { hn::StoreU(v, Small<uint16_t>(), p); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return hn::PromoteTo(Tag<uint32_t>(), v); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) {
  // Either is right, as lanes are below 2^16. Without AVX-512 x86 has saturation alone.
  if constexpr (kX86 && !kAvx512) return hn::DemoteTo(Small<uint16_t>(), lib_as<int32_t>(v));
  else return hn::TruncateTo(Small<uint16_t>(), lib(v));
}
#if !SIMDATTN_F16_BY_INTEGERS
SIMDATTN_INLINE Floats f32_from_f16(Halves v) {
  return hn::PromoteTo(Tag<float>(), hn::BitCast(Small<hwy::float16_t>(), v));
}
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  return hn::BitCast(Small<uint16_t>(), hn::DemoteTo(Small<hwy::float16_t>(), lib(v)));
}
#endif
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return hn::PromoteTo(Tag<uint32_t>(), hn::LoadU(Small<uint8_t>(), p));
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return hn::PromoteTo(Tag<int32_t>(), hn::LoadU(Small<int8_t>(), reinterpret_cast<const int8_t*>(p)));
}

#if SIMDATTN_AVX512
SIMDATTN_INLINE auto narrow_mask(Lanes part) {
  return hn::DemoteMaskTo(Small<uint16_t>(), Tag<float>(), lib(part.mask));
}
SIMDATTN_INLINE auto byte_mask(Lanes part) { return hn::DemoteMaskTo(Small<uint8_t>(), Tag<float>(), lib(part.mask)); }
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  return hn::MaskedLoad(narrow_mask(part), Small<uint16_t>(), p);
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  hn::BlendedStore(v, narrow_mask(part), Small<uint16_t>(), p);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  return hn::PromoteTo(Tag<uint32_t>(), hn::MaskedLoad(byte_mask(part), Small<uint8_t>(), p));
}
template <class V>
SIMDATTN_INLINE Mask nonzero(V bytes) {
  return Mask(hn::PromoteMaskTo(Tag<float>(), Small<uint8_t>(), hn::Ne(bytes, hn::Zero(Small<uint8_t>()))));
}
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, All) { return nonzero(hn::LoadU(Small<uint8_t>(), p)); }
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, Lanes part) {
  return nonzero(hn::MaskedLoad(byte_mask(part), Small<uint8_t>(), p));
}
/// One shuffle in place of a shift and two.
SIMDATTN_INLINE Halves upper_bits(Bits32 v) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return hn::LowerHalf(hn::TableLookupLanes(lib_as<uint16_t>(v), hn::SetTableIndices(Tag<uint16_t>(), kOdd)));
}
SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) {
  return hn::MaskedAddOr(lib(other), lib(m), lib(a), lib(b));
}
SIMDATTN_INLINE Floats lane_of(Floats table, Bits32 index) {
  return hn::TableLookupLanes(lib(table), hn::IndicesFromVec(Tag<float>(), lib(index)));
}
#endif

#if !SIMDATTN_AVX2
SIMDATTN_INLINE Ints nearest(Floats v) { return hn::NearestInt(lib(v)); }
#endif
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) {
  const hn::Rebind<int8_t, Tag<int16_t>> bytes;
  const auto numbers = hn::PromoteTo(Tag<int16_t>(), hn::LoadU(bytes, reinterpret_cast<const int8_t*>(p)));
  // A shift by one count for all lanes would take a shuffle besides on x86.
  return own_as<uint16_t>(hn::Mul(numbers, hn::Set(Tag<int16_t>(), static_cast<int16_t>(1 << n))));
}
#if SIMDATTN_AVX2
/// A shift and a mask would take a port of multiply-adds each.
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  constexpr uint8_t z = 128;  // above i: a byte of zeros
  const auto order =
      hn::Dup128VecFromValues(Tag<uint8_t>(), z, z, z, i, z, z, z, i + 4, z, z, z, i + 8, z, z, z, i + 12);
  return own_as<uint32_t>(hn::TableLookupBytesOr0(lib_as<uint8_t>(v), order));
}
/// Both k have their shuffles in common; by ConcatEven a token over keys of fp8 takes 9 % longer on AVX2.
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
#if SIMDATTN_AVX512
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                      1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const Bits16 words = hn::TableLookupLanes(lib_as<uint16_t>(v), hn::SetTableIndices(Tag<uint16_t>(), kOrder));
#else
  alignas(32) static constexpr uint64_t kBlocks[4] = {0, 2, 1, 3};
  const auto order = hn::Dup128VecFromValues(Tag<uint8_t>(), 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const auto sorted = hn::BitCast(Tag<uint64_t>(), hn::TableLookupBytes(lib_as<uint8_t>(v), order));
  const Bits16 words = own_as<uint16_t>(hn::TableLookupLanes(sorted, hn::SetTableIndices(Tag<uint64_t>(), kBlocks)));
#endif
  return k == 0 ? words << 8 : words;
}
#endif
#if SIMDATTN_X86
/// In each block the lanes of four vectors, each a byte.
template <bool kUnsigned>
SIMDATTN_INLINE Ints packed_bytes(Ints v0, Ints v1, Ints v2, Ints v3) {
  const auto low = hn::ReorderDemote2To(Tag<int16_t>(), lib(v0), lib(v1));
  const auto high = hn::ReorderDemote2To(Tag<int16_t>(), lib(v2), lib(v3));
  using Byte = std::conditional_t<kUnsigned, uint8_t, int8_t>;
  return own_as<int32_t>(hn::ReorderDemote2To(Tag<Byte>(), low, high));
}
#endif
/// Two operations, and no constant but 1.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return hn::AndNot(hn::SaturatedSub(lib(Bits16(uint16_t{1})), lib(lower)), lib(upper));
}

/// The first n bytes at p, then zeros.
SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  return own_as<float>(hn::LoadN(Tag<uint8_t>(), reinterpret_cast<const uint8_t*>(p), static_cast<size_t>(n)));
}
/// out[i] = table[n], where n is the lower nibble of codes[i] for i < 16, else the upper one of codes[i - 16].
SIMDATTN_INLINE void look_up_nibbles(const int8_t* table, const uint8_t* codes, uint8_t* out) {
  const hn::Full128<uint8_t> d;
  const auto numbers = hn::LoadU(d, reinterpret_cast<const uint8_t*>(table)), w = hn::LoadU(d, codes);
  hn::StoreU(hn::TableLookupBytes(numbers, hn::And(w, hn::Set(d, uint8_t{15}))), d, out);
  hn::StoreU(hn::TableLookupBytes(numbers, hn::ShiftRight<4>(w)), d, out + 16);
}

/// x in all of them.
SIMDATTN_INLINE Halves repeated_half(uint16_t x) { return hn::Set(Small<uint16_t>(), x); }

#if SIMDATTN_PAIRS_OF_HIGHWAY
/// sum + more += x column: of two numbers of 16 bits, both signed.
template <bool kWeights>
SIMDATTN_INLINE void add_products(Ints& sum, Ints& more, Ints x, Ints column) {
  const auto a = lib_as<int16_t>(x), b = lib_as<int16_t>(column);
  auto further = lib(more);
  sum = hn::ReorderWidenMulAccumulate(Tag<int32_t>(), a, b, lib(sum), further);
  more = further;
}
SIMDATTN_INLINE Ints total(Ints sum, Ints more) { return hn::RearrangeToOddPlusEven(lib(sum), lib(more)); }
#endif

#if SIMDATTN_HIGHWAY_ORDER
// Where vectors have a length of their own, compilers know more of it than the library says.
// On NEON the compiler's sequence (memory.h) takes 4 % less in top_k by the model of M1.
#if SIMDATTN_AVX512 || !(SIMDATTN_AVX2 || SIMDATTN_NEON)
SIMDATTN_INLINE uint32_t word_of(Mask m) {
  uint8_t bytes[8];  // a register: Highway writes to memory that compilers see
  hn::StoreMaskBits(Tag<float>(), lib(m), bytes);
  std::conditional_t<kLanes == 16, uint16_t, uint8_t> word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return word;
}
#endif

template <class Address>
SIMDATTN_INLINE Floats load_blocks_at(const Address& address) {
  const auto at = [&](int64_t b) SIMDATTN_LAMBDA {
    return hn::LoadU(hn::Full128<float>(), reinterpret_cast<const float*>(address(b)));
  };
  if constexpr (kLanes == 4) {
    return at(0);
  } else if constexpr (kLanes == 8) {
    return hn::Combine(Tag<float>(), at(1), at(0));
  } else {
    const auto v = hn::InsertBlock<1>(hn::ResizeBitCast(Tag<float>(), at(0)), at(1));
    return hn::InsertBlock<3>(hn::InsertBlock<2>(v, at(2)), at(3));
  }
}

// Order. On x86 lanes are taken for integers, whatever they hold: their shuffles have two ports where those of floating
// point have one.
template <class T>
using Lane = hwy::MakeUnsigned<T>;
template <class T, class U>
SIMDATTN_INLINE Batch<U> zip_lo(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::InterleaveLower(Tag<L>(), lib_as<L>(a), lib_as<L>(b)));
}
template <class T, class U>
SIMDATTN_INLINE Batch<U> zip_hi(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::InterleaveUpper(Tag<L>(), lib_as<L>(a), lib_as<L>(b)));
}
SIMDATTN_INLINE Floats lower_halves(Floats a, Floats b) { return hn::ConcatLowerLower(Tag<float>(), lib(b), lib(a)); }
SIMDATTN_INLINE Floats upper_halves(Floats a, Floats b) { return hn::ConcatUpperUpper(Tag<float>(), lib(b), lib(a)); }
/// The even (odd) lanes of a, then those of b. Lanes are as wide as T.
template <class T, class U>
SIMDATTN_INLINE Batch<U> evens(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::ConcatEven(Tag<L>(), lib_as<L>(b), lib_as<L>(a)));
}
template <class T, class U>
SIMDATTN_INLINE Batch<U> odds(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::ConcatOdd(Tag<L>(), lib_as<L>(b), lib_as<L>(a)));
}
template <class T = float, class U>
SIMDATTN_INLINE Batch<U> zip_lower(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::InterleaveWholeLower(Tag<L>(), lib_as<L>(a), lib_as<L>(b)));
}
template <class T = float, class U>
SIMDATTN_INLINE Batch<U> zip_upper(Batch<U> a, Batch<U> b) {
  using L = Lane<T>;
  return own_as<U>(hn::InterleaveWholeUpper(Tag<L>(), lib_as<L>(a), lib_as<L>(b)));
}
#if !SIMDATTN_AVX2
SIMDATTN_INLINE Floats even_twice(Floats v) { return hn::DupEven(lib(v)); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return hn::DupOdd(lib(v)); }
#endif
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf, class T>
SIMDATTN_INLINE Batch<T> swap_lanes(Batch<T> v) {
  if constexpr (kHalf == 1) return hn::Shuffle2301(lib(v));
  else if constexpr (kHalf == 2) return hn::Shuffle1032(lib(v));
  else if constexpr (kHalf == 4) return hn::SwapAdjacentBlocks(lib(v));
  else return hn::ConcatLowerUpper(Tag<T>(), lib(v), lib(v));
}
/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {
  if constexpr (kX86) return hn::OddEven(lib_as<uint16_t>(o << 16), lib_as<uint16_t>(e));
  else return hn::InterleaveEven(Tag<uint16_t>(), lib_as<uint16_t>(e), lib_as<uint16_t>(o));
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  if constexpr (kX86) return hn::OddEven(lib_as<uint16_t>(o), lib_as<uint16_t>(e >> 16));
  else return hn::InterleaveOdd(Tag<uint16_t>(), lib_as<uint16_t>(e), lib_as<uint16_t>(o));
}
#endif
/// Of unsigned bytes.
SIMDATTN_INLINE Bits32 max_bytes(Bits32 a, Bits32 b) {
  return own_as<uint32_t>(hn::Max(lib_as<uint8_t>(a), lib_as<uint8_t>(b)));
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) {
  return own_as<int32_t>(hn::ShiftRight<8>(hn::ShiftLeft<8>(lib_as<int16_t>(v))));
}
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return own_as<int32_t>(hn::ShiftRight<8>(lib_as<int16_t>(v))); }
/// Signed numbers, towards -infinity.
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) {
  const auto numbers = lib_as<int16_t>(v);
  // With AVX-512 one count for all lanes would take a shuffle besides.
  if constexpr (kAvx512) return own_as<uint16_t>(hn::Shr(numbers, hn::Set(Tag<int16_t>(), static_cast<int16_t>(n))));
  else return own_as<uint16_t>(hn::ShiftRightSame(numbers, n));
}

}  // namespace
}  // namespace simdattn
