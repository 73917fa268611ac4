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
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Narrow : public TargetTest {};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr KvForm kForms[] = {KvForm::kRows,        KvForm::kPanels,   KvForm::kPagedRows,
                             KvForm::kPagedPanels, KvForm::kRingRows, KvForm::kRingPanels};

/// One row of codes and its scale.
struct CodedRow {
  std::vector<unsigned char> bytes;
  float scale = 1;
  bool operator==(const CodedRow& o) const {
    return bytes == o.bytes && std::bit_cast<uint32_t>(scale) == std::bit_cast<uint32_t>(o.scale);
  }
};

CodedRow row_of(const KvStorage& s, int64_t b, int64_t h, int64_t t) {
  CodedRow row;
  for (int64_t i = 0; i < row_bytes(s.kv.type, s.kv.dim); ++i) row.bytes.push_back(*s.byte(b, h, t, i));
  if (const float* const scale = s.scale(b, h, t); scale != nullptr) row.scale = *scale;
  return row;
}
std::vector<float> numbers_of(const KvStorage& s, int64_t b, int64_t h, int64_t t) {
  const CodedRow row = row_of(s, b, h, t);
  return reference::decode(s.kv.type, row.bytes.data(), row.scale, s.kv.dim);
}

bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b); }

/// Rounds to nearest even whatever the environment.
double nearest(double x) {
  const double low = std::floor(x), rest = x - low;
  return rest > 0.5 || (rest == 0.5 && std::fmod(low, 2) != 0) ? low + 1 : low;
}

/// The nearest of all finite codes, ties to even ones.
unsigned char nearest_code(KvType type, float x, float y) {
  const bool wide = type == KvType::kFp8E5M2;
  const int largest = wide ? 0x7B : 0x7E, sign = std::signbit(y) ? 128 : 0;
  if (x != x || y != y) return wide ? 0x7E : 0x7F;
  if (std::fabs(x) == kInf) return static_cast<unsigned char>(wide ? 0x7C | sign : 0x7F);
  static std::vector<double> values[2];
  std::vector<double>& value = values[wide];
  for (int c = 0; std::ssize(value) <= largest; ++c) {
    const unsigned char code = static_cast<unsigned char>(c);
    value.push_back(static_cast<double>(reference::decode(type, &code, 1, 1)[0]));
  }
  const double size = std::fabs(static_cast<double>(y));
  int best = 0;
  for (int c = 1; c <= largest; ++c) {
    const double distance = std::fabs(value[static_cast<size_t>(c)] - size);
    const double now = std::fabs(value[static_cast<size_t>(best)] - size);
    if (distance < now || (distance == now && c % 2 == 0)) best = c;
  }
  if (size > value.back()) best = largest;
  return static_cast<unsigned char>(best | sign);
}

/// A block of a type with scales in the row.
void encode_block(KvType type, const float* x, std::vector<unsigned char>* out) {
  float largest = 0, extreme = 0;
  bool finite = true;
  for (int i = 0; i < 32; ++i) {
    finite = finite && std::fabs(x[i]) < kInf;
    if (std::fabs(x[i]) > largest) largest = std::fabs(x[i]), extreme = x[i];
  }
  const float d = type == KvType::kQ8_0 ? largest / 127 : extreme / -8;
  const float inverse = 1 / d;
  const bool codes = finite && std::fabs(inverse) < kInf;
  const uint16_t bits = finite ? reference::to_f16(static_cast<double>(d)) : uint16_t{0x7E00};
  out->push_back(static_cast<unsigned char>(bits & 255));
  out->push_back(static_cast<unsigned char>(bits >> 8));
  int q[32] = {};
  for (int i = 0; i < 32; ++i) {
    const float scaled = codes ? x[i] * inverse : 0.0f;
    const float up = scaled + 8.5f;
    q[i] = type == KvType::kQ8_0 ? static_cast<int>(nearest(static_cast<double>(scaled)))
                                 : std::min(15, static_cast<int>(up));
  }
  if (type == KvType::kQ8_0) {
    for (const int n : q) out->push_back(static_cast<unsigned char>(n));
  } else {
    for (int i = 0; i < 16; ++i) out->push_back(static_cast<unsigned char>(q[i] | q[16 + i] << 4));
  }
}

