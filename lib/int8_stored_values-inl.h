// Values of Arithmetic::kInt8 from rows of stored integers, as they are: nothing is packed, which a few rows of weights would not pay
// for. Text, after lib/int8_kernels-inl.h. Of O it takes, beside what stands there,
//   kStoredRows                  rows of the largest tile, which is four vectors of bytes wide once four keys share cells
//   load_bytes(p, n)             n columns of a row, at most 4 * lanes(); zeros past them
//   zip_bytes_lower, ..._upper, zip_words_lower, ..._upper    the numbers of two vectors by turns, 128 bits apart from 128 bits
//   sort_columns(s0, s1, s2, s3) part b (of 128 bits) of vector k to where part 4 b + k of all four lies
//   store_n(v, p, n)             the first n < lanes() numbers

/// One tile: rows of weights times up to 4 * lanes() columns.
struct Int8StoredTile {
  const char* weights;  // cells of the first row
  int64_t weight_stride;
  const float* weight_scales;
  const char* rows;
  int64_t row_stride;
  int64_t keys;
  int64_t columns;
  float* o;
  int64_t ldo;
  const float* alpha;       // null: 1
  uintptr_t ahead = 0;      // what is prefetched for the first key, if any, and
  int64_t ahead_pitch = 0;  // for each further one so many bytes on
};

/// Four rows are interleaved in registers: sum k has columns 4 k .. 4 k + 3 of each 16.
template <class O, size_t kRows>
SIMDATTN_INT8_SHARED void int8_stored_tile(const Int8StoredTile& a) {
  using I = typename O::I;
  int8_with_registers<O>([&](const auto& sum, const auto& column) SIMDATTN_INT8_LAMBDA {
    constexpr auto kEachRow = std::make_index_sequence<kRows>{};
    constexpr auto kEachColumn = std::make_index_sequence<4>{};
    const int64_t weight_stride = a.weight_stride;
    const int64_t row_stride = a.row_stride;
    const int64_t columns = a.columns;
    const char* weights = a.weights;
    Cursor<const char> row(a.rows);
    uintptr_t ahead = a.ahead;
    for (int64_t left = a.keys; left > 0; left -= 4) {
      if (ahead != 0) {
        for (int64_t i = 0; i < 4; ++i, ahead += static_cast<uintptr_t>(a.ahead_pitch)) {
          __builtin_prefetch(reinterpret_cast<const char*>(ahead), 0, 2);
        }
      }
      // Rows past the last one have weight 0.
      const int64_t at1 = left > 1 ? row_stride : 0, at2 = left > 2 ? 2 * row_stride : 0,
                    at3 = left > 3 ? 3 * row_stride : 0;
      const char* const p = row.get();
      const I r0 = O::load_bytes(p, columns), r1 = O::load_bytes(p + at1, columns);
      const I r2 = O::load_bytes(p + at2, columns), r3 = O::load_bytes(p + at3, columns);
      const I low0 = O::zip_bytes_lower(r0, r1), low1 = O::zip_bytes_lower(r2, r3);
      const I high0 = O::zip_bytes_upper(r0, r1), high1 = O::zip_bytes_upper(r2, r3);
      int8_get<0>(column) = O::zip_words_lower(low0, low1);
      int8_get<1>(column) = O::zip_words_upper(low0, low1);
      int8_get<2>(column) = O::zip_words_lower(high0, high1);
      int8_get<3>(column) = O::zip_words_upper(high0, high1);
      int8_unroll(kEachRow, [&](auto r) SIMDATTN_INT8_LAMBDA {
        const char* const cell = weights + static_cast<int64_t>(r) * weight_stride;
        const I x = O::repeat(cell);
        int8_unroll(kEachColumn, [&](auto c) SIMDATTN_INT8_LAMBDA {
          I& s = int8_get<4 * r + c>(sum);
          if constexpr (O::kPairs) {
            O::template dot<true>(s, s, x, O::even_pairs(int8_get<c>(column)));
            O::template dot<true>(s, s, O::repeat(cell + 4), O::odd_pairs(int8_get<c>(column)));
          } else {
            O::template dot<true>(s, s, x, int8_get<c>(column));
          }
        });
      });
      weights += kInt8CellBytes<O>;
      row += 4 * row_stride;
    }
    const int64_t lanes = O::lanes();
    int8_unroll(kEachRow, [&](auto r) SIMDATTN_INT8_LAMBDA {
      typename O::F t0 = O::to_float(int8_get<4 * r>(sum)), t1 = O::to_float(int8_get<4 * r + 1>(sum));
      typename O::F t2 = O::to_float(int8_get<4 * r + 2>(sum)), t3 = O::to_float(int8_get<4 * r + 3>(sum));
      O::sort_columns(t0, t1, t2, t3);
      float* const o = a.o + static_cast<int64_t>(r) * a.ldo;
      const typename O::F alpha = O::set(a.alpha != nullptr ? a.alpha[r] : 1.0f);
      const typename O::F scale = O::set(a.weight_scales[r]);
      const auto put = [&](int64_t c, typename O::F s) SIMDATTN_INT8_LAMBDA {
        const int64_t n = columns - c;
        if (n >= lanes) {
          O::store(O::fma(s, scale, O::mul(alpha, O::load(o + c))), o + c);
        } else if (n > 0) {
          O::store_n(O::fma(s, scale, O::mul(alpha, O::wide_n(o + c, n))), o + c, n);
        }
      };
      put(0, t0);
      put(lanes, t1);
      put(2 * lanes, t2);
      put(3 * lanes, t3);
    });
  });
}

template <class O, size_t kMost>
SIMDATTN_INT8_INLINE void int8_stored_rows(int64_t rows, const Int8StoredTile& tile) {
  if (rows == static_cast<int64_t>(kMost)) return int8_stored_tile<O, kMost>(tile);
  if constexpr (kMost > 1) int8_stored_rows<O, kMost - 1>(rows, tile);
}

/// int8_value_packed() of integers in rows as they are stored. At most kKeyBlock keys.
template <class O>
void int8_value_stored(const ValueTile& a) {
  constexpr int64_t kMost = static_cast<int64_t>(O::kStoredRows);
  const int64_t width = 4 * O::lanes();
  alignas(64) char weights[kMost * kInt8WeightStride<O>];
  float weight_scales[kMost];
  int32_t start[kMost];  // not used
  for (RowTiles t(a.rows, kMost); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    int8_weight_cells<O>({a.w + first * a.ldw, a.ldw, t.rows, a.scales, a.keys, 0}, weights, weight_scales, start);
    for (int64_t c = 0; c < a.dim; c += width) {
      Int8StoredTile tile = {weights,
                             kInt8WeightStride<O>,
                             weight_scales,
                             static_cast<const char*>(a.v) + c,
                             a.key_stride,
                             a.keys,
                             a.dim - c < width ? a.dim - c : width,
                             a.o + first * a.ldo + c,
                             a.ldo,
                             a.alpha != nullptr ? a.alpha + first : nullptr};
      if (a.fetches() && first == 0) {
        // The next block; rows that lie side by side in the order of memory.
        const bool together = a.key_stride == a.dim;
        const int64_t offset = a.keys * a.key_stride + (together ? a.keys * c : c);
        tile.ahead = address_at(static_cast<const char*>(a.v), offset);
        tile.ahead_pitch = together ? tile.columns : a.key_stride;
      }
      int8_stored_rows<O, O::kStoredRows>(t.rows, tile);
    }
  }
}
