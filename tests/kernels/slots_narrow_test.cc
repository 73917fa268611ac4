// The slots of the narrow storage types of every runnable target against the definition, byte by byte where the target
// is exact. Codes and scales are random, scales now and then zero, subnormal, huge, infinite or NaN; sizes lie on both
// sides of vectors, blocks and panels; buffers lie against inaccessible pages, inputs cannot be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

constexpr KvType kTypes[] = {KvType::kInt8, KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0,
                             KvType::kQ4_1, KvType::kQ5_0,    KvType::kQ5_1,    KvType::kIq4Nl};
constexpr int64_t kScaleBytes[] = {0, 0, 0, 2, 2, 4, 2, 4, 2};  // f16 numbers that a block begins with

float some_scale(Random& random, bool adversarial) {
  if (!adversarial) return std::fabs(random.uniform()) * 0.05f + 0.001f;
  return random.of({0.0f, 0x1p-149f, 0x1.8p-130f, 3e38f, 0x1p119f, 0x1.fffffep119f, 0x1p120f, 0x1p121f, 0x1p-100f,
                    0x1.fffffep-101f, 1e-20f, -0.5f, kInf, std::bit_cast<float>(0x7FC00000u), 1.0f, 0.01f});
}
uint16_t some_f16(Random& random, bool adversarial) {
  if (!adversarial) return static_cast<uint16_t>(0x2000 + random.integer(0, 0x7FF));
  return static_cast<uint16_t>(random.of({0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7E00, 0x8001, 0xFC00, 0xB400, 0x2400}));
}

/// Dimensions around the sizes that kernels cut rows into.
int64_t some_dim(Random& random, KvType type) {
  const int64_t dim = random.one_in(60) ? 8192
                      : random.coin()   ? random.of({1,  3,  4,  5,  7,  8,  15,  16,  17,  31,  32,  33,  47,  48,  63,
                                                     64, 65, 79, 80, 95, 96, 112, 127, 128, 129, 160, 192, 257, 576, 592})
                                        : random.integer(1, 300);
  const int64_t block = block_of(type);
  return (dim + block - 1) / block * block;
}
int64_t some_keys(Random& random, int64_t dim) {
  if (dim > 1000) return random.integer(0, 5);
  return random.one_in(4) ? random.of({255, 256, 129, 128, 127, 64}) : random.integer(0, 70);
}

/// Rows of codes, in guarded memory, and their scales.
struct CodedRows {
  KvType type;
  int64_t rows, dim, stride;
  Guarded memory, scales;

