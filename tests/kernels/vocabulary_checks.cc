// Every operation of lib/simd beside plain C++. Compiled once per row of the targets, with the row's adapter and flags;
// nothing here is shared with other rows but the function that it exports.
#include <cmath>
#include <cstring>

#include "lib/contract/fma.h"
#include "lib/simd/blocks.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"
#include "tests/kernels/vocabulary.h"

namespace simdattn {
namespace {

constexpr int64_t kMost = 16;  // lanes
constexpr int64_t kCount = 64;

/// Bits of numbers with edges: NaN of both signs, infinities, zeros, subnormal and extreme numbers, ties of bf16 and
/// f16.
constexpr uint32_t kBits[kCount] = {
    0x00000000u, 0x80000000u, 0x7FC00000u, 0xFFC00001u, 0x7F800000u, 0xFF800000u, 0x00000001u, 0x807FFFFFu,
    0x00800000u, 0x80800000u, 0x7F7FFFFFu, 0xFF7FFFFFu, 0x3F800000u, 0xBF800000u, 0x3F808000u, 0x3F818000u,
    0x3F807FFFu, 0x3F808001u, 0x40490FDBu, 0xC2C80000u, 0x477FE000u, 0x477FF000u, 0x477FEFFFu, 0xC77FF000u,
    0x38800000u, 0x387FC000u, 0x33800000u, 0x33000000u, 0x33000001u, 0x7F800001u, 0x42B00000u, 0xC2AEAC50u,
    0x3EAAAAABu, 0xBEAAAAABu, 0x4B000001u, 0xCB000001u, 0x3F000000u, 0x3DCCCCCDu, 0xBDCCCCCDu, 0x41200000u,
    0x40000000u, 0xC0000000u, 0x40400000u, 0x40800000u, 0x447A0000u, 0xC47A0000u, 0x358637BDu, 0xB58637BDu,
    0x3FFFFFFFu, 0x3F7FFFFFu, 0x7F7F8000u, 0x7F7F7FFFu, 0xFF7F8000u, 0x007FFFFFu, 0x80000001u, 0x3A83126Fu,
    0x4E6E6B28u, 0xCE6E6B28u, 0x2B8CBCCCu, 0xAB8CBCCCu, 0x3C23D70Au, 0x42F6E979u, 0xC2F6E979u, 0x3F99999Au};

float number(int64_t i) { return std::bit_cast<float>(kBits[i & (kCount - 1)]); }
bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (is_nan(a) && is_nan(b));
}

struct Checks {
  VocabularyReport report;
  int64_t at = 0;  // which numbers

