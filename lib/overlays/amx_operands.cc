// Operands of kBF16 on AMX, out of rows.
#include <immintrin.h>

#include <algorithm>

#include "lib/contract/dtypes.h"
#include "lib/overlays/amx.h"
#include "lib/overlays/amx_pairs.h"

namespace simdattn {
namespace {

constexpr int64_t kGroup = 32;

template <class T>
void query(const void* row, void* out, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kGroup) {
    _mm512_storeu_si512(static_cast<char*>(out) + 2 * d, load_bf16(static_cast<const T*>(row) + d, dim - d));
  }
}

/// v[i] becomes lane i of all.
inline void transpose(__m512i (&v)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  // v[4 i + k]: in each 128 bits, lane k of its rows 4 i .. 4 i + 3.
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int k = 0; k < 4; ++k) {
    const __m512i a = _mm512_shuffle_i32x4(v[k], v[k + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(v[k], v[k + 4], 0xDD);
    const __m512i c = _mm512_shuffle_i32x4(v[k + 8], v[k + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(v[k + 8], v[k + 12], 0xDD);
    t[k] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[k + 8] = _mm512_shuffle_i32x4(a, c, 0xDD);
    t[k + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[k + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

template <class T>
void keys(const PackKeys& a) {
  char* const panel = static_cast<char*>(a.panel);
  const auto row = [&](int64_t j) {
    return reinterpret_cast<const T*>(static_cast<const char*>(a.from) + j * a.token_stride);
  };
  for (int64_t d = 0; d < a.dim; d += kGroup) {
    const int64_t pairs = std::min<int64_t>(16, (a.dim - d + 1) / 2);
    for (int64_t first = 0; first < kPanelWidth; first += 16) {
      __m512i v[16];
      for (int64_t j = 0; j < 16; ++j) {
        const int64_t key = first + j;
        if (a.stream)
          __builtin_prefetch(
              reinterpret_cast<const char*>(row(key)) + kPanelWidth * a.token_stride + d * int64_t{sizeof(T)}, 0, 2);
        v[j] = key < a.keys ? load_bf16(row(key) + d, a.dim - d) : _mm512_setzero_si512();
      }
      transpose(v);
      for (int64_t p = 0; p < pairs; ++p) _mm512_storeu_si512(panel + (d / 2 + p) * 128 + first * 4, v[p]);
    }
  }
}

template <class T>
void values(const PackValues& a) {
  const char* rows = static_cast<const char*>(a.rows) + a.column * static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < a.columns; c += kValueGroup) {
    interleave_rows<T>(rows + c * static_cast<int64_t>(sizeof(T)), a.token_stride, a.first, a.keys, a.columns - c,
                       static_cast<char*>(a.block) + c * kKeyBlock * 2);
  }
}

}  // namespace

int64_t AmxBf16Operands::query_bytes(int64_t dim) { return ((dim + kGroup - 1) / kGroup | 1) * 64; }
int64_t AmxBf16Operands::panel_bytes(int64_t dim) { return (dim + 1) / 2 * 128; }
int64_t AmxBf16Operands::values_bytes(int64_t dim) {
  return (dim + kValueGroup - 1) / kValueGroup * kValueGroup * kKeyBlock * 2;
}
void AmxBf16Operands::prepare_query_f32(const void* row, void* out, int64_t dim) { query<float>(row, out, dim); }
void AmxBf16Operands::prepare_query_bf16(const void* row, void* out, int64_t dim) { query<bf16>(row, out, dim); }
void AmxBf16Operands::prepare_query_f16(const void* row, void* out, int64_t dim) { query<f16>(row, out, dim); }
void AmxBf16Operands::pack_keys_f32(const PackKeys& a) { keys<float>(a); }
void AmxBf16Operands::pack_keys_bf16(const PackKeys& a) { keys<bf16>(a); }
void AmxBf16Operands::pack_values_f32(const PackValues& a) { values<float>(a); }
void AmxBf16Operands::pack_values_bf16(const PackValues& a) { values<bf16>(a); }

void AmxBf16Operands::prepare_weights(const float* in, float* out, int64_t n) {
  for (int64_t j = 0; j < n; j += kGroup) _mm512_storeu_si512(out + j, load_bf16(in + j, n - j));
}

void AmxBf16Operands::narrow_weights(float* w, int64_t ldw, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, w += ldw) {
    for (int64_t c = 0; c < columns; c += kGroup) {
      const __m512i low = _mm512_loadu_si512(w + c);
      const __m512i high = c + 16 < columns ? _mm512_loadu_si512(w + c + 16) : _mm512_setzero_si512();
      _mm512_storeu_si512(w + c, upper_halves(low, high));
    }
  }
}

}  // namespace simdattn
