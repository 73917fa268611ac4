// Positions beside the table: rotation by angles computed on the way, the shift of cached keys, addition of positions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Positions : public TargetTest {};

std::string difference(const Array<4>& want, const Array<4>& got) {
  if (!want.gaps_intact() || !got.gaps_intact()) return "bytes between the elements of an output were written";
  const std::vector<uint64_t> w = want.bits(), g = got.bits();
  for (size_t i = 0; i < w.size(); ++i) {
    if (w[i] != g[i])
      return "element " + std::to_string(i) + ": " + std::to_string(g[i]) + ", not " + std::to_string(w[i]);
  }
  return "";
}

// ---------------------------------------------------------------------------------------------------------------------
// rope_direct

TEST_P(Positions, DirectIsTableAndRope) {
  Random random(seed() * 4000 + 1);
  for (int64_t i = 0; i < cases(150); ++i) {
    const bool large = i % 50 == 49;
    const int64_t pairs = large ? random.integer(1023, 1027) : random.size(1, 70);
    RopeTableOptions table;
    table.rope_theta = random.of({1e4, 5e5});
    table.rope_type = random.of({RopeType::kDefault, RopeType::kLinear, RopeType::kYarn, RopeType::kLlama3});
    if (table.rope_type != RopeType::kDefault) table.factor = 4;
    table.original_max_position_embeddings = 4096;
    table.f32_angles = random.one_in(4);
    int64_t axes = 1;
    if (pairs >= 3 && random.one_in(3)) {
      table.mrope_section = {pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0};
      axes = random.coin() ? 3 : 1;
    }
    RopeOptions options;
    options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    options.inverse = random.coin();
    options.first_dim = random.coin() ? 0 : random.integer(0, 20);
    const int64_t dim = options.first_dim + 2 * pairs + (random.coin() ? 0 : random.integer(1, 20));
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 4), n = random.integer(0, 5);
    Array<4> x(random, random.storage(), {batch, heads, n, dim}, Values::kOrdinary, Strides::kInput);
    const bool in_place = random.one_in(3);
    const DType type = in_place ? x.view.dtype : random.storage();
    Array<4> want(random, type, {batch, heads, n, dim}, Strides::kOutput),
        got(random, type, {batch, heads, n, dim}, Strides::kOutput);
    if (in_place) got.assign(x.bits());
    Array<3> positions(random, random.coin() ? DType::kI64 : DType::kI32, {axes, batch, n}, Strides::kInput);
    for_each_element(positions.view, [&](int64_t at) {
      set_element_bits(positions.view.data, positions.view.dtype, at,
                       static_cast<uint64_t>(random.integer(-100000, random.of<int64_t>({10, 2147483647}))));
    });
    const bool given = random.one_in(4) ? false : true;
    if (!given) axes = 1;

    // A table with one row for every row of x.
    std::vector<int64_t> list(static_cast<size_t>(axes * batch * n)), rows(static_cast<size_t>(batch * n));
    for (const auto [a, b, r] : indices(axes, batch, n)) {
      const int64_t at = positions.at({a, b, r});
      const uint64_t bits = given ? element_bits(positions.view.data, positions.view.dtype, at) : 0;
      const int64_t p = !given                                ? r
                        : positions.view.dtype == DType::kI32 ? static_cast<int32_t>(bits)
                                                              : static_cast<int64_t>(bits);
      list[static_cast<size_t>((a * batch + b) * n + r)] = p;
      rows[static_cast<size_t>(b * n + r)] = b * n + r;
    }
    std::vector<float> cosine(static_cast<size_t>(batch * n * pairs)), sine(cosine.size());
    Status s = rope_table(view(cosine.data(), {batch * n, pairs}), view(sine.data(), {batch * n, pairs}), table,
                          view(list.data(), {axes, batch * n}));
    ASSERT_TRUE(s.ok()) << s.detail;
    const ConstView<2> index = view(rows.data(), {batch, n});
    ASSERT_TRUE(rope(x.view, view(cosine.data(), {batch * n, pairs}), view(sine.data(), {batch * n, pairs}), index,
                     want.view, options, exec())
                    .ok());
    const size_t bytes = rope_direct_workspace(pairs);
    EXPECT_EQ(bytes > 0, pairs > 1024);
    const Guarded workspace(bytes, random.guard());
    Exec e = exec();
    e.workspace = workspace.data();
    e.workspace_bytes = bytes;
    const ConstView<3> absent;
    s = rope_direct(in_place ? ConstView<4>(got.view) : ConstView<4>(x.view), pairs, table,
                    given ? ConstView<3>(positions.view) : absent, got.view, options, e);
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(difference(want, got), "") << "case " << i << ", pairs " << pairs << ", in place " << in_place;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// kv_shift

/// The row of a token.
Array<4> row_of(Random& random, const KvStorage& s, const unsigned char* memory, int64_t b, int64_t h, int64_t t) {
  Array<4> row(random, s.dtype(), {1, 1, 1, s.kv.dim});
  for (int64_t d = 0; d < s.kv.dim; ++d)
    set_element_bits(row.view.data, s.dtype(), d, element_bits(memory, s.dtype(), s.at(b, h, t, d)));
  return row;
}

TEST_P(Positions, ShiftMovesAndRotates) {
  Random random(seed() * 4000 + 2);
  int64_t cycles = 0;
  for (int64_t i = 0; i < cases(400); ++i) {
    const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3),
                  half = i % 100 == 99 ? random.integer(1000, 1100) : random.size(1, 20);
    const int64_t dim = 2 * half + (random.coin() ? 0 : random.integer(1, 9));
    const int64_t tokens = random.size(2, i % 100 == 99 ? 40 : 150);
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels,
                                   KvForm::kRingRows, KvForm::kRingPanels});
    Array<4> rows(random, random.storage(), {batch, heads, tokens, dim});
    rows.fill(random, random.of({Values::kOrdinary, Values::kSpecial}));
    const KvStorage s = store_kv(random, rows, form, random.integer(1, 64));
    if (s.kv.page_size > 0 && random.one_in(4)) s.table.data()[0] = -1;
    const int64_t exist = s.kv.ring > 0 ? std::min(s.kv.ring, tokens) : tokens;
    const int64_t count = random.one_in(4) ? exist : random.integer(0, exist);
    const int64_t first = random.integer(0, tokens - count), last = first + count;
    const int64_t delta = random.integer(-first, tokens - last);
    if (s.kv.ring > 0 && count == s.kv.ring && delta % s.kv.ring != 0) ++cycles;
    Array<2> cosine(random, DType::kF32, {tokens + 1, half}, Values::kOrdinary),
        sine(random, DType::kF32, {tokens + 1, half}, Values::kOrdinary);
    KeyRotation rotation;
    if (random.coin()) {
      rotation.cos = cosine.view;
      rotation.sin = sine.view;
      rotation.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
      rotation.options.inverse = random.coin();
      rotation.options.first_dim = random.integer(0, dim - 2 * half);
    }
    // The expectation, from a copy of all bytes: no order matters.
    const size_t size = s.memory.size();
    std::vector<unsigned char> before(s.memory.data(), s.memory.data() + size), want = before;
    for (int64_t b = 0; b < batch && delta != 0; ++b) {
      for (int64_t t = first; t < last; ++t) {
        const auto page = [&](int64_t token) { return s.kv.page_size > 0 ? s.page(b, token) : 0; };
        if (page(t) < 0 || page(t + delta) < 0) continue;
        for (int64_t h = 0; h < heads; ++h) {
          const Array<4> row = row_of(random, s, before.data(), b, h, t);
          if (rotation.cos.data != nullptr) {
            RopeOptions options = rotation.options;
            if (delta < 0) options.inverse = !options.inverse;
            const int64_t distance[1] = {std::abs(delta)};
            ASSERT_TRUE(rope(row.view, cosine.view, sine.view, view(distance, {1, 1}), row.view, options, exec()).ok());
          }
          for (int64_t d = 0; d < dim; ++d)
            set_element_bits(want.data(), s.dtype(), s.at(b, h, t + delta, d),
                             element_bits(row.view.data, s.dtype(), d));
        }
      }
    }
    ASSERT_TRUE(ok(kv_shift(s.kv, first, last, delta, rotation, exec())));
    for (size_t at = 0; at < size; ++at) {
      ASSERT_EQ(s.memory.data()[at], want[at])
          << "byte " << at << ", case " << i << ", form " << static_cast<int>(form) << ", type "
          << static_cast<int>(s.kv.type) << ", tokens " << tokens << " [" << first << ", " << last << ") by " << delta
          << ", ring " << s.kv.ring << ", dim " << dim;
    }
  }
  if (cases(400) >= 400) {
    EXPECT_GT(cycles, 0) << "no full ring was shifted";
  }
}

