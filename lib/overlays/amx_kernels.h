// The products of AMX and the vector code around them, over tiles that are the hardware's or, in tests, software.
// Tiles 0 and 1 are the sums of the first 16 rows, 2 and 3 of the second; 4 and 5 hold rows, 6 and 7 columns.
#ifndef SIMDATTN_LIB_OVERLAYS_AMX_KERNELS_H_
#define SIMDATTN_LIB_OVERLAYS_AMX_KERNELS_H_

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/int8_operands.h"
#include "lib/contract/ukernels.h"
#include "lib/overlays/amx.h"
#include "lib/overlays/amx_pairs.h"
#include "lib/overlays/hardware_tiles.h"
#include "lib/simd/flush_subnormals.h"

namespace simdattn {
namespace {

/// Of a tile.
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;
/// 32 columns of four bytes: a row of the right operand, for two tiles.
constexpr int64_t kPairBytes = 2 * kTileBytes;
/// What one step multiplies of it.
constexpr int64_t kStepBytes = kTileRows * kPairBytes;
/// How far ahead panels are prefetched.
constexpr int64_t kAheadBytes = 16384;

constexpr int64_t steps_of(int64_t n, int64_t step) { return (n + step - 1) / step; }

/// s[r][c] = fma(s[r][c], factors[r or 0], 0) for columns in whole vectors.
[[gnu::noinline]] void scale_rows(float* s, int64_t lds, int64_t rows, int64_t columns, const float* factors,
                                  int64_t factor_step) {
  for (int64_t r = 0; r < rows; ++r) {
    const __m512 factor = _mm512_set1_ps(factors[r * factor_step]);
    for (int64_t c = 0; c < columns; c += 16) {
      float* at = s + r * lds + c;
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), factor, _mm512_setzero_ps()));
    }
  }
}

struct Bf16Products {
  template <class Tiles, int kC, int kA, int kB>
  static void add() {
    Tiles::template add_bf16<kC, kA, kB>();
  }
};
struct SignedProducts {
  template <class Tiles, int kC, int kA, int kB>
  static void add() {
    Tiles::template add_signed<kC, kA, kB>();
  }
};
struct UnsignedProducts {
  template <class Tiles, int kC, int kA, int kB>
  static void add() {
    Tiles::template add_unsigned<kC, kA, kB>();
  }
};

/// The left operand: where it begins, bytes between its rows and between its steps.
struct Rows {
  const char* data;
  int64_t stride;
  int64_t step;
};

template <class Tiles>
struct AmxKernels {
  /// Tiles of rows and sums have `rows` rows.
  static void configure(int64_t rows) {
    TileConfiguration c;
    for (int t = 0; t < 8; ++t) {
      c.row_bytes[t] = static_cast<uint16_t>(kTileBytes);
      c.rows[t] = static_cast<uint8_t>(t < 6 ? rows : kTileRows);
    }
    Tiles::configure(c);
  }
  static void begin() { configure(kTileRows); }
  static void end() { Tiles::release(); }

  /// f(first row, rows) for as many whole tiles of rows as there are, then for what is left in tiles of that size.
  template <class F>
  static void for_whole_tiles(int64_t rows, const F& f) {
    const int64_t whole = rows / kTileRows * kTileRows;
    if (whole > 0) f(0, whole);
    if (whole == rows) return;
    configure(rows - whole);
    f(whole, rows - whole);
    configure(kTileRows);
  }
  /// f(first row, rows, whether there are two tiles of them) for pairs of tiles of `rows` rows from row `first`.
  template <class F>
  [[gnu::always_inline]] static void for_each_pair(int64_t first, int64_t rows, const F& f) {
    int64_t r = first;
    for (; r + 2 * kTileRows <= first + rows; r += 2 * kTileRows) f(r, 2 * kTileRows, std::true_type());
    if (r < first + rows) f(r, first + rows - r, std::false_type());
  }

