// Scores, values and what packs keys and values for them: the slots of every runnable target against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Scores

TEST_P(Slots, ScoreRows) {
  for_each_type(0, 1500, [&](Random& random, size_t type, int64_t i) {
    const int64_t dim = random.size(1, 300);
    // One query: now and then keys on both sides of 2 MiB, beyond which a kernel may be another one.
    const bool is_long = i % 25 == 3 && dim > 16;
    const int64_t n_q = is_long ? 1 : random.integer(0, 9);
    const int64_t n_k = is_long    ? (int64_t{1} << 19) / dim + random.integer(0, 1)
                        : n_q == 1 ? random.integer(0, 2 * 8192 / dim + 1) % 1000
                                   : random.size(0, dim > 100 ? 40 : 100);
    const Rows q = random_workspace(random, n_q, dim, values(i));
    const Rows k = random_rows(random, static_cast<DType>(type), n_k, dim, values(i));
    const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
    Outputs s(random, DType::kF32, n_q, n_k);
    ScoreRows a = {q.f32(), q.stride, n_q, k.data(), k.stride, n_k, dim, scale, s.want.f32(), s.want.stride};
    a.fetch = any_fetch(random);
    definition().score_rows[type](a);
    a.s = s.got.f32();
    uk().score_rows[type](a);
    const std::string problem = difference(s.want, s.got, NaN::kCanonical, is_exact(), [&](int64_t r, int64_t c) {
      // Fused, one per element of a partial sum, four folds and the scale; unfused, one more per element.
      return dot_bound(
          3.0 * static_cast<double>((dim + 15) / 16) + 10, dim, scale, [&](int64_t d) { return q.at(r, d); },
          [&](int64_t d) { return k.at(c, d); });
    });
    ASSERT_EQ(problem, "") << describe(i, type, {{"dim", dim}, {"n_q", n_q}, {"n_k", n_k}, {"ldk", k.stride}});
  });
}

/// Gaussian (`additive` false) or additive scores of random rows.
void check_other_scores(const UKernels& uk, const UKernels& definition, bool is_exact, bool additive, size_t type,
                        Random& random, Values values, const std::string& message) {
  const int64_t dim = random.size(1, 300);
  const int64_t n_q = random.integer(0, 9);
  const int64_t n_k = random.size(0, dim > 100 ? 40 : 100);
  const Rows q = random_workspace(random, n_q, dim, values);
  const Rows k = random_rows(random, static_cast<DType>(type), n_k, dim, values);
  const Rows w = random_rows(random, DType::kF32, n_q, dim, values);
  const float scale = random.coin() ? -0.5f : number(random, Values::kWide);
  Outputs s(random, DType::kF32, n_q, n_k);
  AdditiveRows a = {
      {q.f32(), q.stride, n_q, k.data(), k.stride, n_k, dim, scale, s.want.f32(), s.want.stride}, w.f32(), w.stride};
  additive ? definition.additive_rows[type](a) : definition.gaussian_rows[type](a.rows);
  a.rows.s = s.got.f32();
  additive ? uk.additive_rows[type](a) : uk.gaussian_rows[type](a.rows);
  const std::string problem = difference(s.want, s.got, NaN::kCanonical, is_exact, [&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double x = static_cast<double>(q.at(r, d)), y = static_cast<double>(k.at(c, d));
      sum += additive ? std::fabs(static_cast<double>(w.at(r, d))) : (x - y) * (x - y);
    }
    const double factor = additive ? 1 : std::fabs(static_cast<double>(scale));
    // As for the dot product, and a subtraction or the two hyperbolic tangents.
    const double roundings = 3.0 * static_cast<double>((dim + 15) / 16) + 14 + (additive ? kTanhApart / kEps : 0);
    return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * factor + 0x1p-149;
  });
  ASSERT_EQ(problem, "") << message << ", additive " << additive << ", dim " << dim << ", n_q " << n_q << ", n_k "
                         << n_k << ", ldk " << k.stride << ", ldw " << w.stride;
}

TEST_P(Slots, GaussianRows) {
  for_each_type(200, 1000, [&](Random& random, size_t type, int64_t i) {
    check_other_scores(uk(), definition(), is_exact(), false, type, random, values(i), describe(i, type, {}));
  });
}

TEST_P(Slots, AdditiveRows) {
  for_each_type(210, 600, [&](Random& random, size_t type, int64_t i) {
    check_other_scores(uk(), definition(), is_exact(), true, type, random, values(i), describe(i, type, {}));
  });
}