/// After n shifts a key is as far from the exact rotation as the header says: in the norm of a pair, (u + 2^-22) of it
/// for the rotation on the way into the cache and for each shift.
TEST_P(Positions, ShiftError) {
  Random random(seed() * 4000 + 3);
  constexpr int64_t kDim = 64, kTokens = 600, kPairs = kDim / 2;
  RopeTableOptions options;
  std::vector<float> cosine(kTokens * kPairs), sine(kTokens * kPairs);
  ASSERT_TRUE(rope_table(view(cosine.data(), {kTokens, kPairs}), view(sine.data(), {kTokens, kPairs}), options).ok());
  KeyRotation rotation = {.cos = view(cosine.data(), {kTokens, kPairs}), .sin = view(sine.data(), {kTokens, kPairs})};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Array<4> keys(random, DType::kF32, {1, 1, 100, kDim}, Values::kOrdinary);
    const KvStorage s = make_kv(random, type, KvForm::kPanels, 1, 1, kTokens, kDim);
    std::vector<int32_t> at(100);
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(300 + i);
    ASSERT_TRUE(kv_append(keys.view, view(at.data(), {1, 100}), s.kv, {.rope = rotation}, exec()).ok());
    const double u = type == DType::kF32 ? 0x1p-24 : type == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    int64_t position = 300;
    double roundings = 1;
    double worst = 0;
    for (const int64_t delta : {-300, 1, 17, 400, -119, 81}) {
      ASSERT_TRUE(kv_shift(s.kv, position, position + 100, delta, rotation, exec()).ok());
      position += delta;
      ++roundings;
      std::vector<int64_t> positions;
      for (int64_t i = 0; i < 100; ++i) positions.push_back(position + i);
      reference::Tensor c, sn;
      reference::rope_table(options, kDim, {positions}, &c, &sn);
      const reference::Tensor want = reference::rope(reference::read(keys.view), c, sn, {});
      for (const auto [t, p] : indices(100, kPairs)) {
        const double e0 =
            static_cast<double>(get(s.kv.data, type, s.at(0, 0, position + t, p))) - want.at({0, 0, t, p});
        const double e1 = static_cast<double>(get(s.kv.data, type, s.at(0, 0, position + t, p + kPairs))) -
                          want.at({0, 0, t, p + kPairs});
        const double norm = std::hypot(want.at({0, 0, t, p}), want.at({0, 0, t, p + kPairs}));
        // Errors of f16 below its normal numbers are absolute.
        const double allowed = roundings * ((u + 0x1p-22) * norm * (1 + roundings * u) + 0x1p-24);
        worst = std::max(worst, std::hypot(e0, e1) / allowed);
        ASSERT_LE(std::hypot(e0, e1), allowed) << "token " << t << ", pair " << p << ", shift " << roundings - 1;
      }
    }
    EXPECT_GT(worst, 0.05) << "a bound that nothing comes near";
  }
}

