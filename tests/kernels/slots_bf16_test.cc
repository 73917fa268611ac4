// The slots of Arithmetic::kBF16 on every runnable target against the definition: bit by bit where the target has fused
// multiply-add, else within a bound. Packed formats are the target's own: what is computed with them is compared.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/slots_bf16.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

/// Keys from rows and from panels, packed and, where the target can, as they are.
TEST_P(Bf16Slots, Scores) {
  for_each_type(300, 1200, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
    const KvType kv = kv_type_of(dtype);
    // Every fourth: rows of whole panels, which some targets take in place for a few query rows.
    const bool whole = i % 4 == 3;
    const int64_t dim = whole ? random.integer(1, 12) * kDirectRowDims : random.size(1, 300);
    const int64_t most = dim > 100 ? 3 : 8;
    const int64_t keys = whole ? random.integer(1, most) * kPanelWidth : random.size(1, most * kPanelWidth);
    const int64_t n_panels = (keys + kPanelWidth - 1) / kPanelWidth;
    const bool from_panels = !whole && random.coin();
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
    const bool in_place = whole && kernels().kv[type].score_rows != nullptr && q.rows <= kMostScoreRows;
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
      if (in_place && !is_definition) {
        ScoreTile rows = tile;
        rows.panels = k.data();
        rows.panel_stride = k.stride_bytes();
        rows.fetch = any_fetch(random);
        operands.score_rows(rows);
        continue;
      }
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
                                    {"in_place", in_place},
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

bool same_narrow(const std::vector<float>& want, const float* got) {
  for (size_t c = 0; c < want.size(); c += kNarrowGroup) {
    if (std::memcmp(&want[c], got + c, 2 * kNarrowGroup) != 0) return false;
  }
  return true;
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
    // Columns past the last one are zeros that nobody reads. What is not finite makes NaN of them where a kernel takes
    // them along, and another one may leave them out.
    for (const Guarded* sums : {&o_want, &o_got}) {
      for (int64_t r = 0; r < w.rows; ++r) {
        float* const row = reinterpret_cast<float*>(sums->data()) + r * o.stride;
        for (int64_t c = dim; c < padded; ++c) {
          ASSERT_TRUE(row[c] == 0.0f || std::isnan(row[c])) << "row " << r << ", column " << c << ": " << row[c];
          row[c] = 0.0f;
        }
      }
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
    // What the score slot may leave to the softmax.
    const float scale = kernels().scales_in_softmax ? random.of({1.0f, 0.3f, 7.0f, 0x1p-60f, 0x1p-126f}) : 1.0f;
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
                         .alpha = m + 2 * state.stride,
                         .scale = scale});
    }
    const auto message = [&] { return text({{"case", i}, {"rows", rows}, {"columns", columns}}); };
    if (has_narrow_weights()) {
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<float> want =
            narrow_weights(reinterpret_cast<const float*>(s_want.data()) + r * s.stride, columns);
        ASSERT_TRUE(same_narrow(want, reinterpret_cast<const float*>(s_got.data()) + r * s.stride)) << message();
      }
    } else {
      // Another exponential may round to the neighbour.
      const std::string problem = difference(s_want, s_got, s.stride, is_exact(), [&](int64_t r, int64_t c) {
        return 0x1p-7 * std::fabs(static_cast<double>(get(s_want.data(), DType::kF32, r * s.stride + c)));
      });
      ASSERT_EQ(problem, "") << message();
    }
    const std::string state_problem =
        difference(state_want, state_got, state.stride, is_exact(), [&](int64_t r, int64_t c) {
          return 0x1p-7 * std::fabs(static_cast<double>(get(state_want.data(), DType::kF32, r * state.stride + c)));
        });
    ASSERT_EQ(state_problem, "") << "max, sum, alpha, " << message();
    if (!is_exact() || has_narrow_weights()) continue;
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

SIMDATTN_FOR_EACH_TARGET(Bf16Slots);

}  // namespace
}  // namespace simdattn::test
