// The slots of Arithmetic::kBF16 on every runnable target against the definition: bit by bit where the target has fused
// multiply-add, else within a bound. Packed formats are the target's own: what is computed with them is compared.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/fma.h"
#include "lib/definition/flushed.h"
#include "tests/kernels/slots.h"
#include "tests/support/indices.h"
#include "tests/support/records.h"

namespace simdattn::test {
namespace {

#ifdef __aarch64__
constexpr bool kFlushesBeforeRounding = true;
#else
constexpr bool kFlushesBeforeRounding = false;
#endif
constexpr double kSmallest = 0x1p-126;

/// Numbers of a case. Products of tiny ones lie around the smallest normal number, where results are flushed or not.
enum class Class : uint8_t { kOrdinary, kWide, kTiny, kSpecial, kHuge };
constexpr Class kClasses[] = {Class::kOrdinary, Class::kWide, Class::kTiny, Class::kSpecial, Class::kHuge};

float number_of(Random& random, Class c) {
  switch (c) {
    case Class::kOrdinary: return number(random, Values::kOrdinary);
    case Class::kWide: return number(random, Values::kWide);
    case Class::kSpecial: return number(random, Values::kSpecial);
    case Class::kHuge: return number(random, Values::kHuge);
    default: break;
  }
  if (random.one_in(20)) return std::ldexp(random.uniform(), static_cast<int>(random.integer(-149, -120)));
  return std::ldexp(random.uniform(), static_cast<int>(random.integer(-66, -60)));
}

class Bf16Slots : public SlotTest {
 protected:
  /// See narrow_weights().
  static bool has_narrow_weights() { return std::string_view(target_name(target())) == "intrinsics/amx"; }
  static const AttentionKernels& of(const UKernels& t) { return t.attention[index_of(Arithmetic::kBF16)]; }
  static const AttentionKernels& definition() { return of(SlotTest::definition()); }
  static const AttentionKernels& kernels() { return of(uk()); }
  /// Overflow of an intermediate product depends on whether it is fused.
  static Class class_of(int64_t i) { return kClasses[i % (is_exact() ? 5 : 4)]; }
  /// 64-bit ARM flushes before it rounds (docs/numerics.md, *kBF16*): a sum of tiny products may lose 2^-126.
  static bool same_bits(int64_t i) { return is_exact() && !(kFlushesBeforeRounding && class_of(i) == Class::kTiny); }
  static int64_t rows_of(Random& random) { return random.coin() ? random.integer(0, 9) : random.integer(0, 33); }

  struct Matrix : Rows {
    Matrix(Random& random, DType type, int64_t n_rows, int64_t n_columns, Class c)
        : Rows(type, n_rows, n_columns, n_columns + (random.coin() ? random.integer(0, 70) : 0), random.guard()) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t e = 0; e < columns; ++e) set(r, e, number_of(random, c));
      }
    }
    /// What kBF16 multiplies.
    double operand(int64_t r, int64_t c) const { return static_cast<double>(to_f32(from_f32<bf16>(at(r, c)))); }
  };
  static Guarded copy_of(const Guarded& from, Random& random) {
    Guarded copy(from.size(), random.guard());
    std::memcpy(copy.data(), from.data(), from.size());
    return copy;
  }

  /// Compares n rows of f32, all bits between them too. NaN is NaN here: later steps make it canonical; and the sign of
  /// a zero is left out where they leave it out.
  template <class Allowance>
  static std::string difference(const Guarded& want, const Guarded& got, int64_t stride, bool exact,
                                const Allowance& allowance, bool zeros_have_signs = true) {
    const int64_t n = static_cast<int64_t>(want.size() / 4);
    if (std::memcmp(want.data(), got.data(), want.size()) == 0) return "";
    for (int64_t i = 0; i < n; ++i) {
      const float w = get(want.data(), DType::kF32, i), g = get(got.data(), DType::kF32, i);
      if (std::bit_cast<uint32_t>(w) == std::bit_cast<uint32_t>(g) || (is_nan(w) && is_nan(g))) continue;
      if (!zeros_have_signs && w == 0 && g == 0) continue;
      if (!exact) {
        const double most = allowance(i / stride, i % stride);
        if (!std::isfinite(most) || std::fabs(static_cast<double>(w) - static_cast<double>(g)) <= most) continue;
      }
      char text[200];
      std::snprintf(text, sizeof text, "row %lld, column %lld: %a (%08x), definition %a (%08x)",
                    static_cast<long long>(i / stride), static_cast<long long>(i % stride), static_cast<double>(g),
                    std::bit_cast<uint32_t>(g), static_cast<double>(w), std::bit_cast<uint32_t>(w));
      return text;
    }
    return "";
  }
  static std::string text(std::initializer_list<std::pair<const char*, int64_t>> numbers) {
    std::string result;
    for (const auto& [key, value] : numbers) result += std::string(key) + " " + std::to_string(value) + ", ";
    return result;
  }
};

