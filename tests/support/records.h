// What matrix instructions computed, as it was recorded (tests/data/hardware.md): two tiles of each class; with
// SIMDATTN_SHARED all 48.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/case_reader.h"
#include "tests/support/indices.h"
#include "tests/support/test_data.h"

namespace simdattn::test {

/// 64-bit ARM flushes before it rounds (docs/numerics.md, *kBF16*).
#ifdef __aarch64__
constexpr bool kFlushesBeforeRounding = true;
#else
constexpr bool kFlushesBeforeRounding = false;
#endif

/// The numbers of an NPY file, which has to hold so many.
template <class T>
std::vector<T> read_array(const std::string& path, int64_t count) {
  const std::vector<unsigned char> bytes = conformance::read_npy(path, static_cast<size_t>(count) * sizeof(T));
  std::vector<T> result(static_cast<size_t>(count));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

/// Of bf16 numbers.
inline const char* const kRecordedClasses[] = {"uniform",  "wide_exponents", "near_subnormal",
                                               "any_bits", "flush_boundary", "signed_zeros"};

/// Tiles of 16 x 16 results; `T` multiplies, `C` adds, kSide numbers side by side.
template <class T, class C, int64_t kSide>
struct Records {
  static constexpr int64_t kDepth = 16 * kSide;
  std::string folder;
  int64_t tiles;
  std::vector<T> a, b;
  std::vector<C> c;

  explicit Records(const std::string& name) {
    const char* const variable = std::getenv("SIMDATTN_SHARED");
    const std::string shared = variable != nullptr ? variable : "";
    folder = (shared.empty() ? std::string(test_data()) : shared) + "/hardware/" + name + "/";
    tiles = shared.empty() ? 2 : 48;
    a = read_array<T>(folder + "a.npy", tiles * 16 * kDepth);
    b = read_array<T>(folder + "b.npy", tiles * 16 * kDepth);
    c = results("c");
  }
  std::vector<C> results(const char* name) const { return read_array<C>(folder + name + ".npy", tiles * 256); }
  /// Number k of row m of the first operand and of column n of the second, of tile t.
  T first(int64_t t, int64_t m, int64_t k) const { return a[static_cast<size_t>((t * 16 + m) * kDepth + k)]; }
  T second(int64_t t, int64_t n, int64_t k) const {
    return b[static_cast<size_t>((t * 16 + k / kSide) * kDepth + kSide * n + k % kSide)];
  }
  template <class F>
  void for_each(const F& f) const {
    for (const auto [t, m] : indices(tiles, 16)) {
      for (int64_t n = 0; n < 16; ++n) f(t, m, n, static_cast<size_t>((t * 16 + m) * 16 + n));
    }
  }
};
using Bf16Records = Records<uint16_t, float, 2>;
using Int8Records = Records<int8_t, int32_t, 4>;

}  // namespace simdattn::test