TEST_P(Slots, ScoreTile) {
  for_each_type(10, 1000, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    const int64_t dim = random.size(1, 200);
    const int64_t rows = random.integer(0, random.coin() ? f32(uk()).tile_rows : 33);
    const int64_t n_panels = random.integer(0, dim > 100 ? 3 : 8);
    const Rows q = random_workspace(random, rows, dim, values(i));
    const int64_t panel = panel_bytes(kv_type_of(dtype), dim) / size_of(dtype);
    const Rows panels = random_rows(random, dtype, n_panels, panel, values(i));
    const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
    Outputs s(random, DType::kF32, rows, n_panels * kPanelWidth);
    ScoreTile a = {};
    a.q = q.data();
    a.q_stride = q.stride_bytes();
    a.rows = rows;
    a.panels = panels.data();
    a.panel_stride = panels.stride_bytes();
    a.n_panels = n_panels;
    a.dim = dim;
    a.scale = scale;
    a.s = s.want.f32();
    a.lds = s.want.stride;
    a.fetch = any_fetch(random);
    f32(definition()).kv[type].score_tile(a);
    a.s = s.got.f32();
    f32(uk()).kv[type].score_tile(a);
    const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      const auto key = [&](int64_t d) { return panels.at(c / kPanelWidth, panel_element(dtype, d, c % kPanelWidth)); };
      return dot_bound(3.0 * static_cast<double>(dim) + 2, dim, scale, [&](int64_t d) { return q.at(r, d); }, key);
    });
    ASSERT_EQ(problem, "") << describe(
        i, type,
        {{"dim", dim}, {"rows", rows}, {"n_panels", n_panels}, {"panel_stride", panels.stride}, {"lds", a.lds}});
  });
}

/// Keys in rows, against the definition's panels of the same keys.
TEST_P(Slots, ScoreKeyRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    const KvOperands& own = f32(uk()).kv[type];
    if (own.score_rows == nullptr) continue;  // optional: they are packed
    const KvOperands& other = f32(definition()).kv[type];
    Random random(seed() * 100 + 15 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(600); ++i) {
      const int64_t dim = random.integer(1, random.coin() ? 9 : kMostDirectRowDims / kDirectRowDims) * kDirectRowDims;
      ASSERT_TRUE(can_read_rows_in_place(dim));
      const int64_t rows = random.integer(0, kMostScoreRows);
      const int64_t n_panels = random.integer(0, dim > 100 ? 3 : 8);
      const Rows q = random_workspace(random, rows, dim, values(i));
      const Rows k = random_rows(random, dtype, n_panels * kPanelWidth, dim, values(i));
      Outputs s(random, DType::kF32, rows, n_panels * kPanelWidth);
      ScoreTile a = {};
      a.q = q.data();
      a.q_stride = q.stride_bytes();
      a.rows = rows;
      a.n_panels = n_panels;
      a.dim = dim;
      a.scale = random.coin() ? 1.0f : number(random, Values::kWide);
      a.lds = s.want.stride;
      a.fetch = any_fetch(random);
      a.keys_at_once = random.coin() ? kPanelWidth : kPanelWidth / 2;
      std::vector<float> panels(static_cast<size_t>(n_panels * kPanelWidth * dim));
      for (int64_t p = 0; p < n_panels; ++p) {
        other.pack_keys({.from = static_cast<const char*>(k.data()) + p * kPanelWidth * k.stride_bytes(),
                         .token_stride = k.stride_bytes(),
                         .keys = kPanelWidth,
                         .dim = dim,
                         .panel = panels.data() + p * kPanelWidth * dim,
                         .stream = false});
      }
      a.panels = panels.data();
      a.panel_stride = kPanelWidth * dim * 4;
      a.s = s.want.f32();
      other.score_packed(a);
      a.panels = k.data();
      a.panel_stride = k.stride_bytes();
      a.s = s.got.f32();
      own.score_rows(a);
      const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        return dot_bound(
            3.0 * static_cast<double>(dim) + 2, dim, a.scale, [&](int64_t d) { return q.at(r, d); },
            [&](int64_t d) { return k.at(c, d); });
      });
      ASSERT_EQ(problem, "") << describe(
          i, type, {{"dim", dim}, {"rows", rows}, {"n_panels", n_panels}, {"stride", k.stride}, {"lds", a.lds}});
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Values

