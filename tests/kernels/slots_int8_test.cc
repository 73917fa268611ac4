// The slots of Arithmetic::kInt8 of every runnable target against the definition, bit by bit where the target is exact:
// all of it is integers and single roundings, but for one fused multiply-add. Formats of prepared queries, panels and
// blocks are a target's own, so what is compared is what comes out of them.
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

/// How rows are filled: what the integers of a row depend on is its largest magnitude.
enum class Fill : uint8_t { kOrdinary, kEqual, kZeros, kTiny, kHuge, kSpecial };

void fill_row(Random& random, void* row, DType type, int64_t n) {
  switch (static_cast<Fill>(random.integer(0, 11))) {
    case Fill::kEqual:  // all integers are 127, or -127: sums at their limits
    {
      const float x = random.uniform();
      const bool signs = random.coin();
      for (int64_t i = 0; i < n; ++i) put(row, type, i, signs && random.coin() ? -x : x);
      return;
    }
    case Fill::kZeros:
      for (int64_t i = 0; i < n; ++i) put(row, type, i, random.coin() ? 0.0f : -0.0f);
      return;
    case Fill::kTiny:  // 127 / a is infinite, or just not
    {
      const float x = random.of({0x1p-149f, 0x1p-140f, 0x1.fp-122f, 0x1.0p-121f, 0x1.fcp-122f});
      for (int64_t i = 0; i < n; ++i) put(row, type, i, x * random.uniform());
      return;
    }
    case Fill::kHuge:
      for (int64_t i = 0; i < n; ++i) put(row, type, i, random.uniform() * 3e38f);
      return;
    case Fill::kSpecial:
      for (int64_t i = 0; i < n; ++i) put(row, type, i, random.uniform());
      put(row, type, random.integer(0, n - 1), random.of({kInf, -kInf, std::bit_cast<float>(0xFFC12345u)}));
      return;
    default:
      for (int64_t i = 0; i < n; ++i) put(row, type, i, random.uniform());
  }
}

/// Rows with `stride` bytes between them, in guarded memory.
struct TypedRows {
  Guarded memory;
  DType type;
  int64_t stride;

  TypedRows(Random& random, DType dtype, int64_t rows, int64_t n) : type(dtype) {
    const int64_t gap = random.coin() ? 0 : random.integer(1, 20);
    stride = (n + gap) * size_of(type);
    memory = Guarded(static_cast<size_t>(rows == 0 ? 0 : rows * stride - gap * size_of(type)), random.guard());
    for (int64_t r = 0; r < rows; ++r) fill_row(random, row(r), type, n);
  }
  unsigned char* row(int64_t r) const { return memory.data() + r * stride; }
};

bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b); }

class SlotsInt8 : public SlotTest {
 protected:
  static const AttentionKernels& uk() { return of(SlotTest::uk()); }
  static const AttentionKernels& definition() { return of(SlotTest::definition()); }
  static const AttentionKernels& of(const UKernels& t) { return t.attention[index_of(Arithmetic::kInt8)]; }

  /// The rows as the slot of their type takes them, or as rows of f32 where it has none: what the drivers do.
  struct Operand {
    std::vector<float> rows;
    const void* data;
    int64_t stride;
    size_t type;
    Operand(const TypedRows& from, int64_t n_rows, int64_t n, bool has_slot)
        : data(from.memory.data()), stride(from.stride), type(index_of(from.type)) {
      if (has_slot) return;
      rows.resize(static_cast<size_t>(n_rows * n + 1));
      for (int64_t r = 0; r < n_rows; ++r) {
        for (int64_t c = 0; c < n; ++c) rows[static_cast<size_t>(r * n + c)] = get(from.row(r), from.type, c);
      }
      data = rows.data();
      stride = n * 4;
      type = 0;
    }
  };

  static Guarded bytes(Random& random, int64_t n) {
    Guarded result(static_cast<size_t>(n), random.guard());
    std::memset(result.data(), 0xFF, result.size());
    return result;
  }

