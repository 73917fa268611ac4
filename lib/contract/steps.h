// Steps through sizes, through the rows of a tile, and through memory.
#pragma once

#include <cstdint>

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// How many steps cover n, which is not negative.
constexpr int64_t steps_of(int64_t n, int64_t step) { return (n + step - 1) / step; }
/// The smallest multiple of `step` that is not below n.
constexpr int64_t round_up(int64_t n, int64_t step) { return steps_of(n, step) * step; }

/// As few tiles of at most `most` rows as possible, of about equal size, the larger ones first:
///   for (RowTiles t(rows, most); t.first < rows; t.next()) { ... rows [t.first, t.first + t.rows) ... }
struct RowTiles {
  int64_t first = 0;
  int64_t rows;

  constexpr RowTiles(int64_t all, int64_t most) : rows(all), least(all) {
    if (all <= most) return;  // usual in decode, and without a division
    const uint32_t tiles = static_cast<uint32_t>((all + most - 1) / most);
    least = static_cast<uint32_t>(all) / tiles;
    larger = static_cast<uint32_t>(all) % tiles;
    rows = least + (larger > 0);
  }
  constexpr void next() {
    first += rows;
    --larger;
    rows = least + (larger > 0);
  }

 private:
  int64_t least;
  int64_t larger = 0;  // tiles to come, this one included, with one row more
};

/// What the tiles of rows [0, first) take of `count` things that the tiles of all rows share; one tile without a
/// division.
constexpr int64_t share_of_rows(int64_t first, int64_t rows, int64_t count) {
  return first == 0 ? 0 : first == rows ? count : first * count / rows;
}

/// True if RowTiles(rows, 6) are one or two tiles of three or four rows each.
constexpr bool in_tiles_of_three_or_four(int64_t rows) { return rows == 3 || rows == 4 || rows == 7 || rows == 8; }

/// A pointer that moves by a stride. After the last step it may lie outside of the object, where a pointer must not be
/// formed, but an address may. To peel the last step off instead would double the loops.
template <class T>
class Cursor {
 public:
  explicit Cursor(T* p) : address_(reinterpret_cast<uintptr_t>(p)) {}
  T* get() const { return reinterpret_cast<T*>(address_); }
  void operator+=(int64_t elements) { address_ += static_cast<uintptr_t>(elements) * sizeof(T); }
  friend void hide(Cursor& c) { __asm__("" : "+r"(c.address_)); }

 private:
  uintptr_t address_;
};

/// The compiler no longer knows what it has computed or loaded from p. A loop over rows then steps p, where it would
/// keep a pointer to each row and an index for all. Only for AVX-512: with AVX2 it is one instruction more a row.
template <class T>
void hide(T*& p) {
  __asm__("" : "+r"(p));
}

/// The address of p[elements], which may lie outside of every object: for prefetches.
template <class T>
uintptr_t address_at(const T* p, int64_t elements) {
  return reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(elements) * sizeof(T);
}

}  // namespace
}  // namespace simdattn