TEST_P(Slots, ValueTile) {
  for_each_type(50, 1000, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    // Every fourth: one row, and as many columns from memory as a tile of some target has. Such values have kernels of
    // their own.
    const bool one_tile = i % 4 == 3;
    // A few rows are longer than all that kernels take of some keys at a time.
    const bool long_rows = i % 64 == 5;
    const int64_t dim = one_tile    ? int64_t{32} << (i / 4 % 3)
                        : long_rows ? random.integer(8190, 8230)
                                    : random.size(1, 200);
    const int64_t rows = one_tile    ? 1
                         : long_rows ? random.integer(1, 3)
                                     : random.integer(0, random.coin() ? f32(uk()).tile_rows : 20);
    // weighted_values() gives all keys at once where it can.
    const bool many = i % 16 >= 14;
    const int64_t keys =
        many ? random.integer(kKeyBlock - 1, 3 * kKeyBlock) : random.size(0, dim > 64 ? 40 : kKeyBlock);
    const Rows w = random_workspace(random, rows, keys, values(i));
    if (random.coin())
      for (const auto [r, c] : indices(rows, keys)) {
        if (random.coin()) w.set(r, c, 0.0f);
      }
    const Rows v = random_rows(random, dtype, keys, dim, values(i));
    Rows o = random_workspace(random, rows, dim, values(i));
    const Rows o_before = copy_of(o, random.guard());
    const Rows o_want = copy_of(o, random.guard());
    const Rows alpha = random_workspace(random, 1, rows, values(i));
    ValueTile a = {};
    a.w = w.f32();
    a.ldw = w.stride;
    a.rows = rows;
    a.v = v.data();
    a.key_stride = v.stride_bytes();
    a.group_stride = kValueGroup * size_of(dtype);
    a.keys = keys;
    a.dim = dim;
    a.o = o_want.f32();
    a.ldo = o.stride;
    a.alpha = random.coin() ? alpha.f32() : nullptr;
    a.fetch = one_tile && !many ? static_cast<Fetch>(1 + i / 12 % 3) : long_rows ? Fetch::kMemory : any_fetch(random);
    f32(definition()).kv[type].value_tile(a);
    a.o = o.f32();
    f32(uk()).kv[type].value_tile(a);
    const std::string problem = difference(o_want, o, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      double sum = std::fabs(static_cast<double>(o_before.at(r, c)) *
                             (a.alpha != nullptr ? static_cast<double>(alpha.at(0, r)) : 1.0));
      for (int64_t j = 0; j < keys; ++j) {
        sum += std::fabs(static_cast<double>(w.at(r, j)) * static_cast<double>(v.at(j, c)));
      }
      return (3.0 * static_cast<double>(keys) + 2) * (kEps * sum + 0x1p-149);
    });
    ASSERT_EQ(problem, "") << describe(
        i, type,
        {{"dim", dim}, {"rows", rows}, {"keys", keys}, {"key_stride", a.key_stride}, {"alpha", a.alpha != nullptr}});
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Packing. How a packed panel or block looks is the target's own business: what it computes with them is compared.

TEST_P(Slots, PackedKeys) {
  for_each_type(60, 1500, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    const int64_t dim = random.size(1, 300);
    const int64_t keys = random.coin() ? kPanelWidth : random.integer(0, kPanelWidth);
    const bool from_panel = random.coin();
    const Rows rows = random_rows(random, dtype, keys, dim, values(i));
    // The same keys in a panel of their own type; other columns hold 0, as pack_keys has them.
    Guarded panel(static_cast<size_t>(panel_bytes(kv_type_of(dtype), dim)), random.guard());
    std::memset(panel.data(), 0, panel.size());
    for (const auto [j, d] : indices(keys, dim)) {
      const int64_t e = panel_element(dtype, d, j);
      std::memcpy(panel.data() + e * size_of(dtype),
                  static_cast<const char*>(rows.data()) + (j * rows.stride + d) * size_of(dtype),
                  static_cast<size_t>(size_of(dtype)));
    }
    const Rows q = random_rows(random, random.storage(), random.integer(0, 9), dim, values(i));
    const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
    Outputs s(random, DType::kF32, q.rows, kPanelWidth);
    for (const bool is_definition : {true, false}) {
      const AttentionKernels& kernels = f32(is_definition ? definition() : uk());
      const Guarded queries = prepared(kernels, q, random.guard());
      const Guarded packed(static_cast<size_t>(kernels.kv[type].panel_bytes(dim)), random.guard());
      std::memset(packed.data(), 0xFF, packed.size());
      const PackKeys pack = {.from = from_panel ? panel.data() : rows.data(),
                             .token_stride = rows.stride_bytes(),
                             .keys = keys,
                             .dim = dim,
                             .panel = packed.data(),
                             .stream = random.coin()};
      // Panels of the type may be packed ones as they are.
      const bool as_is = from_panel && kernels.kv[type].pack_panel == nullptr;
      if (!as_is) (from_panel ? kernels.kv[type].pack_panel : kernels.kv[type].pack_keys)(pack);
      const Rows& out = is_definition ? s.want : s.got;
      ScoreTile a = {};
      a.q = queries.data();
      a.q_stride = kernels.query_bytes(dim);
      a.rows = q.rows;
      a.panels = as_is ? panel.data() : packed.data();
      a.panel_stride = kernels.kv[type].panel_bytes(dim);
      a.n_panels = 1;
      a.dim = dim;
      a.scale = scale;
      a.s = out.f32();
      a.lds = out.stride;
      kernels.kv[type].score_packed(a);
    }
    const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      const auto key = [&](int64_t d) { return c < keys ? rows.at(c, d) : 0.0f; };
      return dot_bound(3.0 * static_cast<double>(dim) + 2, dim, scale, [&](int64_t d) { return q.at(r, d); }, key);
    });
    ASSERT_EQ(problem, "") << describe(
        i, type, {{"dim", dim}, {"keys", keys}, {"from_panel", from_panel}, {"token_stride", rows.stride}});
  });
}