  CodedRows(Random& random, KvType t, int64_t n, int64_t d, bool adversarial)
      : type(t), rows(n), dim(d), stride(row_bytes(t, d) + (random.coin() ? 0 : random.integer(1, 70))) {
    const int64_t bytes = row_bytes(t, d);
    memory = Guarded(static_cast<size_t>(n == 0 ? 0 : (n - 1) * stride + bytes), random.guard());
    scales = Guarded(static_cast<size_t>(has_scales(t) ? 4 * n : 0), random.guard());
    for (size_t i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<unsigned char>(random.bits());
    // Often one extreme scale only: a kernel may look at a whole tile's and take the slow way because of a worse one.
    const bool alone = random.coin();
    const float extreme = some_scale(random, true);
    const uint16_t extreme_f16 = some_f16(random, true);
    for (int64_t j = 0; j < n; ++j) {
      if (has_scales(t)) {
        const float scale = !alone || !adversarial ? some_scale(random, adversarial)
                            : random.one_in(4)     ? extreme
                                                   : some_scale(random, false);
        std::memcpy(scales.data() + 4 * j, &scale, 4);
      }
      const int64_t of_scales = kScaleBytes[static_cast<size_t>(t) - static_cast<size_t>(KvType::kInt8)];
      for (int64_t b = 0; of_scales > 0 && b < d / 32; ++b) {
        for (int64_t i = 0; i < of_scales; i += 2) {
          const bool now = adversarial && random.one_in(3);
          const uint16_t scale = now && alone ? extreme_f16 : some_f16(random, now);
          std::memcpy(memory.data() + j * stride + b * row_bytes(t, 32) + i, &scale, 2);
        }
      }
      // Infinities and NaN among the codes hide all else: few of them.
      for (int64_t i = 0; has_scales(t) && i < bytes; ++i) {
        unsigned char& code = memory.data()[j * stride + i];
        if ((code & 0x7F) > 0x7A && !(adversarial && random.one_in(8))) code &= 0x8F;
      }
    }
    memory.read_only();
    scales.read_only();
  }
  const float* scale(int64_t j) const {
    return has_scales(type) ? reinterpret_cast<const float*>(scales.data()) + j : nullptr;
  }
  const unsigned char* row(int64_t j) const { return memory.data() + j * stride; }
};

class SlotsNarrow : public SlotTest {
 protected:
  static const KvOperands& operands(const UKernels& t, Arithmetic arithmetic, KvType type) {
    return t.attention[index_of(arithmetic)].kv[index_of(type)];
  }
  static std::string describe(KvType type, int64_t i, int64_t dim, int64_t keys, int64_t rows) {
    return "type " + std::to_string(static_cast<int>(type)) + ", case " + std::to_string(i) + ", dim " +
           std::to_string(dim) + ", keys " + std::to_string(keys) + ", rows " + std::to_string(rows);
  }
  /// Bits, NaN for NaN; without fused multiply-add a bound on `roundings` of numbers whose magnitudes sum up to `sum`.
  static void expect_same(float want, float got, double sum, double roundings, const std::string& message) {
    if (std::bit_cast<uint32_t>(want) == std::bit_cast<uint32_t>(got) || (want != want && got != got)) return;
    if (!is_exact() && !std::isfinite(sum)) return;
    const double apart = std::fabs(static_cast<double>(want) - static_cast<double>(got));
    ASSERT_TRUE(!is_exact() && apart <= roundings * (0x1p-24 * sum + 0x1p-149))
        << got << ", not " << want << ", " << message;
  }
  static std::vector<float> numbers(const CodedRows& rows) {
    std::vector<float> out(static_cast<size_t>(rows.rows * rows.dim));
    definition().kv[index_of(rows.type)].load_rows({.in = rows.memory.data(),
                                                    .stride = rows.stride,
                                                    .column = 0,
                                                    .tokens = rows.rows,
                                                    .dim = rows.dim,
                                                    .rows = out.data(),
                                                    .ld = rows.dim * 4,
                                                    .as_stored = false,
                                                    .scales = rows.scale(0)});
    return out;
  }
  /// The rows as panels of their type, as the definition stores them.
  static Guarded panels_of(Random& random, const CodedRows& rows, int64_t stride) {
    const int64_t n = (rows.rows + kPanelWidth - 1) / kPanelWidth;
    Guarded panels(static_cast<size_t>(n == 0 ? 0 : (n - 1) * stride + panel_bytes(rows.type, rows.dim)),
                   random.guard());
    std::memset(panels.data(), 0, panels.size());
    definition().kv[index_of(rows.type)].store_panels({.rows = rows.memory.data(),
                                                       .ld = rows.stride,
                                                       .tokens = rows.rows,
                                                       .dim = rows.dim,
                                                       .out = panels.data(),
                                                       .stride = stride,
                                                       .column = 0,
                                                       .as_stored = true,
                                                       .scales = nullptr});
    return panels;
  }
};

TEST_P(SlotsNarrow, LoadsAndPacking) {
  Random random(seed() * 900 + 1);
  for (int64_t i = 0; i < cases(900); ++i) {
    const KvType type = kTypes[i % std::ssize(kTypes)];
    const int64_t dim = some_dim(random, type), keys = random.integer(0, kPanelWidth);
    const CodedRows rows(random, type, keys, dim, random.coin());
    const std::vector<float> want = numbers(rows);
    const std::string message = describe(type, i, dim, keys, 0);
    const KvKernels& kv = uk().kv[index_of(type)];
    const FloatRows got(random, keys, dim);
    kv.load_rows({.in = rows.memory.data(),
                  .stride = rows.stride,
                  .column = 0,
                  .tokens = keys,
                  .dim = dim,
                  .rows = got.data(),
                  .ld = got.stride * 4,
                  .as_stored = false,
                  .scales = rows.scale(0)});
    for (const auto [j, d] : indices(keys, dim)) {
      expect_same(want[static_cast<size_t>(j * dim + d)], got.at(j, d), 0, 0, message);
    }
    ASSERT_EQ(kv.all_finite({.rows = rows.memory.data(),
                             .token_stride = rows.stride,
                             .scales = rows.scale(0),
                             .keys = keys,
                             .dim = dim}),
              definition().kv[index_of(type)].all_finite({.rows = rows.memory.data(),
                                                          .token_stride = rows.stride,
                                                          .scales = rows.scale(0),
                                                          .keys = keys,
                                                          .dim = dim}))
        << message;
    const KvOperands& k = operands(uk(), Arithmetic::kF32, type);
    const auto check_panel = [&](const FloatRows& panel) {
      for (const auto [j, d] : indices(kPanelWidth, dim)) {
        const float x = panel.data()[d * kPanelWidth + j];
        // Past the last key zeros of either sign.
        const float y = j < keys ? want[static_cast<size_t>(j * dim + d)] : x == 0.0f ? x : 0.0f;
        if (std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y)) continue;  // strings take most of the time
        expect_same(y, x, 0, 0, message + ", key " + std::to_string(j) + ", dimension " + std::to_string(d));
      }
    };
    if (k.pack_keys != nullptr) {
      const FloatRows panel(random, 1, dim * kPanelWidth);
      k.pack_keys({.from = rows.memory.data(),
                   .token_stride = rows.stride,
                   .scales = rows.scale(0),
                   .keys = keys,
                   .dim = dim,
                   .panel = panel.data(),
                   .stream = random.coin()});
      check_panel(panel);
    }
    if (is_read_only(type)) continue;
    Guarded stored = panels_of(random, rows, 0);
    if (keys > 0 && k.pack_panel != nullptr) {
      stored.read_only();
      const FloatRows panel(random, 1, dim * kPanelWidth);
      float scales[kPanelWidth] = {};
      if (has_scales(type)) std::copy_n(rows.scale(0), keys, scales);
      k.pack_panel({.from = stored.data(),
                    .token_stride = 0,
                    .scales = has_scales(type) ? scales : nullptr,
                    .keys = kPanelWidth,
                    .dim = dim,
                    .panel = panel.data(),
                    .stream = false});
      check_panel(panel);
    }
    for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kInt8}) {
      const KvOperands& own = operands(uk(), arithmetic, type);
      if (own.store_panel == nullptr || keys == 0) continue;
      const Guarded panel(stored.size(), random.guard());
      std::memset(panel.data(), 0xFF, panel.size());
      own.store_panel({.from = rows.memory.data(),
                       .token_stride = rows.stride,
                       .scales = rows.scale(0),
                       .keys = keys,
                       .dim = dim,
                       .panel = panel.data(),
                       .stream = random.coin()});
      // Of a last unit what lies past the last dimension is ignored.
      for (int64_t b = 0; b < static_cast<int64_t>(panel.size()); ++b) {
        const int64_t unit = b / (kPanelWidth * 4);
        if (has_scales(type) && unit * 4 + b % 4 >= dim) continue;
        ASSERT_EQ(panel.data()[b], stored.data()[b]) << message << ", byte " << b;
      }
    }
    if (HasFatalFailure()) return;
  }
}