/// One row of the table will do, repeated by stride 0.
TEST_P(Positions, ShiftByOneRow) {
  Random random(seed() * 4000 + 4);
  constexpr int64_t kDim = 32, kTokens = 90, kPairs = kDim / 2, kDelta = 50;
  std::vector<float> cosine(kTokens * kPairs), sine(kTokens * kPairs), c(kPairs), s(kPairs);
  ASSERT_TRUE(rope_table(view(cosine.data(), {kTokens, kPairs}), view(sine.data(), {kTokens, kPairs})).ok());
  ASSERT_TRUE(rope_table(view(c.data(), {1, kPairs}), view(s.data(), {1, kPairs}), {}, {}, kDelta).ok());
  Array<4> rows(random, DType::kF32, {2, 2, kTokens, kDim}, Values::kOrdinary);
  const KvStorage a = store_kv(random, rows, KvForm::kPanels);
  std::vector<unsigned char> copy(a.memory.data(), a.memory.data() + a.memory.size());
  Kv other = a.kv;
  other.data = copy.data();
  ASSERT_TRUE(kv_shift(a.kv, 60, 90, -kDelta,
                       {.cos = view(cosine.data(), {kTokens, kPairs}), .sin = view(sine.data(), {kTokens, kPairs})},
                       exec())
                  .ok());
  ASSERT_TRUE(kv_shift(other, 60, 90, -kDelta,
                       {.cos = view(c.data(), {kDelta + 1, kPairs}, {0, 1}),
                        .sin = view(s.data(), {kDelta + 1, kPairs}, {0, 1})},
                       exec())
                  .ok());
  EXPECT_EQ(std::memcmp(copy.data(), a.memory.data(), copy.size()), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// add_rows

TEST_P(Positions, AddRows) {
  Random random(seed() * 4000 + 5);
  for (int64_t i = 0; i < cases(600); ++i) {
    const std::array<int64_t, 4> shape = {random.integer(0, 3), random.integer(1, 4), random.integer(1, 5),
                                          i % 50 == 49 ? random.integer(1000, 2100) : random.size(0, 90)};
    Array<4> x(random, random.storage(), shape, Strides::kInput), p(random, random.storage(), shape, Strides::kInput);
    const Values kind = random.of({Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
    x.fill(random, kind);
    p.fill(random, kind);
    const bool in_place = random.one_in(3);
    Array<4> out(random, in_place ? x.view.dtype : random.storage(), shape, Strides::kOutput);
    if (in_place) out.assign(x.bits());
    std::vector<float> xs, ps;
    for_each_element(x.view, [&](int64_t at) { xs.push_back(get(x.view.data, x.view.dtype, at)); });
    for_each_element(p.view, [&](int64_t at) { ps.push_back(get(p.view.data, p.view.dtype, at)); });
    ASSERT_TRUE(ok(add_rows(in_place ? ConstView<4>(out.view) : ConstView<4>(x.view), p.view, out.view, exec())));
    size_t e = 0;
    for (const uint64_t bits : out.bits()) {
      const uint64_t want = with_storage(out.view.dtype, [&](auto t) {
        t = from_f32<decltype(t)>(xs[e] + ps[e]);
        return element_bits(&t, out.view.dtype, 0);
      });
      ASSERT_EQ(bits, want) << "element " << e << ", case " << i << ": " << xs[e] << " + " << ps[e];
      ++e;
    }
    ASSERT_TRUE(out.gaps_intact());
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Wrong arguments

template <class F>
void expect(Code code, const char* detail, F&& call) {
  const Status s = call();
  EXPECT_EQ(s.code, code) << s.detail;
  EXPECT_NE(std::strstr(s.detail, detail), nullptr) << s.detail << " does not say " << detail;
}

TEST(PositionsRules, DirectNamesTheArgument) {
  std::vector<float> memory(4096, 1.0f), result(4096, 7.0f);
  const ConstView<4> x = view(static_cast<const float*>(memory.data()), {2, 2, 3, 8});
  const View<4> out = view(result.data(), {2, 2, 3, 8});
  const std::vector<int64_t> list(64, 5), far(64, int64_t{1} << 31);
  const ConstView<3> positions = view(list.data(), {1, 2, 3});
  const ConstView<4> null(nullptr, DType::kF32, {2, 2, 3, 8});
  expect(Code::kNullPointer, "x.data", [&] { return rope_direct(null, 4, {}, positions, out); });
  expect(Code::kShape, "out.shape",
         [&] { return rope_direct(x, 4, {}, positions, view(result.data(), {2, 2, 3, 7})); });
  expect(Code::kRange, "pairs", [&] { return rope_direct(x, 0, {}, positions, out); });
  expect(Code::kShape, "pairs", [&] { return rope_direct(x, 5, {}, positions, out); });
  expect(Code::kShape, "pairs", [&] { return rope_direct(x, 4, {}, positions, out, {.first_dim = 1}); });
  expect(Code::kRange, "options.first_dim", [&] { return rope_direct(x, 4, {}, positions, out, {.first_dim = -1}); });
  for (const int64_t start : {int64_t{1} << 31, (int64_t{1} << 31) - 2, -(int64_t{1} << 31), INT64_MAX, INT64_MIN}) {
    expect(Code::kRange, "positions.start", [&] { return rope_direct(x, 4, {}, start, out); });
  }
  std::vector<float> other(4096);
  EXPECT_TRUE(rope_direct(x, 4, {}, (int64_t{1} << 31) - 3, view(other.data(), {2, 2, 3, 8})).ok());
  // A part of an array whose other elements are no positions.
  std::vector<int64_t> part = far;
  std::fill_n(part.begin() + 6, 6, 5);
  const ConstView<3> middle(part.data() + 6, DType::kI64, {1, 2, 3});
  EXPECT_TRUE(rope_direct(x, 4, {}, middle, view(other.data(), {2, 2, 3, 8})).ok());
  expect(Code::kRange, "table.rope_theta", [&] { return rope_direct(x, 4, {.rope_theta = 0.5}, positions, out); });
  expect(Code::kShape, "positions.shape[0]", [&] { return rope_direct(x, 4, {}, view(list.data(), {2, 2, 3}), out); });
  expect(Code::kShape, "positions.shape", [&] { return rope_direct(x, 4, {}, view(list.data(), {1, 2, 2}), out); });
  expect(Code::kRange, "positions", [&] { return rope_direct(x, 4, {}, view(far.data(), {1, 2, 3}), out); });
  expect(Code::kDType, "positions.dtype",
         [&] { return rope_direct(x, 4, {}, view(static_cast<const float*>(memory.data()), {1, 2, 3}), out); });
  expect(Code::kOverlap, "overlaps x", [&] {
    return rope_direct(view(static_cast<const float*>(result.data() + 1), {2, 2, 3, 8}), 4, {}, positions, out);
  });
  const ConstView<4> wide = view(static_cast<const float*>(memory.data()), {1, 1, 1, 2050});
  const View<4> wide_out = view(result.data(), {1, 1, 1, 2050});
  expect(Code::kWorkspace, "exec.workspace", [&] { return rope_direct(wide, 1025, {}, {}, wide_out); });
  for (const float r : result) ASSERT_EQ(r, 7.0f);
}

/// Tables without columns, null or not, and with a stride that reaches as far as one may.
TEST(PositionsRules, EmptyTables) {
  std::vector<float> memory(4096, 7.0f), rows(64, 1.0f);
  const ConstView<4> x = view(static_cast<const float*>(rows.data()), {1, 1, 2, 8});
  ConstView<2> table = view(static_cast<const float*>(memory.data()), {9, 0});
  const Kv cache = view(memory.data(), {1, 1, 10, 8});
  const auto calls = [&](Code code) {
    std::fill(memory.begin(), memory.end(), 7.0f);
    const float written = code == Code::kOk ? 1.0f : 7.0f;
    KeyRotation rotation;
    rotation.cos = rotation.sin = table;
    EXPECT_EQ(rope(x, table, table, 5, view(memory.data(), {1, 1, 2, 8})).code, code);
    EXPECT_EQ(memory[0], written);
    EXPECT_EQ(kv_append(x, {}, cache, {.rope = rotation, .start = 5}).code, code);
    EXPECT_EQ(memory[5 * 8], written);
    EXPECT_EQ(kv_shift(cache, 5, 7, 2, rotation).code, code);
    EXPECT_EQ(memory[8 * 8], written);
  };
  table.stride[0] = int64_t{1} << 53;  // 8 of them are 2^58 bytes
  calls(Code::kOk);
  table.stride[0] = (int64_t{1} << 53) + 1;
  calls(Code::kStride);
  table.stride[0] = INT64_MIN;
  calls(Code::kStride);
}

TEST(PositionsRules, ShiftNamesTheArgument) {
  std::vector<float> memory(4096, 7.0f), table(4096, 0.5f);
  const Kv cache = view(memory.data(), {2, 2, 10, 8});
  const KeyRotation rope = {.cos = view(static_cast<const float*>(table.data()), {3, 4}),
                            .sin = view(static_cast<const float*>(table.data()), {3, 4})};
  Kv bad = cache;
  bad.data = nullptr;
  expect(Code::kNullPointer, "kv.data", [&] { return kv_shift(bad, 2, 4, 1); });
  bad = cache;
  bad.type = static_cast<KvType>(77);
  expect(Code::kDType, "kv.type", [&] { return kv_shift(bad, 2, 4, 1); });
  expect(Code::kRange, "first, last", [&] { return kv_shift(cache, -1, 4, 1); });
  expect(Code::kRange, "first, last", [&] { return kv_shift(cache, 5, 4, 1); });
  expect(Code::kRange, "first, last", [&] { return kv_shift(cache, 5, 11, -1); });
  expect(Code::kRange, "delta", [&] { return kv_shift(cache, 5, 10, 1); });
  expect(Code::kRange, "delta", [&] { return kv_shift(cache, 5, 10, -6); });
  expect(Code::kRange, "delta", [&] { return kv_shift(cache, 5, 5, kBottomRight); });
  expect(Code::kRange, "no row |delta|", [&] { return kv_shift(cache, 5, 10, -3, rope); });
  KeyRotation wide = rope;
  wide.options.first_dim = 1;
  expect(Code::kShape, "cos.shape[1]", [&] { return kv_shift(cache, 5, 10, -1, wide); });
  KeyRotation overlapping = rope;
  overlapping.cos = view(static_cast<const float*>(memory.data()), {3, 4});
  expect(Code::kOverlap, "kv: overlaps", [&] { return kv_shift(cache, 5, 10, -1, overlapping); });
  Kv ring = cache;
  ring.ring = 4;
  expect(Code::kRange, "ring", [&] { return kv_shift(ring, 5, 10, -1); });
  Kv pages = cache;
  const int32_t blocks[10] = {0, 9, 1, 0, 1, 0, 9, 1, 0, 1};
  pages.block_table = blocks;
  pages.block_table_stride = 5;
  pages.page_size = 2;
  pages.n_pages = 2;
  expect(Code::kRange, "kv.block_table", [&] { return kv_shift(pages, 4, 6, -1); });
  for (const float m : memory) ASSERT_EQ(m, 7.0f);
}

TEST(PositionsRules, AddNamesTheArgument) {
  std::vector<float> memory(1024, 1.0f), result(1024, 7.0f);
  const ConstView<4> x = view(static_cast<const float*>(memory.data()), {2, 2, 3, 8}), p = x;
  const View<4> out = view(result.data(), {2, 2, 3, 8});
  const ConstView<4> null(nullptr, DType::kF32, {2, 2, 3, 8});
  expect(Code::kNullPointer, "x.data", [&] { return add_rows(null, p, out); });
  expect(Code::kNullPointer, "p.data", [&] { return add_rows(x, null, out); });
  expect(Code::kShape, "p.shape",
         [&] { return add_rows(x, view(static_cast<const float*>(memory.data()), {1, 2, 3, 8}), out); });
  expect(Code::kShape, "out.shape", [&] { return add_rows(x, p, view(result.data(), {2, 2, 3, 7})); });
  expect(Code::kStride, "out.stride", [&] { return add_rows(x, p, view(result.data(), {2, 2, 3, 8}, {0, 24, 8, 1})); });
  expect(Code::kOverlap, "overlaps p", [&] { return add_rows(x, out, out); });
  expect(Code::kOverlap, "overlaps x",
         [&] { return add_rows(view(static_cast<const float*>(result.data() + 8), {2, 2, 3, 8}), p, out); });
  for (const float r : result) ASSERT_EQ(r, 7.0f);
}

SIMDATTN_FOR_EACH_TARGET(Positions);

}  // namespace
}  // namespace simdattn::test