TEST_P(Slots, PackedValues) {
  for_each_type(80, 600, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    const int64_t dim = random.size(1, 200);
    const int64_t keys = random.size(0, dim > 64 ? 40 : kKeyBlock);
    const int64_t cut = random.integer(0, keys);  // packed in two calls, as from two pages
    const int64_t first = random.coin() ? 0 : random.integer(0, keys), count = random.integer(0, keys - first);
    const Rows v = random_rows(random, dtype, keys, dim, values(i));
    const Rows w = random_workspace(random, random.integer(0, 20), count, values(i));
    // Whole groups of columns, zeros past the last one.
    const Rows o = random_workspace(random, w.rows, (dim + kValueGroup - 1) / kValueGroup * kValueGroup, values(i));
    for (int64_t r = 0; r < o.rows; ++r) std::fill_n(o.f32() + r * o.stride + dim, o.columns - dim, 0.0f);
    const Rows o_want = copy_of(o, random.guard()), o_got = copy_of(o, random.guard());
    for (const bool is_definition : {true, false}) {
      const AttentionKernels& kernels = f32(is_definition ? definition() : uk());
      const Guarded block(static_cast<size_t>(kernels.values_bytes(dim)), random.guard());
      std::memset(block.data(), 0xFF, block.size());
      for (const bool second : {false, true}) {
        const int64_t from = second ? cut : 0;
        kernels.kv[type].pack_values({.rows = static_cast<const char*>(v.data()) + from * v.stride_bytes(),
                                      .token_stride = v.stride_bytes(),
                                      .first = from,
                                      .keys = second ? keys - cut : cut,
                                      .dim = dim,
                                      .column = 0,
                                      .columns = dim,
                                      .packed = block.data()});
      }
      const Rows& out = is_definition ? o_want : o_got;
      ValueTile a = {};
      a.w = w.f32();
      a.ldw = w.stride;
      a.rows = w.rows;
      a.v = block.data();
      a.first_key = first;
      a.keys = count;
      a.dim = dim;
      a.o = out.f32();
      a.ldo = out.stride;
      kernels.value_packed(a);
    }
    const std::string problem = difference(o_want, o_got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      double sum = std::fabs(static_cast<double>(o.at(r, c)));
      for (int64_t j = 0; j < count && c < dim; ++j)
        sum += std::fabs(static_cast<double>(w.at(r, j)) * static_cast<double>(v.at(first + j, c)));
      return (3.0 * static_cast<double>(count) + 2) * (kEps * sum + 0x1p-149);
    });
    ASSERT_EQ(problem, "") << describe(
        i, type, {{"dim", dim}, {"keys", keys}, {"cut", cut}, {"first", first}, {"token_stride", v.stride}});
  });
}

}  // namespace
}  // namespace simdattn::test