TEST_P(SlotsNarrow, Stores) {
  Random random(seed() * 900 + 2);
  for (int64_t i = 0; i < cases(500); ++i) {
    const KvType type = kTypes[i % 5];
    const int64_t dim = some_dim(random, type), tokens = random.integer(0, 40);
    FloatRows x(random, tokens, dim, random.of({1.0f, 500.0f, 1e-3f, 1e-38f, 1e38f}));
    const bool ties = random.coin();  // between two codes of fp8 with scale 1
    for (int64_t t = 0; ties && t < tokens; ++t)
      for (int64_t d = 0; d < dim; ++d) x.at(t, d) = static_cast<float>(random.integer(-1000, 1000)) * 0x1p-5f;
    for (int64_t t = 0; t < tokens; ++t)
      if (random.one_in(6)) x.at(t, random.integer(0, dim - 1)) = random.of({kInf, -kInf, std::nanf(""), 0.0f, 3e38f});
    x.memory.read_only();
    const bool panels = random.coin();
    const int64_t column = panels ? random.integer(0, kPanelWidth - 1) : 0;
    const int64_t stride =
        (panels ? panel_bytes(type, dim) : row_bytes(type, dim)) + (random.coin() ? 0 : random.integer(1, 9) * 4);
    const int64_t places = panels ? (column + tokens + kPanelWidth - 1) / kPanelWidth : tokens;
    const size_t bytes = static_cast<size_t>(places * stride);
    const Guarded want(bytes, random.guard()), got(bytes, random.guard());
    std::memset(want.data(), 0x5B, bytes), std::memset(got.data(), 0x5B, bytes);
    std::vector<float> want_scales(static_cast<size_t>(tokens) + 1, ties ? 1.0f : 0.02f), got_scales = want_scales;
    StoreRows a = {.rows = x.data(),
                   .ld = x.stride * 4,
                   .tokens = tokens,
                   .dim = dim,
                   .out = want.data(),
                   .stride = stride,
                   .column = column,
                   .as_stored = false,
                   .scales = has_scales(type) ? want_scales.data() : nullptr};
    const KvKernels& d = definition().kv[index_of(type)];
    const KvKernels& t = uk().kv[index_of(type)];
    panels ? d.store_panels(a) : d.store_rows(a);
    a.out = got.data();
    a.scales = has_scales(type) ? got_scales.data() : nullptr;
    panels ? t.store_panels(a) : t.store_rows(a);
    ASSERT_EQ(std::memcmp(want.data(), got.data(), bytes), 0) << describe(type, i, dim, tokens, panels);
    ASSERT_EQ(std::memcmp(want_scales.data(), got_scales.data(), got_scales.size() * 4), 0)
        << describe(type, i, dim, tokens, 0);
  }
}

