#include "tests/support/reference.h"

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
using simdattn::Scoring;

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

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

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
  if (paged && table_stride == -1) table_stride = (kv.tokens + kv.page_size - 1) / kv.page_size;
  Tensor result({kv.heads, tokens, kv.dim});
  for (int64_t h = 0; h < kv.heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      double* const to = result.data.data() + result.offset({h, t});
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

namespace {

// What rounding the weights p of one row costs: adds to error[d] for keys j whose values are the rows of v, [n, dim] at
// `values`, with the scales of kInt8. Keys of weight 0 count for nothing.
void add_weight_error(Arithmetic arithmetic, const std::vector<double>& p, const double* values, const double* scales,
                      int64_t dim, double* error) {
  const int64_t n = static_cast<int64_t>(p.size());
  if (arithmetic == Arithmetic::kBF16) {
    // The mean of p |v - out| is at most the root of the mean of p v^2.
    for (int64_t d = 0; d < dim; ++d) {
      double largest = 0;
      for (int64_t j = 0; j < n; ++j) {
        if (p[static_cast<size_t>(j)] != 0) largest = std::max(largest, std::fabs(values[j * dim + d]));
      }
      error[d] += largest * 0x1p-8;
    }
  }
  if (arithmetic != Arithmetic::kInt8) return;
  // Half a step of 1 / 255 of the block's largest p * scale, times the integer.
  for (int64_t block = 0; block < n; block += 256) {
    const int64_t end = std::min(n, block + 256);
    double largest = 0;
    for (int64_t j = block; j < end; ++j) largest = std::max(largest, p[static_cast<size_t>(j)] * scales[j]);
    for (int64_t j = block; j < end; ++j) {
      if (p[static_cast<size_t>(j)] == 0 || scales[j] == 0) continue;
      for (int64_t d = 0; d < dim; ++d) error[d] += largest / 510 * std::fabs(values[j * dim + d]) / scales[j];
    }
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Scores

Tensor scores(const Tensor& q, const Tensor& k, double scale, Tensor* magnitude) {
  const int64_t batch = q.dim(0), heads = q.dim(1), n_q = q.dim(2), n_kv = k.dim(2), dim = q.dim(3);
  const int64_t group = heads / k.dim(1);
  Tensor result({batch, heads, n_q, n_kv});
  if (magnitude != nullptr) *magnitude = result;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < n_q; ++i) {
        const double* const q_row = q.data.data() + q.offset({b, h, i});
        const double* const keys = k.data.data() + k.offset({b, h / group});
        for (int64_t j = 0; j < n_kv; ++j) {
          const double* k_row = keys + j * dim;
          double sum = 0;
          double absolute = 0;
          for (int64_t d = 0; d < dim; ++d) {
            sum += q_row[d] * k_row[d];
            absolute += std::fabs(q_row[d] * k_row[d]);
          }
          result.at({b, h, i, j}) = scale * sum;
          if (magnitude != nullptr) magnitude->at({b, h, i, j}) = std::fabs(scale) * absolute;
        }
      }
    }
  }
  return result;
}

namespace {

/// element(b, h, kv head, i, j) of every score.
template <class Element>
Tensor every_score(const Tensor& q, const Tensor& k, const Element& element) {
  const int64_t group = q.dim(1) / k.dim(1);
  Tensor result({q.dim(0), q.dim(1), q.dim(2), k.dim(2)});
  int64_t at = 0;
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t h = 0; h < q.dim(1); ++h) {
      for (int64_t i = 0; i < q.dim(2); ++i) {
        for (int64_t j = 0; j < k.dim(2); ++j) result[at++] = element(b, h, h / group, i, j);
      }
    }
  }
  return result;
}

}  // namespace

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

// ---------------------------------------------------------------------------------------------------------------------
// Softmax