/// A row as kv_append should store it, in f32 operations one by one. Fp8 types are given the scale.
CodedRow encode(KvType type, const std::vector<float>& x, float scale) {
  CodedRow row;
  if (reference::codes_of(type).numbers > 1) {
    for (size_t i = 0; i < x.size(); i += 32) encode_block(type, x.data() + i, &row.bytes);
    return row;
  }
  if (type == KvType::kFp8E4M3 || type == KvType::kFp8E5M2) {
    row.scale = scale;
    for (const float e : x) row.bytes.push_back(nearest_code(type, e, e * (1 / scale)));
    return row;
  }
  float largest = 0;
  bool finite = true;
  for (const float e : x) {
    finite = finite && std::fabs(e) < kInf;
    largest = std::fmax(largest, std::fabs(e));
  }
  const float inverse = 127 / largest;
  row.scale = !finite ? std::bit_cast<float>(0x7FC00000u) : inverse < kInf ? largest / 127 : 0.0f;
  for (const float e : x) {
    const float scaled = e * inverse;
    const int code = finite && inverse < kInf ? static_cast<int>(nearest(static_cast<double>(scaled))) : 0;
    row.bytes.push_back(static_cast<unsigned char>(code));
  }
  return row;
}

/// Dimensions that a type can have.
int64_t some_dim(Random& random, KvType type, int64_t high) {
  const int64_t block = reference::codes_of(type).numbers;
  const int64_t dim = random.one_in(50) ? 8192 : random.size(1, high);
  return (dim + block - 1) / block * block;
}

/// Rows whose numbers meet every rule of a quantiser: ties, zeros, tiny and huge ones, now and then NaN and infinities.
void fill_rows(Random& random, const Array<4>& rows, Values values) {
  const auto& shape = rows.view.shape;
  for (const auto [b, h, t] : indices(shape[0], shape[1], shape[2])) {
    const int64_t kind = random.integer(0, 5);
    const float size = random.of({1.0f, 600.0f, 70000.0f, 0x1p-5f, 0x1p-13f, 0x1p-20f, 0x1p-126f, 0x1p-140f, 0x1p100f,
                                  0x1p127f, 3e-37f, 127.0f});
    for (int64_t d = 0; d < shape[3]; ++d) {
      float x = kind == 0 ? 0.0f : random.uniform() * size;
      if (kind == 1) x = static_cast<float>(random.integer(-254, 254)) * 0.5f;  // ties, if 127 is among them
      if (kind == 1 && d == 0) x = 127;
      if (kind == 2 && random.one_in(40)) x = number(random, values);
      if (kind == 3) x = random.uniform();
      rows.set_at({b, h, t, d}, x);
    }
  }
}

struct Stored {
  KvType type;
  KvForm form;
  int64_t batch, heads, tokens, dim;
  std::string text() const {
    return "type " + std::to_string(static_cast<int>(type)) + ", form " + std::to_string(static_cast<int>(form)) +
           ", [" + std::to_string(batch) + " " + std::to_string(heads) + " " + std::to_string(tokens) + " " +
           std::to_string(dim) + "]";
  }
};
Stored some_store(Random& random, int64_t i) {
  const KvType type = kNarrowTypes[i % std::ssize(kNarrowTypes)];
  const int64_t dim = some_dim(random, type, 300);
  return {type,
          kForms[random.integer(0, 5)],
          random.integer(1, 2),
          random.integer(1, 3),
          dim > 600 ? 2 : random.integer(1, 70),
          dim};
}

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
  std::string folder = std::string(all ? std::getenv("SIMDATTN_SHARED") : SIMDATTN_TEST_DATA) + "/kv_formats/";
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

