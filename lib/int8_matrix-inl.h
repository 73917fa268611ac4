// Tiles of kInt8 where an instruction multiplies two rows of eight bytes by two columns of eight: SMMLA and USMMLA. Text, a part
// of lib/int8_kernels-inl.h. Of O it takes, beside what stands there,
//   two_rows(x, y)                  eight bytes of each, side by side, in every 128 bits
//   zip_lower, zip_upper            of the cells of two vectors
//   even_halves, odd_halves         of the halves of every 128 bits of two vectors
//   matrix<kWeights>(sum, rows, columns)    of 128 bits: a sum for row 0 and column 0, 0 and 1, 1 and 0, 1 and 1
//
// Two steps at a time: eight dimensions or keys, of which the second cell of an odd last step is zeros.

template <class O, size_t kRows, bool kWeights, class Finish>
SIMDATTN_INT8_INLINE void int8_matrix_tile(const Int8Tile& a, const Finish& finish) {
  using I = typename O::I;
  // Number 4 p + 2 c + h: rows 2 p and 2 p + 1, and one half of the columns of vector c.
  int8_with_registers<O>([&](const auto& sum, const auto& column) SIMDATTN_INT8_LAMBDA {
    constexpr auto kEachPair = std::make_index_sequence<kRows / 2>{};
    constexpr auto kEachVector = std::make_index_sequence<2>{};
    constexpr auto kEachColumn = std::make_index_sequence<4>{};
    const int64_t lane_bytes = O::lanes() * 4;
    const int64_t x_stride = a.x_stride;
    Cursor<const char> x(a.x), at(a.columns);
    const auto step = [&](auto two) SIMDATTN_INT8_LAMBDA {
      int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
        const char* cells = at.get() + static_cast<int64_t>(c) * lane_bytes;
        const I first = O::load_int(cells);
        I second = O::set_int(0);
        if constexpr (two) second = O::load_int(cells + kPanelWidth * 4);
        int8_get<2 * c>(column) = O::zip_lower(first, second);
        int8_get<2 * c + 1>(column) = O::zip_upper(first, second);
      });
      int8_unroll(kEachPair, [&](auto p) SIMDATTN_INT8_LAMBDA {
        const char* row = x.get() + static_cast<int64_t>(2 * p) * x_stride;
        const I rows = O::two_rows(row, row + x_stride);
        int8_unroll(kEachColumn, [&](auto i) SIMDATTN_INT8_LAMBDA {
          O::template matrix<kWeights>(int8_get<4 * p + i>(sum), rows, int8_get<i>(column));
        });
      });
    };
    for (int64_t steps = a.steps / 2; steps > 0; --steps) {
      step(std::true_type{});
      x += 2 * kInt8CellBytes<O>;
      at += 2 * kPanelWidth * 4;
    }
    if (a.steps % 2 != 0) step(std::false_type{});
    int8_unroll(kEachPair, [&](auto p) SIMDATTN_INT8_LAMBDA {
      int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
        const I lower = int8_get<4 * p + 2 * c>(sum), upper = int8_get<4 * p + 2 * c + 1>(sum);
        finish(std::integral_constant<size_t, 2 * p>{}, c, O::to_float(O::even_halves(lower, upper)));
        finish(std::integral_constant<size_t, 2 * p + 1>{}, c, O::to_float(O::odd_halves(lower, upper)));
      });
    });
  });
}