namespace {

// The weights of one row of scores, and its log-sum-exp. A visible score of -inf is a key of weight 0.
struct Weights {
  std::vector<double> p;
  double lse = -kInf;  // NaN: so is all of the row
  double max = -kInf;
  double sum = 0;  // of exp(t - max); 0: no visible score above -inf, and no sink
};

Weights weigh(const std::vector<double>& t, const std::vector<bool>& visible, std::optional<double> sink) {
  Weights w;
  w.p.assign(t.size(), 0.0);
  w.max = sink.value_or(-kInf);
  bool invalid = std::isnan(w.max) || w.max == kInf;
  for (size_t j = 0; j < t.size(); ++j) {
    if (!visible[j]) continue;
    invalid = invalid || std::isnan(t[j]) || t[j] == kInf;
    w.max = std::max(w.max, t[j]);
  }
  if (invalid) {
    for (size_t j = 0; j < t.size(); ++j) {
      if (visible[j]) w.p[j] = kNaN;
    }
    w.lse = w.max = w.sum = kNaN;
    return w;
  }
  if (w.max == -kInf) return w;
  if (sink) w.sum = std::exp(*sink - w.max);
  for (size_t j = 0; j < t.size(); ++j) {
    if (!visible[j]) continue;
    w.p[j] = std::exp(t[j] - w.max);
    w.sum += w.p[j];
  }
  for (double& p : w.p) p /= w.sum;
  w.lse = w.max + std::log(w.sum);
  return w;
}

// Where the rows of one sequence are: `index` in the per-sequence arrays of Scoring, `batch` and `first_row` in its
// bias and masks.
struct Sequence {
  int64_t index;
  int64_t batch;
  int64_t first_row;
  int64_t n_q;
  int64_t n_kv;
  int64_t first_key = 0;  // what a ring has overwritten before it cannot be seen

  Sequence(const Scoring& scoring, int64_t index_, int64_t batch_, int64_t first_row_, int64_t n_q_, int64_t n_kv_)
      : index(index_),
        batch(batch_),
        first_row(first_row_),
        n_q(n_q_),
        n_kv(scoring.kv_length != nullptr ? scoring.kv_length[index_] : n_kv_) {}

  int64_t position(const Scoring& scoring, int64_t i) const {
    if (scoring.offsets != nullptr) return i + scoring.offsets[index];
    return i + (scoring.offset == simdattn::kBottomRight ? n_kv - n_q : scoring.offset);
  }
};

// An entry of a bias or mask; a size of 1 broadcasts.
double entry(const simdattn::ConstView<4>& v, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  const int64_t index[4] = {s.batch, h, s.first_row + i, j};
  int64_t element = 0;
  for (size_t d = 0; d < 4; ++d) element += v.shape[d] == 1 ? 0 : index[d] * v.stride[d];
  return load(v.data, v.dtype, element);
}

double modify(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, int64_t j, double t) {
  const double cap = static_cast<double>(scoring.softcap);
  if (cap > 0) t = cap * std::tanh(t / cap);
  if (scoring.alibi_slopes != nullptr) {
    t -= static_cast<double>(scoring.alibi_slopes[h]) * std::fabs(static_cast<double>(s.position(scoring, i) - j));
  }
  if (scoring.bias.data != nullptr) {
    const double bias = entry(scoring.bias, s, h, i, j);
    const double factor = scoring.bias_scale != nullptr ? static_cast<double>(scoring.bias_scale[h]) : 1.0;
    t += bias == -kInf ? bias : factor * bias;
  }
  return t;
}

bool is_visible(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  const int64_t p = s.position(scoring, i);
  if (j >= s.n_kv) return false;
  if (scoring.kv_start != nullptr && j < scoring.kv_start[s.index]) return false;
  if (j < s.first_key) return false;
  if (scoring.causal || scoring.prefix_end != nullptr) {
    int64_t last = p;
    if (scoring.prefix_end != nullptr) last = std::max(last, int64_t{scoring.prefix_end[s.index]} - 1);
    if (j > last) return false;
  }
  if (scoring.window_left >= 0 && j < p - scoring.window_left) return false;
  if (scoring.window_right >= 0 && j > p + scoring.window_right) return false;
  if (scoring.chunk > 0 && floor_div(j, scoring.chunk) != floor_div(p, scoring.chunk)) return false;
  if (scoring.bias.data != nullptr && entry(scoring.bias, s, h, i, j) == -kInf) return false;
  if (scoring.keep.data != nullptr && entry(scoring.keep, s, h, i, j) == 0) return false;
  if (scoring.bits.data != nullptr) {
    const int64_t column = j - (s.n_kv - scoring.bits.columns);
    const uint8_t* row = scoring.bits.data + s.batch * scoring.bits.stride[0] + h * scoring.bits.stride[1] +
                         (s.first_row + i) * scoring.bits.stride[2];
    if (column >= 0 && ((row[column / 8] >> (column % 8)) & 1) == 0) return false;
  }
  return true;
}

Weights weigh_row(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, const std::vector<double>& scaled) {
  std::vector<double> t(scaled.size(), 0.0);
  std::vector<bool> visible(scaled.size(), false);
  for (size_t j = 0; j < scaled.size(); ++j) {
    visible[j] = is_visible(scoring, s, h, i, static_cast<int64_t>(j));
    if (visible[j]) t[j] = modify(scoring, s, h, i, static_cast<int64_t>(j), scaled[j]);
  }
  std::optional<double> sink;
  if (scoring.sinks != nullptr) sink = static_cast<double>(scoring.sinks[h]);
  return weigh(t, visible, sink);
}

double scale_of(const Scoring& scoring, std::optional<double> scale, double fallback) {
  if (scale) return *scale;
  return scoring.scale ? static_cast<double>(*scoring.scale) : fallback;
}

}  // namespace

