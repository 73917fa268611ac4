// Compiled for the CPUs of Isa::kAvx3Dl; nothing here runs before somebody calls it.
#include "tests/kernels/software_tiles.h"

#include <cmath>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/definition/flushed.h"
#include "lib/overlays/amx_kernels.h"

namespace simdattn::test {
namespace {

struct Tile {
  alignas(64) unsigned char row[16][64];
};

struct State {
  TileConfiguration config;
  bool ready;
  Tile tile[8];
  TileCounts counts;
};
thread_local State state;

void expect(bool rule) { state.counts.broken_rules += rule ? 0 : 1; }

template <class T>
T number(const Tile& t, int row, int i) {
  T x;
  std::memcpy(&x, t.row[row] + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return x;
}

struct SoftwareTiles {
  static void configure(const TileConfiguration& c) {
    state.config = c;
    state.ready = true;
    std::memset(state.tile, 0, sizeof(state.tile));
    expect(c.palette == 1 && c.start_row == 0);
    for (int t = 0; t < 16; ++t) {
      expect(c.rows[t] <= 16 && c.row_bytes[t] <= 64 && (c.rows[t] == 0) == (c.row_bytes[t] == 0));
      if (t >= 8) expect(c.rows[t] == 0);
    }
  }
  static void release() {
    expect(state.ready);
    state.ready = false;
  }
  static int rows(int t) {
    expect(state.ready && state.config.rows[t] > 0);
    return state.config.rows[t];
  }
  static size_t bytes(int t) { return state.config.row_bytes[t]; }

  template <int kTile>
  static void zero() {
    rows(kTile);
    std::memset(&state.tile[kTile], 0, sizeof(Tile));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    Tile& t = state.tile[kTile];
    const int n = rows(kTile);
    std::memset(&t, 0, sizeof(t));
    for (int r = 0; r < n; ++r) std::memcpy(t.row[r], static_cast<const char*>(p) + r * stride, bytes(kTile));
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    const int n = rows(kTile);
    for (int r = 0; r < n; ++r) std::memcpy(static_cast<char*>(p) + r * stride, state.tile[kTile].row[r], bytes(kTile));
  }

  /// c[i][j] = f(c[i][j], row i of a, column j of b): what they hold in common are `depth` groups of 4 bytes.
  template <class T, int kC, int kA, int kB, class F>
  static void product(const F& f) {
    // The instructions do not consult the control register.
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80);
    every_element<T, kC, kA, kB>(f);
    _mm_setcsr(before);
  }
  template <class T, int kC, int kA, int kB, class F>
  [[gnu::noinline]] static void every_element(const F& f) {
    ++state.counts.products;
    const int m = rows(kC);
    const int depth = static_cast<int>(bytes(kA) / 4);
    const int n = static_cast<int>(bytes(kC) / 4);
    expect(m == rows(kA) && depth == rows(kB) && bytes(kB) == bytes(kC) && kC != kA && kC != kB && kA != kB);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        T c = number<T>(state.tile[kC], i, j);
        c = f(c, i, j, depth);
        std::memcpy(state.tile[kC].row[i] + 4 * j, &c, 4);
      }
    }
  }
  template <int kC, int kA, int kB>
  static void add_bf16() {
    product<float, kC, kA, kB>([](float c, int i, int j, int depth) {
      float chain[2] = {0.0f, 0.0f};
      for (int k = 0; k < depth; ++k) {
        for (int half = 0; half < 2; ++half) {
          const float x = to_f32(number<bf16>(state.tile[kA], i, 2 * k + half));
          const float y = to_f32(number<bf16>(state.tile[kB], k, 2 * j + half));
          chain[half] = scalar::flushed_fma(x, y, chain[half]);
        }
      }
      return scalar::flushed_add(c, scalar::flushed_add(chain[0], chain[1]));
    });
  }
  template <class A, int kC, int kA, int kB>
  static void add_integers() {
    product<int32_t, kC, kA, kB>([](int32_t c, int i, int j, int depth) {
      for (int k = 0; k < 4 * depth; ++k) {
        c += int32_t{number<A>(state.tile[kA], i, k)} * number<int8_t>(state.tile[kB], k / 4, 4 * j + k % 4);
      }
      return c;
    });
  }
  template <Numbers kNumbers, int kC, int kA, int kB>
  static void add() {
    if constexpr (kNumbers == Numbers::kBf16) {
      add_bf16<kC, kA, kB>();
    } else {
      add_integers<std::conditional_t<kNumbers == Numbers::kSigned, int8_t, uint8_t>, kC, kA, kB>();
    }
  }
};

using Kernels = AmxKernels<SoftwareTiles>;

void begin() {
  ++state.counts.begun;
  expect(!state.ready);
  Kernels::begin();
}
void end() {
  ++state.counts.ended;
  Kernels::end();
}

template <class Add>
void on_tiles(const void* a, const void* b, void* c, const Add& add) {
  Kernels::begin();
  SoftwareTiles::load<0>(c, 64);
  SoftwareTiles::load<4>(a, 64);
  SoftwareTiles::load<6>(b, 64);
  add();
  SoftwareTiles::store<0>(c, 64);
  Kernels::end();
}

}  // namespace

UKernels over_software_tiles(const UKernels& amx) {
  UKernels table = amx;
  AttentionKernels& half = table.attention[index_of(Arithmetic::kBF16)];
  half.begin = begin;
  half.end = end;
  half.value_packed = Kernels::bf16_values<true>;
  for (KvOperands& kv : half.kv) {
    kv.score_packed = Kernels::bf16_scores;
    if (kv.score_tile != nullptr) kv.score_tile = Kernels::bf16_scores;
    if (kv.value_tile != nullptr) kv.value_tile = Kernels::bf16_values<false>;
  }
  AttentionKernels& integers = table.attention[index_of(Arithmetic::kInt8)];
  integers.begin = begin;
  integers.end = end;
  integers.value_packed = Kernels::int8_values_packed;
  const auto instructions = integers.kv[index_of(KvType::kF32)].score_packed;
  for (KvOperands& kv : integers.kv) {
    if (kv.score_packed == instructions) kv.score_packed = Kernels::int8_scores;
  }
  return table;
}

void software_add_bf16(const void* a, const void* b, void* c) {
  on_tiles(a, b, c, [] { SoftwareTiles::add<Numbers::kBf16, 0, 4, 6>(); });
}
void software_add_signed(const void* a, const void* b, void* c) {
  on_tiles(a, b, c, [] { SoftwareTiles::add<Numbers::kSigned, 0, 4, 6>(); });
}
void software_add_unsigned(const void* a, const void* b, void* c) {
  on_tiles(a, b, c, [] { SoftwareTiles::add<Numbers::kUnsigned, 0, 4, 6>(); });
}

TileCounts take_tile_counts() {
  const TileCounts counts = state.counts;
  state.counts = {};
  return counts;
}

}  // namespace simdattn::test
