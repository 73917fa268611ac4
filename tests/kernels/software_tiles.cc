// Compiled with vectors of 16 lanes of any kind, and the target over a table that SIMDATTN_SOFTWARE_BASE names, for
// CPUs of SIMDATTN_SOFTWARE_ISA.
#include "tests/kernels/software_tiles.h"

#include <atomic>
#include <cstring>

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/int8.h"
#include "lib/overlays/amx_kernels.h"

namespace simdattn::test {
namespace {

struct Tile {
  alignas(64) unsigned char row[16][64];
};

template <class T>
T number(const Tile& t, int row, int i) {
  T x;
  std::memcpy(&x, t.row[row] + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return x;
}

struct State {
  TileConfiguration config = {.palette = 0};  // palette 0: tiles cannot be used
  Tile tile[8];
};
thread_local State state;
std::atomic<int64_t> products, begun, ended, broken_rules;

void expect(bool rule) { broken_rules += rule ? 0 : 1; }

struct SoftwareTiles {
  static void configure(const TileConfiguration& c) {
    state.config = c;
    std::memset(state.tile, 0, sizeof(state.tile));
    expect(c.palette == 1 && c.start_row == 0);
    for (int t = 0; t < 16; ++t) {
      expect(c.rows[t] <= 16 && c.row_bytes[t] <= 64 && (c.rows[t] == 0) == (c.row_bytes[t] == 0));
      if (t >= 8) expect(c.rows[t] == 0);
    }
  }
  static void store_configuration(TileConfiguration* c) { *c = state.config; }
  static void release() { state.config = {.palette = 0}; }
  static int rows(int t) {
    expect(state.config.palette == 1 && state.config.rows[t] > 0);
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

  template <Numbers kNumbers, int kC, int kA, int kB>
  static void add() {
    ++products;
    const int depth = static_cast<int>(bytes(kA) / 4);
    expect(rows(kC) == rows(kA) && depth == rows(kB) && bytes(kB) == 64 && bytes(kC) == 64);
    static_assert(kC != kA && kC != kB && kA != kB);
    const FlushSubnormals flush;
    if constexpr (kNumbers == Numbers::kBf16) {
      add_bf16(&state.tile[kC], state.tile[kA], state.tile[kB], rows(kC), depth);
    } else {
      using A = std::conditional_t<kNumbers == Numbers::kSigned, int8_t, uint8_t>;
      add_integers<A>(&state.tile[kC], state.tile[kA], state.tile[kB], rows(kC), depth);
    }
  }
  /// Lanes are columns. Number 2 k + h of a row meets half h of row k of b, and enters chain h.
  [[gnu::noinline]] static void add_bf16(Tile* c, const Tile& a, const Tile& b, int rows, int depth) {
    for (int i = 0; i < rows; ++i) {
      Floats chain[2] = {Floats(0.0f), Floats(0.0f)};
      for (int k = 0; k < depth; ++k) {
        const Bits32 pairs = Bits32::load_unaligned(b.row[k]);
        const Floats column[] = {float_of(pairs << 16), float_of(pairs & Bits32(0xFFFF0000u))};
        for (int h = 0; h < 2; ++h) {
          chain[h] = chain_step(Floats(to_f32(number<bf16>(a, i, 2 * k + h))), column[h], chain[h]);
        }
      }
      auto* const sums = reinterpret_cast<float*>(c->row[i]);
      simdattn::store(chain_sum(simdattn::load(sums), chain_sum(chain[0], chain[1])), sums);
    }
  }
  template <class A>
  [[gnu::noinline]] static void add_integers(Tile* c, const Tile& a, const Tile& b, int rows, int depth) {
    for (int i = 0; i < rows; ++i) {
      auto* const sums = reinterpret_cast<int32_t*>(c->row[i]);
      Ints sum = Ints::load_unaligned(sums);
      for (int k = 0; k < 4 * depth; ++k) {
        const Ints cells = Ints::load_unaligned(reinterpret_cast<const int32_t*>(b.row[k / 4]));
        sum = sum + Ints(number<A>(a, i, k)) * (cells << (24 - 8 * (k % 4)) >> 24);
      }
      sum.store_unaligned(sums);
    }
  }
};
struct Integers {
  static constexpr auto weigh_rows = int8_weigh_rows;
};
using Kernels = AmxKernels<SoftwareTiles, Integers>;
struct Slots {
  static constexpr int64_t kUnit = Amx::kUnit;
  static constexpr auto score_packed = Kernels::bf16_scores;
  static constexpr auto score_tile = Kernels::bf16_scores;
  static constexpr auto value_packed = Kernels::bf16_values<true>;
  static constexpr auto value_tile = Kernels::bf16_values<false>;
  static constexpr auto int8_score_packed = Kernels::int8_scores;
  static constexpr auto int8_value_packed = Kernels::int8_values_packed;
  static constexpr auto softmax_tile = simdattn::softmax_tile<true, Bf16Weights<Amx::kUnit>>;
  static constexpr auto prepare_weights = Bf16Weights<Amx::kUnit>::prepare;
  static void begin(KeptRegisters* kept) {
    ++begun;
    Kernels::begin(kept);
  }
  static void end(const KeptRegisters& kept) {
    ++ended;
    Kernels::end(kept);
  }
};

template <Numbers kNumbers>
void add(const void* a, const void* b, void* c) {
  KeptRegisters kept;
  Kernels::begin(&kept);
  SoftwareTiles::load<0>(c, 64);
  SoftwareTiles::load<4>(a, 64);
  SoftwareTiles::load<6>(b, 64);
  SoftwareTiles::add<kNumbers, 0, 4, 6>();
  SoftwareTiles::store<0>(c, 64);
  Kernels::end(kept);
}

/// Of a caller: no tile of the kernels has this size.
TileConfiguration caller() {
  TileConfiguration c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 32;
    c.rows[t] = 7;
  }
  return c;
}

const Target* target_named(const char* name) {
  for (const Target* t : targets()) {
    if (std::strcmp(target_name(*t), name) == 0) return t;
  }
  return nullptr;
}

}  // namespace

const Isa kSoftwareTilesIsa = Isa::SIMDATTN_SOFTWARE_ISA;

const Target* make_software_tiles() {
  const Target* const base = target_named(SIMDATTN_SOFTWARE_BASE);
  if (base == nullptr) return nullptr;
  static const UKernels table =
      with_tiles<Slots>(*base->kernels, &base->kernels->attention[index_of(Arithmetic::kBF16)]);
  static const Target target = {"test/software_tiles", &table, true, true, ""};
  return &target;
}

void software_add_bf16(const void* a, const void* b, void* c) { add<Numbers::kBf16>(a, b, c); }
void software_add_signed(const void* a, const void* b, void* c) { add<Numbers::kSigned>(a, b, c); }
void software_add_unsigned(const void* a, const void* b, void* c) { add<Numbers::kUnsigned>(a, b, c); }

TileCounts take_tile_counts() {
  return {products.exchange(0), begun.exchange(0), ended.exchange(0), broken_rules.exchange(0)};
}

void configure_as_caller() { SoftwareTiles::configure(caller()); }
bool is_configured_as_caller() {
  const TileConfiguration c = caller();
  return std::memcmp(&state.config, &c, sizeof c) == 0;
}

}  // namespace simdattn::test