Tensor softmax(const Tensor& x, Tensor* lse) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  Tensor result({rows, n});
  if (lse != nullptr) *lse = Tensor({rows});
  for (int64_t r = 0; r < rows; ++r) {
    const auto begin = x.data.begin() + r * n;
    const Weights w = weigh({begin, begin + n}, std::vector<bool>(static_cast<size_t>(n), true), {});
    std::copy(w.p.begin(), w.p.end(), result.data.begin() + r * n);
    if (lse != nullptr) (*lse)[r] = w.lse;
  }
  return result;
}

Tensor modified_scores(const Tensor& x, const Scoring& scoring, Tensor* visible, std::optional<double> scale) {
  Tensor result(x.shape);
  if (visible != nullptr) *visible = result;
  const double factor = scale_of(scoring, scale, 1.0);
  int64_t element = 0;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const Sequence s(scoring, b, b, 0, x.dim(2), x.dim(3));
    for (int64_t h = 0; h < x.dim(1); ++h) {
      for (int64_t i = 0; i < x.dim(2); ++i) {
        for (int64_t j = 0; j < x.dim(3); ++j, ++element) {
          result[element] = modify(scoring, s, h, i, j, factor * x[element]);
          if (visible != nullptr) (*visible)[element] = is_visible(scoring, s, h, i, j) ? 1 : 0;
        }
      }
    }
  }
  return result;
}

Tensor masked_softmax(const Tensor& x, const Scoring& scoring, Tensor* lse, std::optional<double> scale) {
  const double factor = scale_of(scoring, scale, 1.0);
  const int64_t n_q = x.dim(2), n_kv = x.dim(3);
  Tensor result(x.shape);
  if (lse != nullptr) *lse = Tensor({x.dim(0), x.dim(1), n_q});
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const Sequence s(scoring, b, b, 0, n_q, n_kv);
    for (int64_t h = 0; h < x.dim(1); ++h) {
      for (int64_t i = 0; i < n_q; ++i) {
        const int64_t row = x.offset({b, h, i});
        std::vector<double> scaled(x.data.begin() + row, x.data.begin() + row + n_kv);
        for (double& t : scaled) t *= factor;
        const Weights w = weigh_row(scoring, s, h, i, scaled);
        std::copy(w.p.begin(), w.p.end(), result.data.begin() + row);
        if (lse != nullptr) lse->at({b, h, i}) = w.lse;
      }
    }
  }
  return result;
}

