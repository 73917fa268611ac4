// Random calls of the public functions: arrays of any strides in guarded memory, scoring options, caches.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/contract/dtypes.h"
#include "simdattn/extras.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/status.h"

namespace simdattn::test {

// ---------------------------------------------------------------------------------------------------------------------
// Arrays

enum class Strides : uint8_t {
  kContiguous,
  kOutput,  // dimensions in any order and direction, gaps between them
  kInput,   // also 0: a dimension that is broadcast
};

/// Calls f(element) for every element of a view, in logical order.
template <int kRank, bool kConst, class F>
void for_each_element(const BasicView<kRank, kConst>& v, F&& f) {
  std::array<int64_t, kRank> index{};
  for (const int64_t s : v.shape) {
    if (s == 0) return;
  }
  for (;;) {
    int64_t at = 0;
    for (size_t i = 0; i < kRank; ++i) at += index[i] * v.stride[i];
    f(at);
    size_t i = kRank;
    while (i-- > 0) {
      if (++index[i] < v.shape[i]) break;
      index[i] = 0;
      if (i == 0) return;
    }
  }
}

inline uint64_t element_bits(const void* data, DType dtype, int64_t at) {
  uint64_t bits = 0;
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::memcpy(&bits, static_cast<const char*>(data) + at * static_cast<int64_t>(size), size);
  return bits;
}
inline void set_element_bits(void* data, DType dtype, int64_t at, uint64_t bits) {
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::memcpy(static_cast<char*>(data) + at * static_cast<int64_t>(size), &bits, size);
}

std::string hex(uint64_t bits);

/// Guarded memory and the view of it.
template <int kRank>
struct Array {
  using Shape = std::array<int64_t, kRank>;
  Guarded memory;
  View<kRank> view;

  Array() = default;
  Array(Random& random, DType dtype, const Shape& shape, Values values, Strides strides = Strides::kContiguous)
      : Array(random, dtype, shape, strides) {
    fill(random, values);
  }
  Array(Random& random, DType dtype, const Shape& shape, Strides strides = Strides::kContiguous) {
    view = View<kRank>(nullptr, dtype, shape);
    if (strides != Strides::kContiguous && !random.one_in(4)) {
      // The outer dimensions are laid out around the last one in random order.
      std::array<size_t, kRank> order{};
      for (size_t i = 0; i < kRank; ++i) order[i] = i;
      for (size_t i = kRank - 1; i-- > 1;)
        std::swap(order[i], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i)))]);
      int64_t step = shape[kRank - 1];
      for (size_t n = 0; n + 1 < kRank; ++n) {
        const size_t i = order[n];
        if (random.one_in(3)) step += random.integer(1, 20);
        view.stride[i] = random.one_in(4) ? -step : step;
        if (strides == Strides::kInput && random.one_in(8)) {
          view.stride[i] = 0;
        } else {
          step *= std::max<int64_t>(shape[i], 1);
        }
      }
      view.stride[kRank - 1] = 1;
      // The stride of a single element means nothing.
      for (size_t i = 0; i + 1 < kRank; ++i) {
        if (shape[i] == 1 && random.one_in(4)) view.stride[i] = random.of({INT64_MAX, INT64_MIN, int64_t{-3}});
      }
    }
    allocate(random.guard());
  }
  /// The same shape and strides, new memory filled with the pattern.
  Array like(Random& random) const {
    Array result;
    result.view = view;
    result.allocate(random.guard());
    return result;
  }
  void allocate(Guard guard) {
    int64_t low = 0, high = 0;
    bool empty = false;
    for (size_t i = 0; i < kRank; ++i) {
      empty = empty || view.shape[i] == 0;
      const int64_t reach = (view.shape[i] - 1) * view.stride[i];
      (reach < 0 ? low : high) += reach;
    }
    if (empty) low = 0, high = -1;
    memory = Guarded(static_cast<size_t>((high - low + 1) * size_of(view.dtype)), guard);
    std::memset(memory.data(), Guarded::kCanary, memory.size());
    view.data = memory.data() - low * size_of(view.dtype);
  }
  void fill(Random& random, Values values) const {
    for_each_element(view, [&](int64_t at) { put(view.data, view.dtype, at, number(random, values)); });
  }
  void fill_bytes(unsigned char value) const {
    if (memory.size() > 0) std::memset(memory.data(), value, memory.size());
  }
  int64_t at(const Shape& index) const {
    int64_t result = 0;
    for (size_t i = 0; i < kRank; ++i) result += index[i] * view.stride[i];
    return result;
  }
  float get_at(const Shape& index) const { return get(view.data, view.dtype, at(index)); }
  void set_at(const Shape& index, float x) const { put(view.data, view.dtype, at(index), x); }
  /// The elements' bits in logical order, whatever the strides.
  std::vector<uint64_t> bits() const {
    std::vector<uint64_t> result;
    for_each_element(view, [&](int64_t at) { result.push_back(element_bits(view.data, view.dtype, at)); });
    return result;
  }
  /// The same elements with other strides.
  Array with(Random& random, Strides strides) const {
    Array result(random, view.dtype, view.shape, strides == Strides::kInput ? Strides::kOutput : strides);
    result.assign(bits());
    return result;
  }
  void assign(const std::vector<uint64_t>& bits) const {
    size_t i = 0;
    for_each_element(view, [&](int64_t at) { set_element_bits(view.data, view.dtype, at, bits[i++]); });
  }
  /// True if every byte that belongs to no element holds the pattern.
  bool gaps_intact() const {
    std::vector<unsigned char> bytes(memory.data(), memory.data() + memory.size());
    const size_t size = static_cast<size_t>(size_of(view.dtype));
    unsigned char* const origin = bytes.data() + (static_cast<unsigned char*>(view.data) - memory.data());
    for_each_element(view, [&](int64_t at) { std::memset(origin + at * size_of(view.dtype), Guarded::kCanary, size); });
    return Guarded::is_canary(bytes.data(), bytes.size());
  }
  /// True if all bytes hold the pattern: nothing was written.
  bool untouched() const { return Guarded::is_canary(memory.data(), memory.size()); }
};

