// The tables of micro-kernels of one instruction set: SIMDATTN_HIGHWAY_NAME is its name, HWY_BASELINE_TARGETS Highway's. Compiled once per row
// of meson.build, with that instruction set's flags. Targets that differ from it in a few slots alone have their tables here, too.
#include "lib/ukernels.h"

#include "lib/dtypes.h"
#include "lib/f32_operands.h"
#include "lib/highway/add_rows.h"
#include "lib/highway/bf16_attention.h"
#include "lib/highway/elementwise.h"
#include "lib/highway/int8.h"
#include "lib/highway/modify_row.h"
#include "lib/highway/narrow.h"
#include "lib/highway/other_scores.h"
#include "lib/highway/pack.h"
#include "lib/highway/rope.h"
#include "lib/highway/score_key_rows.h"
#include "lib/highway/score_tile.h"
#include "lib/highway/scores.h"
#include "lib/highway/softmax_rows.h"
#include "lib/highway/softmax_tile.h"
#include "lib/highway/store.h"
#include "lib/highway/value_tile.h"
#include "lib/int8_operands.h"
#include "lib/narrow_operands.h"
#ifdef SIMDATTN_HAVE_AVX3_DL
#include "lib/highway/avx3_dl.h"
#endif
#ifdef SIMDATTN_HAVE_AMX
#include "lib/intrinsics/amx.h"
#endif
#ifdef SIMDATTN_HAVE_AVX_VNNI
#include "lib/intrinsics/avx_vnni.h"
#endif

