// Inputs of the lines: bit patterns and random options.
#include "tools/digest/run.h"

#include <cstring>

namespace simdattn::digest {

int64_t size_of(DType t) {
  switch (t) {
    case DType::kU8: return 1;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI64: return 8;
    default: return 4;
  }
}

uint32_t number(Random& random, DType type, Values values) {
  const int significand = type == DType::kF32 ? 23 : type == DType::kBF16 ? 7 : 10;
  const uint32_t bias = type == DType::kF16 ? 15 : 127;
  const uint32_t top = 2 * bias + 1;  // the exponent of infinities and NaN
  const uint64_t r = random.bits();
  const uint32_t sign = static_cast<uint32_t>(r & 1) << (type == DType::kF32 ? 31 : 15);
  uint32_t exponent = bias - 8 + static_cast<uint32_t>(r >> 1) % 9;
  uint32_t fraction = static_cast<uint32_t>(r >> 32) & ((1u << significand) - 1);
  if (values == Values::kSpecial && random.one_in(40)) {
    switch (random.integer(0, 4)) {
      case 0: exponent = fraction = 0; break;
      case 1: exponent = 0; break;
      case 2: exponent = top, fraction = 0; break;
      case 3: exponent = top; break;
      default: exponent = top - 1;
    }
  }
  return sign | exponent << significand | fraction;
}

float ordinary(Random& random, int shift) {
  const uint32_t bits = number(random, DType::kF32, Values::kOrdinary) + (static_cast<uint32_t>(shift) << 23);
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

Array<4> input(Random& random, DType type, const std::array<int64_t, 4>& shape, Values values) {
  Array<4> a(type, shape);
  if (random.one_in(2)) a.view.stride = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  a.buffer.fill(random, values);
  return a;
}

Scoring random_scoring(Run& run, Options& o, int64_t batch, int64_t heads, int64_t n_q, int64_t n_kv) {
  Random& random = run.random;
  Scoring s;
  const int64_t reach = std::max(n_q, n_kv) + 3;
  const size_t sequences = static_cast<size_t>(batch);
  if (random.one_in(4)) s.scale = ordinary(random, 0);
  if (random.one_in(4)) s.softcap = random.of({0.5f, 3.0f, 30.0f});
  s.causal = random.one_in(2);
  if (random.one_in(3)) s.offset = random.integer(-reach, reach);
  if (random.one_in(4)) s.window_left = random.integer(0, reach);
  if (random.one_in(5)) s.window_right = random.integer(0, reach);
  if (random.one_in(6)) s.chunk = random.integer(1, reach);
  const auto per_sequence = [&](std::vector<int32_t>& numbers, int64_t high) {
    numbers.resize(sequences);
    for (int32_t& n : numbers) n = static_cast<int32_t>(random.integer(0, high));
    return numbers.data();
  };
  if (random.one_in(6)) s.prefix_end = per_sequence(o.prefix_end, reach);
  if (random.one_in(6)) s.kv_start = per_sequence(o.kv_start, n_kv);
  if (random.one_in(4)) s.kv_length = per_sequence(o.kv_length, n_kv);
  const bool shared = random.one_in(2);  // one mask for all heads
  const std::array<int64_t, 4> shape = {batch, shared ? 1 : heads, n_q, n_kv};
  const auto broadcast = [&](Array<4>& a) {
    a.view.shape[1] = heads;
    if (shared) a.view.stride[1] = 0;
    return a.view;
  };
  if (random.one_in(4)) {
    o.bias = Array<4>(random.storage(), shape);
    o.bias.buffer.fill(random, Values::kOrdinary);
    const uint32_t minus_infinity = o.bias.view.dtype == DType::kF32    ? 0xFF800000u
                                    : o.bias.view.dtype == DType::kBF16 ? 0xFF80u
                                                                        : 0xFC00u;
    for (int64_t i = 0; i < o.bias.buffer.count(); ++i) {
      if (random.one_in(5)) o.bias.buffer.set(i, minus_infinity);
    }
    s.bias = broadcast(o.bias);
  }
  if (random.one_in(5)) {
    o.keep = Array<4>(DType::kU8, shape);
    for (int64_t i = 0; i < o.keep.buffer.count(); ++i) o.keep.buffer.set(i, random.one_in(3) ? 0 : 1);
    s.mask = broadcast(o.keep);
  }
  if (random.one_in(5)) {
    int64_t most = n_kv;
    if (s.kv_length != nullptr) most = *std::min_element(o.kv_length.begin(), o.kv_length.end());
    s.packed_mask.columns = random.integer(0, most);
    s.packed_mask.stride = {0, 0, (s.packed_mask.columns + 7) / 8};
    o.bits.resize(static_cast<size_t>(s.packed_mask.stride[2] * n_q + 1));
    for (uint8_t& b : o.bits) b = static_cast<uint8_t>(random.bits());
    s.packed_mask.data = o.bits.data();
  }
  if (random.one_in(4)) {
    o.slopes.resize(static_cast<size_t>(heads));
    (void)alibi_slopes(heads, o.slopes.data());
    s.alibi_slopes = o.slopes.data();
  }
  if (random.one_in(4)) {
    o.sinks.resize(static_cast<size_t>(heads));
    for (float& x : o.sinks) x = ordinary(random, 2);
    s.sinks = o.sinks.data();
  }
  return s;
}

void random_table(Run& run, Array<2>& cos, Array<2>& sin, int64_t n, int64_t half) {
  RopeTableOptions options;
  options.rope_theta = run.random.of({10000.0, 500000.0, 1000000.0});
  cos = Array<2>(DType::kF32, {n, half});
  sin = Array<2>(DType::kF32, {n, half});
  run.ok(rope_table(cos.view, sin.view, options));
}

}  // namespace simdattn::digest