  static std::vector<float> scores(Random& random, const AttentionKernels& a, const TypedRows& q, int64_t n_q,
                                   const TypedRows& k, int64_t keys, int64_t dim, float scale, bool from_panel) {
    const int64_t step = a.query_bytes(dim);
    EXPECT_EQ(step % 64, 0);
    const Guarded queries = bytes(random, n_q * step);
    for (int64_t r = 0; r < n_q; ++r) a.prepare_query[index_of(q.type)](q.row(r), queries.data() + r * step, dim);
    const int64_t n_panels = (keys + kPanelWidth - 1) / kPanelWidth;
    const int64_t gap = random.coin() ? 0 : 64;
    const int64_t panel_stride = a.kv[0].panel_bytes(dim) + gap;
    const Guarded panels = bytes(random, std::max<int64_t>(n_panels * panel_stride - gap, 0));
    const size_t type = index_of(k.type);
    const KvType stored = kv_type_of(k.type);
    from_panel = from_panel && a.kv[type].pack_panel != nullptr;
    const int64_t stored_stride = panel_bytes(stored, dim) + gap;
    const Guarded stored_panels(static_cast<size_t>(std::max<int64_t>(n_panels * stored_stride - gap, 0)),
                                random.guard());
    // Columns past the keys and what an odd last dimension of bf16 is paired with are NaN: ignored.
    std::memset(stored_panels.data(), 0xFF, stored_panels.size());
    for (int64_t p = 0; p < n_panels; ++p) {
      const int64_t n = std::min(kPanelWidth, keys - p * kPanelWidth);
      if (from_panel) {
        auto* const panel = stored_panels.data() + p * stored_stride;
        for (const auto [j, d] : indices(n, dim)) {
          const int64_t e = k.type == DType::kBF16 ? (d / 2 * kPanelWidth + j) * 2 + d % 2 : d * kPanelWidth + j;
          std::memcpy(panel + e * size_of(k.type), k.row(p * kPanelWidth + j) + d * size_of(k.type),
                      static_cast<size_t>(size_of(k.type)));
        }
        a.kv[type].pack_panel({.from = panel,
                               .token_stride = 0,
                               .keys = kPanelWidth,
                               .dim = dim,
                               .panel = panels.data() + p * panel_stride,
                               .stream = false});
        continue;
      }
      const Operand operand(k, keys, dim, a.kv[type].pack_keys != nullptr);
      a.kv[operand.type].pack_keys({.from = static_cast<const char*>(operand.data) + p * kPanelWidth * operand.stride,
                                    .token_stride = operand.stride,
                                    .keys = n,
                                    .dim = dim,
                                    .panel = panels.data() + p * panel_stride,
                                    .stream = random.coin()});
    }
    const int64_t lds = n_panels * kPanelWidth + random.integer(0, 1) * 16;
    std::vector<float> s(static_cast<size_t>(n_q * lds + 1), -7.0f);
    ScoreTile tile = {};
    tile.q = queries.data();
    tile.q_stride = step;
    tile.rows = n_q;
    tile.panels = panels.data();
    tile.panel_stride = panel_stride;
    tile.n_panels = n_panels;
    tile.dim = dim;
    tile.scale = scale;
    tile.s = s.data();
    tile.lds = lds;
    a.kv[0].score_packed(tile);
    std::vector<float> result;
    for (int64_t r = 0; r < n_q; ++r) {
      const float* row = s.data() + r * lds;
      result.insert(result.end(), row, row + n_panels * kPanelWidth);
      for (int64_t c = n_panels * kPanelWidth; c < lds; ++c) EXPECT_EQ(row[c], -7.0f) << "wrote between rows";
    }
    return result;
  }
};

TEST_P(SlotsInt8, TableSaysWhatIsNative) {
  const std::string t = target_name(target());
  const bool native = t == "highway/avx3_dl" || t == "intrinsics/avx_vnni" || t == "intrinsics/avx512_bf16" ||
                      t == "intrinsics/amx" || t == "highway/neon_dotprod" || t == "highway/neon_i8mm" ||
                      t.find("sve") != std::string::npos;
  EXPECT_EQ(simdattn::target_native(target(), Arithmetic::kInt8), native);
  EXPECT_GE(uk().value_step, kKeyBlock) << "weights are quantised by block, so a block is one step";
}

/// With many dimensions fewer of the rows are put together at a time. Every run has these cases, however few others.
constexpr int64_t kManyDims[] = {1366, 5461, 8200};

