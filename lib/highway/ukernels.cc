// One table of micro-kernels per Highway target, and the list of them, best first.
//
// foreach_target.h compiles this file once per instruction set by function attributes, so the object needs nothing of
// the CPU beyond the baseline, and no libhwy: dispatch/targets.cc chooses among the tables listed here.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/ukernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/dtypes.h"
#include "lib/f32_operands.h"
#include "lib/highway/slots-inl.h"
#include "lib/int8_operands.h"
#include "lib/kernel_table.h"
#include "lib/narrow_operands.h"
#ifdef SIMDATTN_HAVE_AMX
#include "lib/intrinsics/amx.h"
#endif
#ifdef SIMDATTN_HAVE_AVX_VNNI
#include "lib/intrinsics/avx_vnni.h"
#endif

// Data only: no function here needs the attributes of HWY_BEFORE_NAMESPACE.
namespace simdattn {
namespace HWY_NAMESPACE {

namespace {

/// The kernels of element type T, by the names that lib/f32_operands.h asks for.
template <class T>
struct Kernels;
#undef SIMDATTN_KERNELS
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

template <KvType kType>
struct Narrow {
  static constexpr auto all_finite = AllFiniteNarrow<kType>;
  static constexpr auto store_rows = StoreRowsNarrow<kType>;
  static constexpr auto store_panels = StorePanelsNarrow<kType>;
  static constexpr auto load_rows = LoadRowsNarrow<kType>;
  static constexpr auto load_panels = LoadPanelsNarrow<kType>;
  static constexpr auto pack_keys = PackKeysNarrow<kType>;
  static constexpr auto widen_panel = WidenPanelNarrow<kType>;
  static constexpr auto value_tile = ValueTileNarrow<kType>;
  static constexpr auto value_tile_bf16 = ValueTileBF16Narrow<kType>;
  static void pack_panel_bf16(const PackKeys& a) {
    WidenPanelNarrow<kType>(a);
    float* const panel = static_cast<float*>(a.panel);
    RoundToBF16(panel, panel, a.dim * kPanelWidth);
  }
  static constexpr auto score_integers = ScoreBlockIntegers;
  static constexpr int64_t fused_rows = kFusesNarrow ? kFusedRows : 0;
  static constexpr auto score_tile = ScoreTileNarrow<kType>;
  static constexpr auto score_rows = ScoreRowsNarrow<kType>;
  static constexpr auto store_panel = StorePanelNarrow<kType>;
};

}  // namespace

namespace {
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
}  // namespace

extern const UKernels kUKernels;
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
constexpr bool kFma = HWY_NATIVE_FMA != 0;

}  // namespace HWY_NAMESPACE
}  // namespace simdattn

#if HWY_ONCE
namespace simdattn {

// Targets that differ from one of Highway's in the inside of an arithmetic alone: the others' slots are the same functions.
namespace {
[[maybe_unused]] constexpr UKernels with(UKernels table, Arithmetic arithmetic, const AttentionKernels& kernels) {
  const auto score_integers = table.attention[slot(Arithmetic::kInt8)].kv[slot(KvType::kQ8_0)].score_packed;
  table.attention[slot(arithmetic)] = kernels;
  if (arithmetic == Arithmetic::kInt8) add_stored_integers(table, score_integers);
  return table;
}
}  // namespace

#if HWY_ARCH_ARM_A64
namespace {
constexpr AttentionKernels with_pairs(AttentionKernels kernels, void (*scores)(const ScoreTile&),
                                      void (*values)(const ValueTile&)) {
  kernels.native = true;
  kernels.kv[slot(KvType::kBF16)].score_tile = scores;
  kernels.kv[slot(KvType::kBF16)].value_tile = values;
  return kernels;
}
}  // namespace
#define SIMDATTN_I8MM_TABLE(ns)                                                                     \
  namespace ns {                                                                                    \
  extern const UKernels kI8mmUKernels;                                                              \
  constexpr UKernels kI8mmUKernels =                                                                \
      with(with(kUKernels, Arithmetic::kBF16,                                                       \
                with_pairs(kUKernels.attention[slot(Arithmetic::kBF16)], ScorePairs, ValuePairs)),  \
           Arithmetic::kInt8, int8_attention<Int8MatrixKernels>(true, kI8mmRows, SoftmaxTileSlot)); \
  }
#if HWY_TARGETS & HWY_NEON_WITHOUT_AES
namespace N_NEON_WITHOUT_AES {
extern const UKernels kDotprodUKernels;
constexpr UKernels kDotprodUKernels =
    with(kUKernels, Arithmetic::kInt8, int8_attention<Int8DotKernels>(true, kI8mmRows, SoftmaxTileSlot));
}  // namespace N_NEON_WITHOUT_AES
SIMDATTN_I8MM_TABLE(N_NEON_WITHOUT_AES)
#endif
#if HWY_TARGETS & HWY_SVE_256
SIMDATTN_I8MM_TABLE(N_SVE_256)
#endif
#if HWY_TARGETS & HWY_SVE2_128
SIMDATTN_I8MM_TABLE(N_SVE2_128)
#endif
#undef SIMDATTN_I8MM_TABLE
#endif
#ifdef SIMDATTN_HAVE_AVX3_DL
// int8.cc and narrow_tiles.cc are compiled for AVX3_DL.
namespace N_AVX3_DL {
SIMDATTN_INT8_KERNELS(Int8Kernels);
void ValueStoredInt8(const ValueTile& a);
template <KvType kType>
void ScoreTileNarrow(const ScoreTile& a);
template <KvType kType>
void ScoreRowsNarrow(const ScoreTile& a);
template <KvType kType>
int64_t AddValuesNarrow(const ValueTile& a);
namespace {
template <KvType kType>
void value_tile_narrow(const ValueTile& a) {
  const int64_t done = a.rows <= N_AVX3::kFusedRows ? AddValuesNarrow<kType>(a) : 0;
  if (done < a.dim) N_AVX3::ValueTileNarrow<kType>(columns_from(a, done));
}
template <KvType kType>
constexpr UKernels with_tiles_of(UKernels table) {
  KvOperands& f32 = table.attention[slot(Arithmetic::kF32)].kv[slot(kType)];
  f32.score_tile = ScoreTileNarrow<kType>;
  f32.score_rows = ScoreRowsNarrow<kType>;
  f32.value_tile = value_tile_narrow<kType>;
  return table;
}
}  // namespace
/// Two register tiles: products are so cheap that calls for rows which see different keys show (512 causal rows of 64: 2 %).
constexpr int64_t kInt8Rows = 16;
extern const UKernels kUKernels;
constexpr UKernels kUKernels = with_tiles_of<KvType::kFp8E4M3>(
    with(N_AVX3::kUKernels, Arithmetic::kInt8,
         int8_attention<Int8Kernels>(true, kInt8Rows, N_AVX3::SoftmaxTileSlot, ValueStoredInt8)));
}  // namespace N_AVX3_DL
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
    N_AVX3::kUKernels.attention[slot(Arithmetic::kBF16)].softmax_tile(part);
    AmxBf16::narrow_weights(part.s, part.lds, part.rows, part.columns);
  }
}
}  // namespace
extern const UKernels kIntrinsicsKernels_amx;
constexpr UKernels kIntrinsicsKernels_amx =
    with(with(N_AVX3_DL::kUKernels, Arithmetic::kBF16, amx_bf16_attention(amx_softmax_tile)), Arithmetic::kInt8,
         amx_int8_attention(N_AVX3_DL::kUKernels.attention[slot(Arithmetic::kInt8)]));
