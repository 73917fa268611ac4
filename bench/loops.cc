// Compiled several times: BENCH_ISA names the instruction set of this object. No header with inline functions is
// included, since the linker would be free to use this object's copies in the rest of the program.
#include "bench/loops.h"

namespace bench {
namespace {

float widen(float x) { return x; }
float widen(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
void narrow(float x, float* out) { *out = x; }
void narrow(float x, uint16_t* out) {
  const uint32_t b = __builtin_bit_cast(uint32_t, x);
  *out = static_cast<uint16_t>((b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
}

// A polynomial of degree six after reduction by ln 2, without a call, so that the loop around it can be vectorised.
float exp_loop(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;
  const int32_t n = __builtin_bit_cast(int32_t, shifted) - 0x4B400000;
  const float k = static_cast<float>(n);
  const float r = x - k * 0.693145752f - k * 1.42860677e-6f;
  float p = 1.388889e-3f;
  p = p * r + 8.333333e-3f;
  p = p * r + 4.166667e-2f;
  p = p * r + 1.666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * __builtin_bit_cast(float, (n + 127) << 23);
}

void softmax(const float* x, float* out, size_t rows, size_t n) {
  for (size_t r = 0; r < rows; ++r) {
    const float* __restrict xr = x + r * n;
    float* __restrict o = out + r * n;
    float max = xr[0];
    for (size_t i = 0; i < n; ++i) max = xr[i] > max ? xr[i] : max;
    float sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const float e = exp_loop(xr[i] - max);
      o[i] = e;
      sum += e;
    }
    const float inverse = 1 / sum;
    for (size_t i = 0; i < n; ++i) o[i] *= inverse;
  }
}

template <class T>
void scores(const T* q, size_t n_q, const T* k, size_t n, size_t d, float scale, float* out) {
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < n_q; ++i) {
      const T* __restrict a = q + i * d;
      const T* __restrict b = k + j * d;
      float sum = 0;
      for (size_t e = 0; e < d; ++e) sum += widen(a[e]) * widen(b[e]);
      out[i * n + j] = sum * scale;
    }
  }
}

template <class T>
void values(const float* p, size_t n_q, const T* v, size_t n, size_t d, T* out) {
  constexpr size_t kBlock = 128;
  for (size_t i = 0; i < n_q; ++i) {
    for (size_t first = 0; first < d; first += kBlock) {
      const size_t width = d - first < kBlock ? d - first : kBlock;
      float sum[kBlock] = {};
      for (size_t j = 0; j < n; ++j) {
        const T* __restrict row = v + j * d + first;
        const float weight = p[i * n + j];
        if (width == kBlock) {
          for (size_t e = 0; e < kBlock; ++e) sum[e] += weight * widen(row[e]);
        } else {
          for (size_t e = 0; e < width; ++e) sum[e] += weight * widen(row[e]);
        }
      }
      for (size_t e = 0; e < width; ++e) narrow(sum[e], out + i * d + first + e);
    }
  }
}

void rope_half(float* x, const float* cos, const float* sin, size_t n, size_t heads, size_t d) {
  const size_t half = d / 2;
  for (size_t i = 0; i < n; ++i) {
    const float* __restrict c = cos + i * half;
    const float* __restrict s = sin + i * half;
    for (size_t h = 0; h < heads; ++h) {
      float* __restrict a = x + (i * heads + h) * d;
      float* __restrict b = a + half;
      for (size_t e = 0; e < half; ++e) {
        const float x0 = a[e], x1 = b[e];
        a[e] = x0 * c[e] - x1 * s[e];
        b[e] = x0 * s[e] + x1 * c[e];
      }
    }
  }
}

void rope_interleaved(float* x, const float* cos, const float* sin, size_t n, size_t heads, size_t d) {
  const size_t half = d / 2;
  for (size_t i = 0; i < n; ++i) {
    const float* __restrict c = cos + i * half;
    const float* __restrict s = sin + i * half;
    for (size_t h = 0; h < heads; ++h) {
      float* __restrict a = x + (i * heads + h) * d;
      for (size_t e = 0; e < half; ++e) {
        const float x0 = a[2 * e], x1 = a[2 * e + 1];
        a[2 * e] = x0 * c[e] - x1 * s[e];
        a[2 * e + 1] = x0 * s[e] + x1 * c[e];
      }
    }
  }
}

}  // namespace

#define BENCH_QUOTE_(x) #x
#define BENCH_QUOTE(x) BENCH_QUOTE_(x)
#define BENCH_JOIN_(a, b) a##b
#define BENCH_JOIN(a, b) BENCH_JOIN_(a, b)

extern const Loops BENCH_JOIN(kLoops_, BENCH_ISA);
const Loops BENCH_JOIN(kLoops_, BENCH_ISA) = {
    BENCH_QUOTE(BENCH_ISA), softmax,          scores<float>, scores<uint16_t>,
    values<float>,          values<uint16_t>, rope_half,     rope_interleaved};

}  // namespace bench