  template <bool kTwo>
  [[gnu::always_inline]] static void zero_sums() {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (kTwo) {
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
  }
  template <bool kTwo>
  [[gnu::always_inline]] static void load_sums(const void* sums, int64_t stride) {
    const char* at = static_cast<const char*>(sums);
    Tiles::template load<0>(at, stride);
    Tiles::template load<1>(at + kTileBytes, stride);
    if constexpr (kTwo) {
      Tiles::template load<2>(at + kTileRows * stride, stride);
      Tiles::template load<3>(at + kTileRows * stride + kTileBytes, stride);
    }
  }
  template <bool kTwo>
  [[gnu::always_inline]] static void store_sums(void* sums, int64_t stride) {
    char* at = static_cast<char*>(sums);
    Tiles::template store<0>(at, stride);
    Tiles::template store<1>(at + kTileBytes, stride);
    if constexpr (kTwo) {
      Tiles::template store<2>(at + kTileRows * stride, stride);
      Tiles::template store<3>(at + kTileRows * stride + kTileBytes, stride);
    }
  }

  /// Adds `steps` steps to the sums.
  template <class Products, bool kTwo>
  [[gnu::always_inline]] static void multiply(Rows a, const char* b, int64_t steps) {
    const int64_t second = kTileRows * a.stride;
    for (; steps > 0; --steps, a.data += a.step, b += kStepBytes) {
      Tiles::template load<4>(a.data, a.stride);
      Tiles::template load<6>(b, kPairBytes);
      Products::template add<Tiles, 0, 4, 6>();
      if constexpr (kTwo) {
        Tiles::template load<5>(a.data + second, a.stride);
        Products::template add<Tiles, 2, 5, 6>();
      }
      Tiles::template load<7>(b + kTileBytes, kPairBytes);
      Products::template add<Tiles, 1, 4, 7>();
      if constexpr (kTwo) Products::template add<Tiles, 3, 5, 7>();
    }
  }

  static void prefetch(const void* data, int64_t bytes) {
    const auto* line = static_cast<const char*>(data);
    for (int64_t i = 0; i < bytes; i += kTileBytes) __builtin_prefetch(line + i, 0, 2);
  }

  /// s = the products of the rows of queries and the 32 columns of each panel, of `pairs` rows of kPairBytes;
  /// finish(panel, s, first row, rows) then makes scores of them. `odd`: the last row's pairs of 16 bits have a first number alone. The
  /// other is zero where kv_append wrote it; elsewhere it may be NaN, which times zero is no zero.
  template <class Products, class Finish>
  static void scores(const ScoreTile& a, int64_t pairs, bool odd, const Finish& finish) {
    alignas(64) char last[kStepBytes];
    const int64_t whole = (odd ? pairs - 1 : pairs) / kTileRows;
    const int64_t rest = (pairs - whole * kTileRows) * kPairBytes;
    const int64_t stride = a.lds * int64_t{sizeof(float)};
    for_whole_tiles(a.rows, [&](int64_t first, int64_t rows) {
      for (int64_t p = 0; p < a.n_panels; ++p) {
        const char* panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
        if (rest > 0) {
          std::memcpy(last, panel + whole * kStepBytes, static_cast<size_t>(rest));
          std::memset(last + rest, 0, static_cast<size_t>(kStepBytes - rest));
          for (int64_t i = rest - kPairBytes + 2; odd && i < rest; i += 4) std::memset(last + i, 0, 2);
        }
        for_each_pair(first, rows, [&](int64_t r, int64_t count, auto two) {
          if (a.fetches()) prefetch_share(a, panel, pairs * kPairBytes, r, count);
          Rows q = {static_cast<const char*>(a.q) + r * a.q_stride, a.q_stride, kTileBytes};
          zero_sums<two>();
          multiply<Products, two>(q, panel, whole);
          q.data += whole * kTileBytes;
          if (rest > 0) multiply<Products, two>(q, last, 1);
          store_sums<two>(a.s + r * a.lds + p * kPanelWidth, stride);
          finish(panel, a.s + r * a.lds + p * kPanelWidth, r, count);
        });
      }
    });
  }
  /// Rows divide among themselves what a panel has to fetch of the panels to come.
  static void prefetch_share(const ScoreTile& a, const char* panel, int64_t bytes, int64_t first, int64_t rows) {
    const int64_t ahead = steps_of(kAheadBytes, bytes) * a.panel_stride;
    const int64_t from = first * bytes / a.rows / kTileBytes * kTileBytes;
    const int64_t to = (first + rows) * bytes / a.rows;
    prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(panel) + static_cast<uintptr_t>(ahead + from)),
             to - from);
  }

  // ---- kBF16 ----

  static void bf16_scores(const ScoreTile& a) {
    const FlushSubnormals flush;
    scores<Bf16Products>(a, (a.dim + 1) / 2, a.dim % 2 == 1, [&](const char*, float* s, int64_t, int64_t rows) {
      scale_rows(s, a.lds, rows, kPanelWidth, &a.scale, 0);
    });
  }

  /// The keys of one group of 32, of which [from, to) are those of the call, and the places of their weights.
  struct KeyGroup {
    int64_t key;  // of the block
    int64_t from;
    int64_t to;
    const float* w;
    bool whole() const { return from == 0 && to == kBf16Keys; }
  };
  static constexpr int64_t kBf16Keys = 2 * kTileRows;
  static KeyGroup key_group(const ValueTile& a, int64_t key) {
    const int64_t end = a.first_key + a.keys;
    return {key, std::max(a.first_key - key, int64_t{0}), std::min(end - key, kBf16Keys), a.w + (key - a.first_key)};
  }
  static int64_t first_group(const ValueTile& a) { return a.first_key / kBf16Keys * kBf16Keys; }
  static Rows weights(const ValueTile& a, const float* w) {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    return {reinterpret_cast<const char*>(w), a.ldw * kFloat, kBf16Keys * kFloat};
  }

  static void scale_sums(const ValueTile& a, int64_t columns) {
    if (a.alpha != nullptr) scale_rows(a.o, a.ldo, a.rows, columns, a.alpha, 1);
  }

  static void bf16_values_packed(const ValueTile& a) {
    const FlushSubnormals flush;
    const int64_t dim = steps_of(a.dim, kValueGroup) * kValueGroup;
    const int64_t stride = a.ldo * int64_t{sizeof(float)};
    const int64_t end = a.first_key + a.keys;
    scale_sums(a, dim);
    if (a.keys == 0) return;
    // Groups whose keys are not all of this call: the others may be anything, and are taken for zeros.
    const KeyGroup head = key_group(a, first_group(a));
    const KeyGroup tail = key_group(a, (end - 1) / kBf16Keys * kBf16Keys);
    const bool cut_head = !head.whole();
    const bool cut_tail = !tail.whole() && tail.key != head.key;
    const int64_t first = head.key + (cut_head ? kBf16Keys : 0);
    const int64_t steps = ((cut_tail ? tail.key : end) - first) / kBf16Keys;
    alignas(64) char cut[2][kStepBytes];
    for_whole_tiles(a.rows, [&](int64_t first_row, int64_t n) {
      for (int64_t c = 0; c < dim; c += kValueGroup) {
        const char* block = static_cast<const char*>(a.v) + c * kKeyBlock * 2;
        const auto at = [&](int64_t key) { return block + key / 2 * kPairBytes; };
        if (cut_head) cut_pairs(at(head.key), head.from, head.to, cut[0]);
        if (cut_tail) cut_pairs(at(tail.key), tail.from, tail.to, cut[1]);
        for_each_pair(first_row, n, [&](int64_t r, int64_t, auto two) {
          float* o = a.o + r * a.ldo + c;
          const auto add = [&](const float* w, const char* v, int64_t count) {
            multiply<Bf16Products, two>(weights(a, w + r * a.ldw), v, count);
          };
          load_sums<two>(o, stride);
          if (cut_head) add(head.w, cut[0], 1);
          if (steps > 0) add(a.w + (first - a.first_key), at(first), steps);
          if (cut_tail) add(tail.w, cut[1], 1);
          store_sums<two>(o, stride);
        });
      }
    });
  }

  /// Values in rows of bf16: each group of keys is interleaved on its way. For few rows.
  static void bf16_values(const ValueTile& a) {
    const FlushSubnormals flush;
    if (a.alpha != nullptr) scale_rows_exactly(a);
    alignas(64) char pairs[kStepBytes];
    alignas(64) float sums[2 * kTileRows * kValueGroup];
    const int64_t end = a.first_key + a.keys;
    for_whole_tiles(a.rows, [&](int64_t first_row, int64_t n) {
      for (int64_t key = first_group(a); key < end; key += kBf16Keys) {
        const KeyGroup group = key_group(a, key);
        const char* rows = static_cast<const char*>(a.v) + (key + group.from - a.first_key) * a.key_stride;
        for (int64_t c = 0; c < a.dim; c += kValueGroup) {
          const int64_t columns = std::min(kValueGroup, a.dim - c);
          const char* from = rows + c / kValueGroup * a.group_stride;
          if (a.fetches()) prefetch_rows(from, a.key_stride, group.to - group.from);
          if (!group.whole()) std::memset(pairs, 0, sizeof(pairs));
          interleave_rows<bf16>(from, a.key_stride, group.from, group.to - group.from, columns, pairs);
          for_each_pair(first_row, n, [&](int64_t r, int64_t count, auto two) {
            float* o = a.o + r * a.ldo + c;
            const bool part = columns < kValueGroup;
            if (part) copy_columns(o, a.ldo, count, columns, sums, kValueGroup);
            float* at = part ? sums : o;
            const int64_t stride = (part ? kValueGroup : a.ldo) * int64_t{sizeof(float)};
            load_sums<two>(at, stride);
            multiply<Bf16Products, two>(weights(a, group.w + r * a.ldw), pairs, 1);
            store_sums<two>(at, stride);
            if (part) copy_columns(sums, kValueGroup, count, columns, o, a.ldo);
          });
        }
      }
    });
  }
  static void copy_columns(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to, int64_t to_ld) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * ld, columns, to + r * to_ld);
  }
  /// The lines that the group of keys after the next one has in this place.
  static void prefetch_rows(const char* rows, int64_t stride, int64_t n) {
    const auto ahead = reinterpret_cast<uintptr_t>(rows) + static_cast<uintptr_t>(2 * kBf16Keys * stride);
    for (int64_t j = 0; j < n; ++j) {
      __builtin_prefetch(reinterpret_cast<const char*>(ahead + static_cast<uintptr_t>(j * stride)), 0, 2);
    }
  }
  /// scale_sums() for sums of a.dim columns and no more.
  [[gnu::noinline]] static void scale_rows_exactly(const ValueTile& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const __m512 factor = _mm512_set1_ps(a.alpha[r]);
      for (int64_t c = 0; c < a.dim; c += 16) {
        float* at = a.o + r * a.ldo + c;
        const __mmask16 mask = first_lanes(a.dim - c);
        const __m512 o = _mm512_maskz_loadu_ps(mask, at);
        _mm512_mask_storeu_ps(at, mask, _mm512_fmadd_ps(o, factor, _mm512_setzero_ps()));
      }
    }
  }

  // ---- kInt8 ----

  static void int8_scores(const ScoreTile& a) {
    const int64_t numbers = int8_panel_numbers(a.dim);
    const int64_t query_numbers = int8_query_numbers(a.dim);
    scores<SignedProducts>(
        a, numbers / kPairBytes, false, [&](const char* panel, float* s, int64_t first, int64_t rows) {
          const auto* scales = reinterpret_cast<const float*>(panel + numbers);
          const __m512 low = _mm512_loadu_ps(scales);
          const __m512 high = _mm512_loadu_ps(scales + 16);
          for (int64_t r = 0; r < rows; ++r, s += a.lds) {
            Int8Query info;
            std::memcpy(&info, static_cast<const char*>(a.q) + (first + r) * a.q_stride + query_numbers, sizeof(info));
            const __m512 factor = _mm512_set1_ps(info.scale * a.scale);
            const __m512 t0 = _mm512_cvtepi32_ps(_mm512_loadu_si512(s));
            const __m512 t1 = _mm512_cvtepi32_ps(_mm512_loadu_si512(s + 16));
            _mm512_storeu_ps(s, _mm512_mul_ps(t0, _mm512_mul_ps(factor, low)));
            _mm512_storeu_ps(s + 16, _mm512_mul_ps(t1, _mm512_mul_ps(factor, high)));
          }
        });
  }

  static constexpr int64_t kInt8Keys = 4 * kTileRows;
  /// Bytes between rows of weights: an odd number of lines.
  static constexpr int64_t kWeightBytes = kKeyBlock + kTileBytes;

  /// The integers of one row's weights, at `p`; those of keys outside of the call are zeros. Returns their scale.
  static float quantise_weights(const ValueTile& a, const float* scales, const float* w, uint8_t* p) {
    const int64_t end = a.first_key + a.keys;
    const int64_t from = a.first_key / 16 * 16;
    const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    const __m512 zero = _mm512_setzero_ps();
    alignas(64) float u[kKeyBlock];
    // Two of each: a chain of maxima over all of a block is what the time of a row would be.
    __m512 largest[2] = {zero, zero};
    __mmask16 bad[2] = {0, 0};
    const auto add = [&](int64_t j, __m512 x, int i) {
      bad[i] = static_cast<__mmask16>(bad[i] | _mm512_cmp_ps_mask(_mm512_abs_ps(x), infinity, _CMP_NLT_UQ));
      largest[i] = _mm512_max_ps(x, largest[i]);
      _mm512_store_ps(u + j, x);
    };
    const auto add_part = [&](int64_t j) {
      __mmask16 mask = first_lanes(end - j);
      if (j < a.first_key) mask = static_cast<__mmask16>(mask & ~first_lanes(a.first_key - j));
      add(j, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, w + (j - a.first_key)), _mm512_maskz_loadu_ps(mask, scales + j)),
          0);
    };
    int64_t j = from;
    if (j < a.first_key) {
      add_part(j);
      j += 16;
    }
    const auto product = [&](int64_t at) {
      return _mm512_mul_ps(_mm512_loadu_ps(w + (at - a.first_key)), _mm512_loadu_ps(scales + at));
    };
    for (; j + 32 <= end; j += 32) {
      add(j, product(j), 0);
      add(j + 16, product(j + 16), 1);
    }
    for (; j < end; j += 16) add_part(j);
    const bool finite = (bad[0] | bad[1]) == 0;
    const WeightScale quantise(_mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1])), finite);
    const __m512 factor = _mm512_set1_ps(quantise.inverse);
    std::memset(p, 0, static_cast<size_t>(kKeyBlock));
    for (j = from; j < end && finite; j += 16) {
      const __m512 x = _mm512_load_ps(u + j);
      const __mmask16 positive = _mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ);
      const __m512i n = _mm512_maskz_cvtps_epi32(positive, _mm512_mul_ps(x, factor));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + j), _mm512_cvtepi32_epi8(n));
    }
    return quantise.scale;
  }

  static void int8_values_packed(const ValueTile& a) {
    const int64_t dim = steps_of(a.dim, kValueGroup) * kValueGroup;
    const int64_t end = a.first_key + a.keys;
    const int64_t first = a.first_key / kInt8Keys;
    const int64_t steps = steps_of(end, kInt8Keys) - first;
    const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(a.v) + int8_values_numbers(a.dim));
    alignas(64) uint8_t p[2 * kTileRows * kWeightBytes];
    alignas(64) int32_t sums[2 * kTileRows * kValueGroup];
    float scale[2 * kTileRows];
    constexpr int64_t kStride = kValueGroup * int64_t{sizeof(int32_t)};
    for_whole_tiles(a.rows, [&](int64_t first_row, int64_t n) {
      for_each_pair(first_row, n, [&](int64_t row, int64_t count, auto two) {
        for (int64_t r = 0; r < count; ++r) {
          scale[r] = quantise_weights(a, scales, a.w + (row + r) * a.ldw, p + r * kWeightBytes);
        }
        const Rows weights = {reinterpret_cast<const char*>(p) + first * kTileBytes, kWeightBytes, kTileBytes};
        for (int64_t c = 0; c < dim; c += kValueGroup) {
          const char* block = static_cast<const char*>(a.v) + c * kKeyBlock;
          zero_sums<two>();
          multiply<UnsignedProducts, two>(weights, block + first * kStepBytes, steps);
          store_sums<two>(sums, kStride);
          for (int64_t r = 0; r < count; ++r) {
            const __m512 factor = _mm512_set1_ps(scale[r]);
            const __m512 alpha = _mm512_set1_ps(a.alpha == nullptr ? 1.0f : a.alpha[row + r]);
            for (int64_t x = 0; x < kValueGroup; x += 16) {
              float* o = a.o + (row + r) * a.ldo + c + x;
              const __m512 before = _mm512_mul_ps(alpha, _mm512_loadu_ps(o));
              const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * kValueGroup + x));
              _mm512_storeu_ps(o, _mm512_fmadd_ps(sum, factor, before));
            }
          }
        }
      });
    });
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_AMX_KERNELS_H_