Tensor weighted_values(const Tensor& p, const Tensor& v, Tensor* magnitude, Arithmetic arithmetic, Tensor* weights) {
  const int64_t n_q = p.dim(2), n_kv = p.dim(3), dim = v.dim(3);
  const int64_t group = p.dim(1) / v.dim(1);
  Tensor result({p.dim(0), p.dim(1), n_q, dim});
  if (magnitude != nullptr) *magnitude = result;
  if (weights != nullptr) *weights = result;
  Tensor scales;
  const Tensor values = operands(v, arithmetic, &scales);
  const Tensor rounded = arithmetic == Arithmetic::kBF16 ? operands(p, arithmetic) : p;
  for (int64_t b = 0; b < p.dim(0); ++b) {
    for (int64_t h = 0; h < p.dim(1); ++h) {
      const double* rows = values.data.data() + values.offset({b, h / group});
      for (int64_t i = 0; i < n_q; ++i) {
        const double* const p_row = p.data.data() + p.offset({b, h, i});
        const double* const rounded_row = rounded.data.data() + rounded.offset({b, h, i});
        double* const out = result.data.data() + result.offset({b, h, i});
        double* const sizes = magnitude != nullptr ? magnitude->data.data() + magnitude->offset({b, h, i}) : nullptr;
        std::vector<double> used(static_cast<size_t>(n_kv), 0.0);
        for (int64_t j = 0; j < n_kv; ++j) {
          // In kInt8 negative weights are 0.
          if (p_row[j] == 0 || (arithmetic == Arithmetic::kInt8 && p_row[j] < 0)) continue;
          const double weight = rounded_row[j];
          used[static_cast<size_t>(j)] = weight;
          for (int64_t d = 0; d < dim; ++d) {
            const double term = weight * rows[j * dim + d];
            out[d] += term;
            if (sizes != nullptr) sizes[d] += std::fabs(term);
          }
        }
        if (weights != nullptr && arithmetic == Arithmetic::kInt8) {
          add_weight_error(arithmetic, used, rows, scales.data.data() + scales.offset({b, h / group}), dim,
                           weights->data.data() + weights->offset({b, h, i}));
        }
      }
    }
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention

namespace {

// One sequence: q [Hq, n_q, d], k [Hk, n, d], v [Hk, n, d_v]. Writes rows `row`, row + 1, ... of batch b of `result`.
void attend(const Tensor& q_stored, const Tensor& k_stored, const Tensor& v_stored, Arithmetic arithmetic,
            const Scoring& scoring, const Sequence& s, double scale, int64_t b, int64_t row, AttentionResult* result) {
  Tensor scales;
  const Tensor q = operands(q_stored, arithmetic), k = operands(k_stored, arithmetic),
               v = operands(v_stored, arithmetic, &scales);
  const int64_t group = q.dim(0) / k.dim(0);
  const int64_t n = k.dim(1), dim = k.dim(2), dim_v = v.dim(2);
  for (int64_t h = 0; h < q.dim(0); ++h) {
    const double* values = v.data.data() + v.offset({h / group});
    for (int64_t i = 0; i < q.dim(1); ++i) {
      std::vector<double> scaled(static_cast<size_t>(n), 0.0);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        const double* q_row = q.data.data() + q.offset({h, i});
        const double* k_row = k.data.data() + k.offset({h / group, j});
        for (int64_t d = 0; d < dim; ++d) sum += q_row[d] * k_row[d];
        scaled[static_cast<size_t>(j)] = scale * sum;
      }
      const Weights w = weigh_row(scoring, s, h, i, scaled);
      result->lse.at({b, h, row + i}) = w.lse;
      double* out = result->out.data.data() + result->out.offset({b, h, row + i});
      double* magnitude = result->magnitude.data.data() + result->magnitude.offset({b, h, row + i});
      double* weights = result->weights.data.data() + result->weights.offset({b, h, row + i});
      result->max.at({b, h, row + i}) = w.max;
      result->sum.at({b, h, row + i}) = w.sum;
      if (std::isnan(w.lse)) std::fill_n(out, dim_v, kNaN);
      if (std::isnan(w.lse) || w.sum == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        // A weight of 0 hides no value of a visible key: a NaN or infinity in it makes NaN.
        if (!is_visible(scoring, s, h, i, j)) continue;
        const double p = w.p[static_cast<size_t>(j)];
        for (int64_t d = 0; d < dim_v; ++d) {
          out[d] += p * values[j * dim_v + d];
          magnitude[d] += std::fabs(p * values[j * dim_v + d]);
        }
      }
      add_weight_error(arithmetic, w.p, values, scales.data.data() + scales.offset({h / group}), dim_v, weights);
    }
  }
}

// Batch entry b of a [B, H, n, d] tensor, rows first .. first+count-1: [H, count, d].
Tensor rows_of(const Tensor& x, int64_t b, int64_t first, int64_t count) {
  Tensor result({x.dim(1), count, x.dim(3)});
  for (int64_t h = 0; h < x.dim(1); ++h) {
    const auto begin = x.data.begin() + x.offset({b, h}) + first * x.dim(3);
    std::copy(begin, begin + count * x.dim(3), result.data.begin() + result.offset({h}));
  }
  return result;
}

AttentionResult empty_result(int64_t batch, int64_t heads, int64_t n_q, int64_t dim_v) {
  const Tensor rows({batch, heads, n_q});
  const Tensor elements({batch, heads, n_q, dim_v});
  return {elements, rows, elements, rows, rows, elements};
}

}  // namespace

AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const Scoring& scoring,
                          std::optional<double> scale) {
  const int64_t n_q = q.dim(2), n_kv = k.dim(2);
  const double factor = scale_of(scoring, scale, 1.0 / std::sqrt(static_cast<double>(q.dim(3))));
  AttentionResult result = empty_result(q.dim(0), q.dim(1), n_q, v.dim(3));
  for (int64_t b = 0; b < q.dim(0); ++b) {
    attend(rows_of(q, b, 0, n_q), rows_of(k, b, 0, n_kv), rows_of(v, b, 0, n_kv), Arithmetic::kF32, scoring,
           Sequence(scoring, b, b, 0, n_q, n_kv), factor, b, 0, &result);
  }
  return result;
}