#define SIMDATTN_CONCATENATED(a, b) a##b
#define SIMDATTN_CONCATENATE(a, b) SIMDATTN_CONCATENATED(a, b)
/// Defines the exported table of a target.
#define SIMDATTN_TABLE(backend, name)                                     \
  extern const UKernels SIMDATTN_CONCATENATE(k##backend##Kernels_, name); \
  constinit const UKernels SIMDATTN_CONCATENATE(k##backend##Kernels_, name)

namespace simdattn {
namespace {

/// The kernels of element type T, by the names that lib/f32_operands.h asks for.
template <class T>
struct Kernels;
#define SIMDATTN_KERNELS(T, name)                               \
  template <>                                                   \
  struct Kernels<T> {                                           \
    static constexpr auto score_tile = ScoreTile##name;         \
    static constexpr auto value_tile = ValueTile##name;         \
    static constexpr auto pack_keys = PackKeys##name;           \
    static constexpr auto widen_panel = WidenPanel##name;       \
    static constexpr auto pack_values = PackValues##name;       \
    static constexpr auto widen = Widen##name;                  \
    static constexpr auto all_finite = AllFinite##name;         \
    static constexpr auto store_rows = StoreRows##name;         \
    static constexpr auto store_panels = StorePanels##name;     \
    static constexpr auto load_rows = LoadRows##name;           \
    static constexpr auto load_panels = LoadPanels##name;       \
    static constexpr auto rotate_columns = RotateColumns##name; \
  }
SIMDATTN_KERNELS(float, F32);
SIMDATTN_KERNELS(bf16, BF16);
SIMDATTN_KERNELS(f16, F16);

struct Bf16Kernels {
  static constexpr auto round = RoundToBF16;
  static constexpr auto score_tile = ScoreChainsF32;
  static constexpr auto score_tile_bf16 = ScoreChainsBF16;
  static constexpr auto value_tile = ValueChainsF32;
  static constexpr auto value_tile_f32 = ValueChainsUnrounded;
  static constexpr auto value_tile_bf16 = ValueChainsBF16;
  static constexpr auto softmax_tile = SoftmaxTileBF16;
};

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
    RoundToBF16(panel, panel, a.dim * kPanelWidth);
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

#if !SIMDATTN_SCORES_KEY_ROWS
constexpr AttentionKernels with_key_rows(const AttentionKernels& kernels) { return kernels; }
#else
constexpr AttentionKernels with_key_rows(AttentionKernels kernels) {
  kernels.kv[slot(KvType::kF32)].score_rows = ScoreKeyRowsF32;
  kernels.kv[slot(KvType::kBF16)].score_rows = ScoreKeyRowsBF16;
  kernels.kv[slot(KvType::kF16)].score_rows = ScoreKeyRowsF16;
  return kernels;
}
#endif

constexpr UKernels kUKernels = with_narrow_types<Narrow>({
    .kv = {kv_kernels<Kernels<float>>(), kv_kernels<Kernels<bf16>>(), kv_kernels<Kernels<f16>>()},
    .attention = {with_key_rows(f32_attention<Kernels>(kTileRows, SoftmaxTileSlot)),
                  bf16_attention<Kernels, Bf16Kernels>(false, kTileRows),
                  int8_attention<Int8Kernels>(kInt8Native, kInt8TileRows, SoftmaxTileSlot, ValueStoredInt8)},
    .score_rows = {ScoreRowsF32, ScoreRowsBF16, ScoreRowsF16},
    .gaussian_rows = {GaussianRowsF32, GaussianRowsBF16, GaussianRowsF16},
    .additive_rows = {AdditiveRowsF32, AdditiveRowsBF16, AdditiveRowsF16},
    .softmax_rows = SoftmaxRowsSlot,
    .modify_row = ModifyRowSlot,
    .widen = {WidenF32, WidenBF16, WidenF16},
    .finish = {FinishF32, FinishBF16, FinishF16},
    .any_zero = AnyZero,
    .merge = Merge,
    .rope_heads = {RopeF32, RopeBF16, RopeF16},
    .add_rows = {AddRowsF32, AddRowsBF16, AddRowsF16},
    .hadamard_sums = HadamardSums,
    .exp = ExpArray,
});

/// `table` with another inside of one arithmetic.
[[maybe_unused]] constexpr UKernels with(UKernels table, Arithmetic arithmetic, const AttentionKernels& kernels) {
  const auto score_integers = table.attention[slot(Arithmetic::kInt8)].kv[slot(KvType::kQ8_0)].score_packed;
  table.attention[slot(arithmetic)] = kernels;
  if (arithmetic == Arithmetic::kInt8) add_stored_integers(table, score_integers);
  return table;
}

}  // namespace

SIMDATTN_TABLE(Highway, SIMDATTN_HIGHWAY_NAME) = kUKernels;

#if SIMDATTN_ARM_MATRIX
namespace {
constexpr AttentionKernels with_pairs(AttentionKernels kernels, void (*scores)(const ScoreTile&),
                                      void (*values)(const ValueTile&)) {
  kernels.native = true;
  kernels.kv[slot(KvType::kBF16)].score_tile = scores;
  kernels.kv[slot(KvType::kBF16)].value_tile = values;
  return kernels;
}

/// Rows of a tile where bytes are multiplied.
constexpr int64_t kI8mmRows = 8;
}  // namespace
#if HWY_TARGET_IS_NEON
SIMDATTN_TABLE(Highway,
               neon_dotprod) = with(kUKernels, Arithmetic::kInt8,
                                    int8_attention<Int8KernelsOf<Int8Operations<Products::kDot>>>(true, kI8mmRows,
                                                                                                  SoftmaxTileSlot));
#endif
SIMDATTN_TABLE(Highway, SIMDATTN_CONCATENATE(SIMDATTN_HIGHWAY_NAME, _i8mm)) =
    with(with(kUKernels, Arithmetic::kBF16,
              with_pairs(kUKernels.attention[slot(Arithmetic::kBF16)], ScorePairs, ValuePairs)),
         Arithmetic::kInt8,
         int8_attention<Int8KernelsOf<Int8Operations<Products::kMatrix>>>(true, kI8mmRows, SoftmaxTileSlot));
#endif

#ifdef SIMDATTN_HAVE_AVX3_DL
namespace {
void value_tile_e4m3(const ValueTile& a) {
  const int64_t done = a.rows <= kFusedRows ? avx3_dl::add_values_e4m3(a) : 0;
  if (done < a.dim) ValueTileNarrow<KvType::kFp8E4M3>(columns_from(a, done));
}
constexpr UKernels with_e4m3(UKernels table) {
  KvOperands& f32 = table.attention[slot(Arithmetic::kF32)].kv[slot(KvType::kFp8E4M3)];
  f32.score_tile = avx3_dl::score_tile_e4m3;
  f32.score_rows = avx3_dl::score_rows_e4m3;
  f32.value_tile = value_tile_e4m3;
  return table;
}
/// Two register tiles: products are so cheap that calls for rows which see different keys show (512 causal rows of 64: 2 %).
constexpr int64_t kInt8Rows = 16;
constexpr UKernels kAvx3Dl =
    with_e4m3(with(kUKernels, Arithmetic::kInt8,
                   int8_attention<avx3_dl::Int8>(true, kInt8Rows, SoftmaxTileSlot, avx3_dl::value_stored_int8)));
}  // namespace
SIMDATTN_TABLE(Highway, avx3_dl) = kAvx3Dl;
#endif

#ifdef SIMDATTN_HAVE_AMX
namespace {
/// Rows whose weights stay in L1 until they are narrowed.
constexpr int64_t kNarrowedRows = 16;
void amx_softmax_tile(const SoftmaxTile& a) {
  for (int64_t r = 0; r < a.rows; r += kNarrowedRows) {
    SoftmaxTile part = a;
    part.s = a.s + r * a.lds;
    part.rows = std::min(kNarrowedRows, a.rows - r);
    part.lo = a.lo + r;
    part.hi = a.hi + r;
    part.max = a.max + r;
    part.sum = a.sum + r;
    part.alpha = a.alpha + r;
    kUKernels.attention[slot(Arithmetic::kBF16)].softmax_tile(part);
    AmxBf16::narrow_weights(part.s, part.lds, part.rows, part.columns);
  }
}
}  // namespace
SIMDATTN_TABLE(Intrinsics, amx) = with(with(kAvx3Dl, Arithmetic::kBF16, amx_bf16_attention(amx_softmax_tile)),
                                       Arithmetic::kInt8,
                                       amx_int8_attention(kAvx3Dl.attention[slot(Arithmetic::kInt8)]));
#endif

#ifdef SIMDATTN_HAVE_AVX_VNNI
void avx_vnni_transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel) {
  PackKeysF32(rows, stride, keys, cells, static_cast<float*>(panel), false);
}
SIMDATTN_TABLE(Intrinsics,
               avx_vnni) = with(kUKernels, Arithmetic::kInt8,
                                int8_attention<AvxVnniInt8>(true, 6, SoftmaxTileSlot, value_stored_avx_vnni));
#endif

}  // namespace simdattn