/// Scores of a target's slots for panels of the type, and for rows, are those of the same numbers in f32.
TEST_P(SlotsNarrow, ScoreTile) {
  Random random(seed() * 900 + 3);
  for (int64_t i = 0; i < cases(800); ++i) {
    const KvType type = kTypes[i % 5];
    const KvOperands& own = operands(uk(), Arithmetic::kF32, type);
    if (own.score_tile == nullptr) continue;
    const int64_t dim = some_dim(random, type), n_panels = dim > 1000 ? 1 : random.integer(0, 8);
    const int64_t rows = random.one_in(5) ? random.integer(5, 13) : random.integer(0, 4);
    const CodedRows keys(random, type, n_panels * kPanelWidth, dim, random.coin());
    const std::vector<float> numbers_of_keys = numbers(keys);
    const int64_t stride = panel_bytes(type, dim) + (random.coin() ? 0 : random.integer(1, 5) * 16);
    Guarded panels = panels_of(random, keys, stride);
    panels.read_only();
    const int64_t ldq = (dim + 15) / 16 * 16;
    std::vector<float> q(static_cast<size_t>(rows * ldq));
    for (float& x : q) x = random.uniform();
    const bool in_rows = own.score_rows != nullptr && can_read_rows_in_place(dim);
    const FloatRows want(random, rows, n_panels * kPanelWidth), got(random, rows, n_panels * kPanelWidth);
    const FloatRows from_rows(random, rows, n_panels * kPanelWidth);
    const float scale = random.coin() ? 1.0f : random.uniform();
    ScoreTile a = {.q = q.data(),
                   .q_stride = ldq * 4,
                   .rows = rows,
                   .panels = panels.data(),
                   .panel_stride = stride,
                   .scales = keys.scale(0),
                   .n_panels = n_panels,
                   .dim = dim,
                   .scale = scale,
                   .s = got.data(),
                   .lds = got.stride,
                   .fetch = any_fetch(random)};
    own.score_tile(a);
    if (in_rows) {
      a.panels = keys.memory.data(), a.panel_stride = keys.stride;
      a.s = from_rows.data(), a.lds = from_rows.stride;
      const Guarded scratch(static_cast<size_t>(kScoreRowPanels * panel_bytes(type, dim)), Guard::kAfter);
      a.scratch = reinterpret_cast<char*>(scratch.data());
      own.score_rows(a);
    }
    std::vector<float> wide(static_cast<size_t>(n_panels * dim * kPanelWidth));
    for (const auto [c, d] : indices(n_panels * kPanelWidth, dim)) {
      wide[static_cast<size_t>((c / kPanelWidth * dim + d) * kPanelWidth + c % kPanelWidth)] =
          numbers_of_keys[static_cast<size_t>(c * dim + d)];
    }
    a.panels = wide.data(), a.panel_stride = dim * kPanelWidth * 4, a.scales = nullptr;
    a.s = want.data(), a.lds = want.stride;
    operands(definition(), Arithmetic::kF32, KvType::kF32).score_packed(a);
    for (const auto [r, c] : indices(rows, n_panels * kPanelWidth)) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d)
        sum += std::fabs(static_cast<double>(q[static_cast<size_t>(r * ldq + d)]) *
                         static_cast<double>(numbers_of_keys[static_cast<size_t>(c * dim + d)]));
      const std::string message = describe(type, i, dim, n_panels * kPanelWidth, rows) + ", row " + std::to_string(r) +
                                  ", key " + std::to_string(c);
      expect_same(want.at(r, c), got.at(r, c), sum, 3.0 * static_cast<double>(dim) + 2, message);
      if (in_rows) {
        expect_same(want.at(r, c), from_rows.at(r, c), sum, 3.0 * static_cast<double>(dim) + 2,
                    message + ", keys in rows");
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SlotsNarrow, ValueTile) {
  Random random(seed() * 900 + 4);
  for (int64_t i = 0; i < cases(900); ++i) {
    const KvType type = kTypes[i % std::ssize(kTypes)];
    const int64_t dim = some_dim(random, type), keys = some_keys(random, dim);
    const int64_t rows = random.one_in(5) ? random.integer(5, 13) : random.integer(0, 4);
    const CodedRows v(random, type, keys, dim, random.coin());
    const std::vector<float> numbers_of_values = numbers(v);
    const FloatRows w(random, rows, keys, 1.0f), got(random, rows, dim, 1.0f), want(random, rows, dim);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(&got.at(r, 0), dim, &want.at(r, 0));
    float alpha[16];
    for (float& x : alpha) x = random.coin() ? 1.0f : std::fabs(random.uniform());
    ValueTile a = {.w = w.data(),
                   .ldw = w.stride,
                   .rows = rows,
                   .v = v.memory.data(),
                   .scales = v.scale(0),
                   .first_key = random.integer(0, 3),
                   .key_stride = v.stride,
                   .group_stride = row_bytes(type, kValueGroup),
                   .keys = keys,
                   .dim = dim,
                   .o = got.data(),
                   .ldo = got.stride,
                   .alpha = random.coin() ? alpha : nullptr,
                   .fetch = any_fetch(random)};
    operands(uk(), Arithmetic::kF32, type).value_tile(a);
    a.v = numbers_of_values.data(), a.scales = nullptr;
    a.key_stride = dim * 4, a.group_stride = kValueGroup * 4;
    a.o = want.data(), a.ldo = want.stride;
    std::vector<double> before(static_cast<size_t>(rows * dim));
    for (const auto [r, c] : indices(rows, dim)) {
      before[static_cast<size_t>(r * dim + c)] = std::fabs(static_cast<double>(want.at(r, c)));
    }
    operands(definition(), Arithmetic::kF32, KvType::kF32).value_tile(a);
    for (const auto [r, c] : indices(rows, dim)) {
      double sum = before[static_cast<size_t>(r * dim + c)];
      for (int64_t j = 0; j < keys; ++j)
        sum += std::fabs(static_cast<double>(w.at(r, j)) *
                         static_cast<double>(numbers_of_values[static_cast<size_t>(j * dim + c)]));
      expect_same(want.at(r, c), got.at(r, c), sum, 3.0 * static_cast<double>(keys) + 4,
                  describe(type, i, dim, keys, rows) + ", row " + std::to_string(r) + ", column " + std::to_string(c));
      if (HasFatalFailure()) return;
    }
  }
}

/// Stored integers that kInt8 multiplies in place give what the definition makes of packed ones.
TEST_P(SlotsNarrow, StoredIntegers) {
  Random random(seed() * 900 + 5);
  constexpr KvType kType = KvType::kInt8;
  const AttentionKernels& ours = uk().attention[index_of(Arithmetic::kInt8)];
  const AttentionKernels& defined = definition().attention[index_of(Arithmetic::kInt8)];
  const KvOperands& own = ours.kv[index_of(kType)];
  for (int64_t i = 0; i < cases(500); ++i) {
    const int64_t dim = some_dim(random, kType);
    const int64_t keys = std::min<int64_t>(some_keys(random, dim), kKeyBlock), rows = random.integer(0, 13);
    const CodedRows stored(random, kType, keys, dim, random.one_in(3));
    const std::string message = describe(kType, i, dim, keys, rows);
    // Values whose scale is negative are packed first, by every caller.
    const bool negative = std::any_of(stored.scale(0), stored.scale(keys), [](float scale) { return scale < 0; });
    if (own.value_tile != nullptr && keys > 0 && !negative) {
      const FloatRows w(random, rows, keys, 1.0f), got(random, rows, dim, 1.0f);
      for (const auto [r, j] : indices(rows, keys)) {
        w.at(r, j) = random.one_in(5) ? 0.0f : std::fabs(w.at(r, j));
      }
      const int64_t columns = (dim + kValueGroup - 1) / kValueGroup * kValueGroup;
      const FloatRows want(random, rows, columns, 0.0f);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(&got.at(r, 0), dim, &want.at(r, 0));
      float alpha[16];
      for (float& x : alpha) x = std::fabs(random.uniform());
      ValueTile a = {.w = w.data(),
                     .ldw = w.stride,
                     .rows = rows,
                     .v = stored.memory.data(),
                     .scales = stored.scale(0),
                     .first_key = 0,
                     .key_stride = stored.stride,
                     .group_stride = kValueGroup,
                     .keys = keys,
                     .dim = dim,
                     .o = got.data(),
                     .ldo = got.stride,
                     .alpha = random.coin() ? alpha : nullptr,
                     .fetch = any_fetch(random)};
      own.value_tile(a);
      std::vector<char> block(static_cast<size_t>(defined.values_bytes(dim)));
      defined.kv[index_of(kType)].pack_values({.rows = stored.memory.data(),
                                               .token_stride = stored.stride,
                                               .scales = stored.scale(0),
                                               .first = 0,
                                               .keys = keys,
                                               .dim = dim,
                                               .column = 0,
                                               .columns = dim,
                                               .packed = block.data()});
      a.v = block.data(), a.o = want.data(), a.ldo = want.stride;
      defined.value_packed(a);
      for (const auto [r, c] : indices(rows, dim)) {
        expect_same(want.at(r, c), got.at(r, c), 8.0 * static_cast<double>(keys) * 128, 4,
                    message + ", row " + std::to_string(r) + ", column " + std::to_string(c));
      }
    }
    if (HasFatalFailure()) return;
    const int64_t n_panels = keys / kPanelWidth;
    if (own.score_tile == nullptr || n_panels == 0) continue;
    const Guarded panels = panels_of(random, stored, panel_bytes(kType, dim));
    const auto scores = [&](const AttentionKernels& t, bool direct, const FloatRows& out) {
      const int64_t query = t.query_bytes(dim);
      const Guarded q(static_cast<size_t>(rows * query), random.guard());
      Random numbers(seed() * 1000 + static_cast<uint64_t>(i));
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> x(static_cast<size_t>(dim));
        for (float& e : x) e = numbers.uniform();
        t.prepare_query[0](x.data(), q.data() + r * query, dim);
      }
      std::vector<char> packed(static_cast<size_t>(n_panels * t.kv[index_of(kType)].panel_bytes(dim)));
      ScoreTile a = {.q = q.data(),
                     .q_stride = query,
                     .rows = rows,
                     .panels = panels.data(),
                     .panel_stride = panel_bytes(kType, dim),
                     .scales = stored.scale(0),
                     .n_panels = n_panels,
                     .dim = dim,
                     .scale = 0.5f,
                     .s = out.data(),
                     .lds = out.stride,
                     .fetch = any_fetch(random)};
      if (direct) return t.kv[index_of(kType)].score_tile(a);
      for (int64_t p = 0; p < n_panels; ++p) {
        t.kv[index_of(kType)].pack_panel({.from = panels.data() + p * a.panel_stride,
                                          .token_stride = 0,
                                          .scales = stored.scale(p * kPanelWidth),
                                          .keys = kPanelWidth,
                                          .dim = dim,
                                          .panel = packed.data() + p * t.kv[index_of(kType)].panel_bytes(dim),
                                          .stream = false});
      }
      a.panels = packed.data(), a.panel_stride = t.kv[index_of(kType)].panel_bytes(dim), a.scales = nullptr;
      t.kv[index_of(kType)].score_packed(a);
    };
    const FloatRows want(random, rows, n_panels * kPanelWidth), got(random, rows, n_panels * kPanelWidth);
    scores(defined, false, want);
    scores(ours, true, got);
    for (const auto [r, c] : indices(rows, n_panels * kPanelWidth)) {
      expect_same(want.at(r, c), got.at(r, c), 0, 0,
                  message + ", row " + std::to_string(r) + ", key " + std::to_string(c));
    }
    if (HasFatalFailure()) return;
  }
}

SIMDATTN_FOR_EACH_TARGET(SlotsNarrow);

}  // namespace
}  // namespace simdattn::test
