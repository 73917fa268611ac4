// Narrow storage types: codes and numbers against formulas of their own, and every function that takes a store.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/fma.h"
#include "simdattn/simdattn.h"
#include "tests/cache/narrow.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"
#include "tests/support/test_data.h"

namespace simdattn::test {
namespace {

class Narrow : public TargetTest {};

struct Table {
  Array<2> cosine, sine;
  KeyRotation rotation;
  Table(Random& random, int64_t positions, int64_t dim) {
    const int64_t half = random.integer(0, dim / 2);
    cosine = Array<2>(random, DType::kF32, {positions, half});
    sine = Array<2>(random, DType::kF32, {positions, half});
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    if (half == 0 || random.coin()) return;
    rotation.cos = cosine.view;
    rotation.sin = sine.view;
    rotation.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    rotation.options.first_dim = random.integer(0, dim - 2 * half);
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Formats as others write them: tests/data/kv_formats.tar.gz, or all of it with SIMDATTN_SHARED

struct Witness {
  bool all = std::getenv("SIMDATTN_SHARED") != nullptr;
  std::string folder = std::string(all ? std::getenv("SIMDATTN_SHARED") : test_data()) + "/kv_formats/";
  int64_t rows = all ? 96 : 8;
  int64_t fp8_numbers = all ? 95435 : 3079;
  static constexpr int64_t kDim = 256;

  template <class T>
  std::vector<T> array(const std::string& name, int64_t count) const {
    return read_array<T>(folder + name + ".npy", count);
  }
};

std::vector<float> dequantised(const Kv& kv, int64_t tokens, const Exec& exec) {
  std::vector<float> out(static_cast<size_t>(tokens * kv.dim));
  EXPECT_TRUE(ok(kv_read(kv, 0, view(out.data(), {1, 1, tokens, kv.dim}), exec)));
  return out;
}

/// Every byte and every value of ggml's blocks, in rows and in panels.
TEST_P(Narrow, BlocksAsGgmlWritesThem) {
  const Witness w;
  const struct {
    const char* name;
    KvType type;
  } formats[] = {{"q8_0", KvType::kQ8_0}, {"q4_0", KvType::kQ4_0}, {"q4_1", KvType::kQ4_1},
                 {"q5_0", KvType::kQ5_0}, {"q5_1", KvType::kQ5_1}, {"iq4_nl", KvType::kIq4Nl}};
  const std::vector<float> x = w.array<float>("x", w.rows * w.kDim);
  for (const auto& f : formats) {
    const int64_t row = row_bytes(f.type, w.kDim);
    const std::vector<unsigned char> blocks = w.array<unsigned char>(std::string(f.name) + "_blocks", w.rows * row);
    const std::vector<float> values = w.array<float>(std::string(f.name) + "_values", w.rows * w.kDim);
    const Kv foreign =
        contiguous_kv(const_cast<unsigned char*>(blocks.data()), f.type, KvLayout::kRows, 1, 1, w.rows, w.kDim);
    const std::vector<float> read = dequantised(foreign, w.rows, exec());
    EXPECT_EQ(std::memcmp(read.data(), values.data(), read.size() * sizeof(float)), 0) << f.name;
    if (f.type != KvType::kQ8_0 && f.type != KvType::kQ4_0) continue;
    for (const KvLayout layout : {KvLayout::kRows, KvLayout::kPanels}) {
      std::vector<unsigned char> memory(static_cast<size_t>(kv_bytes(f.type, layout, 1, 1, w.rows, w.kDim)));
      const Kv ours = contiguous_kv(memory.data(), f.type, layout, 1, 1, w.rows, w.kDim);
      ASSERT_TRUE(kv_append(view(x.data(), {1, 1, w.rows, w.kDim}), {}, ours, {}, exec()).ok());
      if (layout == KvLayout::kRows) {
        EXPECT_EQ(std::memcmp(memory.data(), blocks.data(), blocks.size()), 0) << f.name;
      }
      const std::vector<float> again = dequantised(ours, w.rows, exec());
      EXPECT_EQ(std::memcmp(again.data(), values.data(), again.size() * sizeof(float)), 0) << f.name;
    }
  }
}

/// Every code and every number of 8-bit floating point.
TEST_P(Narrow, Fp8AsOthersWriteIt) {
  const Witness w;
  for (const KvType type : {KvType::kFp8E4M3, KvType::kFp8E5M2}) {
    const std::string name = type == KvType::kFp8E4M3 ? "e4m3fn" : "e5m2";
    const std::vector<float> values = w.array<float>(name + "_values", 256);
    std::vector<unsigned char> all(256);
    for (size_t c = 0; c < all.size(); ++c) all[c] = static_cast<unsigned char>(c);
    const std::vector<float> read =
        dequantised(contiguous_kv(all.data(), type, KvLayout::kRows, 1, 1, 1, 256), 1, exec());
    for (size_t c = 0; c < all.size(); ++c) EXPECT_TRUE(same(read[c], values[c])) << name << " " << c;
    // Rows of 1 number, then of 5000: vectors and what is left of them.
    const std::vector<float> x = w.array<float>("fp8_x", w.fp8_numbers);
    const std::vector<unsigned char> codes = w.array<unsigned char>(name + "_codes", w.fp8_numbers);
    for (int64_t done = 0; done < w.fp8_numbers;) {
      const int64_t n = std::min<int64_t>(w.fp8_numbers - done, done % 3 == 0 ? 5000 : 1);
      std::vector<unsigned char> row(static_cast<size_t>(n));
      const Kv kv = contiguous_kv(row.data(), type, KvLayout::kRows, 1, 1, 1, n);
      ASSERT_TRUE(kv_append(view(x.data() + done, {1, 1, 1, n}), {}, kv, {}, exec()).ok());
      ASSERT_EQ(std::memcmp(row.data(), codes.data() + done, row.size()), 0) << name << " from " << done;
      done += n;
    }
  }
}

/// kv_append() stores what encode() says of the rows that the same target rotates in f32; other bytes stay.
TEST_P(Narrow, Append) {
  Random random(seed() * 7000 + 1);
  for (int64_t i = 0; i < cases(300); ++i) {
    const Stored s = some_store(random, i);
    const KvStorage store = make_kv(random, s.type, s.form, s.batch, s.heads, s.tokens, s.dim, random.integer(1, 90));
    const int64_t most = store.kv.ring > 0 ? std::min(store.kv.ring, s.tokens) : s.tokens;
    const int64_t n = random.integer(0, most), start = random.integer(0, s.tokens - n);
    const Array<4> rows(random, random.storage(), {s.batch, s.heads, n, s.dim}, Strides::kInput);
    fill_rows(random, rows, Values::kSpecial);
    const Table table(random, s.tokens, s.dim);
    const Array<4> f32(random, DType::kF32, rows.view.shape);
    if (table.rotation.cos.data != nullptr) {
      const KeyRotation& r = table.rotation;
      ASSERT_TRUE(rope(rows.view, r.cos, r.sin, start, f32.view, r.options, exec()).ok());
    } else {
      for_each_element(f32.view, [&](int64_t) {});
      for (const auto [b, h, t, d] : indices(s.batch, s.heads, n, s.dim)) {
        f32.set_at({b, h, t, d}, rows.get_at({b, h, t, d}));
      }
    }
    // Fp8: scales are the caller's.
    if (!(s.type == KvType::kInt8) && store.kv.scales != nullptr) {
      for (const auto [b, h] : indices(s.batch, s.heads)) {
        for (int64_t t = start; t < start + n; ++t)
          *store.scale(b, h, t) = random.of({1.0f, 0.5f, 3e-3f, 1e20f, 1e-20f});
      }
    }
    const std::vector<unsigned char> before(store.memory.data(), store.memory.data() + store.memory.size());
    const std::vector<unsigned char> scales(store.scales.data(), store.scales.data() + store.scales.size());
    // In one call or in several.
    for (int64_t done = 0; done < n;) {
      const int64_t part = random.coin() ? n - done : random.integer(1, n - done);
      View<4> view = rows.view;
      view.data = static_cast<char*>(view.data) + done * (n == 1 ? 0 : view.stride[2]) * size_of(view.dtype);
      view.shape[2] = part;
      ASSERT_TRUE(ok(kv_append(view, {}, store.kv, {.rope = table.rotation, .start = start + done}, exec())));
      done += part;
    }
    for (const auto [b, h, t] : indices(s.batch, s.heads, n)) {
      std::vector<float> x;
      for (int64_t d = 0; d < s.dim; ++d) x.push_back(f32.get_at({b, h, t, d}));
      const CodedRow got = row_of(store, b, h, start + t);
      const CodedRow want = encode(s.type, x, got.scale);
      ASSERT_EQ(got == want, true) << s.text() << ", case " << i << ", token " << t << ", scale " << got.scale
                                   << ", not " << want.scale;
    }
    // Undo: what is left differs nowhere.
    std::vector<std::pair<unsigned char*, size_t>> written;
    for (const auto [b, h] : indices(s.batch, s.heads)) {
      for (int64_t t = start; t < start + n; ++t) {
        const int64_t bytes = row_bytes(s.type, s.dim);
        const bool panels = store.kv.layout == KvLayout::kPanels;
        // A last unit of a panel is filled with zeros.
        for (int64_t e = 0; e < (panels && has_scales(s.type) ? (bytes + 3) / 4 * 4 : bytes); ++e) {
          unsigned char* const at = store.byte(b, h, t, e);
          if (e >= bytes) {
            ASSERT_EQ(*at, 0);
          }
          *at = before[static_cast<size_t>(at - store.memory.data())];
        }
        if (float* const scale = store.scale(b, h, t); scale != nullptr) {
          const auto* at = reinterpret_cast<unsigned char*>(scale);
          std::memcpy(scale, scales.data() + (at - store.scales.data()), 4);
        }
      }
    }
    ASSERT_EQ(std::memcmp(before.data(), store.memory.data(), before.size()), 0) << s.text();
    ASSERT_EQ(scales.empty() ? 0 : std::memcmp(scales.data(), store.scales.data(), scales.size()), 0) << s.text();
  }
}

/// kv_read() of random codes of every type and form.
TEST_P(Narrow, Dequantise) {
  Random random(seed() * 7000 + 2);
  for (int64_t i = 0; i < cases(300); ++i) {
    Stored s = some_store(random, i);
    if (in_rows(s.form) && random.coin()) {
      s.type = random_narrow_type(random, true);
      s.dim = (s.dim + 31) / 32 * 32;
    }
    const Array<4> rows(random, DType::kF32, {s.batch, s.heads, s.tokens, s.dim});
    const KvStorage store = random_codes(random, s.type, rows, s.form,
                                         random.coin() ? Values::kOrdinary : Values::kHuge, random.integer(1, 90));
    const int64_t ring = store.kv.ring > 0 ? std::min(store.kv.ring, s.tokens) : s.tokens;
    const int64_t n = random.integer(0, ring), first = s.tokens - ring + random.integer(0, ring - n);
    const Array<4> out(random, DType::kF32, {s.batch, s.heads, n, s.dim}, Strides::kOutput);
    ASSERT_TRUE(ok(kv_read(store.kv, first, out.view, exec())));
    ASSERT_TRUE(out.gaps_intact());
    for (const auto [b, h, t, d] : indices(s.batch, s.heads, n, s.dim)) {
      const float got = out.get_at({b, h, t, d}), want = rows.get_at({b, h, first + t, d});
      ASSERT_TRUE(same(got, want)) << s.text() << ", " << got << ", not " << want;
      if (got != got) {
        ASSERT_EQ(std::bit_cast<uint32_t>(got), 0x7FC00000u);
      }
    }
  }
}

/// kv_shift(): codes and scales move; with a rotation the numbers are rotated in f32 and stored again.
TEST_P(Narrow, Shift) {
  Random random(seed() * 7000 + 3);
  for (int64_t i = 0; i < cases(300); ++i) {
    const Stored s = some_store(random, i);
    const Array<4> rows(random, DType::kF32, {s.batch, s.heads, s.tokens, s.dim});
    const KvStorage store = random_codes(random, s.type, rows, s.form, Values::kOrdinary, random.integer(1, 90));
    const int64_t exist = store.kv.ring > 0 ? std::min(store.kv.ring, s.tokens) : s.tokens;
    const int64_t count = random.one_in(4) ? exist : random.integer(0, exist);
    const int64_t first = s.tokens - exist + random.integer(0, exist - count), last = first + count;
    const int64_t delta = random.integer(-first, s.tokens - last);
    if (delta == 0 || count == 0) continue;
    const Table table(random, s.tokens + 1, s.dim);
    const KeyRotation& rope_by = table.rotation;
    std::vector<CodedRow> want;
    const auto for_each = [&](auto f) {
      for (const auto [b, h] : indices(s.batch, s.heads)) {
        for (int64_t t = first; t < last; ++t) f(b, h, t);
      }
    };
    for_each([&](int64_t b, int64_t h, int64_t t) {
      CodedRow row = row_of(store, b, h, t);
      if (rope_by.cos.data != nullptr) {
        const Array<4> one(random, DType::kF32, {1, 1, 1, s.dim});
        const std::vector<float> x = numbers_of(store, b, h, t);
        for (int64_t d = 0; d < s.dim; ++d) one.set_at({0, 0, 0, d}, x[static_cast<size_t>(d)]);
        RopeOptions at = rope_by.options;
        at.inverse = at.inverse != (delta < 0);
        EXPECT_TRUE(rope(one.view, rope_by.cos, rope_by.sin, std::abs(delta), one.view, at, exec()).ok());
        std::vector<float> y;
        for (int64_t d = 0; d < s.dim; ++d) y.push_back(one.get_at({0, 0, 0, d}));
        row = encode(s.type, y, row.scale);
      }
      want.push_back(row);
    });
    ASSERT_TRUE(ok(kv_shift(store.kv, first, last, delta, rope_by, exec())));
    size_t next = 0;
    for_each([&](int64_t b, int64_t h, int64_t t) {
      ASSERT_TRUE(row_of(store, b, h, t + delta) == want[next]) << s.text() << ", token " << t << " by " << delta;
      ++next;
    });
  }
}

/// The rows of a whole ring change places, the longest ones too, whose codes fill what kv_shift() keeps of a row.
TEST_P(Narrow, ShiftOfTheLongestRows) {
  Random random(seed() * 7000 + 9);
  for (const KvType type : kNarrowTypes) {
    constexpr int64_t kRing = 4, kTokens = 6;
    const Array<4> rows(random, DType::kF32, {1, 1, kTokens, 8192});
    const KvStorage store = random_codes(random, type, rows, KvForm::kRingRows, Values::kOrdinary, kRing);
    for (const int64_t delta : {-1, -2}) {
      std::vector<CodedRow> want;
      for (int64_t t = kTokens - kRing; t < kTokens; ++t) want.push_back(row_of(store, 0, 0, t));
      ASSERT_TRUE(ok(kv_shift(store.kv, kTokens - kRing, kTokens, delta, {}, exec())));
      for (int64_t i = 0; i < kRing; ++i) {
        ASSERT_TRUE(row_of(store, 0, 0, kTokens - kRing + i + delta) == want[static_cast<size_t>(i)])
            << static_cast<int>(type) << ", row " << i << " by " << delta;
      }
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Narrow);

}  // namespace
}  // namespace simdattn::test