/// Keys from rows and from panels, packed and, where the target can, as they are.
TEST_P(Bf16Slots, Scores) {
  for_each_type(300, 1200, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    const KvType kv = kv_type_of(dtype);
    const int64_t dim = random.size(1, 300);
    const int64_t keys = random.size(1, dim > 100 ? 3 * kPanelWidth : 8 * kPanelWidth);
    const int64_t n_panels = (keys + kPanelWidth - 1) / kPanelWidth;
    const bool from_panels = random.coin();
    const Matrix k(random, dtype, keys, dim, class_of(i));
    const int64_t bytes = panel_bytes(kv, dim);
    const int64_t panel_stride = bytes + (random.coin() ? 64 * random.integer(0, 3) : 0);
    Guarded panels(static_cast<size_t>((n_panels - 1) * panel_stride + bytes), random.guard());
    std::memset(panels.data(), 0, panels.size());
    for (const auto [j, d] : indices(keys, dim)) {
      const int64_t c = j % kPanelWidth;
      const int64_t e = panel_element(dtype, d, c);
      std::memcpy(panels.data() + j / kPanelWidth * panel_stride + e * size_of(dtype),
                  static_cast<const char*>(k.data()) + (j * k.stride + d) * size_of(dtype),
                  static_cast<size_t>(size_of(dtype)));
    }
    const Matrix q(random, random.storage(), rows_of(random), dim, class_of(i));
    const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
    const int64_t lds = n_panels * kPanelWidth + 16 * random.integer(0, 2);
    const size_t s_bytes = static_cast<size_t>(4 * q.rows * lds);
    const Guarded s_want(s_bytes, random.guard()), s_got(s_bytes, random.guard());
    std::memset(s_want.data(), 0x5A, s_bytes);
    std::memset(s_got.data(), 0x5A, s_bytes);
    const bool direct = from_panels && kernels().kv[type].score_tile != nullptr && random.coin();
    for (const bool is_definition : {true, false}) {
      const AttentionKernels& ops = is_definition ? definition() : kernels();
      const KvOperands& operands = ops.kv[type];
      const Guarded queries = prepared(ops, q, random.guard());
      const int64_t packed_bytes = operands.panel_bytes(dim);
      const Guarded packed(static_cast<size_t>(n_panels * packed_bytes), random.guard());
      const bool as_is = direct && operands.score_tile != nullptr;
      for (int64_t p = 0; p < n_panels && !as_is; ++p) {
        const bool panel = from_panels && operands.pack_panel != nullptr;
        const PackKeys pack = {.from = panel ? static_cast<const void*>(panels.data() + p * panel_stride)
                                             : static_cast<const char*>(k.data()) + p * kPanelWidth * k.stride_bytes(),
                               .token_stride = k.stride_bytes(),
                               .keys = std::min(kPanelWidth, keys - p * kPanelWidth),
                               .dim = dim,
                               .panel = packed.data() + p * packed_bytes,
                               .stream = random.coin()};
        panel ? operands.pack_panel(pack) : operands.pack_keys(pack);
      }
      const ScoreTile tile = {.q = queries.data(),
                              .q_stride = ops.query_bytes(dim),
                              .rows = q.rows,
                              .panels = as_is ? panels.data() : packed.data(),
                              .panel_stride = as_is ? panel_stride : packed_bytes,
                              .n_panels = n_panels,
                              .dim = dim,
                              .scale = scale,
                              .s = reinterpret_cast<float*>((is_definition ? s_want : s_got).data()),
                              .lds = lds,
                              .fetch = (as_is && random.coin()) ? Fetch::kMemory : Fetch::kNone};
      as_is ? operands.score_tile(tile) : operands.score_packed(tile);
    }
    const std::string problem = difference(s_want, s_got, lds, same_bits(i), [&](int64_t r, int64_t c) {
      double sum = 0;
      for (int64_t d = 0; d < dim && c < keys; ++d) sum += std::fabs(q.operand(r, d) * k.operand(c, d));
      // Fused: a rounding per multiply-add; else two, and what is flushed.
      const double roundings = 3.0 * static_cast<double>(dim) + 10;
      return roundings * (kEps * sum + kSmallest) * std::fabs(static_cast<double>(scale)) + kSmallest;
    });
    ASSERT_EQ(problem, "") << text({{"case", i},
                                    {"type", static_cast<int64_t>(type)},
                                    {"dim", dim},
                                    {"keys", keys},
                                    {"rows", q.rows},
                                    {"from_panels", from_panels},
                                    {"direct", direct}});
  });
}