/// The first difference between two outputs of one shape and type; also checks their gaps.
template <int kRank>
std::string difference(const Array<kRank>& want, const Array<kRank>& got) {
  const std::vector<uint64_t> w = want.bits(), g = got.bits();
  for (size_t i = 0; i < w.size(); ++i) {
    if (w[i] != g[i])
      return "element " + std::to_string(i) + " of " + std::to_string(w.size()) + ": " + hex(g[i]) + ", expected " +
             hex(w[i]);
  }
  return want.gaps_intact() && got.gaps_intact() ? "" : "bytes between the elements of an output were written";
}

/// Integers in guarded memory.
template <class T>
struct Numbers {
  Guarded memory;
  Numbers() = default;
  Numbers(Random& random, const std::vector<T>& values) : memory(values.size() * sizeof(T), random.guard()) {
    if (!values.empty()) std::memcpy(memory.data(), values.data(), values.size() * sizeof(T));
  }
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
};

// ---------------------------------------------------------------------------------------------------------------------
// Scoring

/// What random options may hold.
struct ScoringLimits {
  bool extreme =
      false;  // offsets of 2^30, huge biases and slopes, NaN in the bias; else a float64 comparison is meaningful
  bool per_sequence = true;  // offsets, kv_start, kv_length, prefix_end
};

struct ScoringCase {
  Scoring scoring;
  Numbers<int32_t> offsets, prefix_end, kv_start, kv_length;
  Numbers<float> slopes, sinks, bias_scale;
  Array<4> bias, mask;
  Guarded packed_mask;
  float largest_bias = 0;   // of the finite ones, times its factor
  float largest_shift = 0;  // slope * distance
};

struct ScoringShapes {
  int64_t heads;
  int64_t mask_batch;              // batch, or 1 with varlen
  int64_t mask_rows;               // n_q, or total_q
  int64_t mask_columns;            // n_kv, or the longest
  std::vector<int64_t> n_q, n_kv;  // per sequence
};
ScoringCase random_scoring(Random& random, const ScoringShapes& shapes, const ScoringLimits& limits = {});
/// For messages.
std::string describe(const Scoring& scoring);

// ---------------------------------------------------------------------------------------------------------------------
// Caches

enum class KvForm : uint8_t { kRows, kPanels, kPagedRows, kPagedPanels, kRingRows, kRingPanels };

/// The element type of rows and panels, which have one.
constexpr DType element_type(KvType type) {
  return type == KvType::kF32 ? DType::kF32 : type == KvType::kBF16 ? DType::kBF16 : DType::kF16;
}

struct KvStorage {
  Guarded memory;
  Guarded scales;  // of types whose scales stand apart
  Numbers<int32_t> table;
  Kv kv;
  DType dtype() const { return element_type(kv.type); }
  /// Narrow types: where byte `i` of a token's row is, and its scale (null if there are none).
  unsigned char* byte(int64_t b, int64_t h, int64_t t, int64_t i) const;
  float* scale(int64_t b, int64_t h, int64_t t) const;
  /// Where an element is, counted in elements from kv.data.
  int64_t at(int64_t b, int64_t h, int64_t t, int64_t d) const;
  /// The entry of the block table for a token.
  int32_t& page(int64_t b, int64_t t) const;
};

