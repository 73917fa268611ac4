// Rows of narrow types as the suites make them: a quantiser of their own, random stores.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace simdattn::test {

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

inline CodedRow row_of(const KvStorage& s, int64_t b, int64_t h, int64_t t) {
  CodedRow row;
  for (int64_t i = 0; i < row_bytes(s.kv.type, s.kv.dim); ++i) row.bytes.push_back(*s.byte(b, h, t, i));
  if (const float* const scale = s.scale(b, h, t); scale != nullptr) row.scale = *scale;
  return row;
}
inline std::vector<float> numbers_of(const KvStorage& s, int64_t b, int64_t h, int64_t t) {
  const CodedRow row = row_of(s, b, h, t);
  return reference::decode(s.kv.type, row.bytes.data(), row.scale, s.kv.dim);
}

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

/// Rounds to nearest even whatever the environment.
inline double nearest(double x) {
  const double low = std::floor(x), rest = x - low;
  return rest > 0.5 || (rest == 0.5 && std::fmod(low, 2) != 0) ? low + 1 : low;
}

/// The nearest of all finite codes, ties to even ones.
inline unsigned char nearest_code(KvType type, float x, float y) {
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
inline void encode_block(KvType type, const float* x, std::vector<unsigned char>* out) {
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
inline CodedRow encode(KvType type, const std::vector<float>& x, float scale) {
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
inline int64_t some_dim(Random& random, KvType type, int64_t high) {
  const int64_t block = reference::codes_of(type).numbers;
  const int64_t dim = random.one_in(50) ? 8192 : random.size(1, high);
  return (dim + block - 1) / block * block;
}

/// Rows whose numbers meet every rule of a quantiser: ties, zeros, tiny and huge ones, now and then NaN and infinities.
inline void fill_rows(Random& random, const Array<4>& rows, Values values) {
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
inline Stored some_store(Random& random, int64_t i) {
  const KvType type = kNarrowTypes[i % std::ssize(kNarrowTypes)];
  const int64_t dim = some_dim(random, type, 300);
  return {type,
          kForms[random.integer(0, 5)],
          random.integer(1, 2),
          random.integer(1, 3),
          dim > 600 ? 2 : random.integer(1, 70),
          dim};
}

}  // namespace simdattn::test