/// Attention sees the numbers, but for integers that kInt8 takes as they are: the bits are those of the same numbers
/// stored as f32.
TEST_P(Narrow, AttentionSeesNumbers) {
  Random random(seed() * 7000 + 4);
  for (int64_t i = 0; i < cases(800); ++i) {
    AttentionLimits limits;
    const bool few_rows = random.coin();  // over keys that are read where they are
    limits.max_q = few_rows ? 1 : random.one_in(4) ? 40 : 4;
    limits.max_kv = random.one_in(12) ? 2600 : 300;
    limits.max_batch = 2;
    limits.forms = !few_rows || random.one_in(3);
    limits.varlen = !few_rows;
    limits.max_dim = limits.max_kv > 400 ? 20 : few_rows && random.one_in(8) ? 620 : 140;
    limits.values = few_rows || random.coin() ? Values::kOrdinary : Values::kSpecial;
    limits.arithmetics = false;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    const auto integers = [](KvType type, bool keys) {
      return type == KvType::kInt8 || (keys && (type == KvType::kQ8_0 || type == KvType::kQ4_0));
    };
    a.arithmetic = few_rows || limits.max_kv > 400 ? Arithmetic::kF32 : random_arithmetic(random);
    if (a.arithmetic == Arithmetic::kInt8 && (integers(a.k.type, true) || integers(a.v.type, false))) {
      a.arithmetic = random.coin() ? Arithmetic::kF32 : Arithmetic::kBF16;
    }
    const Result got = result_of(c, a, target());
    const auto replace = [&](ConstKv& kv, const Array<4>& rows) {
      if (kv.type <= KvType::kF16) return;
      const int64_t length = kv.length;
      const int64_t tokens = kv.capacity;
      kv = rows.view;
      if (length >= 0) kv.length = length, kv.capacity = std::min(tokens, kv.capacity);
    };
    replace(a.k, c.k_rows);
    replace(a.v, c.v_rows);
    ASSERT_EQ(result_of(c, a, target()), got) << describe(c.problem);
  }
}

/// Attention in kInt8 has the bits of the definition.
TEST_P(Narrow, IntegersAsTheDefinition) {
  Random random(seed() * 7000 + 5);
  if (!is_exact()) GTEST_SKIP() << "the definition's bits need fused multiply-add";
  for (int64_t i = 0; i < cases(100); ++i) {
    AttentionLimits limits;
    limits.max_q = random.one_in(4) ? 40 : 4;
    limits.max_kv = 300;
    limits.max_batch = 2;
    limits.max_dim = 140;
    limits.values = random.coin() ? Values::kOrdinary : Values::kSpecial;
    limits.arithmetics = false;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.arithmetic = Arithmetic::kInt8;
    const Result got = result_of(c, a, target());
    ASSERT_EQ(result_of(c, a, scalar_target()), got) << describe(c.problem);
  }
}

/// The sign of one row in `every` or so moves from its integers into its scale. In some rows of values -127 become
/// -128, whose negative is 127 as well.
void turn_signs(Random& random, const KvStorage& s, int64_t every, bool values) {
  for (const auto [b, h, t] : indices(s.kv.batch, s.kv.heads, s.kv.capacity)) {
    if (!random.one_in(every)) continue;
    *s.scale(b, h, t) *= -1;
    const bool most = values && random.coin();
    for (int64_t d = 0; d < s.kv.dim; ++d) {
      unsigned char* const code = s.byte(b, h, t, d);
      *code = static_cast<unsigned char>(most && *code == 127 ? 128 : 256 - *code);
    }
  }
}

/// int8 stores hold the integers that kInt8 makes of rows of f32: the bits are the same. So they are where integers and
/// scale are negative.
TEST_P(Narrow, IntegersAsStored) {
  Random random(seed() * 7000 + 6);
  for (int64_t i = 0; i < cases(100); ++i) {
    AttentionLimits limits;
    limits.max_q = random.one_in(4) ? 40 : 4;
    limits.max_kv = 300;
    limits.max_batch = 2;
    limits.max_dim = 140;
    limits.narrow = limits.varlen = limits.arithmetics = false;
    limits.values = random.coin() ? Values::kOrdinary : Values::kSpecial;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.arithmetic = Arithmetic::kInt8;
    const Result want = result_of(c, a, target());
    const auto stored = [&](const Array<4>& rows, bool panels) {
      const auto& shape = rows.view.shape;
      const KvForm form = panels ? kForms[random.integer(0, 3)] : random.of({KvForm::kRows, KvForm::kPagedRows});
      KvStorage s = make_kv(random, KvType::kInt8, form, shape[0], shape[1], shape[2], shape[3]);
      EXPECT_TRUE(kv_append(rows.view, {}, s.kv, {}, exec()).ok());
      if (random.coin()) turn_signs(random, s, random.of({1, 3, 100}), !panels);
      return s;
    };
    const KvStorage k = stored(c.k_rows, true), v = stored(c.v_rows, false);
    a.k = k.kv;
    a.v = v.kv;
    ASSERT_EQ(result_of(c, a, target()), want) << describe(a);
  }
}

