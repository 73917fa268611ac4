// Plain loops, compiled at -O3 -march=native -ffast-math with the widest vectors: what a good compiler makes of the
// obvious code. Orders of summation are the compiler's.
#include <type_traits>

#include "bench/peers/plain.h"

namespace bench {
namespace {

using simdattn::DType;

float widen(float x) { return x; }
float widen(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
void narrow(float x, float* out) { *out = x; }
void narrow(float x, uint16_t* out) {
  const uint32_t b = __builtin_bit_cast(uint32_t, x);
  *out = static_cast<uint16_t>((b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
}
#if defined(__FLT16_MANT_DIG__)
#define BENCH_HALF 1
#ifdef __aarch64__
using Half = __fp16;  // gcc 12 has _Float16 in C alone there
#else
using Half = _Float16;
#endif
float widen(Half x) { return static_cast<float>(x); }
void narrow(float x, Half* out) { *out = static_cast<Half>(x); }
#endif

template <class T>
void scores(const T* q, size_t n_q, const T* k, size_t n, size_t d, float scale, float* out, size_t stride) {
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < n_q; ++i) {
      const T* __restrict a = q + i * d;
      const T* __restrict b = k + j * d;
      float sum = 0;
      for (size_t e = 0; e < d; ++e) sum += widen(a[e]) * widen(b[e]);
      out[i * stride + j] = sum * scale;
    }
  }
}

template <class T>
void values(const float* p, size_t stride, size_t n_q, const T* v, size_t n, size_t d, T* out) {
  constexpr size_t kBlock = 128;
  for (size_t i = 0; i < n_q; ++i) {
    for (size_t first = 0; first < d; first += kBlock) {
      const size_t width = d - first < kBlock ? d - first : kBlock;
      float sum[kBlock] = {};
      for (size_t j = 0; j < n; ++j) {
        const T* __restrict row = v + j * d + first;
        const float weight = p[i * stride + j];
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

/// As good loops do it: hidden keys are skipped.
template <class T>
void masked_attention(const Work& w, std::vector<float>& memory) {
  memory.resize(static_cast<size_t>(w.n));
  std::vector<size_t> seen;
  const size_t d = static_cast<size_t>(w.d);
  for (int64_t i = 0; i < w.n_q; ++i) {
    seen.clear();
    for (int64_t j = 0; j < w.n; ++j) {
      if (w.keep[i * w.n + j] != 0) seen.push_back(static_cast<size_t>(j));
    }
    for (int64_t h = 0; h < w.heads; ++h) {
      const size_t kv = static_cast<size_t>(h * w.kv_heads / w.heads * w.n) * d;
      const T* k = static_cast<const T*>(w.k) + kv;
      const T* v = static_cast<const T*>(w.v) + kv;
      const size_t row = static_cast<size_t>(h * w.n_q + i) * d;
      float* p = memory.data();
      for (size_t j = 0; j < seen.size(); ++j) {
        scores(static_cast<const T*>(w.q) + row, 1, k + seen[j] * d, 1, d, w.scale, p + j, 1);
      }
      softmax_row(p, p, seen.size());
      float sum[256] = {};
      for (size_t j = 0; j < seen.size(); ++j) {
        const T* __restrict value = v + seen[j] * d;
        for (size_t e = 0; e < d; ++e) sum[e] += p[j] * widen(value[e]);
      }
      for (size_t e = 0; e < d; ++e) narrow(sum[e], static_cast<T*>(w.out) + row + e);
    }
  }
}

template <class T>
void attention(const Work& w, std::vector<float>& memory) {
  memory.resize(static_cast<size_t>(w.n));
  const size_t d = static_cast<size_t>(w.d);
  for (int64_t h = 0; h < w.heads; ++h) {
    const int64_t kv = h * w.kv_heads / w.heads;
    for (int64_t i = 0; i < w.n_q; ++i) {
      const size_t keys = static_cast<size_t>(w.causal ? i + 1 + w.n - w.n_q : w.n);
      const int64_t row = (h * w.n_q + i) * w.d;
      scores(static_cast<const T*>(w.q) + row, 1, static_cast<const T*>(w.k) + kv * w.n * w.d, keys, d, w.scale,
             memory.data(), keys);
      softmax_row(memory.data(), memory.data(), keys);
      values(memory.data(), keys, 1, static_cast<const T*>(w.v) + kv * w.n * w.d, keys, d,
             static_cast<T*>(w.out) + row);
    }
  }
}

template <bool kInPlace, bool kInterleaved>
void rope(const Work& w) {
  const size_t half = static_cast<size_t>(w.d) / 2, heads = static_cast<size_t>(w.heads);
  for (size_t i = 0; i < static_cast<size_t>(w.n_q); ++i) {
    const float* __restrict c = w.cos + i * half;
    const float* __restrict s = w.sin + i * half;
    for (size_t h = 0; h < heads; ++h) {
      const size_t at = (i * heads + h) * 2 * half;
      const size_t other = kInterleaved ? 1 : half, step = kInterleaved ? 2 : 1;
      float* __restrict o = static_cast<float*>(w.out) + at;
      if constexpr (kInPlace) {
        for (size_t e = 0; e < half; ++e) {
          const float x0 = o[e * step], x1 = o[e * step + other];
          o[e * step] = x0 * c[e] - x1 * s[e];
          o[e * step + other] = x0 * s[e] + x1 * c[e];
        }
      } else {
        const float* __restrict x = static_cast<const float*>(w.q) + at;
        for (size_t e = 0; e < half; ++e) {
          o[e * step] = x[e * step] * c[e] - x[e * step + other] * s[e];
          o[e * step + other] = x[e * step] * s[e] + x[e * step + other] * c[e];
        }
      }
    }
  }
}

template <class T>
Call make_typed(const Work& w) {
  const size_t n_q = static_cast<size_t>(w.n_q), n = static_cast<size_t>(w.n), d = static_cast<size_t>(w.d);
  switch (w.kind) {
    case Kind::kScores:
      return {[=] {
        scores(static_cast<const T*>(w.q), n_q, static_cast<const T*>(w.k), n, d, w.scale, static_cast<float*>(w.out),
               n);
      }};
    case Kind::kWeightedValues:
      return {[=] {
        values(static_cast<const float*>(w.q), n, n_q, static_cast<const T*>(w.v), n, d, static_cast<T*>(w.out));
      }};
    default: {
      const auto memory = std::make_shared<std::vector<float>>();
      return {[=] { w.masked ? masked_attention<T>(w, *memory) : attention<T>(w, *memory); }};
    }
  }
}

Call make(const Work& w) {
  if (w.kind == Kind::kSoftmax) {
    return {[=] {
      const size_t n = static_cast<size_t>(w.n);
      for (size_t r = 0; r < static_cast<size_t>(w.n_q); ++r) {
        softmax_row(static_cast<const float*>(w.q) + r * n, static_cast<float*>(w.out) + r * n, n);
      }
    }};
  }
  if (w.kind == Kind::kRope) {
    if (w.in_place && w.interleaved) return {[=] { rope<true, true>(w); }};
    if (w.in_place) return {[=] { rope<true, false>(w); }};
    if (w.interleaved) return {[=] { rope<false, true>(w); }};
    return {[=] { rope<false, false>(w); }};
  }
#ifdef BENCH_HALF
  if (w.type == DType::kF16) return make_typed<Half>(w);
#endif
  return w.type == DType::kF32 ? make_typed<float>(w) : make_typed<uint16_t>(w);
}

bool can(const Work& w) {
  if (w.threads > 1) return false;
  if (w.kind == Kind::kSoftmax || w.kind == Kind::kRope) return w.type == DType::kF32;
#ifndef BENCH_HALF
  if (w.type == DType::kF16) return false;
#endif
  // A prompt row by row would take longer than all the others together.
  return w.kind != Kind::kAttention || w.n_q == 1 || (w.masked && w.d <= 256);
}

std::string settings() { return "C++ loops, " BENCH_COMPILER ", -O3 -march=native -ffast-math, widest vectors"; }

const Peer kPeers[] = {{"loops", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
