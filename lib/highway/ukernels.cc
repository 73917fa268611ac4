// One table of micro-kernels per Highway target, and the list of them, best first.
//
// foreach_target.h compiles this file once per instruction set by function attributes, so the object needs nothing of
// the CPU beyond the baseline, and no libhwy: dispatch/targets.cc chooses among the tables listed here.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/ukernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/slots-inl.h"
#include "lib/kernel_table.h"

// Data only: no function here needs the attributes of HWY_BEFORE_NAMESPACE.
namespace simdattn {
namespace HWY_NAMESPACE {

extern const UKernels kUKernels;
const UKernels kUKernels = {
    .tile_rows = kTileRows,
    .score_rows = {ScoreRowsF32, ScoreRowsBF16, ScoreRowsF16},
    .gaussian_rows = {GaussianRowsF32, GaussianRowsBF16, GaussianRowsF16},
    .additive_rows = {AdditiveRowsF32, AdditiveRowsBF16, AdditiveRowsF16},
    .softmax_rows = SoftmaxRowsSlot,
    .modify_row = ModifyRowSlot,
    .score_tile = {ScoreTileF32, ScoreTileBF16, ScoreTileF16},
    .softmax_tile = SoftmaxTileSlot,
    .value_tile = {ValueTileF32, ValueTileBF16, ValueTileF16},
    .pack_keys = {PackKeysF32, PackKeysBF16, PackKeysF16},
    .widen_panel = {WidenPanelF32, WidenPanelBF16, WidenPanelF16},
    .pack_values = {PackValuesF32, PackValuesBF16, PackValuesF16},
    .widen = {WidenF32, WidenBF16, WidenF16},
    .finish = {FinishF32, FinishBF16, FinishF16},
    .all_finite = {AllFiniteF32, AllFiniteBF16, AllFiniteF16},
    .any_zero = AnyZero,
    .merge = Merge,
    .rope_heads = {{RopeF32F32, RopeF32BF16, RopeF32F16},
                   {RopeBF16F32, RopeBF16BF16, RopeBF16F16},
                   {RopeF16F32, RopeF16BF16, RopeF16F16}},
    .add_rows = {{AddF32F32, AddF32BF16, AddF32F16},
                 {AddBF16F32, AddBF16BF16, AddBF16F16},
                 {AddF16F32, AddF16BF16, AddF16F16}},
    .exp = ExpArray,
    .tanh = TanhArray,
};
constexpr bool kFma = HWY_NATIVE_FMA != 0;

}  // namespace HWY_NAMESPACE
}  // namespace simdattn

#if HWY_ONCE
namespace simdattn {

// Highway's own iteration over targets (HWY_VISIT_TARGETS) came with 1.3; 1.2 is the floor. Targets that are not named
// here are trimmed, see meson.build.
static constexpr KernelTable kList[] = {
#define SIMDATTN_TABLE(isa, ns, text) {isa, "highway/" text, &ns::kUKernels, ns::kFma}
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
    SIMDATTN_TABLE(Isa::kSve2Vl128, N_SVE2_128, "sve2_128"),
#endif
#if HWY_TARGETS & HWY_SVE_256
    SIMDATTN_TABLE(Isa::kSveVl256, N_SVE_256, "sve_256"),
#endif
#if HWY_TARGETS & HWY_SVE2
    SIMDATTN_TABLE(Isa::kSve2, N_SVE2, "sve2"),
#endif
#if HWY_TARGETS & HWY_SVE
    SIMDATTN_TABLE(Isa::kSve, N_SVE, "sve"),
#endif
#if HWY_TARGETS & HWY_NEON_BF16
    SIMDATTN_TABLE(Isa::kNeonBf16, N_NEON_BF16, "neon_bf16"),
#endif
#if HWY_TARGETS & HWY_NEON
    SIMDATTN_TABLE(Isa::kNeonAes, N_NEON, "neon"),
#elif HWY_TARGETS & HWY_NEON_WITHOUT_AES
    SIMDATTN_TABLE(Isa::kNeon, N_NEON_WITHOUT_AES, "neon"),
#endif
#undef SIMDATTN_TABLE
};
constinit const std::span<const KernelTable> kHighwayTables = kList;

}  // namespace simdattn
#endif  // HWY_ONCE