TEST_P(SlotsInt8, Scores) {
  Random random(seed() * 100 + 1);
  for (int64_t i = -std::ssize(kManyDims); i < cases(900); ++i) {
    const int64_t dim = i < 0 ? kManyDims[-i - 1] : i < 300 ? i + 1 : random.size(1, 600);
    const int64_t keys = random.integer(0, 70), n_q = i < 0 ? 13 : i % 20;
    const TypedRows q(random, random.storage(), n_q, dim), k(random, random.storage(), keys, dim);
    const float scale = random.of({1.0f, -0.125f, 1e30f, 1e-30f, 0.0f});
    const bool from_panel = random.coin();
    const std::vector<float> want = scores(random, definition(), q, n_q, k, keys, dim, scale, from_panel);
    const std::vector<float> got = scores(random, uk(), q, n_q, k, keys, dim, scale, from_panel);
    ASSERT_EQ(want.size(), got.size());
    const int64_t columns = (keys + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
    for (size_t at = 0; at < want.size(); ++at) {
      if (from_panel && static_cast<int64_t>(at) % columns >= keys) continue;
      // Integers, their conversion and two products: no target may differ.
      ASSERT_TRUE(same(want[at], got[at]))
          << "case " << i << ", element " << at << " of " << want.size() << ", dim " << dim << ", keys " << keys
          << ", keys of " << kTypeName[index_of(k.type)] << ", panel " << from_panel << ": " << got[at]
          << ", definition " << want[at];
    }
  }
}

TEST_P(SlotsInt8, Values) {
  Random random(seed() * 100 + 2);
  for (int64_t i = 0; i < cases(900); ++i) {
    const int64_t dim = i < 300 ? i + 1 : random.size(1, 300);
    const int64_t keys = random.of<int64_t>({random.integer(0, 40), random.integer(0, kKeyBlock), kKeyBlock});
    const int64_t cut = random.integer(0, keys);  // packed in two calls, as from two pages
    const int64_t first = random.coin() ? 0 : random.integer(0, keys);
    const int64_t count = random.coin() ? keys - first : random.integer(0, keys - first);
    const int64_t rows = i % 37;
    const int64_t columns = (dim + kValueGroup - 1) / kValueGroup * kValueGroup;
    const TypedRows v(random, random.storage(), keys, dim);
    std::vector<float> w(static_cast<size_t>(rows * count));
    for (int64_t r = 0; r < rows; ++r) {
      switch (random.integer(0, 4)) {
        case 0:  // one key alone counts
          if (count > 0) w[static_cast<size_t>(r * count + random.integer(0, count - 1))] = random.uniform();
          break;
        case 1:  // weights that no softmax made: negative ones, NaN and infinities
          if (count > 0) fill_row(random, w.data() + r * count, DType::kF32, count);
          break;
        default:
          for (int64_t j = 0; j < count; ++j)
            w[static_cast<size_t>(r * count + j)] = std::exp(-8 * std::fabs(random.uniform()));
      }
    }
    const int64_t ldo = columns + random.integer(0, 1) * 16;
    std::vector<float> o(static_cast<size_t>(rows * ldo + 1), -7.0f), alpha(static_cast<size_t>(rows) + 1);
    for (int64_t r = 0; r < rows; ++r) {
      std::fill_n(o.begin() + r * ldo, columns, 0.0f);
      for (int64_t c = 0; c < dim; ++c) o[static_cast<size_t>(r * ldo + c)] = number(random, Values::kWide);
      alpha[static_cast<size_t>(r)] = random.of({0.0f, 1.0f, 0.3f});
    }
    const bool with_alpha = random.coin();
    // Some columns of the rows alone, as around masked keys.
    const int64_t column = random.integer(0, 2) != 0 ? 0 : random.integer(0, (dim - 1) / kValueGroup) * kValueGroup;
    const int64_t width = column == 0 ? dim : dim - column;
    std::vector<float> results[2];
    for (const bool is_definition : {true, false}) {
      const AttentionKernels& a = is_definition ? definition() : uk();
      const Guarded block = bytes(random, a.values_bytes(width));
      const Operand operand(v, keys, dim, a.kv[index_of(v.type)].pack_values != nullptr);
      for (const bool second : {false, true}) {
        const int64_t from = second ? cut : 0;
        a.kv[operand.type].pack_values({.rows = static_cast<const char*>(operand.data) + from * operand.stride,
                                        .token_stride = operand.stride,
                                        .first = from,
                                        .keys = second ? keys - cut : cut,
                                        .dim = dim,
                                        .column = column,
                                        .columns = width,
                                        .packed = block.data()});
      }
      std::vector<float>& out = results[is_definition ? 0 : 1];
      out = o;
      // Exactly as many weights as keys: nothing may be read past them.
      const Guarded weights(w.size() * 4, random.guard());
      if (!w.empty()) std::memcpy(weights.data(), w.data(), w.size() * 4);
      ValueTile tile = {};
      tile.w = reinterpret_cast<const float*>(weights.data());
      tile.ldw = count;
      tile.rows = rows;
      tile.v = block.data();
      tile.first_key = first;
      tile.keys = count;
      tile.dim = width;
      tile.o = out.data();
      tile.ldo = ldo;
      tile.alpha = with_alpha ? alpha.data() : nullptr;
      a.value_packed(tile);
    }
    for (const auto [r, c] : indices(rows, ldo)) {
      const float want = results[0][static_cast<size_t>(r * ldo + c)];
      const float got = results[1][static_cast<size_t>(r * ldo + c)];
      if (c >= width && c < columns) continue;  // ignored
      const std::string where =
          "case " + std::to_string(i) + ", row " + std::to_string(r) + " of " + std::to_string(rows) + ", column " +
          std::to_string(c) + " of " + std::to_string(width) + ", keys " + std::to_string(first) + " + " +
          std::to_string(count) + " of " + std::to_string(keys) + ", values of " + kTypeName[index_of(v.type)];
      if (is_exact() || c >= columns) {
        ASSERT_TRUE(same(want, got)) << where << ": " << got << ", definition " << want;
      } else if (!same(want, got)) {
        // Two roundings in place of one, of a sum of two numbers.
        const float before = o[static_cast<size_t>(r * ldo + c)];
        ASSERT_LE(std::fabs(want - got), 0x1p-23f * (2 * std::fabs(before) + std::fabs(want)) + 0x1p-149f)
            << where << ": " << got << ", definition " << want;
      }
    }
  }
}

/// Not against the code of the definition: what the integers of equal numbers come to is known.
TEST_P(SlotsInt8, SumsAtTheirLimits) {
  const AttentionKernels& a = uk();
  for (const int64_t dim : {1, 3, 4, 5, 64, 127, 128, 300, 1024, 4096}) {
    for (const float sign : {1.0f, -1.0f}) {
      Random random(static_cast<uint64_t>(dim));
      const std::vector<float> q(static_cast<size_t>(dim), 127.0f);
      const std::vector<float> k(static_cast<size_t>(dim * kPanelWidth), sign * 127.0f);
      const Guarded query = bytes(random, a.query_bytes(dim)), panel = bytes(random, a.kv[0].panel_bytes(dim));
      a.prepare_query[0](q.data(), query.data(), dim);
      a.kv[0].pack_keys(
          {.from = k.data(), .token_stride = dim * 4, .keys = 32, .dim = dim, .panel = panel.data(), .stream = false});
      float s[kPanelWidth];
      ScoreTile tile = {};
      tile.q = query.data();
      tile.q_stride = a.query_bytes(dim);
      tile.rows = 1;
      tile.panels = panel.data();
      tile.panel_stride = a.kv[0].panel_bytes(dim);
      tile.n_panels = 1;
      tile.dim = dim;
      tile.scale = 1.0f;
      tile.s = s;
      tile.lds = kPanelWidth;
      a.kv[0].score_packed(tile);
      for (const float score : s) ASSERT_EQ(score, sign * 127.0f * 127.0f * static_cast<float>(dim)) << dim;
    }
  }
  for (const int64_t keys : {1, 2, 3, 4, 5, 255, 256}) {
    for (const float sign : {1.0f, -1.0f}) {
      Random random(static_cast<uint64_t>(keys));
      constexpr int64_t kDim = 33;
      const std::vector<float> v(static_cast<size_t>(kDim * keys), sign * 127.0f);
      const std::vector<float> w(static_cast<size_t>(keys), 255.0f);
      const Guarded block = bytes(random, a.values_bytes(kDim));
      a.kv[0].pack_values({.rows = v.data(),
                           .token_stride = kDim * 4,
                           .first = 0,
                           .keys = keys,
                           .dim = kDim,
                           .column = 0,
                           .columns = kDim,
                           .packed = block.data()});
      float o[64] = {};
      ValueTile tile = {};
      tile.w = w.data();
      tile.ldw = keys;
      tile.rows = 1;
      tile.v = block.data();
      tile.keys = keys;
      tile.dim = kDim;
      tile.o = o;
      tile.ldo = 64;
      a.value_packed(tile);
      for (int64_t c = 0; c < kDim; ++c)
        ASSERT_EQ(o[c], sign * 127.0f * 255.0f * static_cast<float>(keys)) << keys << " " << c;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(SlotsInt8);

}  // namespace
}  // namespace simdattn::test