namespace {

// f(q, k, v, sequence) for each sequence of a problem: what it stores and sees.
template <class F>
void for_each_sequence(const simdattn::Attention& problem, const F& f) {
  const Scoring& scoring = problem.scoring;
  const Tensor q = read(problem.q);
  const bool varlen = problem.cu_q != nullptr;
  for (int64_t s = 0; s < (varlen ? problem.n_sequences : q.dim(0)); ++s) {
    const int64_t batch = varlen ? 0 : s;
    const int64_t first_row = varlen ? problem.cu_q[s] : 0;
    const int64_t n_q = varlen ? problem.cu_q[s + 1] - first_row : q.dim(2);
    int64_t n_kv = problem.k.length < 0 ? problem.k.tokens : problem.k.length;
    Tensor k, v;
    if (problem.cu_k != nullptr) {
      const int64_t first_key = problem.cu_k[s];
      n_kv = problem.cu_k[s + 1] - first_key;
      const auto packed = [&](const simdattn::ConstKv& kv) {
        Tensor all = read(kv, 0, first_key + n_kv);
        all.shape.insert(all.shape.begin(), 1);
        return rows_of(all, 0, first_key, n_kv);
      };
      k = packed(problem.k);
      v = packed(problem.v);
    } else {
      // Reading no further than the length matters for rings: it is the last tokens of the sequence that they hold.
      const int64_t length = scoring.kv_length != nullptr ? scoring.kv_length[s] : n_kv;
      k = read(problem.k, s, length);
      v = read(problem.v, s, length);
    }
    Sequence sequence(scoring, s, batch, first_row, n_q, n_kv);
    for (const int64_t ring : {problem.k.ring, problem.v.ring}) {
      if (ring > 0) sequence.first_key = std::max(sequence.first_key, sequence.n_kv - ring);
    }
    f(rows_of(q, batch, first_row, n_q), k, v, sequence);
  }
}

}  // namespace

