// Reproducible random shapes and numbers.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "simdattn/simdattn.h"
#include "tests/support/guarded.h"

namespace simdattn::test {

/// SplitMix64 (Steele, Lea, Flood 2014), or the bytes of a fuzzer as long as there are some.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  Random(const uint8_t* data, size_t size) : state_(size), data_(data), left_(size) {}
  uint64_t bits() {
    if (left_ >= 2) {
      const uint64_t value = static_cast<uint64_t>(data_[0]) | static_cast<uint64_t>(data_[1]) << 8;
      data_ += 2;
      left_ -= 2;
      return value << 48 | value;
    }
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  /// low .. high, both included.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  /// One time in n.
  bool one_in(int64_t n) { return integer(1, n) == 1; }
  bool coin() { return one_in(2); }
  /// -1 .. 1
  float uniform() { return static_cast<float>(static_cast<int32_t>(bits() >> 32)) * 0x1p-31f; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return list.begin()[integer(0, static_cast<int64_t>(list.size()) - 1)];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<size_t>(integer(0, static_cast<int64_t>(i) - 1))]);
  }
  DType storage() { return of({DType::kF32, DType::kBF16, DType::kF16}); }
  Guard guard() { return coin() ? Guard::kBefore : Guard::kAfter; }
  /// Mostly small, now and then up to `high`; the counts around multiples of vector lengths come often.
  int64_t size(int64_t low, int64_t high) {
    const int64_t small = std::min<int64_t>(high, low + 9);
    switch (integer(0, 3)) {
      case 0: return integer(low, small);
      case 1: return std::clamp<int64_t>(16 * integer(0, high / 16 + 1) + integer(-1, 1), low, high);
      default: return integer(low, std::min<int64_t>(high, 3 * (low + 25)));
      case 3: return integer(low, high);
    }
  }

 private:
  uint64_t state_;
  const uint8_t* data_ = nullptr;
  size_t left_ = 0;
};

/// What numbers a buffer is filled with; each kind includes the ones above it.
enum class Values : uint8_t {
  kOrdinary,  // -1 .. 1
  kWide,      // zeros of both signs, subnormals, magnitudes from 1e-20 to 1e15 (4e4 in f16)
  kSpecial,   // infinities and NaN, quiet and signalling, with payloads
  kHuge,      // any bit pattern: products overflow
  kTiny,      // not of that order: magnitudes around 2^-63, products of two are around the smallest normal number
};

inline float number(Random& random, Values values) {
  const float x = random.uniform();
  if (values == Values::kTiny) return x * random.of({0x1p-62f, 0x1p-62f, 0x1p-63f, 0x1p-64f, 0x1p-124f});
  if (values == Values::kOrdinary || !random.one_in(12)) return x;
  const auto any_sign = [&](uint32_t bits) {
    return std::bit_cast<float>(bits | static_cast<uint32_t>(random.bits() & 0x80000000u));
  };
  const int64_t kinds = values == Values::kWide ? 4 : values == Values::kSpecial ? 7 : 9;
  switch (random.integer(1, kinds)) {
    case 1: return any_sign(0);
    case 2: return any_sign(static_cast<uint32_t>(random.integer(1, 0x7FFFFF)));
    case 3: return x * 1e-20f;
    case 4: return x * random.of({1e3f, 1e8f, 1e15f});
    case 5: return any_sign(0x7F800000u);
    case 6: return any_sign(0x7FC00000u | static_cast<uint32_t>(random.integer(0, 0x3FFFFF)));
    case 7: return any_sign(0x7F800000u | static_cast<uint32_t>(random.integer(1, 0x3FFFFF)));
    case 8: return any_sign(static_cast<uint32_t>(random.integer(0x7F000000, 0x7F7FFFFF)));
    default: return std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
  }
}

inline void put(void* data, DType dtype, int64_t index, float x) {
  switch (dtype) {
    case DType::kF32: std::memcpy(static_cast<char*>(data) + 4 * index, &x, 4); break;
    case DType::kBF16: {
      // NaN keeps its payload.
      const uint32_t upper = std::bit_cast<uint32_t>(x) >> 16;
      const uint16_t bits = x == x ? from_f32<bf16>(x).bits : static_cast<uint16_t>(upper | ((upper & 0x7F) == 0));
      std::memcpy(static_cast<char*>(data) + 2 * index, &bits, 2);
      break;
    }
    default: {
      const uint32_t upper = std::bit_cast<uint32_t>(x) >> 13;
      const uint32_t sign = std::bit_cast<uint32_t>(x) >> 16 & 0x8000u;
      uint16_t bits = x == x ? from_f32<f16>(x).bits
                             : static_cast<uint16_t>(sign | 0x7C00u | (upper & 0x3FF) | ((upper & 0x3FF) == 0));
      // An ordinary large number shall not become infinite.
      if (x == x && std::fabs(x) <= 1e15f && (bits & 0x7FFFu) == 0x7C00u) bits = static_cast<uint16_t>(sign | 0x7800u);
      std::memcpy(static_cast<char*>(data) + 2 * index, &bits, 2);
    }
  }
}
inline float get(const void* data, DType dtype, int64_t index) {
  return with_storage(dtype, [&](auto t) {
    std::memcpy(&t, static_cast<const char*>(data) + static_cast<int64_t>(sizeof t) * index, sizeof t);
    return to_f32(t);
  });
}

inline void fill(void* data, DType dtype, int64_t n, Random& random, Values values) {
  for (int64_t i = 0; i < n; ++i) put(data, dtype, i, number(random, values));
}
inline Guarded random_buffer(DType dtype, int64_t n, Random& random, Values values) {
  Guarded buffer(static_cast<size_t>(n * size_of(dtype)), random.guard());
  fill(buffer.data(), dtype, n, random, values);
  return buffer;
}

/// Results do not depend on it.
inline Fetch any_fetch(Random& random) {
  return random.of({Fetch::kNone, Fetch::kMemory, Fetch::kPages, Fetch::kHardware});
}

/// The number of random cases: `n` times SIMDATTN_TEST_EFFORT (default 1), at least 1.
inline int64_t cases(int64_t n) {
  const char* effort = std::getenv("SIMDATTN_TEST_EFFORT");
  const double factor = effort != nullptr ? std::atof(effort) : 1.0;
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(n) * factor));
}
/// SIMDATTN_TEST_SEED, default 1: another seed, other cases.
inline uint64_t seed() {
  const char* text = std::getenv("SIMDATTN_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

}  // namespace simdattn::test
