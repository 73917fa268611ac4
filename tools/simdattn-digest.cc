// Digests of what every public function returns over a fixed set of problems: one definition, so one digest on every
// CPU, instruction set, vector length, operating system and compiler.
//
//   simdattn-digest                    prints the digests of the default target
//   simdattn-digest --target NAME      or of another one
//   simdattn-digest --check FILE       compares every exact target that runs here with FILE (tests/digest.txt)
//   simdattn-digest --every N ...      only every Nth line, for emulators
//
// Problems are drawn from integers alone and inputs are bit patterns, so that no floating-point operation and no
// mathematical library takes part in making them. A line's seed is its name: lines can be added without changing
// others.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "include/simdattn/extras.h"

namespace simdattn {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Random integers, memory, digests

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

int64_t size_of(DType t) {
  switch (t) {
    case DType::kU8: return 1;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI64: return 8;
    default: return 4;
  }
}

enum class Values : uint8_t { kOrdinary, kSpecial };

/// Ordinary numbers have magnitudes from 2^-8 to 2; special ones also zeros, subnormals, infinities, NaN, huge numbers.
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
Array<4> input(Random& random, DType type, const std::array<int64_t, 4>& shape, Values values) {
  Array<4> a(type, shape);
  if (random.one_in(2)) a.view.stride = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  a.buffer.fill(random, values);
  return a;
}

const char* type_name(DType t) { return t == DType::kF32 ? "f32" : t == DType::kBF16 ? "bf16" : "f16"; }
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

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

// ---------------------------------------------------------------------------------------------------------------------
// The unfused kernels

/// Fills `scoring` with random options; owns what they point at.
struct Options {
  std::vector<int32_t> prefix_end, kv_start, kv_length;
  std::vector<float> slopes, sinks;
  Array<4> bias, keep;
  std::vector<uint8_t> bits;
};

/// A float of the kind that number() makes, times 2^shift.
float ordinary(Random& random, int shift) {
  const uint32_t bits = number(random, DType::kF32, Values::kOrdinary) + (static_cast<uint32_t>(shift) << 23);
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
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

bool run_scores(Run& run, DType q_type, DType k_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 70), dim = run.size(1, 140);
  const Values values = run.values();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  const Exec exec = run.exec_with(scores_workspace(run.arithmetic, dim));
  if (!run.ok(scores(q.view, k.view, out.view, {.arithmetic = run.arithmetic}, exec))) return false;
  run.add(out.buffer);
  return true;
}

bool run_softmax(Run& run) {
  Random& random = run.random;
  const int64_t rows = random.integer(1, 8), n = run.size(1, 600);
  Array<2> x(DType::kF32, {rows, n}), out(DType::kF32, {rows, n});
  Array<1> lse(DType::kF32, {rows});
  x.buffer.fill(random, run.values());
  if (random.one_in(2)) {  // a wider spread: magnitudes up to 2^6
    for (int64_t i = 0; i < x.buffer.count(); ++i) {
      const float f = ordinary(random, 5);
      std::memcpy(static_cast<float*>(x.buffer.data()) + i, &f, sizeof f);
    }
  }
  if (!run.ok(softmax(x.view, out.view, lse.view, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

bool run_masked_softmax(Run& run) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 4), n_q = random.integer(1, 9);
  const int64_t n_kv = run.size(1, 200);
  const Array<4> x = input(random, DType::kF32, {batch, heads, n_q, n_kv}, run.values());
  Options options;
  const Scoring scoring = random_scoring(run, options, batch, heads, n_q, n_kv);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  Array<3> lse(DType::kF32, {batch, heads, n_q});
  if (!run.ok(masked_softmax(x.view, out.view, scoring, lse.view, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

bool run_weighted_values(Run& run, DType v_type, DType out_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 10);
  const int64_t n_kv = run.size(1, 80), dim = run.size(1, 140);
  const Values values = run.values();
  const Array<4> p = input(random, DType::kF32, {batch, heads, n_q, n_kv}, values);
  const Array<4> v = input(random, v_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(out_type, {batch, heads, n_q, dim});
  const Exec exec = run.exec_with(weighted_values_workspace(run.arithmetic, dim));
  if (!run.ok(weighted_values(p.view, v.view, out.view, {.arithmetic = run.arithmetic}, exec))) return false;
  run.add(out.buffer);
  return true;
}

/// index_scores(), and top_k() of its scores.
bool run_selection(Run& run, DType type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 9), n = random.integer(1, 4);
  const int64_t rows = run.size(1, 300), dim = run.size(1, 100), k = random.integer(0, 20);
  const Values values = run.values();
  const Array<4> q = input(random, type, {batch, heads, n, dim}, values);
  const Array<4> keys = input(random, type, {batch, 1, rows, dim}, values);
  Array<3> weights(DType::kF32, {batch, n, heads});
  weights.buffer.fill(random, Values::kOrdinary);
  IndexOptions o;
  o.arithmetic = run.arithmetic;
  o.combine = random.of({IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach});
  o.relu = random.one_in(2);
  o.causal = random.one_in(2);
  o.block_size = random.of({int64_t{1}, int64_t{4}, int64_t{32}});
  const int64_t lists = o.combine == IndexCombine::kEach ? heads : 1;
  const ConstView<3> w = o.combine == IndexCombine::kSum ? ConstView<3>(weights.view) : ConstView<3>();
  Array<4> scores(DType::kF32, {batch, lists, n, (rows + o.block_size - 1) / o.block_size});
  Array<4> list(DType::kI32, {batch, lists, n, k + 1});
  if (!run.ok(index_scores(q.view, keys.view, w, scores.view, o,
                           run.exec_with(index_scores_workspace(o.arithmetic, heads, dim))))) {
    return false;
  }
  const TopKOptions options = {.block_size = o.block_size, .local_blocks = random.integer(0, 2), .tail = true};
  if (!run.ok(top_k(scores.view, k, list.view, options, run.exec_with(top_k_workspace(k))))) return false;
  run.add(scores.buffer);
  run.add(list.buffer);
  return true;
}

/// attention() over lists.
bool run_lists(Run& run, DType type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
  const int64_t n = random.integer(1, 5), rows = run.size(1, 200), dim = run.size(1, 100);
  const Values values = run.values();
  const Array<4> q = input(random, type, {batch, heads, n, dim}, values);
  const Array<4> k = input(random, type, {batch, kv_heads, rows, dim}, values);
  const Array<4> v = input(random, type, {batch, kv_heads, rows, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n, dim});
  Array<3> lse(DType::kF32, {batch, heads, n});
  AttentionProblem a;
  a.arithmetic = run.arithmetic;
  a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
  a.scoring.causal = random.one_in(2);
  const int64_t block = random.of({int64_t{1}, int64_t{4}, int64_t{32}}), length = random.integer(0, 400) / block;
  std::vector<int32_t> entries(static_cast<size_t>(kv_heads * n * length), -1);
  int64_t last = -1;
  for (int32_t& e : entries) {
    const int64_t next = random.integer(0, (rows + block - 1) / block - 1);
    if (next != last) e = static_cast<int32_t>(last = next);
  }
  a.lists = {entries.data(), kv_heads, length, block, {0, n * length, length}};
  Plan plan;
  if (!run.ok(attention_plan(a, &plan, run.exec()))) return false;
  if (!run.ok(attention(a, run.exec_with(plan.workspace_bytes)))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

bool run_gaussian_scores(Run& run, DType q_type, DType k_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 3), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 50), dim = run.size(1, 100);
  const Values values = run.values();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  if (!run.ok(gaussian_scores(q.view, k.view, out.view, {}, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

/// With weights: bilinear scores; else additive ones, with or without projections.
bool run_weighted_scores(Run& run, bool bilinear) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 3), n_q = random.integer(1, 6);
  const int64_t n_kv = run.size(1, 40), d = run.size(1, 60);
  const bool with_wq = random.one_in(2), with_wk = random.one_in(2);
  const int64_t d_q = bilinear || with_wq ? run.size(1, 60) : d, d_k = bilinear || with_wk ? run.size(1, 60) : d;
  const Values values = run.values();
  const DType q_type = random.storage(), k_type = random.storage(), w_type = random.storage();
  const Array<4> q = input(random, q_type, {batch, heads, n_q, d_q}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, d_k}, values);
  Array<4> out(DType::kF32, {batch, heads, n_q, n_kv});
  Exec exec = run.exec();
  const size_t bytes = bilinear ? bilinear_scores_workspace(d_q, d_k)
                                : additive_scores_workspace(with_wq ? d_q : 0, with_wk ? d_k : 0, d);
  std::vector<unsigned char> workspace(bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  if (bilinear) {
    Array<3> m(w_type, {heads, d_q, d_k});
    m.buffer.fill(random, Values::kOrdinary);
    if (!run.ok(bilinear_scores(q.view, m.view, k.view, out.view, {}, exec))) return false;
  } else {
    Array<2> w(DType::kF32, {heads, d});
    Array<3> wq(w_type, {heads, d, d_q}), wk(w_type, {kv_heads, d, d_k});
    w.buffer.fill(random, Values::kOrdinary);
    wq.buffer.fill(random, Values::kOrdinary);
    wk.buffer.fill(random, Values::kOrdinary);
    const ConstView<3> absent;
    if (!run.ok(additive_scores(q.view, k.view, w.view, out.view, with_wq ? ConstView<3>(wq.view) : absent,
                                with_wk ? ConstView<3>(wk.view) : absent, exec)))
      return false;
  }
  run.add(out.buffer);
  return true;
}

bool run_add_rows(Run& run, DType x_type, DType out_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(1, 6);
  const int64_t dim = run.size(1, 140);
  const DType p_type = random.storage();
  const Values values = run.values();
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, values);
  Array<4> p = input(random, p_type, {batch, heads, n, dim}, values);
  if (random.one_in(2)) p.view.stride[1] = 0;
  Array<4> out(out_type, {batch, heads, n, dim});
  if (!run.ok(add_rows(x.view, p.view, out.view, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions

/// cos and sin of `n` positions of a random table.
void random_table(Run& run, Array<2>& cos, Array<2>& sin, int64_t n, int64_t half) {
  RopeTableOptions options;
  options.rope_theta = run.random.of({10000.0, 500000.0, 1000000.0});
  cos = Array<2>(DType::kF32, {n, half});
  sin = Array<2>(DType::kF32, {n, half});
  run.ok(rope_table(cos.view, sin.view, options));
}

bool run_rope(Run& run, DType x_type, DType out_type) {
  Random& random = run.random;
  RopeOptions options;
  options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  options.inverse = random.one_in(3);
  options.first_dim = random.one_in(2) ? 0 : random.integer(1, 20);
  const int64_t half = run.size(1, 70);
  const int64_t dim = options.first_dim + 2 * half + random.integer(0, 9);
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 5), n = random.integer(1, 7);
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, run.values());
  Array<2> cos, sin;
  random_table(run, cos, sin, n + 20, half);
  Array<2> positions(random.one_in(2) ? DType::kI64 : DType::kI32, {batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, random.integer(0, n + 19));
  const ConstView<2> given = random.one_in(2) ? ConstView<2>(positions.view) : ConstView<2>();
  Array<4> out(out_type, {batch, heads, n, dim});
  if (!run.ok(rope(x.view, cos.view, sin.view, given, out.view, options, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

bool run_rope_direct(Run& run, DType x_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 4), n = random.integer(1, 6);
  const int64_t half = run.size(1, 70), dim = 2 * half + random.integer(0, 9);
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, run.values());
  RopeTableOptions table;
  table.rope_theta = random.of({10000.0, 500000.0});
  RopeOptions options;
  options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  Array<3> positions(DType::kI32, {1, batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, random.integer(0, 1000000));
  Array<4> out(x_type, {batch, heads, n, dim});
  if (!run.ok(rope_direct(x.view, half, table, positions.view, out.view, options, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

bool run_rope_table(Run& run, RopeType type, bool f32_angles) {
  Random& random = run.random;
  const int64_t half = random.of<int64_t>({16, 32, 40, 64, 96}), n = 24;
  RopeTableOptions options;
  options.rope_type = type;
  options.f32_angles = f32_angles;
  options.rope_theta = random.of({10000.0, 150000.0, 500000.0, 1e6});
  options.factor = random.of({2.0, 8.0, 32.0});
  if (type == RopeType::kDefault) options.factor = 0;
  options.original_max_position_embeddings = random.of<int64_t>({4096, 8192});
  options.max_position_embeddings = 4 * options.original_max_position_embeddings;
  options.seq_len = random.one_in(2) ? 0 : random.integer(1, 200000);
  options.partial_rotary_factor = type == RopeType::kProportional ? 0.25 : 1;
  std::vector<double> short_factor, long_factor;
  for (int64_t i = 0; i < half; ++i) {
    short_factor.push_back(static_cast<double>(random.integer(64, 128)) / 64);
    long_factor.push_back(static_cast<double>(random.integer(64, 4096)) / 64);
  }
  options.short_factor = short_factor;
  options.long_factor = long_factor;
  Array<2> cos(DType::kF32, {n, half}), sin(DType::kF32, {n, half}), positions(DType::kI64, {1, n});
  for (int64_t i = 0; i < n; ++i) {
    const int64_t range = random.of<int64_t>({100, 100000, (int64_t{1} << 31) - 1});
    positions.buffer.set(i, random.integer(-range, range));
  }
  if (!run.ok(rope_table(cos.view, sin.view, options, positions.view))) return false;
  run.add(cos.buffer);
  run.add(sin.buffer);
  std::vector<double> frequencies(static_cast<size_t>(half));
  double factor = 0;
  if (!run.ok(rope_frequencies(frequencies.data(), half, &factor, options))) return false;
  run.digest.add(frequencies.data(), frequencies.size() * sizeof(double));
  run.digest.add(&factor, sizeof factor);
  return true;
}

bool run_sinusoidal(Run& run) {
  Random& random = run.random;
  const int64_t n = random.integer(1, 20), dim = run.size(1, 140);
  const double base = random.of({100.0, 10000.0, 1e6});
  const int64_t first = random.one_in(2) ? 0 : random.integer(-100000, 100000);
  Array<2> out(DType::kF32, {n, dim});
  if (!run.ok(sinusoidal_table(out.view, base, {}, first))) return false;
  run.add(out.buffer);
  return true;
}

bool run_alibi(Run& run) {
  std::vector<float> slopes(static_cast<size_t>(run.random.integer(1, 200)));
  if (!run.ok(alibi_slopes(static_cast<int64_t>(slopes.size()), slopes.data()))) return false;
  run.digest.add(slopes.data(), slopes.size() * sizeof(float));
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Caches and attention

enum class Form : uint8_t { kRows, kPanels, kPagedRows, kPagedPanels, kRingRows, kRingPanels };
constexpr std::pair<Form, const char*> kForms[] = {
    {Form::kRows, "rows"},
    {Form::kPanels, "panels"},
    {Form::kPagedRows, "paged rows"},
    {Form::kPagedPanels, "paged panels"},
    {Form::kRingRows, "ring of rows"},
    {Form::kRingPanels, "ring of panels"},
};

struct Cache {
  Buffer memory;
  std::vector<int32_t> table;
  Kv kv;
};

Cache make_cache(Random& random, DType type, Form form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  Cache c;
  Kv& kv = c.kv;
  const bool panels = form == Form::kPanels || form == Form::kPagedPanels || form == Form::kRingPanels;
  kv.type = kv_type_of(type);
  kv.layout = panels ? KvLayout::kPanels : KvLayout::kRows;
  kv.batch = batch;
  kv.heads = heads;
  kv.capacity = tokens;
  kv.dim = dim;
  int64_t entries = batch, held = tokens;
  if (form == Form::kRingRows || form == Form::kRingPanels) {
    kv.ring = panels ? kPanelWidth * random.integer(1, 2) : random.integer(1, 50);
    held = kv.ring;
  } else if (form == Form::kPagedRows || form == Form::kPagedPanels) {
    kv.page_size = panels ? kPanelWidth * random.integer(1, 2) : random.of<int64_t>({1, 16, 17, 64});
    held = kv.page_size;
    kv.block_table_stride = (tokens + kv.page_size - 1) / kv.page_size;
    entries = kv.n_pages = batch * kv.block_table_stride + 1;
    for (int32_t i = 0; i < kv.n_pages; ++i) c.table.push_back(i);
    for (size_t i = c.table.size(); i > 1; --i)
      std::swap(c.table[i - 1], c.table[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    kv.block_table = c.table.data();
  }
  kv.token_stride = panels ? panel_bytes(kv.type, dim) : row_bytes(kv.type, dim);
  kv.head_stride = (panels ? (held + kPanelWidth - 1) / kPanelWidth : held) * kv.token_stride;
  kv.batch_stride = heads * kv.head_stride;
  c.memory = Buffer(type, entries * kv.batch_stride / size_of(type));
  kv.data = c.memory.data();
  return c;
}

/// Stores tokens first .. first + n - 1 of every sequence.
bool append(Run& run, const Array<4>& rows, int64_t first, const Kv& kv, const KeyRotation& rotation = {}) {
  const int64_t batch = rows.view.shape[0], n = rows.view.shape[2];
  Array<2> positions(DType::kI32, {batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, first + i % n);
  return run.ok(kv_append(rows.view, positions.view, kv, {.rope = rotation}, run.exec()));
}

bool run_append(Run& run, DType type, Form form) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(1, 6);
  const int64_t half = run.size(1, 40), dim = 2 * half + random.integer(0, 5), tokens = run.size(n, 150);
  const DType rows_type = random.storage();
  const Array<4> rows = input(random, rows_type, {batch, heads, n, dim}, run.values());
  const Cache cache = make_cache(random, type, form, batch, heads, tokens, dim);
  Array<2> cos, sin;
  KeyRotation rotation;
  if (random.one_in(2)) {
    random_table(run, cos, sin, tokens, half);
    rotation.cos = cos.view;
    rotation.sin = sin.view;
    rotation.options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  }
  // A ring smaller than n would keep the last of the tokens that share a place.
  const int64_t shown = cache.kv.ring > 0 ? std::min(n, cache.kv.ring) : n;
  Array<4> part = rows;
  part.view.data = part.buffer.data();
  part.view.shape[2] = shown;
  if (!append(run, part, random.integer(0, tokens - shown), cache.kv, rotation)) return false;
  run.add(cache.memory);
  return true;
}

bool run_shift(Run& run, DType type, Form form) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 2), half = run.size(1, 40);
  const int64_t dim = 2 * half + random.integer(0, 5), tokens = run.size(2, 120);
  const Array<4> rows = input(random, type, {batch, heads, tokens, dim}, run.values());
  const Cache cache = make_cache(random, type, form, batch, heads, tokens, dim);
  if (!append(run, rows, 0, cache.kv)) return false;
  const int64_t first = random.integer(1, tokens - 1), last = random.integer(first, tokens);
  const int64_t delta = -random.integer(0, first);
  Array<2> cos, sin;
  KeyRotation rotation;
  if (random.one_in(2)) {
    random_table(run, cos, sin, tokens, half);
    rotation.cos = cos.view;
    rotation.sin = sin.view;
    rotation.options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  }
  if (!run.ok(kv_shift(cache.kv, first, last, delta, rotation, run.exec()))) return false;
  run.add(cache.memory);
  return true;
}

/// The whole problem at once, or its tasks in a random order and the reduction.
bool run_problem(Run& run, AttentionProblem a) {
  a.arithmetic = run.arithmetic;
  Plan plan;
  Exec exec = run.exec();
  if (!run.ok(attention_plan(a, &plan, exec))) return false;
  std::vector<unsigned char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  if (run.random.one_in(2)) return run.ok(attention(a, exec));
  for (int64_t i = plan.tasks; i-- > 0;) {
    if (!run.ok(attention_range(plan, i, i + 1, partial.data(), partial.size(), exec))) return false;
  }
  return plan.reduce_tasks == 0 ||
         run.ok(attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec));
}

struct AttentionSizes {
  int64_t max_q = 12;
  int64_t max_kv = 100;
  int64_t max_dim = 80;
  bool fixed = false;  // exactly these
};

bool run_attention(Run& run, DType k_type, DType v_type, Form form, const AttentionSizes& sizes) {
  Random& random = run.random;
  const int64_t batch = sizes.fixed ? 1 : random.integer(1, 2), kv_heads = sizes.fixed ? 1 : random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5);
  const int64_t n_q = sizes.fixed ? sizes.max_q : random.integer(1, sizes.max_q);
  const int64_t n_kv = sizes.fixed ? sizes.max_kv : run.size(1, sizes.max_kv);
  const int64_t dim = sizes.fixed ? sizes.max_dim : run.size(1, sizes.max_dim);
  const int64_t dim_v = random.one_in(2) ? dim : run.size(1, sizes.max_dim);
  const Values values = run.values();
  const DType out_type = random.storage();
  const Array<4> q = input(random, random.storage(), {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  const Array<4> v = input(random, v_type, {batch, kv_heads, n_kv, dim_v}, values);
  Options options;
  AttentionProblem a;
  a.scoring = random_scoring(run, options, batch, heads, n_q, n_kv);
  a.q = q.view;
  Cache keys = make_cache(random, k_type, form, batch, kv_heads, n_kv, dim);
  const bool ring = form == Form::kRingRows || form == Form::kRingPanels;
  const Form value_form = ring                         ? Form::kRingRows
                          : form == Form::kPagedRows   ? Form::kPagedRows
                          : form == Form::kPagedPanels ? Form::kPagedRows
                                                       : Form::kRows;
  Cache cached_values = make_cache(random, v_type, value_form, batch, kv_heads, n_kv, dim_v);
  if (ring) {  // only what the smaller ring holds can be attended to
    const int64_t held = std::min({keys.kv.ring, cached_values.kv.ring, n_kv});
    options.kv_start.assign(static_cast<size_t>(batch), static_cast<int32_t>(n_kv - held));
    a.scoring.kv_start = options.kv_start.data();
  }
  // Token by token, as in decoding.
  for (int64_t t = 0; t < n_kv; ++t) {
    const auto token = [&](const Array<4>& rows) {
      Array<4> one;
      one.view = rows.view;
      one.view.shape[2] = 1;
      one.view.data = static_cast<unsigned char*>(rows.view.data) + t * rows.view.stride[2] * size_of(rows.view.dtype);
      return one;
    };
    if (!append(run, token(k), t, keys.kv) || !append(run, token(v), t, cached_values.kv)) return false;
  }
  a.k = keys.kv;
  a.v = cached_values.kv;
  Array<4> out(out_type, {batch, heads, n_q, dim_v});
  Array<3> lse(DType::kF32, {batch, heads, n_q});
  a.out = out.view;
  a.lse = lse.view;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// Narrow storage: its bytes as kv_append writes them, its numbers, and attention over it. Types that others write: any
/// bytes.
bool run_narrow(Run& run, KvType type, bool panels, bool writes) {
  Random& random = run.random;
  const int64_t block = writes && has_scales(type) ? 1 : 32;
  const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 3);
  const int64_t n_kv = run.size(1, 300);
  const int64_t dim = (run.size(1, 140) + block - 1) / block * block;
  const Values values = run.values();
  const Array<4> q = input(random, DType::kF32, {1, heads, n_q, dim}, values);
  Buffer memory[2], scales[2];
  Kv kv[2];
  for (int i = 0; i < 2; ++i) {
    const KvLayout layout = panels && i == 0 ? KvLayout::kPanels : KvLayout::kRows;
    const int64_t bytes = kv_bytes(type, layout, 1, kv_heads, n_kv, dim);
    memory[i] = Buffer(DType::kU8, bytes);
    kv[i] = contiguous_kv(memory[i].bytes.data(), type, layout, 1, kv_heads, n_kv, dim);
    if (has_scales(type)) {
      scales[i] = Buffer(DType::kF32, kv_heads * n_kv);
      for (int64_t j = 0; j < scales[i].count(); ++j)
        scales[i].set(j, number(random, DType::kF32, Values::kOrdinary) & 0x7FFFFFFF);
      kv[i] = contiguous_scales(kv[i], reinterpret_cast<float*>(scales[i].bytes.data()));
    }
    const Array<4> rows = input(random, random.storage(), {1, kv_heads, n_kv, dim}, values);
    if (writes) {
      if (!run.ok(kv_append(rows.view, {}, kv[i], {}, run.exec()))) return false;
    } else {
      for (int64_t j = 0; j < bytes; ++j) memory[i].set(j, static_cast<int64_t>(random.bits() & 0xFF));
    }
    run.add(memory[i]);
    run.add(scales[i]);
    Array<4> numbers(DType::kF32, {1, kv_heads, n_kv, dim});
    if (!run.ok(kv_read(kv[i], 0, numbers.view, run.exec()))) return false;
    run.add(numbers.buffer);
  }
  Options options;
  AttentionProblem a;
  a.scoring = random_scoring(run, options, 1, heads, n_q, n_kv);
  a.q = q.view;
  a.k = kv[0];
  a.v = kv[1];
  Array<4> out(DType::kF32, {1, heads, n_q, dim});
  Array<3> lse(DType::kF32, {1, heads, n_q});
  a.out = out.view;
  a.lse = lse.view;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// Sequences of different lengths behind each other.
bool run_packed(Run& run, DType type) {
  Random& random = run.random;
  const int64_t sequences = random.integer(1, 4), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 4), dim = run.size(1, 70);
  std::vector<int32_t> cu_q = {0}, cu_k = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.integer(0, 9)));
    cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.integer(0, 60)));
  }
  const Values values = run.values();
  const Array<4> q = input(random, type, {1, heads, cu_q.back(), dim}, values);
  const Array<4> k = input(random, type, {1, kv_heads, cu_k.back(), dim}, values);
  const Array<4> v = input(random, type, {1, kv_heads, cu_k.back(), dim}, values);
  Array<4> out(type, {1, heads, cu_q.back(), dim});
  Array<3> lse(DType::kF32, {1, heads, cu_q.back()});
  AttentionProblem a;
  a.q = q.view;
  a.k = ConstView<4>(k.view);
  a.v = ConstView<4>(v.view);
  a.out = out.view;
  a.lse = lse.view;
  a.scoring.causal = random.one_in(2);
  a.cu_q = cu_q.data();
  a.cu_k = cu_k.data();
  a.n_sequences = sequences;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// The raw state: accumulator, maximum, sum.
bool run_raw(Run& run) {
  Random& random = run.random;
  const int64_t heads = random.integer(1, 4), n_q = random.integer(1, 6), n_kv = run.size(1, 400);
  const int64_t dim = run.size(1, 70);
  const Values values = run.values();
  const Array<4> q = input(random, DType::kF32, {1, heads, n_q, dim}, values);
  const Array<4> k = input(random, DType::kF32, {1, 1, n_kv, dim}, values);
  const Array<4> v = input(random, DType::kF32, {1, 1, n_kv, dim}, values);
  Array<4> acc(DType::kF32, {1, heads, n_q, dim});
  Array<3> max(DType::kF32, {1, heads, n_q}), sum(DType::kF32, {1, heads, n_q});
  AttentionProblem a;
  a.q = q.view;
  a.k = ConstView<4>(k.view);
  a.v = ConstView<4>(v.view);
  a.acc = acc.view;
  a.max = max.view;
  a.sum = sum.view;
  a.scoring.causal = random.one_in(2);
  if (!run_problem(run, a)) return false;
  for (const Buffer* b : {&acc.buffer, &max.buffer, &sum.buffer}) run.add(*b);
  return true;
}

bool run_merge(Run& run, DType type) {
  Random& random = run.random;
  const int64_t parts = random.integer(1, 6), batch = random.integer(1, 2), heads = random.integer(1, 4);
  const int64_t n = random.integer(1, 5), dim = run.size(1, 140);
  Array<5> part(type, {parts, batch, heads, n, dim});
  Array<4> part_lse(DType::kF32, {parts, batch, heads, n});
  part.buffer.fill(random, run.values());
  part_lse.buffer.fill(random, Values::kOrdinary);
  for (int64_t i = 0; i < part_lse.buffer.count(); ++i) {
    if (random.one_in(6)) part_lse.buffer.set(i, 0xFF800000u);
  }
  std::vector<float> sinks(static_cast<size_t>(heads));
  for (float& x : sinks) x = ordinary(random, 1);
  Array<4> out(type, {batch, heads, n, dim});
  Array<3> lse(DType::kF32, {batch, heads, n});
  const float* given = random.one_in(2) ? sinks.data() : nullptr;
  if (!run.ok(attention_merge(part.view, part_lse.view, out.view, lse.view, given, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention with a state

bool run_linear_attention(Run& run, LinearRule rule, DType type) {
  Random& random = run.random;
  const Values values = run.values();
  const int64_t d_k = run.size(1, 140), d_v = run.size(1, 140), n = random.integer(1, 40),
                key_heads = random.integer(1, 2), heads = key_heads * random.integer(1, 2),
                query_heads = random.one_in(2) ? key_heads : 2 * heads;
  LinearAttentionProblem a;
  a.rule = rule;
  a.head_order = random.one_in(2) ? HeadOrder::kRepeated : HeadOrder::kNeighbours;
  a.transposed = random.one_in(3);
  const Array<4> q = input(random, type, {1, query_heads, n, d_k}, values),
                 k = input(random, type, {1, key_heads, n, d_k}, values),
                 v = input(random, type, {1, heads, n, d_v}, values),
                 decay = input(random, type, {1, heads, n, random.one_in(2) ? 1 : d_k}, values),
                 beta = input(random, type, {1, heads, n, 1}, values);
  Array<4> state(DType::kF32, {1, heads, a.transposed ? d_v : d_k, a.transposed ? d_k : d_v}),
      out(type, {1, query_heads > heads ? query_heads : heads, n, d_v});
  Array<5> states(DType::kF32, {1, 2, heads, state.view.shape[2], state.view.shape[3]});
  state.buffer.fill(random, values);
  a.q = q.view, a.k = k.view, a.v = v.view, a.state = state.view, a.out = out.view, a.states = states.view;
  if (rule == LinearRule::kGated || rule == LinearRule::kGatedDelta) a.decay = decay.view;
  if (rule == LinearRule::kDelta || rule == LinearRule::kGatedDelta) a.beta = beta.view;
  if (!run.ok(linear_attention(a, run.exec_with(linear_attention_workspace(a))))) return false;
  run.add(state.buffer);
  run.add(out.buffer);
  run.add(states.buffer);
  return true;
}

bool run_causal_conv(Run& run, DType type) {
  Random& random = run.random;
  const Values values = run.values();
  const int64_t channels = run.size(1, 100), n = random.integer(1, 70), width = random.integer(2, 9);
  Array<3> x(type, {1, channels, n}), state(type, {1, channels, width - 1}), out(type, {1, channels, n});
  Array<2> weight(type, {channels, width});
  for (Buffer* b : {&x.buffer, &state.buffer, &weight.buffer}) b->fill(random, values);
  CausalConvProblem a;
  a.x = x.view, a.weight = weight.view, a.state = state.view, a.out = out.view, a.silu = random.one_in(2);
  if (!run.ok(causal_conv(a, run.exec()))) return false;
  run.add(state.buffer);
  run.add(out.buffer);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Lines

struct Line {
  std::string name;
  int problems;
  std::function<bool(Run&)> run;
};

std::vector<Line> all_lines() {
  std::vector<Line> lines;
  const auto add = [&](const std::string& name, int problems, std::function<bool(Run&)> run) {
    lines.push_back({name, problems, std::move(run)});
  };
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      const std::string types = std::string(" ") + type_name(a) + " " + type_name(b);
      add("scores" + types, 20, [=](Run& r) { return run_scores(r, a, b); });
      add("weighted_values" + types, 20, [=](Run& r) { return run_weighted_values(r, a, b); });
      add("rope" + types, 20, [=](Run& r) { return run_rope(r, a, b); });
    }
  }
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      const std::string types = std::string(" ") + type_name(a) + " " + type_name(b);
      add("gaussian_scores" + types, 8, [=](Run& r) { return run_gaussian_scores(r, a, b); });
      add("add_rows" + types, 8, [=](Run& r) { return run_add_rows(r, a, b); });
    }
    add(std::string("rope_direct ") + type_name(a), 8, [=](Run& r) { return run_rope_direct(r, a); });
  }
  for (int i = 1; i <= 3; ++i) {
    add("bilinear_scores " + std::to_string(i), 8, [](Run& r) { return run_weighted_scores(r, true); });
    add("additive_scores " + std::to_string(i), 8, [](Run& r) { return run_weighted_scores(r, false); });
  }
  for (int i = 1; i <= 4; ++i) add("softmax " + std::to_string(i), 20, run_softmax);
  for (int i = 1; i <= 8; ++i) add("masked_softmax " + std::to_string(i), 20, run_masked_softmax);
  constexpr std::pair<RopeType, const char*> kRopeTypes[] = {
      {RopeType::kDefault, "default"},  {RopeType::kLinear, "linear"}, {RopeType::kProportional, "proportional"},
      {RopeType::kDynamic, "dynamic"},  {RopeType::kYarn, "yarn"},     {RopeType::kLlama3, "llama3"},
      {RopeType::kLongRope, "longrope"}};
  for (const auto& [type, name] : kRopeTypes) {
    const RopeType t = type;
    add(std::string("rope_table ") + name, 4, [=](Run& r) { return run_rope_table(r, t, false); });
    add(std::string("rope_table f32_angles ") + name, 4, [=](Run& r) { return run_rope_table(r, t, true); });
  }
  for (const DType type : kTypes) {
    constexpr std::pair<LinearRule, const char*> kRules[] = {{LinearRule::kLinear, "linear"},
                                                             {LinearRule::kGated, "gated"},
                                                             {LinearRule::kDelta, "delta"},
                                                             {LinearRule::kGatedDelta, "gated_delta"}};
    for (const auto& [rule, name] : kRules) {
      const LinearRule r = rule;
      add(std::string("linear_attention ") + name + " " + type_name(type), 6,
          [=](Run& x) { return run_linear_attention(x, r, type); });
    }
    add(std::string("causal_conv ") + type_name(type), 8, [=](Run& x) { return run_causal_conv(x, type); });
  }
  add("sinusoidal_table", 10, run_sinusoidal);
  add("alibi_slopes", 20, run_alibi);
  for (const auto& [form, form_name] : kForms) {
    const Form f = form;
    for (const DType type : kTypes) {
      add(std::string("kv_append ") + type_name(type) + " " + form_name, 12,
          [=](Run& r) { return run_append(r, type, f); });
      if (f != Form::kRingRows && f != Form::kRingPanels) {
        add(std::string("kv_shift ") + type_name(type) + " " + form_name, 6,
            [=](Run& r) { return run_shift(r, type, f); });
      }
      for (const DType v : {type, type == DType::kF32 ? DType::kF16 : DType::kF32}) {
        add(std::string("attention ") + type_name(type) + " " + type_name(v) + " " + form_name, 12,
            [=](Run& r) { return run_attention(r, type, v, f, {}); });
      }
    }
  }
  // Key splits, row blocks, the head dimensions of models.
  constexpr std::pair<AttentionSizes, const char*> kSizes[] = {
      {{.max_q = 2, .max_kv = 2500, .max_dim = 64, .fixed = true}, "2 rows, 2500 keys of 64"},
      {{.max_q = 1, .max_kv = 1100, .max_dim = 128, .fixed = true}, "1 row, 1100 keys of 128"},
      {{.max_q = 150, .max_kv = 300, .max_dim = 64, .fixed = true}, "150 rows, 300 keys of 64"},
      {{.max_q = 40, .max_kv = 270, .max_dim = 256, .fixed = true}, "40 rows, 270 keys of 256"},
      {{.max_q = 5, .max_kv = 60, .max_dim = 576, .fixed = true}, "5 rows, 60 keys of 576"},
  };
  for (const auto& [sizes, text] : kSizes) {
    const AttentionSizes s = sizes;
    for (const DType type : kTypes) {
      add(std::string("attention ") + type_name(type) + " " + text, 2,
          [=](Run& r) { return run_attention(r, type, type, Form::kPanels, s); });
    }
  }
  for (const DType type : kTypes) {
    add(std::string("attention packed ") + type_name(type), 10, [=](Run& r) { return run_packed(r, type); });
    add(std::string("attention_merge ") + type_name(type), 10, [=](Run& r) { return run_merge(r, type); });
  }
  for (const DType type : kTypes) {
    const std::string name = type_name(type);
    for (const auto& [arithmetic, in] :
         {std::pair{Arithmetic::kF32, ""}, {Arithmetic::kBF16, " in bf16"}, {Arithmetic::kInt8, " in int8"}}) {
      const auto with = [a = arithmetic, t = type](bool (*run)(Run&, DType)) {
        return [=](Run& r) {
          r.arithmetic = a;
          return run(r, t);
        };
      };
      add("selection " + name + in, 12, with(run_selection));
      add("lists " + name + in, 12, with(run_lists));
    }
  }
  add("attention raw state", 10, run_raw);
  // Other arithmetics, over every storage type and form.
  for (const auto& [arithmetic, in] : {std::pair{Arithmetic::kBF16, " in bf16"}, {Arithmetic::kInt8, " in int8"}}) {
    const auto add_in = [&, a = arithmetic](const std::string& name, int problems,
                                            const std::function<bool(Run&)>& run) {
      add(name + in, problems, [=](Run& r) {
        r.arithmetic = a;
        return run(r);
      });
    };
    for (const DType type : kTypes) {
      const std::string name = type_name(type);
      add_in("scores " + name, 20, [=](Run& r) { return run_scores(r, type, type); });
      add_in("weighted_values " + name, 20, [=](Run& r) { return run_weighted_values(r, type, type); });
      for (const auto& [form, form_name] : kForms) {
        const Form f = form;
        add_in("attention " + name + " " + form_name, 6, [=](Run& r) { return run_attention(r, type, type, f, {}); });
      }
      add_in("attention packed " + name, 10, [=](Run& r) { return run_packed(r, type); });
    }
    for (const auto& [sizes, text] : kSizes) {
      const AttentionSizes s = sizes;
      add_in(std::string("attention ") + text, 2, [=](Run& r) {
        const DType type = r.random.storage();
        return run_attention(r, type, r.random.storage(), Form::kPanels, s);
      });
    }
    add_in("attention raw state", 10, run_raw);
  }
  constexpr std::tuple<KvType, const char*, bool> kNarrow[] = {
      {KvType::kInt8, "int8", true},  {KvType::kFp8E4M3, "e4m3", true}, {KvType::kFp8E5M2, "e5m2", true},
      {KvType::kQ8_0, "q8_0", true},  {KvType::kQ4_0, "q4_0", true},    {KvType::kQ4_1, "q4_1", false},
      {KvType::kQ5_0, "q5_0", false}, {KvType::kQ5_1, "q5_1", false},   {KvType::kIq4Nl, "iq4_nl", false}};
  for (const auto& [arithmetic, in] :
       {std::pair{Arithmetic::kF32, ""}, {Arithmetic::kBF16, " in bf16"}, {Arithmetic::kInt8, " in int8"}}) {
    for (const auto& [type, name, writes] : kNarrow) {
      for (const bool panels : {false, true}) {
        if (panels && !writes) continue;
        add(std::string("narrow ") + name + (panels ? " panels" : " rows") + in, 8,
            [a = arithmetic, t = type, panels, w = writes](Run& r) {
              r.arithmetic = a;
              return run_narrow(r, t, panels, w);
            });
      }
    }
  }
  return lines;
}

/// The digest of a line on a target as 16 hexadecimal digits; a message if a call failed.
std::string digest(const Line& line, const Target* target) {
  Digest seed;
  seed.add(line.name.data(), line.name.size());
  Run run{Random(seed.value()), target, {}, {}, {}, {}};
  for (int i = 0; i < line.problems; ++i) {
    if (!line.run(run)) return run.error;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(run.digest.value()));
  return text;
}

int check(const std::vector<Line>& lines, const char* path, const Target* only) {
  std::ifstream file(path);
  std::map<std::string, std::string> expected;
  for (std::string text; std::getline(file, text);) {
    if (text.size() > 18 && text[0] != '#') expected[text.substr(18)] = text.substr(0, 16);
  }
  if (expected.empty()) {
    std::fprintf(stderr, "simdattn-digest: %s holds no digests\n", path);
    return 2;
  }
  int differences = 0;
  for (const Target* t : targets()) {
    if (!target_runnable(*t) || !target_exact(*t) || (only != nullptr && t != only)) continue;
    int equal = 0;
    for (const Line& line : lines) {
      const std::string got = digest(line, t);
      const auto want = expected.find(line.name);
      if (want != expected.end() && want->second == got) {
        ++equal;
        continue;
      }
      ++differences;
      std::printf("%s, %s: %s, expected %s\n", target_name(*t), line.name.c_str(), got.c_str(),
                  want == expected.end() ? "a line that the file does not have" : want->second.c_str());
    }
    std::printf("%-22s %d of %zu digests agree\n", target_name(*t), equal, lines.size());
    std::fflush(stdout);
  }
  return differences == 0 ? 0 : 1;
}

int main_of(int argc, char** argv) {
  (void)request_amx();  // a target the more, where there is AMX
  const Target* target = nullptr;
  const char* file = nullptr;
  int every = 1;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (more && std::strcmp(argv[i], "--check") == 0) {
      file = argv[++i];
    } else if (more && std::strcmp(argv[i], "--every") == 0 && std::atoi(argv[i + 1]) > 0) {
      every = std::atoi(argv[++i]);
    } else if (more && std::strcmp(argv[i], "--target") == 0) {
      if (const Status s = find_target(argv[++i], &target); !s.ok()) {
        std::fprintf(stderr, "simdattn-digest: %s\n", s.detail);
        return 2;
      }
    } else {
      std::fputs("usage: simdattn-digest [--target NAME] [--every N] [--check FILE]\n", stderr);
      return 2;
    }
  }
  std::vector<Line> lines;
  const std::vector<Line> all = all_lines();
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(every)) lines.push_back(all[i]);
  if (file != nullptr) return check(lines, file, target);

  if (target == nullptr) {
    if (const Status s = default_target(&target); !s.ok()) {
      std::fprintf(stderr, "simdattn-digest: %s\n", s.detail);
      return 2;
    }
  }
  if (!target_exact(*target)) {
    std::fprintf(stderr, "simdattn-digest: %s has no fused multiply-add, its bits are its own\n", target_name(*target));
    return 2;
  }
  std::printf("# Digests of the results of every public function; see tools/simdattn-digest.cc.\n");
  bool failed = false;
  for (const Line& line : lines) {
    const std::string d = digest(line, target);
    failed = failed || d.size() != 16;
    std::printf("%s  %s\n", d.c_str(), line.name.c_str());
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace simdattn

int main(int argc, char** argv) { return simdattn::main_of(argc, argv); }