AttentionResult attention(const simdattn::Attention& problem) {
  const auto& shape = problem.q.shape;
  const double factor = scale_of(problem.scoring, {}, 1.0 / std::sqrt(static_cast<double>(shape[3])));
  AttentionResult result = empty_result(shape[0], shape[1], shape[2], problem.v.dim);
  for_each_sequence(problem, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Sequence& s) {
    attend(q, k, v, problem.arithmetic, problem.scoring, s, factor, s.batch, s.first_row, &result);
  });
  return result;
}

std::vector<SequenceRows> sequences(const simdattn::Attention& problem) {
  const Scoring& scoring = problem.scoring;
  std::vector<SequenceRows> result;
  for_each_sequence(problem, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Sequence& s) {
    SequenceRows rows = {q, k, v, s.batch, s.first_row, {}, Tensor({q.dim(0), q.dim(1), k.dim(1)}), {}};
    for (int64_t i = 0; i < q.dim(1); ++i) rows.positions.push_back(s.position(scoring, i));
    if (scoring.bias.data != nullptr) rows.bias = rows.visible;
    int64_t element = 0;
    for (int64_t h = 0; h < q.dim(0); ++h) {
      for (int64_t i = 0; i < q.dim(1); ++i) {
        for (int64_t j = 0; j < k.dim(1); ++j, ++element) {
          rows.visible[element] = is_visible(scoring, s, h, i, j) ? 1 : 0;
          if (scoring.bias.data != nullptr) rows.bias[element] = entry(scoring.bias, s, h, i, j);
        }
      }
    }
    result.push_back(rows);
  });
  return result;
}

AttentionResult attention_merge(const Tensor& parts, const Tensor& part_lse, const std::vector<double>& sinks) {
  const int64_t n_parts = parts.dim(0), dim = parts.dim(4);
  AttentionResult result = empty_result(parts.dim(1), parts.dim(2), parts.dim(3), dim);
  for (int64_t b = 0; b < parts.dim(1); ++b) {
    for (int64_t h = 0; h < parts.dim(2); ++h) {
      for (int64_t i = 0; i < parts.dim(3); ++i) {
        // The parts are keys whose scores are their log-sum-exps, and a sink is a sink.
        std::vector<double> lse;
        for (int64_t p = 0; p < n_parts; ++p) lse.push_back(part_lse.at({p, b, h, i}));
        std::optional<double> sink;
        if (!sinks.empty()) sink = sinks[static_cast<size_t>(h)];
        const Weights w = weigh(lse, std::vector<bool>(lse.size(), true), sink);
        result.lse.at({b, h, i}) = w.lse;
        for (int64_t p = 0; p < n_parts; ++p) {
          const double weight = w.p[static_cast<size_t>(p)];
          if (lse[static_cast<size_t>(p)] == -kInf && !std::isnan(weight)) continue;
          for (int64_t d = 0; d < dim; ++d) {
            const double term = weight * parts.at({p, b, h, i, d});
            result.out.at({b, h, i, d}) += term;
            result.magnitude.at({b, h, i, d}) += std::fabs(term);
          }
        }
      }
    }
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::vector<int64_t>& positions,
            const simdattn::RopeOptions& options) {
  Tensor result = x;
  const int64_t pairs = cos.dim(1);
  const bool interleaved = options.pairing == simdattn::RopePairing::kInterleaved;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      for (int64_t i = 0; i < x.dim(2); ++i) {
        const int64_t position =
            positions.empty() ? options.start + i : positions[static_cast<size_t>(b * x.dim(2) + i)];
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const int64_t first = options.first_dim + (interleaved ? 2 * pair : pair);
          const int64_t second = first + (interleaved ? 1 : pairs);
          const double c = cos.at({position, pair});
          const double s = options.inverse ? -sin.at({position, pair}) : sin.at({position, pair});
          const double x0 = x.at({b, h, i, first}), x1 = x.at({b, h, i, second});
          result.at({b, h, i, first}) = x0 * c - x1 * s;
          result.at({b, h, i, second}) = x0 * s + x1 * c;
        }
      }
    }
  }
  return result;
}