#endif
#ifdef SIMDATTN_HAVE_AVX_VNNI
extern const UKernels kIntrinsicsKernels_avx_vnni;
constexpr UKernels kIntrinsicsKernels_avx_vnni =
    with(N_AVX2::kUKernels, Arithmetic::kInt8,
         int8_attention<AvxVnniInt8>(true, 6, N_AVX2::SoftmaxTileSlot, value_stored_avx_vnni));
#endif

// Highway's own iteration over targets (HWY_VISIT_TARGETS) came with 1.3; 1.2 is the floor. Targets that are not named
// here are trimmed, see meson.build.
static constexpr KernelTable kList[] = {
#define SIMDATTN_TABLE(isa, ns, text) {isa, "highway/" text, &ns::kUKernels, ns::kFma}
#define SIMDATTN_I8MM(isa, ns, text) {isa, "highway/" text, &ns::kI8mmUKernels, ns::kFma}
#ifdef SIMDATTN_HAVE_AVX3_DL
    {Isa::kAvx3Dl, "highway/avx3_dl", &N_AVX3_DL::kUKernels, true},
#endif
#if HWY_TARGETS & HWY_AVX3
    SIMDATTN_TABLE(Isa::kAvx3, N_AVX3, "avx3"),
#endif
#if HWY_TARGETS & HWY_AVX2
    SIMDATTN_TABLE(Isa::kAvx2, N_AVX2, "avx2"),
#endif
#if HWY_TARGETS & HWY_SSE4
    SIMDATTN_TABLE(Isa::kSse4, N_SSE4, "sse4"),
#endif
#if HWY_TARGETS & HWY_SSE2
    SIMDATTN_TABLE(Isa::kSse2, N_SSE2, "sse2"),
#endif
#if HWY_TARGETS & HWY_SVE2_128
    SIMDATTN_I8MM(Isa::kSve2Vl128I8mm, N_SVE2_128, "sve2_128_i8mm"),
    SIMDATTN_TABLE(Isa::kSve2Vl128, N_SVE2_128, "sve2_128"),
#endif
#if HWY_TARGETS & HWY_SVE_256
    SIMDATTN_I8MM(Isa::kSveVl256I8mm, N_SVE_256, "sve_256_i8mm"),
    SIMDATTN_TABLE(Isa::kSveVl256, N_SVE_256, "sve_256"),
#endif
#if HWY_TARGETS & HWY_NEON
    SIMDATTN_TABLE(Isa::kNeonAes, N_NEON, "neon"),
#elif HWY_TARGETS & HWY_NEON_WITHOUT_AES
    SIMDATTN_I8MM(Isa::kNeonI8mm, N_NEON_WITHOUT_AES, "neon_i8mm"),
    {Isa::kNeonDotprod, "highway/neon_dotprod", &N_NEON_WITHOUT_AES::kDotprodUKernels, true},
    SIMDATTN_TABLE(Isa::kNeon, N_NEON_WITHOUT_AES, "neon"),
#endif
#undef SIMDATTN_I8MM
#undef SIMDATTN_TABLE
};
constinit const std::span<const KernelTable> kHighwayTables = kList;

}  // namespace simdattn
#endif  // HWY_ONCE
