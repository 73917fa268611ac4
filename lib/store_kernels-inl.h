// Rows of f32 into the types and layouts that keys and values are stored in, and back. Text: a backend includes it inside its own
// unnamed namespace, once per instruction set, after lib/panel_columns.h and lib/squares-inl.h and with these macros:
//   SIMDATTN_STORE_SHARED, SIMDATTN_STORE_LAMBDA, SIMDATTN_STORE_CALLBACK    what functions that are not inlined need, lambdas, and
//                                   lambdas that code outside of this text calls
//
// StoreOps names the operations:
//   kBlocks                         blocks of 128 bits in a vector that is loaded block by block; 1: there are no such loads
//   load, store(v, p)               whole vectors; kBlocks > 1 alone needs these, and low, high of squares-inl.h
//   load_blocks<kGroup>(p, stride), store_blocks<kGroup>(v, p, stride)    block b lies kGroup b rows below p
//   narrow<T>(in, in_stride, rows, out, out_stride, n)                    rows of n numbers of f32, rounded
//   widen<T>(in, out, n)                                                  n numbers to f32
//   round_to_columns<T>(rows, ld, tokens, dim, out)                       the first tokens into columns at once; how many that were

/// Dimensions of 32 tokens that are converted and then transposed: 4 or 8 KiB of stack.
constexpr int64_t kStoreStep = 64;

/// kBlocks squares side by side: rows, or columns, next to each other.
template <class O, class Unit>
inline __attribute__((always_inline)) void put_squares(const char* in, int64_t in_stride, char* out,
                                                       int64_t out_stride) {
  constexpr int64_t kGroup = 16 / sizeof(Unit);
  transpose_blocks<O>(
      [&](int64_t k) SIMDATTN_STORE_LAMBDA { return O::template load_blocks<kGroup>(in + k * in_stride, in_stride); },
      [&](int64_t k, auto v) SIMDATTN_STORE_LAMBDA { O::store(v, out + k * out_stride); }, Unit{});
}
template <class O, class Unit>
inline __attribute__((always_inline)) void take_squares(const char* in, int64_t in_stride, char* out,
                                                        int64_t out_stride) {
  constexpr int64_t kGroup = 16 / sizeof(Unit);
  transpose_blocks<O>([&](int64_t k) SIMDATTN_STORE_LAMBDA { return O::load(in + k * in_stride); },
                      [&](int64_t k, auto v) SIMDATTN_STORE_LAMBDA {
                        O::template store_blocks<kGroup>(v, out + k * out_stride, out_stride);
                      },
                      Unit{});
}

// Functions of their own, for types and conversions to share: inlined, each of these would have a copy.

template <class Unit>
SIMDATTN_STORE_SHARED void transpose_rest(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                          int64_t out_stride) {
  transpose_units<Unit>(in, in_stride, rows, columns, out, out_stride);
}

/// transpose_units(), most of it by put_squares().
template <class Unit>
SIMDATTN_STORE_SHARED void put_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                     int64_t out_stride) {
  int64_t whole_rows = 0;
  constexpr int64_t kSize = sizeof(Unit);
  if constexpr (StoreOps::kBlocks > 1) {
    constexpr int64_t kSquare = 16 / kSize;
    constexpr int64_t kRows = kSquare * StoreOps::kBlocks;
    constexpr int64_t kLine = 64 / kSize;
    const int64_t whole_columns = columns - columns % kSquare;
    whole_rows = rows - rows % kRows;
    for (int64_t first = 0; first < whole_columns; first += kLine) {
      const int64_t end = whole_columns < first + kLine ? whole_columns : first + kLine;
      for (int64_t r = 0; r < whole_rows; r += kRows) {
        for (int64_t c = first; c < end; c += kSquare) {
          put_squares<StoreOps, Unit>(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize,
                                      out_stride);
        }
      }
    }
    if (whole_rows > 0 && whole_columns < columns) {
      transpose_rest<Unit>(in + whole_columns * kSize, in_stride, whole_rows, columns - whole_columns,
                           out + whole_columns * out_stride, out_stride);
    }
    if (whole_rows == rows) return;
  }
  transpose_rest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, columns, out + whole_rows * kSize,
                       out_stride);
}
/// And by take_squares().
template <class Unit>
SIMDATTN_STORE_SHARED void take_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                      int64_t out_stride) {
  int64_t whole_columns = 0;
  constexpr int64_t kSize = sizeof(Unit);
  if constexpr (StoreOps::kBlocks > 1) {
    constexpr int64_t kSquare = 16 / kSize;
    constexpr int64_t kColumns = kSquare * StoreOps::kBlocks;
    const int64_t whole_rows = rows - rows % kSquare;
    whole_columns = columns - columns % kColumns;
    for (int64_t c = 0; c < whole_columns; c += kColumns) {
      for (int64_t r = 0; r < whole_rows; r += kSquare) {
        take_squares<StoreOps, Unit>(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize,
                                     out_stride);
      }
    }
    if (whole_columns > 0 && whole_rows < rows) {
      transpose_rest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, whole_columns,
                           out + whole_rows * kSize, out_stride);
    }
    if (whole_columns == columns) return;
  }
  transpose_rest<Unit>(in + whole_columns * kSize, in_stride, rows, columns - whole_columns,
                       out + whole_columns * out_stride, out_stride);
}

