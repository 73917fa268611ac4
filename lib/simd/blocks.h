// Batches as blocks of 128 bits, and squares transposed within them.
#ifndef SIMDATTN_LIB_SIMD_BLOCKS_H_
#define SIMDATTN_LIB_SIMD_BLOCKS_H_

#include "lib/simd/native.h"

namespace simdattn {
namespace {

/// What squares-inl.h asks of a backend. Fixed-length SVE transposes nothing in whole batches.
struct Blocks {
#if !SIMDATTN_SVE
  template <class Unit>
  static SIMDATTN_INLINE Floats low(Floats a, Floats b) {
    if constexpr (sizeof(Unit) == 8) {
      return zip_lo_pairs(a, b);
    } else if constexpr (sizeof(Unit) == 2) {
      return zip_lo_words(a, b);
    } else {
      return zip_lo_blocks(a, b);
    }
  }
  template <class Unit>
  static SIMDATTN_INLINE Floats high(Floats a, Floats b) {
    if constexpr (sizeof(Unit) == 8) {
      return zip_hi_pairs(a, b);
    } else if constexpr (sizeof(Unit) == 2) {
      return zip_hi_words(a, b);
    } else {
      return zip_hi_blocks(a, b);
    }
  }
#endif
};

#include "lib/squares-inl.h"

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_BLOCKS_H_