/// f32 is rounded around ties, the smallest normal number and the largest one. A sum is one product: the same without
/// fused multiply-add.
TEST_P(Bf16Slots, RoundsAnyNumber) {
  const KvOperands& f32 = kernels().kv[index_of(DType::kF32)];
  if (f32.value_tile == nullptr) GTEST_SKIP() << "f32 is packed first";
  // Subnormal numbers come in calls of their own.
  constexpr uint32_t kSubnormal[] = {0x0001u, 0x0040u, 0x007Eu, 0x007Fu};
  constexpr uint32_t kNormal[] = {0x0080u, 0x0081u, 0x3F7Fu, 0x3F80u, 0x3F81u, 0x3FFFu, 0x76FFu, 0x7700u,
                                  0x777Fu, 0x7780u, 0x77FFu, 0x7800u, 0x7F7Eu, 0x7F7Fu, 0x7F80u, 0x7FFFu};
  for (const bool subnormal : {false, true}) {
    std::vector<float> numbers;
    const auto add = [&](uint32_t high) {
      for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xBFFFu, 0xC000u, 0xFFFFu}) {
        for (const uint32_t sign : {0u, 0x80000000u}) numbers.push_back(std::bit_cast<float>(sign | high << 16 | low));
      }
    };
    for (const uint32_t high : kNormal) add(high);
    if (subnormal) {
      for (const uint32_t high : kSubnormal) add(high);
    } else {
      numbers.insert(numbers.end(), static_cast<size_t>(kPanelWidth), 0.0f);
    }
    const int64_t n = static_cast<int64_t>(numbers.size());
    ASSERT_EQ(n % kPanelWidth, 0);
    for (const int64_t rows : {1, 3, 4, 8}) {
      for (const float factor : {1.0f, 0x1p100f, 0x1p-100f, 0x1p-130f}) {
        const std::vector<float> factors(static_cast<size_t>(rows), factor);
        std::vector<float> scores[2], sums[2];
        for (const bool is_definition : {true, false}) {
          const AttentionKernels& ops = is_definition ? definition() : kernels();
          const int64_t bytes = ops.query_bytes(1);
          std::vector<char> queries(static_cast<size_t>(rows * bytes));
          for (int64_t r = 0; r < rows; ++r) {
            ops.prepare_query[index_of(DType::kF32)](&factor, queries.data() + r * bytes, 1);
          }
          scores[is_definition].resize(static_cast<size_t>(rows * n));
          const KvOperands& kv = ops.kv[index_of(DType::kF32)];
          const int64_t panel_bytes = kv.panel_bytes(1);
          std::vector<char> panels(static_cast<size_t>(n / kPanelWidth * panel_bytes));
          for (int64_t p = 0; p < n / kPanelWidth; ++p) {
            kv.pack_keys({.from = numbers.data() + p * kPanelWidth,
                          .token_stride = sizeof(float),
                          .keys = kPanelWidth,
                          .dim = 1,
                          .panel = panels.data() + p * panel_bytes,
                          .stream = false});
          }
          kv.score_packed({.q = queries.data(),
                           .q_stride = bytes,
                           .rows = rows,
                           .panels = panels.data(),
                           .panel_stride = panel_bytes,
                           .n_panels = n / kPanelWidth,
                           .dim = 1,
                           .scale = 1.0f,
                           .s = scores[is_definition].data(),
                           .lds = n});
          sums[is_definition].resize(static_cast<size_t>(rows * n));
          ops.kv[index_of(DType::kF32)].value_tile({.w = factors.data(),
                                                    .ldw = 1,
                                                    .rows = rows,
                                                    .v = numbers.data(),
                                                    .first_key = 0,
                                                    .key_stride = n * int64_t{sizeof(float)},
                                                    .group_stride = kValueGroup * int64_t{sizeof(float)},
                                                    .keys = 1,
                                                    .dim = n,
                                                    .o = sums[is_definition].data(),
                                                    .ldo = n,
                                                    .alpha = nullptr,
                                                    .fetch = Fetch::kNone});
        }
        const auto same = [](float a, float b) {
          return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (is_nan(a) && is_nan(b));
        };
        for (int64_t i = 0; i < rows * n; ++i) {
          const size_t at = static_cast<size_t>(i);
          const float x = numbers[static_cast<size_t>(i % n)];
          ASSERT_TRUE(same(scores[0][at], scores[1][at]))
              << "score of " << x << " times " << factor << ": " << scores[0][at] << ", definition " << scores[1][at];
          ASSERT_TRUE(same(sums[0][at], sums[1][at]))
              << "value " << x << " times " << factor << ": " << sums[0][at] << ", definition " << sums[1][at];
        }
      }
    }
  }
}