namespace {

constexpr long double kPi = 3.14159265358979323846264338327950288L;

long double real(double value) { return static_cast<long double>(value); }
long double real(int64_t value) { return static_cast<long double>(value); }

// base^(-2i/r)
long double frequency(long double base, int64_t i, int64_t r) { return std::pow(base, -2 * real(i) / real(r)); }

// The column at which a wave turns `rotations` times in the original length.
long double yarn_column(const simdattn::RopeTableOptions& o, int64_t r, long double length, double rotations) {
  return real(r) * std::log(length / (real(rotations) * 2 * kPi)) / (2 * std::log(real(o.rope_theta)));
}

// YaRN's g.
long double magnitude_scale(long double factor, long double mscale) {
  return factor <= 1 ? 1.0L : 0.1L * mscale * std::log(factor) + 1.0L;
}

}  // namespace

std::vector<long double> rope_frequencies(const simdattn::RopeTableOptions& o, int64_t r,
                                          long double* attention_factor) {
  using simdattn::RopeType;
  const int64_t columns = r / 2;
  const long double theta = real(o.rope_theta);
  const long double max_position = real(o.max_position_embeddings);
  long double original = real(o.original_max_position_embeddings);
  long double f = real(o.factor);
  long double magnitude = 1;
  std::vector<long double> inv(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i) {
    inv[static_cast<size_t>(i)] = o.inv_freq.size == 0 ? frequency(theta, i, r) : real(o.inv_freq.data[i]);
  }
  const auto each = [&](auto change) {
    for (int64_t i = 0; i < columns; ++i) inv[static_cast<size_t>(i)] = change(i, inv[static_cast<size_t>(i)]);
  };

  switch (o.rope_type) {
    case RopeType::kDefault: break;
    case RopeType::kLinear: each([&](int64_t, long double w) { return w / f; }); break;
    case RopeType::kProportional: {
      const auto rotated = static_cast<int64_t>(std::floor(real(o.partial_rotary_factor) * real(r) / 2));
      each([&](int64_t i, long double w) { return i < rotated ? w / (f == 0 ? 1 : f) : 0; });
      break;
    }
    case RopeType::kDynamic: {
      const long double length = std::max(real(o.seq_len), max_position);
      const long double base = theta * std::pow(f * length / max_position - (f - 1), real(r) / real(r - 2));
      each([&](int64_t i, long double) { return frequency(base, i, r); });
      break;
    }
    case RopeType::kYarn: {
      if (original == 0) original = max_position;
      long double low = yarn_column(o, r, original, o.beta_fast);
      long double high = yarn_column(o, r, original, o.beta_slow);
      if (o.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = std::max(low, 0.0L);
      high = std::min(high, real(r - 1));
      if (low == high) high += 0.001L;
      each([&](int64_t i, long double w) {
        const long double ramp = std::clamp((real(i) - low) / (high - low), 0.0L, 1.0L);
        return w / f * ramp + w * (1 - ramp);
      });
      magnitude = o.mscale != 0 && o.mscale_all_dim != 0
                      ? magnitude_scale(f, real(o.mscale)) / magnitude_scale(f, real(o.mscale_all_dim))
                      : magnitude_scale(f, 1);
      break;
    }
    case RopeType::kLlama3: {
      if (f == 0) f = 8;
      if (original == 0) original = 8192;
      const long double low = real(o.low_freq_factor), high = real(o.high_freq_factor);
      each([&](int64_t, long double w) {
        const long double wavelength = 2 * kPi / w;
        if (wavelength < original / high) return w;
        if (wavelength > original / low) return w / f;
        const long double s = (original / wavelength - low) / (high - low);
        return (1 - s) * w / f + s * w;
      });
      break;
    }
    case RopeType::kLongRope: {
      const auto& ext = o.seq_len > o.original_max_position_embeddings ? o.long_factor : o.short_factor;
      each([&](int64_t i, long double w) { return w / real(ext.data[i]); });
      if (o.max_position_embeddings != 0) f = max_position / original;
      magnitude = f <= 1 ? 1.0L : std::sqrt(1 + std::log(f) / std::log(original));
      break;
    }
  }
  if (o.freq_factors.size > 0) {
    each([&](int64_t i, long double w) { return w / real(o.freq_factors.data[i]); });
  }
  if (attention_factor != nullptr) *attention_factor = o.attention_factor ? real(*o.attention_factor) : magnitude;
  return inv;
}

void rope_table(const simdattn::RopeTableOptions& o, int64_t r, const std::vector<std::vector<int64_t>>& positions,
                Tensor* cos, Tensor* sin) {
  using simdattn::MropeLayout;
  const int64_t n = static_cast<int64_t>(positions[0].size());
  *cos = Tensor({n, r / 2});
  *sin = *cos;
  long double factor = 1;
  std::vector<long double> inv = rope_frequencies(o, r, &factor);
  std::vector<size_t> axis(inv.size(), 0);
  int64_t begin = 0;
  for (size_t a = 0; a < o.mrope_section.size(); ++a) {
    const int64_t width = o.mrope_section[a];
    if (o.mrope_layout == MropeLayout::kInterleaved) {
      for (int64_t i = static_cast<int64_t>(a); a > 0 && i < 3 * width && i < r / 2; i += 3) {
        axis[static_cast<size_t>(i)] = a;
      }
    } else {
      std::vector<long double> own;
      if (o.mrope_layout == MropeLayout::kAxial && width > 0) own = rope_frequencies(o, 2 * width, nullptr);
      for (int64_t i = 0; i < width; ++i) {
        axis[static_cast<size_t>(begin + i)] = a;
        if (!own.empty()) inv[static_cast<size_t>(begin + i)] = own[static_cast<size_t>(i)];
      }
    }
    begin += width;
  }
  int64_t element = 0;
  for (int64_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < inv.size(); ++i, ++element) {
      const std::vector<int64_t>& own_axis = positions[positions.size() == 1 ? 0 : axis[i]];
      const long double angle = real(own_axis[static_cast<size_t>(p)]) * inv[i];
      (*cos)[element] = static_cast<double>(factor * std::cos(angle));
      (*sin)[element] = static_cast<double>(factor * std::sin(angle));
    }
  }
}

Tensor sinusoidal_table(int64_t d, double base, const std::vector<int64_t>& positions) {
  Tensor result({static_cast<int64_t>(positions.size()), d});
  int64_t element = 0;
  for (const int64_t position : positions) {
    for (int64_t i = 0; i < d; ++i) {
      const long double angle = real(position) * frequency(real(base), i / 2, d);
      result[element++] = static_cast<double>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return result;
}

std::vector<double> alibi_slopes(int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double n = static_cast<double>(power);
    const double exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / n : -4.0 * static_cast<double>(2 * (h - power) + 1) / n;
    slopes.push_back(std::exp2(exponent));
  }
  return slopes;
}

}  // namespace reference