  void expect(bool good, const char* operation, int64_t lane) const {
    if (!good) report(operation, at, lane);
  }
  template <class F>
  void floats(const char* operation, Floats got, const F& want) const {
    float y[kMost];
    store(got, y);
    for (int64_t i = 0; i < kLanes; ++i) expect(same(y[i], want(i)), operation, i);
  }
  /// Every bit, of NaN too.
  template <class F>
  void bits(const char* operation, Bits32 got, const F& want) const {
    uint32_t y[kMost];
    got.store_unaligned(y);
    for (int64_t i = 0; i < kLanes; ++i) expect(y[i] == want(i), operation, i);
  }
  template <class F>
  void mask(const char* operation, Mask got, const F& want) const {
    bits(operation, select(got, Bits32(~0u), Bits32(0u)), [&](int64_t i) { return want(i) ? ~0u : 0u; });
  }
};

void check_arithmetic(const Checks& c, const float* x, const float* y, const float* z) {
  const Floats a = load(x), b = load(y), d = load(z);
#if defined(__FMA__) || SIMDATTN_PLAIN || !(defined(__SSE2__) || defined(__wasm__))
  constexpr bool kFused = true;
#else
  constexpr bool kFused = false;
#endif
  // Without fused multiply-add there are two roundings.
  const auto mul_add_of = [](float p, float q, float r) { return kFused ? simdattn::fma(p, q, r) : p * q + r; };
  c.floats("a number in every lane", Floats(x[0]), [&](int64_t) { return x[0]; });
  c.floats("+", a + b, [&](int64_t i) { return x[i] + y[i]; });
  c.floats("-", a - b, [&](int64_t i) { return x[i] - y[i]; });
  c.floats("*", a * b, [&](int64_t i) { return x[i] * y[i]; });
  c.floats("quotient", quotient(a, b), [&](int64_t i) { return x[i] / y[i]; });
  c.floats("mul_add", mul_add(a, b, d), [&](int64_t i) { return mul_add_of(x[i], y[i], z[i]); });
  c.bits("abs", bits_of(abs(a)), [&](int64_t i) { return std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu; });
  // Bits are chosen: of +0 and -0 an emulated XSMAXCDP, which a choice of numbers becomes on Power, takes the wrong one
  // (qemu 7.2).
  c.bits("max_number", bits_of(max_number(a, select(b == b, b, Floats(0.0f)))), [&](int64_t i) {
    const float m = is_nan(y[i]) ? 0.0f : y[i];
    return x[i] > m ? std::bit_cast<uint32_t>(x[i]) : std::bit_cast<uint32_t>(m);
  });
  const Mask above = a > b;
  c.floats("sum_where", sum_where(above, a, b, d), [&](int64_t i) { return x[i] > y[i] ? x[i] + y[i] : z[i]; });
  c.mask("==", a == b, [&](int64_t i) { return x[i] == y[i]; });
  c.mask("!=", a != b, [&](int64_t i) { return x[i] != y[i]; });
  c.mask("<", a < b, [&](int64_t i) { return x[i] < y[i]; });
  c.mask(">", a > b, [&](int64_t i) { return x[i] > y[i]; });
  c.mask("& of masks", (a < b) & (b < d), [&](int64_t i) { return x[i] < y[i] && y[i] < z[i]; });
  c.mask("| of masks", (a < b) | (b < d), [&](int64_t i) { return x[i] < y[i] || y[i] < z[i]; });
  c.mask("~ of a mask", ~(a < b), [&](int64_t i) { return !(x[i] < y[i]); });
  c.bits("select", bits_of(select(a < b, a, b)),
         [&](int64_t i) { return std::bit_cast<uint32_t>(x[i] < y[i] ? x[i] : y[i]); });
  c.bits("canonical_nan", bits_of(canonical_nan(a)),
         [&](int64_t i) { return std::bit_cast<uint32_t>(canonical(x[i])); });
  c.mask("finite", finite(a), [&](int64_t i) { return std::isfinite(x[i]); });
  bool any_less = false, all_less = true;
  for (int64_t i = 0; i < kLanes; ++i) any_less |= x[i] < y[i], all_less &= x[i] < y[i];
  c.expect(any(a < b) == any_less, "any", 0);
  c.expect(all(a < b) == all_less, "all", 0);
  c.floats("in_register", in_register(a), [&](int64_t i) { return x[i]; });
}

void check_bits(const Checks& c, const uint32_t* x, const uint32_t* y) {
  const Bits32 a = Bits32::load_unaligned(x), b = Bits32::load_unaligned(y);
  const Ints i_a = cast_bits<int32_t>(a), i_b = cast_bits<int32_t>(b);
  const auto sign = [](uint32_t v) { return static_cast<int32_t>(v); };
  c.bits("+ of bits", a + b, [&](int64_t i) { return x[i] + y[i]; });
  c.bits("- of bits", a - b, [&](int64_t i) { return x[i] - y[i]; });
  c.bits("&", a & b, [&](int64_t i) { return x[i] & y[i]; });
  c.bits("|", a | b, [&](int64_t i) { return x[i] | y[i]; });
  c.bits("^", a ^ b, [&](int64_t i) { return x[i] ^ y[i]; });
  c.bits("<<", a << 16, [&](int64_t i) { return x[i] << 16; });
  c.bits(">>", a >> 13, [&](int64_t i) { return x[i] >> 13; });
  c.mask("greater", greater(i_a, i_b), [&](int64_t i) { return sign(x[i]) > sign(y[i]); });
  c.mask("at_least", at_least(i_a, i_b), [&](int64_t i) { return sign(x[i]) >= sign(y[i]); });
  c.mask("equal", equal(a, b), [&](int64_t i) { return x[i] == y[i]; });
  c.bits("min of integers", cast_bits<uint32_t>(min(i_a, i_b)),
         [&](int64_t i) { return sign(x[i]) < sign(y[i]) ? x[i] : y[i]; });
  c.bits("max of integers", cast_bits<uint32_t>(max(i_a, i_b)),
         [&](int64_t i) { return sign(x[i]) > sign(y[i]) ? x[i] : y[i]; });
  c.bits("max of bits", max(a, b), [&](int64_t i) { return x[i] > y[i] ? x[i] : y[i]; });
  c.bits("abs of integers", cast_bits<uint32_t>(abs(i_a)), [&](int64_t i) { return sign(x[i]) < 0 ? 0 - x[i] : x[i]; });
  c.floats("to_float", to_float(i_a), [&](int64_t i) { return static_cast<float>(sign(x[i])); });
  c.bits("lane_numbers", cast_bits<uint32_t>(lane_numbers()), [&](int64_t i) { return static_cast<uint32_t>(i); });
  c.mask("one_bits", one_bits(x[0]), [&](int64_t i) { return (x[0] >> i & 1) != 0; });
  uint32_t word = 0;
  for (int64_t i = 0; i < kLanes; ++i) word |= (x[i] == y[i] || (x[i] & 1) != 0 ? 1u : 0u) << i;
  c.expect(word_of(equal(a, b) | equal(a & Bits32(1u), Bits32(1u))) == word, "word_of", 0);
  bool any_32 = false, any_16 = false;
  for (int64_t i = 0; i < kLanes; ++i) {
    any_32 |= x[i] >= 0x7F7F8000u;
    any_16 |= (x[i] & 0xFFFFu) >= 0x7F80u || x[i] >> 16 >= 0x7F80u;
  }
  c.expect(any_at_least(a, 0x7F7F8000u) == any_32, "any_at_least of 32 bits", 0);
  c.expect(any_at_least(cast_bits<uint16_t>(a), uint16_t{0x7F80}) == any_16, "any_at_least of 16 bits", 0);
}

/// Whole and in part: lanes outside are zeros when loaded, and memory outside keeps its bytes.
template <class T>
void check_memory(const Checks& c, const float* x) {
  T narrow[3 * kMost];
  for (int64_t i = 0; i < 3 * kMost; ++i) narrow[i] = from_f32<T>(x[i]);
  c.bits("load", bits_of(load(narrow)), [&](int64_t i) { return std::bit_cast<uint32_t>(to_f32(narrow[i])); });
  if constexpr (std::is_same_v<T, f16> && kInstructions != Instructions::kSse && kLoadsBlocks) {
    const Floats halves = Floats::load_unaligned(narrow);
    c.floats("f32_of_half", f32_of_half<false>(halves), [&](int64_t i) { return to_f32(narrow[i]); });
    c.floats("f32_of_half", f32_of_half<true>(halves), [&](int64_t i) { return to_f32(narrow[i + kLanes]); });
  }
  T out[kMost + 2], kept;
  const auto stored = [&](const char* operation, Floats v, int64_t from, int64_t to, auto part) {
    std::memset(out, 0x5A, sizeof out);
    std::memcpy(&kept, out, sizeof kept);
    store_rounded(v, out + 1, part);
    for (int64_t i = -1; i <= kLanes; ++i) {
      const T want = from <= i && i < to ? from_f32<T>(x[i]) : kept;
      c.expect(std::memcmp(out + 1 + i, &want, sizeof want) == 0, operation, i);
    }
  };
  stored("store_rounded", load(x), 0, kLanes, All());
  for (int64_t from = 0; from <= kLanes; ++from) {
    for (int64_t to = from; to <= kLanes; ++to) {
      const Lanes part = from == 0 ? first_lanes(to) : lanes(from, to);
      c.mask("mask_of", mask_of(part), [&](int64_t i) { return from <= i && i < to; });
      c.bits("load in part", bits_of(load(narrow, part)),
             [&](int64_t i) { return from <= i && i < to ? std::bit_cast<uint32_t>(to_f32(narrow[i])) : 0u; });
      stored("store_rounded in part", load(x), from, to, part);
    }
  }
}

void check_halves(const Checks& c, const float* x) {
  c.bits("rounded_to_bf16", bits_of(rounded_to_bf16(load(x))),
         [&](int64_t i) { return std::bit_cast<uint32_t>(to_f32(from_f32<bf16>(x[i]))); });
  bf16 pairs[2 * kMost], out[2 * kMost];
  for (int64_t i = 0; i < 2 * kLanes; ++i) pairs[i] = from_f32<bf16>(x[i]);
  const auto bits_at = [&](int64_t i) { return uint32_t{pairs[i].bits} << 16; };
  const Bits32 both = load_pairs(pairs);
  c.bits("even_of", bits_of(even_of(both)), [&](int64_t i) { return bits_at(2 * i); });
  c.bits("shifted_even_of", bits_of(shifted_even_of(both)), [&](int64_t i) { return bits_at(2 * i); });
  c.bits("shifted_odd_of", bits_of(shifted_odd_of(both)), [&](int64_t i) { return bits_at(2 * i + 1); });
  c.bits("odd_of", bits_of(odd_of(both)), [&](int64_t i) { return bits_at(2 * i + 1); });
  float numbers[2 * kMost];  // without NaN
  for (int64_t i = 0; i < 2 * kLanes; ++i) numbers[i] = is_nan(x[i]) ? 1.5f : x[i];
  const Floats low = load(numbers), high = load(numbers + kLanes);
  store_numbers(low, high, out);
  for (int64_t i = 0; i < 2 * kLanes; ++i) c.expect(out[i].bits == from_f32<bf16>(numbers[i]).bits, "store_numbers", i);
  store_pairs(low, high, out);
  for (int64_t i = 0; i < 2 * kLanes; ++i) {
    c.expect(out[i].bits == from_f32<bf16>(numbers[i / 2 + i % 2 * kLanes]).bits, "store_pairs", i);
  }
  uint8_t bytes[kMost];
  for (int64_t i = 0; i < kMost; ++i) bytes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
  c.mask("nonzero_bytes", nonzero_bytes(bytes, All()), [&](int64_t i) { return bytes[i] != 0; });
  uint32_t x32[kMost + 1];
  std::memcpy(x32, x, sizeof x32);
  c.bits("load_integers", cast_bits<uint32_t>(load_integers(bytes)),
         [&](int64_t i) { return static_cast<uint32_t>(static_cast<int8_t>(bytes[i])); });
  c.bits("load_bytes", load_bytes(bytes, All()), [&](int64_t i) { return uint32_t{bytes[i]}; });
  constexpr int8_t kTable[16] = {-128, 7, -1, 0, 99, 127, 5, -77, 1, 64, -64, 3, 33, -100, 12, 88};
  uint8_t found[32];
  look_up_nibbles(kTable, bytes, found);
  for (int64_t i = 0; i < 32; ++i) {
    c.expect(static_cast<int8_t>(found[i]) == kTable[bytes[i % 16] >> i / 16 * 4 & 15], "look_up_nibbles", i);
  }
  if constexpr (kLoadsBlocks) {
    const Bits32 units = Bits32::load_unaligned(x32);
    const auto byte = [&](int64_t lane, int64_t k) { return x32[lane] >> (8 * k) & 255; };
    unroll<4>([&](auto k) { c.bits("upper_byte", upper_byte<k>(units), [&](int64_t i) { return byte(i, k) << 24; }); });
    const auto words = [&](const char* operation, Bits16 got, const auto& want) {
      uint16_t y[2 * kMost];
      got.store_unaligned(y);
      for (int64_t i = 0; i < 2 * kLanes; ++i) c.expect(y[i] == want(i), operation, i);
    };
    const Bits16 upper(0xFF00);
    words("upper_bytes", upper_bytes<0>(units) & upper,
          [&](int64_t i) { return byte(i % kLanes, i / kLanes * 2) << 8; });
    words("upper_bytes", upper_bytes<1>(units) & upper,
          [&](int64_t i) { return byte(i % kLanes, 1 + i / kLanes * 2) << 8; });
    const auto* const all = reinterpret_cast<const uint8_t*>(x32);
    for (const int n : {7, 8}) {
      words("load_scaled_bytes", load_scaled_bytes(all, n),
            [&](int64_t i) { return static_cast<uint16_t>(static_cast<int8_t>(all[i]) * (1 << n)); });
    }
    for (const int n : {0, 1}) {
      words("signed_shift", signed_shift(cast_bits<uint16_t>(units), n),
            [&](int64_t i) { return static_cast<uint16_t>(static_cast<int16_t>(x32[i / 2] >> (i % 2 * 16)) >> n); });
    }
    const Bits32 others = Bits32::load_unaligned(x32 + 1);
    uint32_t most[kMost];
    max_bytes(units, others).store_unaligned(most);
    for (int64_t i = 0; i < 4 * kLanes; ++i) {
      const uint8_t got = reinterpret_cast<const uint8_t*>(most)[i];
      c.expect(got == (all[i] > all[i + 4] ? all[i] : all[i + 4]), "max_bytes", i);
    }
  }
  if constexpr (kAvx512) {
    float four[4];
    widen_four(0x7BFF0001C0003C00u, four);
    const float want[] = {1.0f, -2.0f, 0x1p-24f, 65504.0f};
    for (int64_t i = 0; i < 4; ++i) c.expect(four[i] == want[i], "widen_four", i);
  }
  c.floats("repeated_half", f32_from_f16(repeated_half(uint16_t{0xABCD})), [](int64_t) { return to_f32(f16{0xABCD}); });
  for (int64_t n = 0; n <= kLanes; ++n) {
    c.bits("load_bytes in part", load_bytes(bytes, first_lanes(n)),
           [&](int64_t i) { return i < n ? uint32_t{bytes[i]} : 0u; });
    c.mask("nonzero_bytes in part", nonzero_bytes(bytes, first_lanes(n)),
           [&](int64_t i) { return i < n && bytes[i] != 0; });
  }
}

void check_order(const Checks& c, const float* x, const float* y) {
  const Floats a = load(x), b = load(y);
  const auto both = [&](int64_t i) { return i < kLanes ? x[i] : y[i - kLanes]; };
  c.floats("even_lanes", even_lanes(a, b), [&](int64_t i) { return both(2 * i); });
  c.floats("odd_lanes", odd_lanes(a, b), [&](int64_t i) { return both(2 * i + 1); });
  const auto zipped = [&](int64_t i) { return i % 2 == 0 ? x[i / 2] : y[i / 2]; };
  c.floats("zip_lower", zip_lower(a, b), zipped);
  c.floats("zip_upper", zip_upper(a, b), [&](int64_t i) { return zipped(i + kLanes); });
  c.floats("even_twice", even_twice(a), [&](int64_t i) { return x[i & ~int64_t{1}]; });
  c.floats("odd_twice", odd_twice(a), [&](int64_t i) { return x[i | 1]; });
  if constexpr (kAvx512) {
    uint32_t index[kMost];
    std::memcpy(index, x, sizeof index);
    c.floats("lane_of", lane_of(a, bits_of(a)), [&](int64_t i) { return x[index[i] & 15]; });
  }
  unroll<std::countr_zero(static_cast<uint64_t>(kLanes))>([&](auto k) {
    c.floats("swap_lanes", swap_lanes<int64_t{1} << k>(a), [&](int64_t i) { return x[i ^ (int64_t{1} << k)]; });
  });
#if !SIMDATTN_SVE
  // Block b is 4 lanes of row 4 b; squares are transposed within blocks.
  float rows[kMost * 4];
  for (int64_t i = 0; i < kLanes * 4; ++i) rows[i] = static_cast<float>(i);
  transpose_blocks<uint32_t>([&](int64_t k) { return load_blocks(rows + k * 4, 4); },
                             [&](int64_t k, Floats v) {
                               c.floats("transpose_blocks", v,
                                        [&](int64_t i) { return static_cast<float>(4 * i + k); });
                             });
#endif
}

/// What values in rows need: bytes of four rows as cells, columns in their order.
template <bool kExists>
void check_stored_bytes(const Checks& c) {
  if constexpr (kExists) {
    char bytes[2 * 4 * kMost], loaded[4 * kMost];
    for (int64_t i = 0; i < 2 * 4 * kMost; ++i) bytes[i] = static_cast<char>(i + 1);
    const char* const row = bytes;
    for (int64_t n = 1; n <= 4 * kLanes; ++n) {
      const Floats v = load_cells(row, n);
      std::memcpy(loaded, &v, 4 * kLanes);
      for (int64_t i = 0; i < 4 * kLanes; ++i) c.expect(loaded[i] == (i < n ? row[i] : 0), "load_cells", i);
    }
    const Floats a = load_cells(row, 4 * kLanes), b = load_cells(row + 4 * kLanes, 4 * kLanes);
    const auto zipped = [&](const char* operation, Floats v, int64_t half) {
      std::memcpy(loaded, &v, 4 * kLanes);
      for (int64_t i = 0; i < 4 * kLanes; ++i) {
        const int64_t from = i / 16 * 16 + half + i % 16 / 2;
        c.expect(loaded[i] == row[from + (i % 2) * 4 * kLanes], operation, i);
      }
    };
    zipped("zip_lo", zip_lo<uint8_t>(a, b), 0);
    zipped("zip_hi", zip_hi<uint8_t>(a, b), 8);
    // Vector i has columns 4 i .. 4 i + 3 of each 16.
    float columns[4][kMost];
    for (int64_t i = 0; i < 4 * kLanes; ++i) columns[i / 4 % 4][i / 16 * 4 + i % 4] = static_cast<float>(i);
    Floats s0 = load(columns[0]), s1 = load(columns[1]), s2 = load(columns[2]), s3 = load(columns[3]);
    order_columns(s0, s1, s2, s3);
    const Floats sorted[4] = {s0, s1, s2, s3};
    for (int64_t k = 0; k < 4; ++k) {
      c.floats("order_columns", sorted[k], [&](int64_t i) { return static_cast<float>(k * kLanes + i); });
    }
  }
}

/// Two rows of eight bytes by two columns of each block.
template <bool kExists>
void check_matrix(const Checks& c, const int8_t* bytes) {
  if constexpr (kExists) {
    const char* const rows = reinterpret_cast<const char*>(bytes);
    const Ints left = load_group(rows), right = Ints::load_unaligned(reinterpret_cast<const int32_t*>(bytes));
    const auto want = [&](int64_t i, bool weights) {
      const int8_t* const row = bytes + i / 2 % 2 * 8;
      const int8_t* const column = bytes + i / 4 * 16 + i % 2 * 8;
      int64_t sum = 7;
      for (int64_t b = 0; b < 8; ++b) sum += (weights ? static_cast<uint8_t>(row[b]) : row[b]) * column[b];
      return static_cast<uint32_t>(static_cast<int32_t>(sum));
    };
    Ints sum(7), of_weights(7);
    add_matrix_products<false>(sum, left, right);
    add_matrix_products<true>(of_weights, left, right);
    c.bits("add_matrix_products", cast_bits<uint32_t>(sum), [&](int64_t i) { return want(i, false); });
    c.bits("add_matrix_products of weights", cast_bits<uint32_t>(of_weights), [&](int64_t i) { return want(i, true); });
    const auto pair = [&](int64_t i) { return want(i % kLanes, i >= kLanes); };
    c.bits("evens of pairs", cast_bits<uint32_t>(evens<uint64_t>(sum, of_weights)),
           [&](int64_t i) { return pair(i / 2 * 4 + i % 2); });
    c.bits("odds of pairs", cast_bits<uint32_t>(odds<uint64_t>(sum, of_weights)),
           [&](int64_t i) { return pair(i / 2 * 4 + 2 + i % 2); });
  }
}

/// Numbers of bf16 as they are stored.
template <bool kExists>
void check_pairs(const Checks& c) {
  if constexpr (kExists) {
    bf16 pairs[2 * kMost];
    float sums[kMost];
    for (int64_t i = 0; i < 2 * kLanes; ++i)
      pairs[i] = from_f32<bf16>(0.37f * static_cast<float>(i * 7 + c.at) - 20.0f);
    for (int64_t i = 0; i < kLanes; ++i) sums[i] = 1.0f / static_cast<float>(i + 3);
    const float factor = to_f32(from_f32<bf16>(1.3f + static_cast<float>(c.at)));
    const Floats p = float_of(load_pairs(pairs));
    c.floats("mul_add_pairs, even", mul_add_pairs<false>(factor, p, load(sums)),
             [&](int64_t i) { return simdattn::fma(factor, to_f32(pairs[2 * i]), sums[i]); });
    c.floats("mul_add_pairs, odd", mul_add_pairs<true>(factor, p, load(sums)),
             [&](int64_t i) { return simdattn::fma(factor, to_f32(pairs[2 * i + 1]), sums[i]); });
  }
}

uint32_t bits_of_integer(int64_t x) { return static_cast<uint32_t>(static_cast<int32_t>(x)); }

/// Integers of 8 bits: x has them as numbers, rows as bytes.
void check_bytes(const Checks& c, const float* x) {
  float ties[4 * kMost];
  int32_t integers[4 * kMost];
  for (int64_t i = 0; i < 4 * kLanes; ++i) {
    ties[i] = std::isfinite(x[i]) && std::fabs(x[i]) < 1e9f ? x[i] : 0.5f * static_cast<float>(2 * i - 31);
    integers[i] = static_cast<int32_t>(37 * i + 11 * c.at) % 256 - 128;
  }
  const Ints wide[4] = {Ints::load_unaligned(integers), Ints::load_unaligned(integers + kLanes),
                        Ints::load_unaligned(integers + 2 * kLanes), Ints::load_unaligned(integers + 3 * kLanes)};
  c.bits("nearest", cast_bits<uint32_t>(nearest(load(ties))),
         [&](int64_t i) { return bits_of_integer(std::lrint(ties[i])); });
  int8_t bytes[4 * kMost];
  store_bytes<false>(wide[0], wide[1], wide[2], wide[3], bytes);
  for (int64_t i = 0; i < 4 * kLanes; ++i) c.expect(bytes[i] == integers[i], "store_bytes", i);
  const Ints up(128);
  store_bytes<true>(wide[0] + up, wide[1] + up, wide[2] + up, wide[3] + up, bytes);
  for (int64_t i = 0; i < 4 * kLanes; ++i) {
    c.expect(static_cast<uint8_t>(bytes[i]) == integers[i] + 128, "store_bytes, unsigned", i);
  }
  const auto byte_of = [&](int64_t lane, int64_t b) { return integers[b * kLanes + lane]; };
  const Ints cells = cells_of(wide[0], wide[1], wide[2], wide[3]);
  c.bits("cells_of", cast_bits<uint32_t>(cells), [&](int64_t i) {
    uint32_t cell = 0;
    for (int64_t b = 0; b < 4; ++b) cell |= (bits_of_integer(byte_of(i, b)) & 255u) << (8 * b);
    return cell;
  });
  int64_t sum = 0, most = integers[0];
  for (int64_t i = 0; i < kLanes; ++i) sum += integers[i], most = integers[i] > most ? integers[i] : most;
  c.expect(sum_of_lanes(wide[0]) == sum, "sum_of_lanes", 0);
  c.expect(largest_lane(wide[0]) == most, "largest_lane of integers", 0);

  // Factors: weights 0 .. 255 or a query -127 .. 127, the same cell in every lane.
  constexpr bool kPairs = kProducts == Products::kPairs;
  const auto check_products = [&](auto weights, const char* operation) {
    constexpr bool kWeights = weights;
    constexpr bool kFlips = kProducts == (kWeights ? Products::kDotLanes : Products::kDot);
    int32_t q[4];
    uint32_t cell = 0;
    for (int64_t b = 0; b < 4; ++b) {
      q[b] = kWeights ? (91 * static_cast<int32_t>(b) + 13 * static_cast<int32_t>(c.at)) % 256 : integers[b] | 1;
      cell |= (static_cast<uint32_t>(q[b]) & 255u) << (8 * b);
    }
    const Ints column = kFlips ? cells ^ Ints(static_cast<int32_t>(0x80808080u)) : cells;
    constexpr int32_t kStart = kPairs ? 0 : 5;
    Ints got(kStart), more(0);
    if constexpr (kPairs) {
      const auto pair = [](int32_t low, int32_t high) {
        return Ints(static_cast<int32_t>((static_cast<uint32_t>(low) & 0xFFFFu) | static_cast<uint32_t>(high) << 16));
      };
      add_products<kWeights>(got, more, pair(q[0], q[2]), even_bytes(column));
      add_products<kWeights>(got, more, pair(q[1], q[3]), odd_bytes(column));
    } else {
      add_products<kWeights>(got, more, Ints(static_cast<int32_t>(cell)), column);
    }
    const auto want = [&](int64_t i) {
      int64_t products = kStart;
      for (int64_t b = 0; b < 4; ++b) products += q[b] * (byte_of(i, b) + (kFlips ? 128 : 0));
      return bits_of_integer(products);
    };
    c.bits(operation, cast_bits<uint32_t>(total(got, more)), want);
    if constexpr (kProducts == Products::kDotLanes) {
      unroll<4>([&](auto lane) {
        uint32_t group[4] = {cell + 1, cell + 2, cell + 3, cell + 4};
        group[lane] = cell;
        Ints sum_of_lane(kStart);
        add_lane_products<kWeights, lane>(sum_of_lane, load_group(reinterpret_cast<const char*>(group)), column);
        c.bits("add_lane_products", cast_bits<uint32_t>(sum_of_lane), want);
      });
    }
  };
  check_products(std::false_type(), "add_products");
  check_products(std::true_type(), "add_products of weights");
  check_stored_bytes<kLoadsBlocks>(c);
  check_pairs<kMultipliesPairs>(c);
  check_matrix<kProducts == Products::kMatrix>(c, bytes);
}

void check_reductions(const Checks& c) {
  // Sums whose bits depend on the order: the 16 partial sums are folded 8, 4, 2, 1.
  float parts[16];
  for (int64_t i = 0; i < 16; ++i) {
    const float v = number(i + c.at);
    parts[i] = std::isfinite(v) && std::fabs(v) < 0x1p60f ? v : 0.1f * static_cast<float>(i);
  }
  Registers<kParts> l;
  unroll<kParts>([&](auto p) { reg<p>(l) = load(parts + p * kLanes); });
  float folded[16], most = parts[0];
  std::memcpy(folded, parts, sizeof folded);
  for (int64_t half = 8; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) folded[i] = folded[i] + folded[i + half];
  }
  for (int64_t i = 0; i < kLanes; ++i) most = parts[i] > most ? parts[i] : most;
  c.expect(same(fold(l), folded[0]), "fold", 0);
  c.expect(largest_lane(load(parts)) == most, "largest_lane", 0);