/// Numbers of a group of weights that intrinsics/amx takes as pairs of bf16, in the first half of the group's floats.
constexpr int64_t kNarrowGroup = 32;
/// What it has of n weights, apart from the numbers in the second halves.
std::vector<float> narrow_weights(const float* w, int64_t n) {
  const int64_t groups = (n + kNarrowGroup - 1) / kNarrowGroup;
  std::vector<float> out(static_cast<size_t>(groups * kNarrowGroup));
  for (int64_t i = 0; i < n; ++i) {
    const bf16 x = from_f32<bf16>(w[i]);
    std::memcpy(
        reinterpret_cast<char*>(&out[static_cast<size_t>(i / kNarrowGroup * kNarrowGroup)]) + i % kNarrowGroup * 2, &x,
        2);
  }
  return out;
}
bool same_narrow(const std::vector<float>& want, const float* got) {
  for (size_t c = 0; c < want.size(); c += kNarrowGroup) {
    if (std::memcmp(&want[c], got + c, 2 * kNarrowGroup) != 0) return false;
  }
  return true;
}
/// The rows of a tile whose first key is `first` of its block, as the target's value slots take them. Returns the
/// beginning.
const float* prepared(const AttentionKernels& kernels, int64_t first, ValueTile& tile, std::vector<float>& memory) {
  const int64_t before = first % kNarrowGroup, n = before + tile.keys;
  const int64_t ld = (n + kNarrowGroup - 1) / kNarrowGroup * kNarrowGroup;
  memory.assign(static_cast<size_t>(tile.rows * ld + kNarrowGroup), 0.0f);
  std::vector<float> row(static_cast<size_t>(n + 1));
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::copy_n(tile.w + r * tile.ldw, tile.keys, row.begin() + before);
    kernels.prepare_weights(row.data(), memory.data() + r * ld, n);
  }
  tile.ldw = ld;
  return memory.data() + before;
}

