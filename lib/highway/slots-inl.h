// Declarations of every slot, once per Highway target (included again and again by foreach_target.h). The families
// the other .cc files of this folder define them; ukernels.cc gathers them into a table.
#if defined(SIMDATTN_LIB_HIGHWAY_SLOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIMDATTN_LIB_HIGHWAY_SLOTS_INL_H_
#undef SIMDATTN_LIB_HIGHWAY_SLOTS_INL_H_
#else
#define SIMDATTN_LIB_HIGHWAY_SLOTS_INL_H_
#endif

#include "hwy/highway.h"
#include "lib/int8_operands.h"
#include "lib/ukernels.h"

/// Behind the parameters of a lambda: of this instruction set, and part of its caller before variables that it refers to are
/// given registers.
#undef SIMDATTN_LAMBDA
#define SIMDATTN_LAMBDA HWY_ATTR __attribute__((always_inline))
/// One body for several callers: gcc would make a copy for each set of constant arguments.
#undef SIMDATTN_SHARED
#if HWY_COMPILER_GCC_ACTUAL
#define SIMDATTN_SHARED __attribute__((noinline, noclone))
#else
#define SIMDATTN_SHARED HWY_NOINLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {

/// Query rows of one register tile of ScoreTile* and ValueTile*.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int64_t kTileRows = 8;
#elif HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64
constexpr int64_t kTileRows = 6;
#else
constexpr int64_t kTileRows = 4;
#endif

using PackFunction = void(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out);
using WidenFunction = void(const void* in, float* out, int64_t n);
using FinishFunction = void(const float* in, float factor, void* out, int64_t n);
using AllFiniteFunction = bool(const void* rows, int64_t token_stride, int64_t keys, int64_t dim);

// elementwise.cc
extern WidenFunction WidenF32, WidenBF16, WidenF16;
extern FinishFunction FinishF32, FinishBF16, FinishF16;
extern AllFiniteFunction AllFiniteF32, AllFiniteBF16, AllFiniteF16;
bool AnyZero(const float* w, int64_t n);
void Merge(float* a, float wa, const float* b, float wb, int64_t n);
void ExpArray(const float* x, float* y, int64_t n);
void HadamardSums(float* x, int64_t n, int64_t block);

// softmax_rows.cc, modify_row.cc
void SoftmaxRowsSlot(const SoftmaxRows& a);
ModifyResult ModifyRowSlot(const ModifyRow& a);

// scores.cc
void ScoreRowsF32(const ScoreRows& a);
void ScoreRowsBF16(const ScoreRows& a);
void ScoreRowsF16(const ScoreRows& a);

// other_scores.cc
void GaussianRowsF32(const ScoreRows& a);
void GaussianRowsBF16(const ScoreRows& a);
void GaussianRowsF16(const ScoreRows& a);
void AdditiveRowsF32(const AdditiveRows& a);
void AdditiveRowsBF16(const AdditiveRows& a);
void AdditiveRowsF16(const AdditiveRows& a);

// rope.cc
void RopeF32(const RopeHeads& a);
void RopeBF16(const RopeHeads& a);
void RopeF16(const RopeHeads& a);

using ColumnsFunction = void(const RotateColumns&);
extern ColumnsFunction RotateColumnsF32, RotateColumnsBF16, RotateColumnsF16;

// add_rows.cc
void AddRowsF32(const AddRows& a);
void AddRowsBF16(const AddRows& a);
void AddRowsF16(const AddRows& a);

// score_tile.cc, softmax_tile.cc, value_tile.cc, pack.cc
void ScoreTileF32(const ScoreTile& a);
void ScoreTileBF16(const ScoreTile& a);
void ScoreTileF16(const ScoreTile& a);
void SoftmaxTileSlot(const SoftmaxTile& a);
void SoftmaxTileBF16(const SoftmaxTile& a);
void ValueTileF32(const ValueTile& a);
void ValueTileBF16(const ValueTile& a);
void ValueTileF16(const ValueTile& a);
// score_key_rows.cc. Scalable vectors do not transpose while loading; for SSE it would be 23 KB.
#undef SIMDATTN_SCORES_KEY_ROWS
#define SIMDATTN_SCORES_KEY_ROWS (!HWY_ARCH_X86 || HWY_TARGET <= HWY_AVX2)
#if SIMDATTN_SCORES_KEY_ROWS
void ScoreKeyRowsF32(const ScoreTile& a);
void ScoreKeyRowsBF16(const ScoreTile& a);
void ScoreKeyRowsF16(const ScoreTile& a);
#endif
void PackKeysF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream);
void PackKeysBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream);
void PackKeysF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream);
extern PackFunction PackValuesF32, PackValuesBF16, PackValuesF16;
void WidenPanelF32(const void* panel, int64_t dim, float* out);
void WidenPanelBF16(const void* panel, int64_t dim, float* out);
void WidenPanelF16(const void* panel, int64_t dim, float* out);