/// Keys in blocks are multiplied as integers, block by block. With one key the log-sum-exp is the score.
TEST_P(Narrow, BlocksOfIntegers) {
  Random random(seed() * 7000 + 7);
  if (!is_exact()) GTEST_SKIP() << "sums of blocks are joined by fused multiply-add";
  for (int64_t i = 0; i < cases(300); ++i) {
    const KvType type = random.coin() ? KvType::kQ8_0 : KvType::kQ4_0;
    const int64_t dim = 32 * (random.one_in(20) ? random.integer(60, 80) : random.integer(1, 12)),
                  rows = random.integer(1, 20);
    const Array<4> numbers(random, DType::kF32, {1, 1, 1, dim});
    const KvStorage k = random_codes(random, type, numbers, kForms[random.integer(0, 5)],
                                     random.coin() ? Values::kOrdinary : Values::kSpecial, 40);
    const Array<4> q(random, DType::kF32, {1, 1, rows, dim}), v(random, DType::kF32, {1, 1, 1, 3}, Values::kOrdinary);
    q.fill(random, random.coin() ? Values::kOrdinary : Values::kWide);
    const Array<3> lse(random, DType::kF32, {1, 1, rows});
    const float scale = random.coin() ? 0.25f : random.uniform();
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.view, a.lse = lse.view;
    a.arithmetic = Arithmetic::kInt8;
    a.scoring.scale = scale;
    ASSERT_TRUE(ok(run_attention(a, &target())));
    const CodedRow row = row_of(k, 0, 0, 0);
    const int64_t bytes = reference::codes_of(type).bytes;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> x;
      for (int64_t d = 0; d < dim; ++d) x.push_back(q.get_at({0, 0, r, d}));
      const CodedRow query = encode(KvType::kInt8, x, 1);
      float acc = 0;
      for (int64_t b = 0; b < dim / 32; ++b) {
        const unsigned char* const block = row.bytes.data() + b * bytes;
        int sum = 0;
        for (int64_t e = 0; e < 32; ++e) {
          const int code = type == KvType::kQ8_0 ? static_cast<signed char>(block[2 + e])
                                                 : (e < 16 ? block[2 + e] & 15 : block[2 + e - 16] >> 4) - 8;
          sum += code * static_cast<signed char>(query.bytes[static_cast<size_t>(32 * b + e)]);
        }
        const float d = static_cast<float>(reference::from_f16(static_cast<uint16_t>(block[0] | block[1] << 8)));
        acc = simdattn::fma(static_cast<float>(sum), d, acc);
      }
      const float want = acc * (query.scale * scale);
      const float got = lse.get_at({0, 0, r});
      ASSERT_TRUE(same(got, want + 0.0f) || std::fabs(want) == kInf) << got << ", not " << want << ", dim " << dim;
    }
  }
}

/// With many keys and rows each column takes the scales of its own key: the bits are those of the definition.
TEST_P(Narrow, BlocksOfIntegersOfManyKeys) {
  Random random(seed() * 7000 + 8);
  if (!is_exact()) GTEST_SKIP() << "sums of blocks are joined by fused multiply-add";
  for (int64_t i = 0; i < cases(60); ++i) {
    const KvType type = random.coin() ? KvType::kQ8_0 : KvType::kQ4_0;
    const int64_t dim = 32 * random.integer(1, 5), rows = random.integer(1, 40), keys = random.integer(1, 300);
    const Array<4> numbers(random, DType::kF32, {1, 1, keys, dim});
    const KvStorage k = random_codes(random, type, numbers, kForms[random.integer(0, 5)], Values::kOrdinary, keys);
    const Array<4> q(random, DType::kF32, {1, 1, rows, dim}), v(random, DType::kF32, {1, 1, keys, 33});
    q.fill(random, Values::kOrdinary);
    v.fill(random, Values::kOrdinary);
    const Array<4> out(random, DType::kF32, {1, 1, rows, 33}), want = out.like(random);
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.view, a.out = out.view;
    a.arithmetic = Arithmetic::kInt8;
    ASSERT_TRUE(ok(run_attention(a, &target())));
    a.out = want.view;
    ASSERT_TRUE(ok(run_attention(a, &scalar_target())));
    ASSERT_EQ(out.bits(), want.bits()) << describe(a);
  }
}

SIMDATTN_FOR_EACH_TARGET(Narrow);

}  // namespace
}  // namespace simdattn::test