TEST_P(Bf16Slots, Values) {
  for_each_type(310, 1200, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    // Tiles end at 128 columns of rounded values; from beyond L2 a block has 128 KiB: two blocks are 64 keys of 700
    // numbers of f32 or 200 of 180.
    const bool in_blocks = i % 8 == 0;
    const int64_t dim = in_blocks ? random.size(200, 700) : random.size(1, 200);
    const int64_t keys = random.size(0, in_blocks ? 200 : dim > 64 ? 80 : kKeyBlock);
    const int64_t first = random.coin() ? 0 : random.integer(0, kKeyBlock - keys);
    const bool has_rows = definition().kv[type].value_tile != nullptr && kernels().kv[type].value_tile != nullptr;
    const bool rows = has_rows && random.coin();
    const Matrix v(random, dtype, keys, dim, class_of(i));
    // Of eight rows some targets round values once for two tiles.
    Matrix w(random, DType::kF32, in_blocks && random.coin() ? 8 : rows_of(random), keys, class_of(i));
    for (int64_t r = 0; r < w.rows; ++r) {
      for (int64_t j = 0; j < keys; ++j) w.f32()[r * w.stride + j] = to_f32(from_f32<bf16>(w.at(r, j)));
    }
    const int64_t padded = rows ? dim : (dim + kValueGroup - 1) / kValueGroup * kValueGroup;
    const Matrix o(random, DType::kF32, w.rows, padded, class_of(i));
    for (int64_t r = 0; r < o.rows; ++r) std::fill_n(o.f32() + r * o.stride + dim, padded - dim, 0.0f);
    const Matrix alpha(random, DType::kF32, 1, w.rows, class_of(i));
    const bool scales = random.coin();
    const bool stream = random.coin();
    const Guarded o_want = copy_of(o.memory, random), o_got = copy_of(o.memory, random);
    for (const bool is_definition : {true, false}) {
      const AttentionKernels& ops = is_definition ? definition() : kernels();
      const KvOperands& operands = ops.kv[type];
      ValueTile tile = {.w = w.f32(),
                        .ldw = w.stride,
                        .rows = w.rows,
                        .v = v.data(),
                        .first_key = first,
                        .key_stride = v.stride_bytes(),
                        .group_stride = kValueGroup * size_of(dtype),
                        .keys = keys,
                        .dim = dim,
                        .o = reinterpret_cast<float*>((is_definition ? o_want : o_got).data()),
                        .ldo = o.stride,
                        .alpha = scales ? alpha.f32() : nullptr,
                        .fetch = (stream) ? Fetch::kMemory : Fetch::kNone};
      std::vector<float> narrow;
      if (!is_definition && has_narrow_weights()) tile.w = prepared(ops, first, tile, narrow);
      if (rows) {
        operands.value_tile(tile);
        continue;
      }
      const Guarded block(static_cast<size_t>(ops.values_bytes(dim)), random.guard());
      std::memset(block.data(), 0xFF, block.size());
      const int64_t cut = random.integer(0, keys);  // packed in two calls, as from two pages
      for (const bool second : {false, true}) {
        const int64_t from = second ? cut : 0;
        operands.pack_values({.rows = static_cast<const char*>(v.data()) + from * v.stride_bytes(),
                              .token_stride = v.stride_bytes(),
                              .first = first + from,
                              .keys = second ? keys - cut : cut,
                              .dim = dim,
                              .column = 0,
                              .columns = dim,
                              .packed = block.data()});
      }
      tile.v = block.data();
      ops.value_packed(tile);
    }
    const std::string problem = difference(
        o_want, o_got, o.stride, same_bits(i),
        [&](int64_t r, int64_t c) {
          if (c >= dim) return 0.0;
          double sum =
              std::fabs(static_cast<double>(o.at(r, c)) * (scales ? static_cast<double>(alpha.at(0, r)) : 1.0));
          for (int64_t j = 0; j < keys; ++j) sum += std::fabs(w.operand(r, j) * v.operand(j, c));
          return (3.0 * static_cast<double>(keys) + 20) * (kEps * sum + kSmallest);
        },
        false);
    ASSERT_EQ(problem, "") << text({{"case", i},
                                    {"type", static_cast<int64_t>(type)},
                                    {"dim", dim},
                                    {"keys", keys},
                                    {"rows", w.rows},
                                    {"first", first},
                                    {"from rows", rows},
                                    {"alpha", scales}});
  });
}