// bf16_attention.cc: numbers that are bf16 ones, as f32 or as bf16; f32 that is not rounded yet
void RoundToBF16(const float* in, float* out, int64_t n);
void ScoreChainsF32(const ScoreTile& a);
void ScoreChainsBF16(const ScoreTile& a);
void ValueChainsF32(const ValueTile& a);
void ValueChainsUnrounded(const ValueTile& a);
void ValueChainsBF16(const ValueTile& a);
// int8.cc. Native: VPDPBUSD, and dot products of SVE.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL) || HWY_TARGET_IS_SVE
constexpr bool kInt8Native = true;
#else
constexpr bool kInt8Native = false;
#endif
constexpr int64_t kInt8TileRows = HWY_TARGET_IS_SVE ? 8 : kTileRows == 6 ? 4 : kTileRows;
SIMDATTN_INT8_KERNELS(Int8Kernels);
/// Values of stored integers in rows.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
void ValueStoredInt8(const ValueTile& a);
#else
inline constexpr void (*ValueStoredInt8)(const ValueTile&) = nullptr;
#endif
// Instructions of 64-bit ARM that come beside Highway's targets. SVE without SVE2 and of any length: no such CPU has them.
/// Before an instruction in assembly: what the assembler knows from there on.
#undef SIMDATTN_ARM_V8_6
#define SIMDATTN_ARM_V8_6 ".arch armv8.6-a+sve2\n\t"
#undef SIMDATTN_ARM_MATRIX
#if HWY_ARCH_ARM_A64
#define SIMDATTN_ARM_MATRIX 1
/// BFMLALB and BFMLALT.
void ScorePairs(const ScoreTile& a);
void ValuePairs(const ValueTile& a);
/// Packed like the others, but cells are bytes.
#undef SIMDATTN_INT8_PRODUCTS
#define SIMDATTN_INT8_PRODUCTS(Name)                                      \
  struct Name : Int8Kernels {                                             \
    static int64_t query_bytes(int64_t dim);                              \
    template <class T>                                                    \
    static void prepare_query(const void* row, void* query, int64_t dim); \
    static void score_packed(const ScoreTile& a);                         \
    static void value_packed(const ValueTile& a);                         \
  }
SIMDATTN_INT8_PRODUCTS(Int8DotKernels);     // SDOT, UDOT: NEON alone, SVE's are Int8Kernels
SIMDATTN_INT8_PRODUCTS(Int8MatrixKernels);  // SMMLA, USMMLA
constexpr int64_t kI8mmRows = 8;
#else
#define SIMDATTN_ARM_MATRIX 0
#endif

// store.cc
using StoreFunction = void(const StoreRows&);
using LoadFunction = void(const LoadRows&);
extern StoreFunction StoreRowsF32, StoreRowsBF16, StoreRowsF16, StorePanelsF32, StorePanelsBF16, StorePanelsF16;
extern LoadFunction LoadRowsF32, LoadRowsBF16, LoadRowsF16, LoadPanelsF32, LoadPanelsBF16, LoadPanelsF16;

// narrow.cc, of each narrow storage type
template <KvType kType>
bool AllFiniteNarrow(const FiniteRows& a);
template <KvType kType>
void StoreRowsNarrow(const StoreRows& a);
template <KvType kType>
void StorePanelsNarrow(const StoreRows& a);
template <KvType kType>
void LoadRowsNarrow(const LoadRows& a);
template <KvType kType>
void LoadPanelsNarrow(const LoadRows& a);
template <KvType kType>
void PackKeysNarrow(const PackKeys& a);
template <KvType kType>
void WidenPanelNarrow(const PackKeys& a);
template <KvType kType>
void StorePanelNarrow(const PackKeys& a);
template <KvType kType>
void ValueTileNarrow(const ValueTile& a);
/// The same of Arithmetic::kBF16.
template <KvType kType>
void ValueTileBF16Narrow(const ValueTile& a);
void ScoreBlockIntegers(const ScoreTile& a);
// narrow_tiles.cc: up to kFusedRows rows. On other targets the numbers go through L1 as f32.
#undef SIMDATTN_FUSES_NARROW
#define SIMDATTN_FUSES_NARROW (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
constexpr bool kFusesNarrow = SIMDATTN_FUSES_NARROW != 0;
constexpr int64_t kFusedRows = 4;
template <KvType kType>
void ScoreTileNarrow(const ScoreTile& a);
template <KvType kType>
void ScoreRowsNarrow(const ScoreTile& a);
template <KvType kType>
int64_t AddValuesNarrow(const ValueTile& a);

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
