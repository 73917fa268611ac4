// The tables of micro-kernels of one instruction set: SIMDATTN_HIGHWAY_NAME is its name, HWY_BASELINE_TARGETS Highway's. Compiled once per row
// of meson.build, with that instruction set's flags. Targets that differ from it in a few slots alone have their tables here, too.
#include "lib/highway/int8.h"
#include "lib/highway/narrow.h"
#include "lib/kernels/kernels.h"
#include "lib/narrow_operands.h"
#if HWY_ARCH_ARM_A64
#include "lib/highway/bf16_pairs.h"
#endif
#ifdef SIMDATTN_HAVE_AVX3_DL
#include "lib/highway/avx3_dl.h"
#endif
#ifdef SIMDATTN_HAVE_AMX
#include "lib/intrinsics/amx.h"
#endif
#ifdef SIMDATTN_HAVE_AVX512_BF16
#include "lib/intrinsics/avx512_bf16.h"
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
    table_of(int8_attention<Int8Kernels>(kInt8Native, kInt8TileRows, softmax_tile<false>, ValueStoredInt8)));

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
                                                                                                  softmax_tile<false>));
#endif
SIMDATTN_TABLE(Highway, SIMDATTN_CONCATENATE(SIMDATTN_HIGHWAY_NAME, _i8mm)) =
    with(with(kUKernels, Arithmetic::kBF16,
              with_pairs(kUKernels.attention[slot(Arithmetic::kBF16)], pairs::score_chains<bf16>,
                         pairs::value_chains<bf16>)),
         Arithmetic::kInt8,
         int8_attention<Int8KernelsOf<Int8Operations<Products::kMatrix>>>(true, kI8mmRows, softmax_tile<false>));
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
/// Two register tiles: products are so cheap that calls for rows which see different keys show.
constexpr int64_t kInt8Rows = 16;
constexpr UKernels kAvx3Dl =
    with_e4m3(with(kUKernels, Arithmetic::kInt8,
                   int8_attention<avx3_dl::Int8>(true, kInt8Rows, softmax_tile<false>, avx3_dl::value_stored_int8)));
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
#ifdef SIMDATTN_HAVE_AVX512_BF16
SIMDATTN_TABLE(Intrinsics,
               avx512_bf16) = with(kAvx3Dl, Arithmetic::kBF16,
                                   avx512_bf16_attention<Avx512Bf16>(kAvx3Dl.attention[slot(Arithmetic::kBF16)]));
#endif

#ifdef SIMDATTN_HAVE_AVX_VNNI
void avx_vnni_transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel) {
  pack_keys<float>(rows, stride, keys, cells, static_cast<float*>(panel), false);
}
SIMDATTN_TABLE(Intrinsics,
               avx_vnni) = with(kUKernels, Arithmetic::kInt8,
                                int8_attention<AvxVnniInt8>(true, 6, softmax_tile<false>, value_stored_avx_vnni));
#endif

}  // namespace simdattn
