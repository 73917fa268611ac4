#include "tests/support/reference.h"
#include "tests/support/indices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>

namespace reference {

using simdattn::Arithmetic;
using simdattn::DType;
using simdattn::KvType;
using simdattn::test::indices;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A binary format by its number of significand bits and the exponent of its smallest normal number.
struct Format {
  int significand_bits;
  int min_exponent;
  double max;
};
constexpr Format kF32{24, -126, 0x1.fffffep127};
constexpr Format kBF16{8, -126, 0x1.fep127};
constexpr Format kF16{11, -14, 65504.0};

double unit_in_last_place(const Format& f, double value) {
  const int exponent = value == 0 ? f.min_exponent : std::max(std::ilogb(value), f.min_exponent);
  return std::ldexp(1.0, exponent - (f.significand_bits - 1));
}

double round_to(const Format& f, double value) {
  if (!std::isfinite(value)) return value;
  const double ulp = unit_in_last_place(f, value);
  const double rounded = std::nearbyint(value / ulp) * ulp;  // the quotient is exact, the default rounding is to even
  return std::fabs(rounded) > f.max ? std::copysign(kInf, value) : rounded;
}

uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Storage types

double from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return static_cast<double>(value);
}

double from_f16(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  if (exponent == 31) return fraction != 0 ? kNaN : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

uint16_t to_bf16(double value) {
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>(float_bits(static_cast<float>(round_to(kBF16, value))) >> 16);
}

uint16_t to_f16(double value) {
  if (std::isnan(value)) return 0x7E00;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double r = std::fabs(round_to(kF16, value));
  if (std::isinf(r)) return static_cast<uint16_t>(sign | 0x7C00);
  if (r < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(r, 24)));
  const int exponent = std::ilogb(r);
  const int fraction = static_cast<int>(std::ldexp(r, 10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | fraction);
}

size_t bytes(DType dtype) {
  switch (dtype) {
    case DType::kU8: return 1;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    default: return 8;
  }
}

double load(const void* data, DType dtype, int64_t index) {
  const auto* p = static_cast<const unsigned char*>(data) + index * static_cast<int64_t>(bytes(dtype));
  const auto as = [p](auto value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kU8: return *p;
    case DType::kBF16: return from_bf16(as(uint16_t{}));
    case DType::kF16: return from_f16(as(uint16_t{}));
    case DType::kF32: return static_cast<double>(as(float{}));
    case DType::kI32: return as(int32_t{});
    default: return static_cast<double>(as(int64_t{}));
  }
}

void store(void* data, DType dtype, int64_t index, double value) {
  auto* p = static_cast<unsigned char*>(data) + index * static_cast<int64_t>(bytes(dtype));
  const auto put = [p](auto stored) { std::memcpy(p, &stored, sizeof stored); };
  switch (dtype) {
    case DType::kU8: put(static_cast<uint8_t>(value)); break;
    case DType::kBF16: put(to_bf16(value)); break;
    case DType::kF16: put(to_f16(value)); break;
    case DType::kF32: put(static_cast<float>(value)); break;
    case DType::kI32: put(static_cast<int32_t>(value)); break;
    default: put(static_cast<int64_t>(value)); break;
  }
}

double half_ulp(DType dtype, double value) {
  if (!std::isfinite(value)) return 0;
  switch (dtype) {
    case DType::kBF16: return unit_in_last_place(kBF16, value) / 2;
    case DType::kF16: return unit_in_last_place(kF16, value) / 2;
    case DType::kF32: return unit_in_last_place(kF32, value) / 2;
    default: return 0;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors

Tensor::Tensor(std::vector<int64_t> dims, double value) : shape(std::move(dims)) {
  data.assign(static_cast<size_t>(product(shape)), value);
}

int64_t Tensor::offset(std::initializer_list<int64_t> index) const {
  int64_t result = 0;
  size_t d = 0;
  for (const int64_t i : index) result = result * shape[d++] + i;
  while (d < shape.size()) result *= shape[d++];
  return result;
}

Tensor read_strided(const void* data, DType dtype, int rank, const int64_t* shape, const int64_t* stride) {
  Tensor result(std::vector<int64_t>(shape, shape + rank));
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  for (double& value : result.data) {
    int64_t element = 0;
    for (int d = 0; d < rank; ++d) element += index[static_cast<size_t>(d)] * stride[d];
    value = load(data, dtype, element);
    for (int d = rank; d-- > 0;) {
      if (++index[static_cast<size_t>(d)] < shape[d]) break;
      index[static_cast<size_t>(d)] = 0;
    }
  }
  return result;
}

Codes codes_of(KvType type) {
  switch (type) {
    case KvType::kQ8_0: return {32, 34, 2};
    case KvType::kQ4_0: return {32, 18, 2};
    case KvType::kQ4_1: return {32, 20, 4};
    case KvType::kQ5_0: return {32, 22, 6};
    case KvType::kQ5_1: return {32, 24, 8};
    case KvType::kIq4Nl: return {32, 18, 2};
    default: return {1, 1, 0};
  }
}

int64_t panel_byte(KvType type, int64_t dim, int64_t i, int64_t lane) {
  const Codes c = codes_of(type);
  const int64_t block = i / c.bytes, in_block = i % c.bytes, codes = c.bytes - c.scales;
  const int64_t units = (dim / c.numbers * codes + 3) / 4;
  if (in_block < c.scales) return units * 128 + block * 32 * c.scales + lane * c.scales + in_block;
  const int64_t code = block * codes + in_block - c.scales;
  return code / 4 * 128 + lane * 4 + code % 4;
}

namespace {

/// Sign, exponent and `mantissa` bits. Of the largest exponent e4m3 has one NaN, e5m2 is like an f16.
float fp8(unsigned char code, int mantissa, int bias) {
  const int exponent = (code & 127) >> mantissa, fraction = code & ((1 << mantissa) - 1);
  double x = exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                           : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
  if (mantissa == 3 && (code & 127) == 127) x = kNaN;
  if (mantissa == 2 && exponent == 31) x = fraction != 0 ? kNaN : HUGE_VAL;
  return static_cast<float>(code > 127 ? -x : x);
}

}  // namespace

std::vector<float> decode(KvType type, const unsigned char* row, float scale, int64_t dim) {
  std::vector<float> x(static_cast<size_t>(dim));
  for (size_t d = 0; type == KvType::kFp8E4M3 && d < x.size(); ++d) x[d] = fp8(row[d], 3, 7) * scale;
  for (size_t d = 0; type == KvType::kFp8E5M2 && d < x.size(); ++d) x[d] = fp8(row[d], 2, 15) * scale;
  const Codes c = codes_of(type);
  for (int64_t d = 0; c.numbers > 1 && d < dim; ++d) {
    const unsigned char* block = row + d / c.numbers * c.bytes;
    const unsigned char* codes = block + c.scales;
    const int64_t i = d % c.numbers;
    const int nibble = i < 16 ? codes[i % 16] & 15 : codes[i % 16] >> 4;
    const float f = static_cast<float>(from_f16(static_cast<uint16_t>(block[0] | block[1] << 8)));
    const float m =
        c.scales % 4 == 0 ? static_cast<float>(from_f16(static_cast<uint16_t>(block[2] | block[3] << 8))) : 0;
    const int fifth = c.scales > 4 ? block[c.scales - 4 + i / 8] >> i % 8 & 1 : 0;
    static const int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    float& y = x[static_cast<size_t>(d)];
    switch (type) {
      case KvType::kQ8_0: y = static_cast<float>(codes[i] < 128 ? codes[i] : codes[i] - 256) * f; break;
      case KvType::kQ4_0: y = static_cast<float>(nibble - 8) * f; break;
      case KvType::kQ4_1: y = static_cast<float>(nibble) * f + m; break;
      case KvType::kQ5_0: y = static_cast<float>(nibble + 16 * fifth - 16) * f; break;
      case KvType::kQ5_1: y = static_cast<float>(nibble + 16 * fifth) * f + m; break;
      default: y = static_cast<float>(kTable[nibble]) * f; break;
    }
  }
  if (type != KvType::kInt8) return x;
  for (size_t d = 0; d < x.size(); ++d) {
    x[d] = static_cast<float>(row[d] < 128 ? row[d] : row[d] - 256) * scale;
  }
  return x;
}

Tensor read(const simdattn::ConstKv& kv, int64_t b, int64_t tokens) {
  const bool narrow = kv.type > KvType::kF16;
  const DType type = kv.type == KvType::kF32 ? DType::kF32 : kv.type == KvType::kBF16 ? DType::kBF16 : DType::kF16;
  const bool paged = kv.page_size > 0;
  int64_t table_stride = kv.block_table_stride;
  if (paged && table_stride == -1) table_stride = (kv.capacity + kv.page_size - 1) / kv.page_size;
  Tensor result({kv.heads, tokens, kv.dim});
  for (const auto [h, t] : indices(kv.heads, tokens)) {
    double* const to = result.row({h, t});
    int64_t token = t;
    int64_t block = b;
    bool held = true;
    if (kv.ring > 0) {
      held = t >= tokens - kv.ring;
      token = t % kv.ring;
    }
    if (paged) {
      block = kv.block_table[b * table_stride + t / kv.page_size];
      token = t % kv.page_size;
      held = block >= 0;
    }
    if (narrow) {
      const bool rows = kv.layout == simdattn::KvLayout::kRows;
      const Codes c = codes_of(kv.type);
      std::vector<unsigned char> row(static_cast<size_t>(held ? kv.dim / c.numbers * c.bytes : 0));
      const unsigned char* at = static_cast<const unsigned char*>(kv.data);
      if (held) at += block * kv.batch_stride + h * kv.head_stride + (rows ? token : token / 32) * kv.token_stride;
      for (size_t i = 0; i < row.size(); ++i) {
        const int64_t byte = static_cast<int64_t>(i);
        row[i] = at[rows ? byte : panel_byte(kv.type, kv.dim, byte, token % 32)];
      }
      float scale = 1;
      if (held && kv.scales != nullptr) {
        std::memcpy(&scale,
                    static_cast<const char*>(kv.scales) + block * kv.scale_batch_stride + h * kv.scale_head_stride +
                        token * kv.scale_token_stride,
                    sizeof scale);
      }
      const std::vector<float> x = held ? decode(kv.type, row.data(), scale, kv.dim) : std::vector<float>();
      for (int64_t d = 0; d < kv.dim; ++d) {
        to[d] = held ? static_cast<double>(x[static_cast<size_t>(d)]) : kNaN;
      }
      continue;
    }
    for (int64_t d = 0; d < kv.dim; ++d) {
      int64_t byte = block * kv.batch_stride + h * kv.head_stride;
      int64_t element = d;
      if (kv.layout == simdattn::KvLayout::kRows) {
        byte += token * kv.token_stride;
      } else {
        const int64_t lane = token % 32;
        byte += token / 32 * kv.token_stride;
        element = type == DType::kBF16 ? d / 2 * 64 + lane * 2 + d % 2 : d * 32 + lane;
      }
      to[d] = held ? load(static_cast<const char*>(kv.data) + byte, type, element) : kNaN;
    }
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetics

Tensor operands(const Tensor& x, Arithmetic arithmetic, Tensor* scales) {
  Tensor result = x;
  const int64_t dim = x.shape.back();
  if (scales != nullptr) *scales = Tensor(std::vector<int64_t>(x.shape.begin(), x.shape.end() - 1), 1.0);
  if (arithmetic == Arithmetic::kBF16) {
    for (double& value : result.data) value = from_bf16(to_bf16(value));
  }
  if (arithmetic != Arithmetic::kInt8) return result;
  for (int64_t row = 0; row * dim < x.size(); ++row) {
    const auto begin = result.data.begin() + row * dim;
    float largest = 0;
    bool finite = true;
    std::for_each(begin, begin + dim, [&](double value) {
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::fabs(static_cast<float>(value)));
    });
    float scale = largest / 127.0f;
    const float inverse = 127.0f / largest;
    if (!std::isfinite(inverse)) scale = 0;
    std::for_each(begin, begin + dim, [&](double& value) {
      const float integer = scale == 0 ? 0.0f : std::nearbyint(static_cast<float>(value) * inverse);
      value = finite ? static_cast<double>(integer) * static_cast<double>(scale) : kNaN;
    });
    if (scales != nullptr) (*scales)[row] = finite ? static_cast<double>(scale) : kNaN;
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Scores

namespace {

/// element(b, h, kv head, i, j) of every score.
template <class Element>
Tensor every_score(const Tensor& q, const Tensor& k, const Element& element) {
  const int64_t group = q.dim(1) / k.dim(1);
  Tensor result({q.dim(0), q.dim(1), q.dim(2), k.dim(2)});
  int64_t at = 0;
  for (const auto [b, h, i] : indices(q.dim(0), q.dim(1), q.dim(2))) {
    for (int64_t j = 0; j < k.dim(2); ++j) result[at++] = element(b, h, h / group, i, j);
  }
  return result;
}

}  // namespace

Tensor scores(const Tensor& q, const Tensor& k, double scale, Tensor* magnitude) {
  const auto sum_of = [&](bool absolute) {
    return every_score(q, k, [&, absolute](int64_t b, int64_t h, int64_t kv, int64_t i, int64_t j) {
      const double *const q_row = q.row({b, h, i}), *const k_row = k.row({b, kv, j});
      double sum = 0;
      for (int64_t d = 0; d < q.dim(3); ++d) sum += absolute ? std::fabs(q_row[d] * k_row[d]) : q_row[d] * k_row[d];
      return (absolute ? std::fabs(scale) : scale) * sum;
    });
  };
  if (magnitude != nullptr) *magnitude = sum_of(true);
  return sum_of(false);
}

Tensor gaussian_scores(const Tensor& q, const Tensor& k) {
  return every_score(q, k, [&](int64_t b, int64_t h, int64_t kv, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < q.dim(3); ++d) {
      const double difference = q.at({b, h, i, d}) - k.at({b, kv, j, d});
      sum += difference * difference;
    }
    return -0.5 * sum;
  });
}

Tensor bilinear_scores(const Tensor& q, const Tensor& m, const Tensor& k, Tensor* magnitude) {
  const auto sum_of = [&](bool absolute) {
    return every_score(q, k, [&, absolute](int64_t b, int64_t h, int64_t kv, int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t c = 0; c < q.dim(3); ++c) {
        for (int64_t d = 0; d < k.dim(3); ++d) {
          const double term = q.at({b, h, i, c}) * m.at({h, c, d}) * k.at({b, kv, j, d});
          sum += absolute ? std::fabs(term) : term;
        }
      }
      return sum;
    });
  };
  if (magnitude != nullptr) *magnitude = sum_of(true);
  return sum_of(false);
}

Tensor project(const Tensor& x, const Tensor& weights) {
  Tensor result({x.dim(0), x.dim(1), x.dim(2), weights.dim(1)});
  int64_t element = 0;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      for (int64_t i = 0; i < x.dim(2); ++i) {
        for (int64_t e = 0; e < weights.dim(1); ++e) {
          double sum = 0;
          for (int64_t d = 0; d < x.dim(3); ++d) sum += weights.at({h, e, d}) * x.at({b, h, i, d});
          result[element++] = sum;
        }
      }
    }
  }
  return result;
}

Tensor additive_scores(const Tensor& q, const Tensor& k, const Tensor& w) {
  return every_score(q, k, [&](int64_t b, int64_t h, int64_t kv, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < q.dim(3); ++d) sum += w.at({h, d}) * std::tanh(q.at({b, h, i, d}) + k.at({b, kv, j, d}));
    return sum;
  });
}

}  // namespace reference