  // Of kLanes keys; key j has the sums from j on, round and round.
  alignas(64) float sums[16 * 16], rotated[32];
  for (int64_t i = 0; i < 32; ++i) rotated[i] = parts[i % 16];
  for (int64_t j = 0; j < kLanes; ++j) store(load(rotated + j), sums + j * kLanes);
  c.floats("fold_keys", fold_keys(sums), [&](int64_t j) {
    float sum[16];
    std::memcpy(sum, rotated + j, sizeof sum);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
    }
    return sum[0];
  });
}

}  // namespace

void SIMDATTN_CHECKS(VocabularyReport report) {
  Checks c = {report};
  for (c.at = 0; c.at < kCount; ++c.at) {
    float x[4 * kMost], y[kMost], z[kMost];
    uint32_t u[kMost], v[kMost];
    for (int64_t i = 0; i < 4 * kMost; ++i) x[i] = number(i + c.at);
    for (int64_t i = 0; i < kMost; ++i) {
      y[i] = number(5 * i + 3 * c.at);
      z[i] = number(7 * i + 11 * c.at + 1);
      u[i] = kBits[(i + c.at) & (kCount - 1)];
      v[i] = kBits[(3 * i + 5 * c.at) & (kCount - 1)];
    }
    check_arithmetic(c, x, y, z);
    check_bits(c, u, v);
    check_memory<float>(c, x);
    check_memory<bf16>(c, x);
    check_memory<f16>(c, x);
    check_halves(c, x);
    check_order(c, x, y);
    check_bytes(c, x);
    check_reductions(c);
  }
}

}  // namespace simdattn
