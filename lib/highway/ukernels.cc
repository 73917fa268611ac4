// The tables of micro-kernels of one instruction set: SIMDATTN_TABLE names its own, SIMDATTN_OVERLAYS those of overlays with it as their
// base: OVERLAY(table, name) each. Compiled once per row of meson.build, with that instruction set's flags.
#include "lib/highway/narrow.h"
#include "lib/kernels/int8_stored.h"
#include "lib/kernels/kernels.h"
#include "lib/kernels/overlays.h"
#include "lib/narrow_operands.h"

namespace simdattn {
namespace {

using namespace highway;

/// The kernels of a narrow storage type that others have written, by the names that lib/narrow_operands.h asks for.
template <KvType kType>
struct ReadNarrow {
  static constexpr auto all_finite = AllFiniteNarrow<kType>;
  static constexpr auto load_rows = LoadRowsNarrow<kType>;
  static constexpr auto value_tile = ValueTileNarrow<kType>;
  static constexpr auto value_tile_bf16 = ValueTileBF16Narrow<kType>;
  static constexpr auto score_integers = ScoreBlockIntegers;
};
template <KvType kType>
struct Narrow : ReadNarrow<kType> {
  static constexpr auto store_rows = StoreRowsNarrow<kType>;
  static constexpr auto store_panels = StorePanelsNarrow<kType>;
  static constexpr auto load_panels = LoadPanelsNarrow<kType>;
  static constexpr auto pack_keys = PackKeysNarrow<kType>;
  static constexpr auto widen_panel = WidenPanelNarrow<kType>;
  static void pack_panel_bf16(const PackKeys& a) {
    WidenPanelNarrow<kType>(a);
    float* const panel = static_cast<float*>(a.panel);
    Bf16Kernels::round(panel, panel, a.dim * kPanelWidth);
  }
#if SIMDATTN_FUSES_NARROW
  static constexpr int64_t fused_rows = kFusedRows;
  static constexpr auto score_tile = ScoreTileNarrow<kType>;
  static constexpr auto score_rows = ScoreRowsNarrow<kType>;
  static constexpr auto store_panel = StorePanelNarrow<kType>;
#endif
};
template <KvType kType>
  requires(is_read_only(kType))
struct Narrow<kType> : ReadNarrow<kType> {};

constexpr UKernels kUKernels = with_narrow_types<Narrow>(
    table_of(int8_attention<Int8Kernels>(!kPairCells, kInt8Rows, softmax_tile<false>, Int8Kernels::value_stored())));

}  // namespace

extern const UKernels SIMDATTN_TABLE;
constinit const UKernels SIMDATTN_TABLE = kUKernels;
#define OVERLAY(backend, name)                       \
  extern const UKernels kKernels_##backend##_##name; \
  constinit const UKernels kKernels_##backend##_##name = overlaid<kUKernels>(static_cast<const name*>(nullptr));
SIMDATTN_OVERLAYS
#undef OVERLAY

}  // namespace simdattn
