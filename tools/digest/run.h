// What the lines of simdattn-digest share: random integers and bit patterns, arrays, a run on one target.
//
// Problems are drawn from integers alone and inputs are bit patterns, so that no floating-point operation and no
// mathematical library takes part in making them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "include/simdattn/extras.h"

namespace simdattn::digest {

/// SplitMix64 (Steele, Lea, Flood 2014). Never draw twice among the arguments of one call: compilers differ in the
/// order.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  /// low .. high, both included.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return integer(1, n) == 1; }
  template <class T, size_t kCount>
  T of(const T (&list)[kCount]) {
    return list[integer(0, static_cast<int64_t>(kCount) - 1)];
  }
  DType storage() { return of({DType::kF32, DType::kBF16, DType::kF16}); }

 private:
  uint64_t state_;
};

/// FNV-1a, 64 bits.
class Digest {
 public:
  void add(const void* data, size_t bytes) {
    const unsigned char* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ p[i]) * 0x100000001B3u;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

int64_t size_of(DType t);

enum class Values : uint8_t { kOrdinary, kSpecial };

/// Ordinary numbers have magnitudes from 2^-8 to 2; special ones also zeros, subnormals, infinities, NaN, huge numbers.
uint32_t number(Random& random, DType type, Values values);
/// A float of the kind that number() makes, times 2^shift.
float ordinary(Random& random, int shift);

/// Zeroed memory for n elements.
struct Buffer {
  DType type = DType::kF32;
  std::vector<unsigned char> bytes;
  Buffer() = default;
  Buffer(DType t, int64_t n) : type(t), bytes(static_cast<size_t>(n * size_of(t))) {}
  int64_t count() const { return static_cast<int64_t>(bytes.size()) / size_of(type); }
  void* data() { return bytes.data(); }
  void set(int64_t i, int64_t value) {
    std::memcpy(bytes.data() + i * size_of(type), &value, static_cast<size_t>(size_of(type)));  // little-endian
  }
  void fill(Random& random, Values values) {
    for (int64_t i = 0; i < count(); ++i) set(i, number(random, type, values));
  }
};

template <int kRank>
struct Array {
  Buffer buffer;
  View<kRank> view;
  Array() = default;
  Array(DType type, const std::array<int64_t, kRank>& shape) : view(nullptr, type, shape) {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    buffer = Buffer(type, n);
    view.data = buffer.data();
  }
};

/// [batch, heads, rows, dim] as it is, or with rows outside heads.
Array<4> input(Random& random, DType type, const std::array<int64_t, 4>& shape, Values values);

inline const char* type_name(DType t) { return t == DType::kF32 ? "f32" : t == DType::kBF16 ? "bf16" : "f16"; }
inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// What a line needs to make its problems and to run them.
struct Run {
  Random random;
  const Target* target;
  Digest digest;
  std::string error;
  Arithmetic arithmetic = Arithmetic::kF32;
  std::vector<unsigned char> workspace;

  Exec exec() const { return {.target = target}; }
  Exec exec_with(size_t bytes) {
    workspace.assign(bytes, 0);
    return {.target = target, .workspace = workspace.data(), .workspace_bytes = bytes};
  }
  Values values() { return random.one_in(4) ? Values::kSpecial : Values::kOrdinary; }
  /// Small sizes, multiples of vector lengths and their neighbours, anything.
  int64_t size(int64_t low, int64_t high) {
    int64_t n = 0;
    switch (random.integer(0, 3)) {
      case 0: n = low + random.integer(0, 9); break;
      case 1: n = 16 * random.integer(1, high / 16 + 1) + random.integer(-1, 1); break;
      default: n = random.integer(low, high);
    }
    return std::clamp(n, low, high);
  }
  bool ok(const Status& s) {
    if (!s.ok()) error = s.detail;
    return s.ok();
  }
  void add(const Buffer& b) { digest.add(b.bytes.data(), b.bytes.size()); }
};

/// What random options of Scoring point at.
struct Options {
  std::vector<int32_t> prefix_end, kv_start, kv_length;
  std::vector<float> slopes, sinks;
  Array<4> bias, keep;
  std::vector<uint8_t> bits;
};
Scoring random_scoring(Run& run, Options& o, int64_t batch, int64_t heads, int64_t n_q, int64_t n_kv);
/// cos and sin of `n` positions of a random table.
void random_table(Run& run, Array<2>& cos, Array<2>& sin, int64_t n, int64_t half);

/// Its name is its seed: lines can be added without changing others.
struct Line {
  std::string name;
  int problems;
  std::function<bool(Run&)> run;
};
using Lines = std::vector<Line>;
/// The same line in another arithmetic, whose name ends with `in`.
template <class F>
void add_in(Lines* lines, Arithmetic arithmetic, const std::string& name, const char* in, int problems, const F& run) {
  lines->push_back({name + in, problems, [=](Run& r) {
                      r.arithmetic = arithmetic;
                      return run(r);
                    }});
}
inline constexpr std::pair<Arithmetic, const char*> kArithmetics[] = {
    {Arithmetic::kF32, ""}, {Arithmetic::kBF16, " in bf16"}, {Arithmetic::kInt8, " in int8"}};

/// Each adds the lines of the functions that its file calls.
void add_row_lines(Lines* lines);        // rows.cc
void add_position_lines(Lines* lines);   // positions.cc
void add_state_lines(Lines* lines);      // states.cc
void add_attention_lines(Lines* lines);  // attention.cc, with caches

}  // namespace simdattn::digest