TEST_P(Bf16Slots, Softmax) {
  Random random(seed() * 100 + 320);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t columns = 16 * random.integer(0, kKeyBlock / 16);
    const int64_t rows = rows_of(random);
    const Matrix s(random, DType::kF32, rows, columns, class_of(i));
    const Matrix state(random, DType::kF32, 3, rows, Class::kOrdinary);  // max, sum, alpha
    std::vector<int32_t> lo, hi;
    for (int64_t r = 0; r < rows; ++r) {
      int32_t l = static_cast<int32_t>(random.coin() ? 0 : random.integer(0, columns));
      int32_t h = static_cast<int32_t>(random.coin() ? columns : random.integer(0, columns));
      lo.push_back(std::min(l, h));
      hi.push_back(std::max(l, h));
      if (random.coin()) {
        for (int64_t c = 0; c < columns; ++c) s.f32()[r * s.stride + c] = 20 * random.uniform();
      }
      state.f32()[r] = random.coin() ? -std::numeric_limits<float>::infinity() : 20 * random.uniform();
      state.f32()[state.stride + r] = random.coin() ? 0.0f : 100 * std::fabs(random.uniform());
    }
    const Guarded s_want = copy_of(s.memory, random), s_got = copy_of(s.memory, random);
    const Guarded state_want = copy_of(state.memory, random), state_got = copy_of(state.memory, random);
    for (const bool is_definition : {true, false}) {
      float* const m = reinterpret_cast<float*>((is_definition ? state_want : state_got).data());
      (is_definition ? definition() : kernels())
          .softmax_tile({.s = reinterpret_cast<float*>((is_definition ? s_want : s_got).data()),
                         .lds = s.stride,
                         .rows = rows,
                         .columns = columns,
                         .lo = lo.data(),
                         .hi = hi.data(),
                         .max = m,
                         .sum = m + state.stride,
                         .alpha = m + 2 * state.stride});
    }
    const auto message = [&] { return text({{"case", i}, {"rows", rows}, {"columns", columns}}); };
    if (has_narrow_weights()) {
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<float> want =
            narrow_weights(reinterpret_cast<const float*>(s_want.data()) + r * s.stride, columns);
        ASSERT_TRUE(same_narrow(want, reinterpret_cast<const float*>(s_got.data()) + r * s.stride)) << message();
      }
      continue;
    }
    // Another exponential may round to the neighbour.
    const std::string problem = difference(s_want, s_got, s.stride, is_exact(), [&](int64_t r, int64_t c) {
      return 0x1p-7 * std::fabs(static_cast<double>(get(s_want.data(), DType::kF32, r * s.stride + c)));
    });
    ASSERT_EQ(problem, "") << message();
    const std::string state_problem =
        difference(state_want, state_got, state.stride, is_exact(), [&](int64_t r, int64_t c) {
          return 0x1p-7 * std::fabs(static_cast<double>(get(state_want.data(), DType::kF32, r * state.stride + c)));
        });
    ASSERT_EQ(state_problem, "") << "max, sum, alpha, " << message();
    if (!is_exact()) continue;
    for (const auto [r, c] : indices(rows, columns)) {
      const float w = get(s_got.data(), DType::kF32, r * s.stride + c);
      ASSERT_TRUE(is_nan(w) || w == to_f32(from_f32<bf16>(w))) << message();
    }
  }
}

TEST_P(Bf16Slots, PreparedWeights) {
  Random random(seed() * 100 + 330);
  for (int64_t i = 0; i < cases(1000); ++i) {
    const Matrix w(random, DType::kF32, 1, random.size(1, 300), kClasses[i % 5]);
    if (has_narrow_weights()) {
      const std::vector<float> want = narrow_weights(w.f32(), w.columns);
      const Guarded got(want.size() * 4, random.guard());
      kernels().prepare_weights(w.f32(), reinterpret_cast<float*>(got.data()), w.columns);
      ASSERT_TRUE(same_narrow(want, reinterpret_cast<const float*>(got.data())))
          << text({{"case", i}, {"n", w.columns}});
      continue;
    }
    const Guarded want(static_cast<size_t>(4 * w.columns), random.guard()), got(want.size(), random.guard());
    for (int64_t j = 0; j < w.columns; ++j) put(want.data(), DType::kF32, j, to_f32(from_f32<bf16>(w.at(0, j))));
    kernels().prepare_weights(w.f32(), reinterpret_cast<float*>(got.data()), w.columns);
    ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size()), 0) << text({{"case", i}, {"n", w.columns}});
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What TDPBF16PS computed

/// a * b + c with what is tiny before rounding flushed: what 64-bit ARM computes with FPCR.FZ.
float flushed_before_rounding(float a, float b, float c) {
  a = scalar::flushed(a), b = scalar::flushed(b), c = scalar::flushed(c);
  const float r = simdattn::fma(a, b, c);
  const double p = static_cast<double>(a) * static_cast<double>(b), high = p + static_cast<double>(c);
  const double part = high - p, low = (p - (high - part)) + (static_cast<double>(c) - part);
  const double size = std::fabs(high);
  const bool tiny = size < kSmallest || (size == kSmallest && (high < 0 ? low > 0 : low < 0));
  return tiny ? std::copysign(0.0f, r) : scalar::flushed(r);
}

