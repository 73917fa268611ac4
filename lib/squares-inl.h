// Squares of 4 x 4 units of 32 bits or 8 x 8 of 16 bits, transposed in each block (128 bits) of a vector. Text: a backend includes it
// inside its own unnamed namespace, once per instruction set. O::low<Unit>(a, b) and O::high<Unit>(a, b) interleave the lower and the
// upper halves of the blocks of two vectors, unit by unit.

/// store(k + i, v) of four vectors whose units lie two, then four rows apart.
template <class O, class V, class Store>
inline __attribute__((always_inline)) void store_four(int64_t k, V r0, V r1, V r2, V r3, const Store& store) {
  const V a = O::template low<uint32_t>(r0, r1), b = O::template low<uint32_t>(r2, r3);
  const V c = O::template high<uint32_t>(r0, r1), d = O::template high<uint32_t>(r2, r3);
  store(k, O::template low<uint64_t>(a, b));
  store(k + 1, O::template high<uint64_t>(a, b));
  store(k + 2, O::template low<uint64_t>(c, d));
  store(k + 3, O::template high<uint64_t>(c, d));
}
/// store(k, v): units k of the rows load(0), load(1), ...
template <class O, class Load, class Store>
inline __attribute__((always_inline)) void transpose_blocks(const Load& load, const Store& store, uint32_t /*unit*/) {
  store_four<O>(0, load(0), load(1), load(2), load(3), store);
}
template <class O, class Load, class Store>
inline __attribute__((always_inline)) void transpose_blocks(const Load& load, const Store& store, uint16_t /*unit*/) {
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const auto r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
  store_four<O>(0, O::template low<uint16_t>(r0, r1), O::template low<uint16_t>(r2, r3),
                O::template low<uint16_t>(r4, r5), O::template low<uint16_t>(r6, r7), store);
  store_four<O>(4, O::template high<uint16_t>(r0, r1), O::template high<uint16_t>(r2, r3),
                O::template high<uint16_t>(r4, r5), O::template high<uint16_t>(r6, r7), store);
}
