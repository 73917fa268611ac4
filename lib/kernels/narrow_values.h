// Weighted values of few rows straight from the codes of the narrow storage types. The sums are those of value_tile.h
// over the same numbers in f32, in the same order.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_VALUES_H_
#define SIMDATTN_LIB_KERNELS_NARROW_VALUES_H_

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
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const float* o = sums + r * ldo;
    const Floats alpha(alphas != nullptr ? alphas[r] : 1.0f);
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<r * kBatches + c>(acc) = alpha * load(o + c * kLanes); });
  });
  Cursor<const uint8_t> v(static_cast<const uint8_t*>(values));
  const int64_t ldw = a.ldw, key_stride = a.key_stride, keys = a.keys, to_fetch = a.prefetch_count;
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch_pitch);
  const float* const scales = a.scales;
  // Tiles of less than a scale block have its first or its second half.
  [[maybe_unused]] const int64_t half = kWidth < kBlockDims ? a.column % kBlockDims : 0;
  [[maybe_unused]] const Fp8AsF16 as_f16 = {e4m3};
  // Scales of scale blocks, all of a row at a time, because one by one they would take three operations of vectors
  // each. They are read by another pointer, or compilers repeat them from a register.
  constexpr bool kScalesAtOnce = kInBlocks && kAvx512;
  constexpr int64_t kBlocks = kScalesAtOnce ? kWidth / kBlockDims : 0;
  static_assert(kBlocks <= 4 && (!kScalesAtOnce || kBlocks > 0));
  alignas(16) float made[4];
  [[maybe_unused]] const float* block_scales = made;
  if constexpr (kScalesAtOnce) hide(block_scales);
  constexpr int64_t kHalvesBytes = kFp8 ? kWidth : 1;
  alignas(64) uint16_t numbers[2][kHalvesBytes];
  [[maybe_unused]] HalvesAhead halves = {numbers[0], numbers[1]};
  [[maybe_unused]] Bits32 seen(0);
  const auto prepare = [&](const uint8_t* codes) SIMDATTN_LAMBDA {
    unroll<kFp8 ? kBatches / 2 : 0>([&](auto c) SIMDATTN_LAMBDA {
      as_f16.of_row(codes + 2 * c * kLanes).store_unaligned(halves.next + 2 * c * kLanes);
      if constexpr (kBatches == 2) note_nan(cast_bits<uint32_t>(load_scaled_bytes(codes, 8)), seen);
      else if constexpr (c % 2 == 0) note_nan(load_units(codes + 2 * c * kLanes), seen);
    });
  };
  if (keys > 0) prepare(v.get());
  for (int64_t j = 0; j < keys; ++j, ++w, v += key_stride) {
    if (j < to_fetch) {
      prefetch<kBytes>(next);
      next += pitch;
    }
    if constexpr (kFp8) {
      halves.turn();
      if (j + 1 < keys) prepare(v.get() + key_stride);
    }
    Floats factor;
    [[maybe_unused]] Bits32 nibbles;
    if constexpr (kScalesAtOnce) {
      uint64_t bits = 0;
      unroll<kBlocks>([&](auto k) SIMDATTN_LAMBDA {
        uint16_t scale;
        std::memcpy(&scale, v.get() + k * Format::kLayout.block_bytes(), sizeof scale);
        bits |= uint64_t{scale} << 16 * k;
      });
      widen_four(bits, made);
    }
    if constexpr (!kInBlocks) factor = Floats(scales[j]);
    unroll<kBatches / kTogether>([&](auto group) SIMDATTN_LAMBDA {
      Registers<kTogether> column;
      unroll<kTogether>([&](auto i) SIMDATTN_LAMBDA {
        constexpr int64_t c = group * kTogether + i;
        Floats& x = reg<i>(column);
        if constexpr (kFp8) {
          x = f32_from_f16(load_halves(halves.now + c * kLanes, All()));
        } else if constexpr (!kInBlocks) {
          x = load_numbers(v.get() + c * kLanes, All(), Format());
        } else {
          constexpr int64_t kBlock = c * kLanes / kBlockDims, kIn = c * kLanes % kBlockDims;
          const uint8_t* const block = v.get() + kBlock * Format::kLayout.block_bytes();
          const uint8_t* const codes = block + kScaleBytes;
          if constexpr (kIn == 0 || i == 0) {
            if constexpr (kScalesAtOnce) factor = Floats(block_scales[kBlock]);
            else factor = block_scale(block);
            if constexpr (kNibbles && kLooksUp) {
              // Instead of numbers the table that they come from is multiplied.
              factor = nibble_numbers() * factor;
              nibbles = load_bytes(codes, All());
            } else if constexpr (kNibbles) {
              factor = factor * Floats(kNibblePower);
            }
          }
          if constexpr (kNibbles && kLooksUp) x = lane_of(factor, kIn == 0 ? nibbles : nibbles >> 4);
          else if constexpr (!kNibbles) x = load_numbers(codes + half + kIn, All(), Format());
          else x = upper_nibble(load_bytes(codes + kIn % 16, All()) ^ Bits32(0x88u), kSecond || kIn >= 16 ? 24 : 28);
        }
        if constexpr (!kNibbles || !kLooksUp) x = x * factor;
      });
      unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
        const Floats weight(w[r * ldw]);
        unroll<kTogether>([&](auto i) SIMDATTN_LAMBDA {
          Floats& sum = reg<r * kBatches + group * kTogether + i>(acc);
          sum = mul_add(weight, reg<i>(column), sum);
        });
      });
    });
  }
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    float* o = sums + r * ldo;
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { store(reg<r * kBatches + c>(acc), o + c * kLanes); });
  });
  if constexpr (kFp8) {
    if (e4m3 && saw_nan(seen)) put_nan_values(a, static_cast<const uint8_t*>(values), sums, kRows, kWidth);
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
constexpr ValueTiles code_value_tiles() {
  return tiles_by_rows<ValueTileFunction, smaller(kRowsOf<kBatches>, kFusedRows)>(
      [](auto rows) { return value_codes_of<kType, rows, kBatches>; });
}
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
                                      .tiles = {{},
                                                {},
                                                code_value_tiles<kType, 2>(),
                                                {},
                                                code_value_tiles<kType, 4>(),
                                                {},
                                                {},
                                                {},
                                                code_value_tiles<kType, 8>()},
                                      .widened = value_tiles<float, 1>(),
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

#endif  // SIMDATTN_LIB_KERNELS_NARROW_VALUES_H_