/// Empty storage of a form for [batch, heads, tokens, dim], all bytes NaN. ring: its capacity (for panels rounded up).
KvStorage make_kv(Random& random, DType dtype, KvForm form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                  int64_t ring = 0);
/// The same for any type.
KvStorage make_kv(Random& random, KvType type, KvForm form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                  int64_t ring = 0);
inline constexpr KvType kNarrowTypes[] = {KvType::kInt8, KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kQ8_0,
                                          KvType::kQ4_0};
inline constexpr KvType kStorageTypes[] = {KvType::kF32,     KvType::kBF16,    KvType::kF16,  KvType::kInt8,
                                           KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0,
                                           KvType::kQ4_1,    KvType::kQ5_0,    KvType::kQ5_1, KvType::kIq4Nl};
/// Those that can be read only, in rows.
inline constexpr KvType kReadOnlyTypes[] = {KvType::kQ4_1, KvType::kQ5_0, KvType::kQ5_1, KvType::kIq4Nl};
constexpr bool in_rows(KvForm form) {
  return form == KvForm::kRows || form == KvForm::kPagedRows || form == KvForm::kRingRows;
}
KvType random_narrow_type(Random& random, bool rows);
/// Random codes of a narrow type, and the numbers they stand for in `rows`, f32 [batch, heads, tokens, dim]; ordinary
/// ones are within -1 .. 1.
KvStorage random_codes(Random& random, KvType type, const Array<4>& rows, KvForm form, Values values, int64_t ring = 0,
                       int64_t spare = 0);
/// The elements of `rows` [batch, heads, tokens, dim] in another form; what holds no token is NaN. spare: so many
/// tokens more could be stored; the length says that they are not.
KvStorage store_kv(Random& random, const Array<4>& rows, KvForm form, int64_t ring = 0, int64_t spare = 0);

// ---------------------------------------------------------------------------------------------------------------------
// Attention

struct AttentionLimits {
  int64_t max_batch = 3;
  int64_t max_kv_heads = 2;
  int64_t max_group = 4;
  int64_t max_q = 12;
  int64_t max_kv = 80;
  int64_t max_dim = 24;
  bool varlen = true;
  bool forms = true;        // panels, pages, room for more tokens than there are
  bool arithmetics = true;  // all of them, f32 half of the time
  bool narrow = true;       // narrow types; k_rows and v_rows are then the numbers of k and v in f32
  bool rings = false;       // rings too; they may hold fewer tokens than k_rows and v_rows
  Values values = Values::kOrdinary;
  ScoringLimits scoring;
};

struct AttentionCase {
  Array<4> q, out;
  Array<3> lse;
  Array<4> k_rows, v_rows;  // contiguous: the elements of k and v, or their numbers
  KvStorage k, v;
  ScoringCase scoring;
  Numbers<int32_t> cu_q, cu_k;
  AttentionProblem problem;
  /// Writes the pattern into the outputs.
  void clear() const {
    out.fill_bytes(Guarded::kCanary);
    lse.fill_bytes(Guarded::kCanary);
  }
};
AttentionCase random_attention(Random& random, const AttentionLimits& limits);
std::string describe(const AttentionProblem& problem);

/// f32 half of the time.
inline Arithmetic random_arithmetic(Random& random) {
  return random.coin() ? Arithmetic::kF32 : random.of({Arithmetic::kBF16, Arithmetic::kInt8});
}
inline const char* arithmetic_name(Arithmetic a) {
  return a == Arithmetic::kF32 ? "f32" : a == Arithmetic::kBF16 ? "bf16" : "int8";
}

/// The unfused functions that take an arithmetic, with exactly the workspace that they ask for, at any alignment and
/// against a guard page.
Status run_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                  const Target* target);
Status run_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                           const ValueOptions& options, const Target* target);

/// attention() with exactly the workspace that attention_plan() asks for, at any alignment and against a guard page.
/// And plans of the problem whose arrays come later, now and then (expect_bound_plans_agree).
Status run_attention(const AttentionProblem& problem, const Target* target);
/// The bits of out and lse in logical order.
struct Result {
  std::vector<uint64_t> out, lse;
  bool operator==(const Result&) const = default;
};
inline Result written(const AttentionCase& c) { return {c.out.bits(), c.lse.bits()}; }
/// What `a` writes into the outputs of c, which are then cleared.
Result result_of(const AttentionCase& c, const AttentionProblem& a, const Target& target);
/// attention_range() task by task in random order, then attention_reduce() likewise; each with a workspace of its own.
/// Some of them use a copy of the plan.
Status run_tasks(const AttentionProblem& problem, const Target* target, Random& random);

}  // namespace simdattn::test