TEST_P(Bf16Slots, StepsAreTDPBF16PS) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  for (const char* name : kRecordedClasses) {
    const Bf16Records r(name);
    const std::vector<float> tdp = r.results("tdpbf16ps");
    int64_t flushed = 0;
    for (int64_t t = 0; t < r.tiles; ++t) {
      float w[16 * 32], o[16 * kValueGroup] = {};
      bf16 v[32 * kValueGroup] = {};
      for (int64_t k = 0; k < 32; ++k) {
        for (int64_t m = 0; m < 16; ++m) w[m * 32 + k] = to_f32(bf16{r.first(t, m, k)});
        for (int64_t n = 0; n < 16; ++n) {
          v[k * kValueGroup + n] = bf16{r.second(t, n, k)};
        }
      }
      for (int64_t m = 0; m < 16; ++m)
        std::memcpy(o + m * kValueGroup, &r.c[static_cast<size_t>((t * 16 + m) * 16)], 64);
      const KvOperands& operands = kernels().kv[index_of(KvType::kBF16)];
      const Guarded block(static_cast<size_t>(kernels().values_bytes(kValueGroup)), Guard::kAfter);
      std::memset(block.data(), 0, block.size());
      ValueTile tile = {.w = w,
                        .ldw = 32,
                        .rows = 16,
                        .v = v,
                        .first_key = 0,
                        .key_stride = 64,
                        .group_stride = 64,
                        .keys = 32,
                        .dim = kValueGroup,
                        .o = o,
                        .ldo = kValueGroup,
                        .alpha = nullptr,
                        .fetch = Fetch::kNone};
      std::vector<float> narrow;
      if (has_narrow_weights()) tile.w = prepared(kernels(), 0, tile, narrow);
      if (operands.value_tile != nullptr && t % 2 == 0) {
        operands.value_tile(tile);
      } else {
        operands.pack_values({.rows = v,
                              .token_stride = 64,
                              .first = 0,
                              .keys = 32,
                              .dim = kValueGroup,
                              .column = 0,
                              .columns = kValueGroup,
                              .packed = block.data()});
        tile.v = block.data();
        kernels().value_packed(tile);
      }
      for (const auto [m, n] : indices(16, 16)) {
        const float want = tdp[static_cast<size_t>((t * 16 + m) * 16 + n)], got = o[m * kValueGroup + n];
        const auto bits = [](float x) { return std::bit_cast<uint32_t>(canonical(x)); };
        if (bits(got) == bits(want)) continue;
        ASSERT_TRUE(kFlushesBeforeRounding) << name << ", tile " << t << ", row " << m << ", column " << n;
        float chain[2] = {};
        for (int64_t k = 0; k < 32; ++k)
          chain[k % 2] = flushed_before_rounding(w[m * 32 + k], to_f32(v[k * kValueGroup + n]), chain[k % 2]);
        const float arm = scalar::flushed_add(r.c[static_cast<size_t>((t * 16 + m) * 16 + n)],
                                              scalar::flushed_add(chain[0], chain[1]));
        ASSERT_EQ(bits(got), bits(arm)) << name << ", tile " << t << ", row " << m << ", column " << n;
        ++flushed;
      }
    }
    const bool flushes =
        kFlushesBeforeRounding && std::string(simdattn::target_name(target())) != "scalar";  // that rounds first
    EXPECT_EQ(flushed, !flushes || std::string(name) != "flush_boundary" ? 0 : r.tiles == 2 ? 4 : 16) << name;
  }
}

/// The mode in which the tiles compute ends with the slot.
TEST_P(Bf16Slots, SubnormalNumbersAreBack) {
  const volatile float tiny = std::numeric_limits<float>::denorm_min();
  const float q[16] = {1.0f}, panel[kPanelWidth] = {1.0f};
  float s[kPanelWidth] = {}, o[kValueGroup] = {};
  kernels().kv[0].score_packed({.q = q,
                                .q_stride = 64,
                                .rows = 0,
                                .panels = panel,
                                .panel_stride = 128,
                                .n_panels = 0,
                                .dim = 1,
                                .scale = 1.0f,
                                .s = s,
                                .lds = kPanelWidth,
                                .fetch = Fetch::kNone});
  EXPECT_GT(tiny * 3.0f, tiny);
  const Guarded block(static_cast<size_t>(kernels().values_bytes(kValueGroup)), Guard::kAfter);
  std::memset(block.data(), 0, block.size());
  const float w[1] = {1.0f};
  kernels().value_packed({.w = w,
                          .ldw = 1,
                          .rows = 1,
                          .v = block.data(),
                          .first_key = 0,
                          .key_stride = 0,
                          .group_stride = 0,
                          .keys = 1,
                          .dim = kValueGroup,
                          .o = o,
                          .ldo = kValueGroup,
                          .alpha = nullptr,
                          .fetch = Fetch::kNone});
  EXPECT_GT(tiny * 3.0f, tiny);
}

SIMDATTN_FOR_EACH_TARGET(Bf16Slots);

}  // namespace
}  // namespace simdattn::test
