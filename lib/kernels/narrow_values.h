// Weighted values of few rows straight from the codes of the narrow storage types. The sums are those of value_tile.h
// over the same numbers in f32, in the same order.
#pragma once

#include "lib/kernels/narrow_scores.h"
#include "lib/kernels/value_tile.h"

namespace simdattn {
namespace {

/// Sums that codes of NaN have part in.
SIMDATTN_SHARED void put_nan_values(const ValueTileArguments& a, const uint8_t* v, float* o, int64_t rows,
                                    int64_t columns) {
  for (int64_t j = 0; j < a.keys; ++j) {
    for (int64_t c = 0; c < columns; ++c) {
      if ((v[j * a.key_stride + c] & 0x7F) != 0x7F) continue;
      for (int64_t r = 0; r < rows; ++r) o[r * a.ldo + c] = kNaN;
    }
  }
}

/// Scales of scale blocks, all of a row at a time, because one by one they would take three operations of vectors each.
template <class Format>
constexpr bool kScalesAtOnce = kAvx512 && Format::kLayout.scale_bytes > 0;
template <class Format, int64_t kBlocks>
SIMDATTN_INLINE void read_scales(const uint8_t* row, float* scales) {
  static_assert(0 < kBlocks && kBlocks <= 4);
  uint64_t bits = 0;
  unroll<kBlocks>([&](auto k) SIMDATTN_LAMBDA {
    uint16_t scale;
    std::memcpy(&scale, row + k * Format::kLayout.block_bytes(), sizeof scale);
    bits |= uint64_t{scale} << 16 * k;
  });
  widen_four(bits, scales);
}
/// Batch c of the numbers of a row in scale blocks, but for their factor. What a scale block's batches share is made
/// with the first one of it (kFirst): `factor`, and `nibbles` where they are looked up. half: where a tile of less than
/// a scale block begins in it.
template <class Format, int64_t c, bool kFirst, bool kSecond>
SIMDATTN_INLINE Floats block_numbers(const uint8_t* row, const float* scales, [[maybe_unused]] int64_t half,
                                     Floats& factor, [[maybe_unused]] Bits32& nibbles) {
  constexpr bool kNibbles = Format::kBits == 4;
  constexpr int64_t kBlock = c * kLanes / kBlockDims, kIn = c * kLanes % kBlockDims;
  const uint8_t* const block = row + kBlock * Format::kLayout.block_bytes();
  const uint8_t* const codes = block + kScaleBytes;
  if constexpr (kIn == 0 || kFirst) {
    if constexpr (kScalesAtOnce<Format>) factor = Floats(scales[kBlock]);
    else factor = block_scale(block);
    if constexpr (kNibbles && kLooksUp) {
      // Instead of numbers the table that they come from is multiplied.
      factor = nibble_numbers() * factor;
      nibbles = load_bytes(codes, All());
    } else if constexpr (kNibbles) {
      factor = factor * Floats(kNibblePower);
    }
  }
  if constexpr (kNibbles && kLooksUp) return lane_of(factor, kIn == 0 ? nibbles : nibbles >> 4);
  else if constexpr (!kNibbles) return load_numbers(codes + half + kIn, All(), Format());
  else return upper_nibble(load_bytes(codes + kIn % 16, All()) ^ Bits32(0x88u), kSecond || kIn >= 16 ? 24 : 28);
}
/// The same of any type.
template <class Format, int64_t c, bool kFirst, bool kSecond>
SIMDATTN_INLINE Floats row_numbers(const uint8_t* row, const uint16_t* halves, const float* scales, int64_t half,
                                   Floats& factor, Bits32& nibbles) {
  if constexpr (Format::kFp8) return f32_from_f16(load_halves(halves + c * kLanes, All()));
  else if constexpr (Format::kLayout.scale_bytes == 0) return load_numbers(row + c * kLanes, All(), Format());
  else return block_numbers<Format, c, kFirst, kSecond>(row, scales, half, factor, nibbles);
}
/// kSecond: of nibbles, in a tile of less than a scale block, its second half.
template <class Format, int64_t kRows, int64_t kBatches, bool kSecond = false>
__attribute__((noinline)) void value_codes_tile(const ValueTileArguments& a, const float* w, const void* values,
                                                float* sums, const float* alphas, uintptr_t next, bool e4m3) {
  constexpr bool kFp8 = Format::kFp8, kNibbles = Format::kBits == 4, kInBlocks = Format::kLayout.scale_bytes > 0;
  constexpr int64_t kTogether = smaller(kBatches, 4);  // eight numbers would need as many registers
  constexpr int64_t kWidth = kBatches * kLanes;
  if constexpr (kNibbles && kWidth < kBlockDims && !kSecond) {
    if (a.column % kBlockDims > 0)
      return value_codes_tile<Format, kRows, kBatches, true>(a, w, values, sums, alphas, next, e4m3);
  }
  constexpr int64_t kBytes = Format::kLayout.row_bytes(kInBlocks ? larger(kWidth, kBlockDims) : kWidth);
  const int64_t ldo = a.ldo;
  Registers<kRows * kBatches> acc;
  load_sums<kRows, kBatches, false>(sums, ldo, alphas, acc);
  Cursor<const uint8_t> v(static_cast<const uint8_t*>(values));
  const int64_t ldw = a.ldw, key_stride = a.key_stride, keys = a.keys, to_fetch = a.prefetch_count;
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch_pitch);
  const float* const scales = a.scales;
  // Tiles of less than a scale block have its first or its second half.
  [[maybe_unused]] const int64_t half = kWidth < kBlockDims ? a.column % kBlockDims : 0;
  // Scales are read by another pointer, or compilers repeat them from a register.
  alignas(16) float made[4];
  [[maybe_unused]] const float* block_scales = made;
  if constexpr (kScalesAtOnce<Format>) hide(block_scales);
  constexpr int64_t kHalvesBytes = kFp8 ? kWidth : 1;
  alignas(64) uint16_t numbers[2][kHalvesBytes];
  [[maybe_unused]] Fp8Ahead<kBatches> fp8 = {numbers[0], numbers[1], {e4m3}};
  if constexpr (kFp8) {
    if (keys > 0) fp8.make_row(v.get());
  }
  for (int64_t j = 0; j < keys; ++j, ++w, v += key_stride) {
    if (j < to_fetch) {
      prefetch<kBytes>(next);
      next += pitch;
    }
    if constexpr (kFp8) {
      fp8.turn();
      if (j + 1 < keys) fp8.make_row(v.get() + key_stride);
    }
    Floats factor;
    [[maybe_unused]] Bits32 nibbles;
    if constexpr (kScalesAtOnce<Format>) read_scales<Format, kWidth / kBlockDims>(v.get(), made);
    if constexpr (!kInBlocks) factor = Floats(scales[j]);
    unroll<kBatches / kTogether>([&](auto group) SIMDATTN_LAMBDA {
      Registers<kTogether> column;
      unroll<kTogether>([&](auto i) SIMDATTN_LAMBDA {
        constexpr int64_t c = group * kTogether + i;
        constexpr bool kFirst = i == 0;
        Floats& x = reg<i>(column);
        x = row_numbers<Format, c, kFirst, kSecond>(v.get(), fp8.now, block_scales, half, factor, nibbles);
        if constexpr (!kNibbles || !kLooksUp) x = x * factor;
      });
      add_outer_product<kRows, kBatches, group * kTogether, kTogether>(w, ldw, column, acc);
    });
  }
  store_sums<kRows, kBatches, false>(acc, sums, ldo);
  if constexpr (kFp8) {
    if (e4m3 && saw_nan(fp8.seen)) put_nan_values(a, static_cast<const uint8_t*>(values), sums, kRows, kWidth);
  }
}

/// As tables of tiles call it.
template <KvType kType, int64_t kRows, int64_t kBatches>
void value_codes_of(const ValueTileArguments& a, const float* w, const void* values, float* sums, const float* alphas,
                    uintptr_t next) {
  value_codes_tile<TileFormat<kType, true>, kRows, kBatches>(a, w, values, sums, alphas, next,
                                                             kType == KvType::kFp8E4M3);
}
template <KvType kType, int64_t kBatches>
constexpr ValueTiles kCodeValueTiles = tiles_by_rows<ValueTileFunction, smaller(kRowsOf<kBatches>, kFusedRows)>(
    [](auto rows) { return value_codes_of<kType, rows, kBatches>; });
/// What the scales of a tile are multiplied by before.
template <KvType kType>
constexpr float kRowPower = kType == KvType::kFp8E4M3 ? Fp8AsF16::kE4M3Power : 1.0f;
template <KvType kType>
__attribute__((noinline)) void widen_last_codes(const void* v, int64_t key_stride, const float* scales, int64_t keys,
                                                int64_t columns, float* wide) {
  if constexpr (has_scales(kType)) {
    const Lanes part = first_lanes(columns);
    Cursor<const uint8_t> at(static_cast<const uint8_t*>(v));
    for (int64_t j = 0; j < keys; ++j, at += key_stride) {
      store(load_numbers(at.get(), part, FormatOf<kType>()) * Floats(scales[j] / kRowPower<kType>), wide + j * kLanes);
    }
  }
}
template <KvType kType>
constexpr ValueStorage kCodeValues = {.size = has_scales(kType) ? 1 : 0,
                                      .two = kCodeValueTiles<kType, 2>,
                                      .four = kCodeValueTiles<kType, 4>,
                                      .eight = kCodeValueTiles<kType, 8>,
                                      .widen_last = widen_last_codes<kType>};

/// Up to kFusedRows rows. False, and nothing is done, for scales that do not fit.
template <KvType kType>
bool add_code_values(const ValueTile& a) {
  constexpr bool kScaled = kRowPower<kType> != 1.0f;
  ValueTile t = a;
  // Here and not in each tile, because the product of one number takes as long as that of a vector.
  float scales[kScaled ? kKeyBlock : 1];
  if constexpr (kScaled) {
    if (!scales_fit<E4M3Format>(a.scales, a.keys)) return false;
    for_each_batch(a.keys, [&](int64_t j, auto part) SIMDATTN_LAMBDA {
      store(load(a.scales + j, part) * Floats(kRowPower<kType>), scales + j, part);
    });
    t.scales = scales;
  }
  simdattn::value_tile(t, kCodeValues<kType>);
  return true;
}

}  // namespace
}  // namespace simdattn