/// `tokens` rows of `dim` stored elements into the panel's columns from `column` on, at most kPanelWidth in all.
template <class T>
inline __attribute__((always_inline)) void rows_to_columns(const char* rows, int64_t row_stride, int64_t tokens,
                                                           int64_t dim, char* panel, int64_t column) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  char* const out = panel + column * static_cast<int64_t>(sizeof(Unit));
  if (tokens == 1) {
    scatter_units<Unit>(rows, units, out, kPitch);
  } else {
    put_units<Unit>(rows, row_stride, tokens, units, out, kPitch);
  }
  if constexpr (kUnitDims<T> == 2) {
    // An odd last dimension is paired with zero.
    for (int64_t t = 0; dim % 2 != 0 && t < tokens; ++t) {
      uint16_t pair[2] = {0, 0};
      copy_unit<T>(rows + t * row_stride + (dim - 1) * 2, reinterpret_cast<char*>(pair));
      copy_unit<Unit>(reinterpret_cast<const char*>(pair), out + units * kPitch + t * 4);
    }
  }
}

/// The inverse.
template <class T>
inline __attribute__((always_inline)) void columns_to_rows(const char* panel, int64_t column, int64_t tokens,
                                                           int64_t dim, char* rows, int64_t row_stride) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  const char* const in = panel + column * static_cast<int64_t>(sizeof(Unit));
  take_units<Unit>(in, kPitch, units, tokens, rows, row_stride);
  if constexpr (kUnitDims<T> == 2) {
    for (int64_t t = 0; dim % 2 != 0 && t < tokens; ++t) {
      copy_unit<T>(in + units * kPitch + t * 4, rows + t * row_stride + (dim - 1) * 2);
    }
  }
}

template <class T>
inline __attribute__((always_inline)) void store_rows(const StoreRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    char* const to = static_cast<char*>(a.out) + t * a.stride;
    if (a.as_stored) {
      __builtin_memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      StoreOps::narrow<T>(from, 0, 1, to, 0, a.dim);
    }
  }
}

template <class T>
inline __attribute__((always_inline)) void store_panels(const StoreRows& a) {
  for_each_panel(a.column, a.tokens,
                 [&](int64_t panel, int64_t column, int64_t n, int64_t done) SIMDATTN_STORE_CALLBACK {
                   const char* rows = static_cast<const char*>(a.rows) + done * a.ld;
                   char* const to = static_cast<char*>(a.out) + panel * a.stride;
                   if (a.as_stored) {
                     rows_to_columns<T>(rows, a.ld, n, a.dim, to, column);
                     return;
                   }
                   const int64_t whole = StoreOps::round_to_columns<T>(
                       rows, a.ld, n, a.dim, to + column * static_cast<int64_t>(sizeof(PanelUnit<T>)));
                   if (whole == n) return;
                   rows += whole * a.ld;
                   column += whole;
                   n -= whole;
                   alignas(64) T copy[kPanelWidth * kStoreStep];
                   for (int64_t d = 0; d < a.dim; d += kStoreStep) {
                     const int64_t count = kStoreStep < a.dim - d ? kStoreStep : a.dim - d;
                     char* const narrow = reinterpret_cast<char*>(copy);
                     StoreOps::narrow<T>(rows + 4 * d, a.ld, n, narrow, kStoreStep * sizeof(T), count);
                     rows_to_columns<T>(narrow, kStoreStep * sizeof(T), n, count,
                                        to + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column);
                   }
                 });
}

template <class T>
inline __attribute__((always_inline)) void load_rows(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.in) + t * a.stride;
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      __builtin_memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      StoreOps::widen<T>(reinterpret_cast<const T*>(from), to, a.dim);
    }
  }
}

template <class T>
inline __attribute__((always_inline)) void load_panels(const LoadRows& a) {
  for_each_panel(a.column, a.tokens,
                 [&](int64_t panel, int64_t column, int64_t n, int64_t done) SIMDATTN_STORE_CALLBACK {
                   const char* const from = static_cast<const char*>(a.in) + panel * a.stride;
                   char* const rows = static_cast<char*>(a.rows) + done * a.ld;
                   if (a.as_stored || std::is_same_v<T, float>) {
                     columns_to_rows<T>(from, column, n, a.dim, rows, a.ld);
                     return;
                   }
                   alignas(64) T copy[kPanelWidth * kStoreStep];
                   for (int64_t d = 0; d < a.dim; d += kStoreStep) {
                     const int64_t count = kStoreStep < a.dim - d ? kStoreStep : a.dim - d;
                     columns_to_rows<T>(from + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column, n, count,
                                        reinterpret_cast<char*>(copy), kStoreStep * sizeof(T));
                     for (int64_t t = 0; t < n; ++t)
                       StoreOps::widen<T>(copy + t * kStoreStep, rows + t * a.ld + 4 * d, count);
                   }
                 });
}
