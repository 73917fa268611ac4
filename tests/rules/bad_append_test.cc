// Of stores: appending to them.
#include "tests/rules/bad_calls.h"

namespace simdattn::test {
namespace {

struct KvAppendCall : BadCall {
  Random random{7};
  Array<4> rows_memory{random, DType::kF32, {2, 2, 3, 16}};
  Array<2> positions_memory{random, DType::kI32, {2, 3}}, cos_memory{random, DType::kF32, {40, 8}},
      sin_memory{random, DType::kF32, {40, 8}};
  KvStorage storage = make_kv(random, DType::kBF16, KvForm::kPanels, 2, 2, 40, 16);
  KvStorage paged = make_kv(random, DType::kF32, KvForm::kPagedPanels, 2, 2, 40, 16);
  KvStorage integers = make_kv(random, KvType::kInt8, KvForm::kPanels, 2, 2, 40, 16);
  KvStorage blocks = make_kv(random, KvType::kQ8_0, KvForm::kRows, 2, 2, 40, 32);
  void* scales = integers.kv.scales;
  void narrow() { cache = integers.kv; }
  KvStorage ring = make_kv(random, DType::kF32, KvForm::kRingPanels, 2, 2, 40, 16, 32);
  ConstView<4> rows = rows_memory.view;
  ConstView<2> positions = positions_memory.view;
  Kv cache = storage.kv;
  int32_t starts[2] = {0, 1}, counts[2] = {3, 0};
  Array<2> slots_memory{random, DType::kI64, {2, 3}};
  AppendOptions options;
  KvAppendCall() {
    options.rope.cos = cos_memory.view;
    options.rope.sin = sin_memory.view;
    for (int64_t i = 0; i < 6; ++i) slot(i, i);
    for (int64_t i = 0; i < 6; ++i) position(i, static_cast<int32_t>(i % 3 + 7));
  }
  void position(int64_t i, int32_t p) const {
    set_element_bits(positions_memory.view.data, DType::kI32, i, static_cast<uint64_t>(static_cast<uint32_t>(p)));
  }
  void slot(int64_t i, int64_t place) const {
    set_element_bits(slots_memory.view.data, DType::kI64, i, static_cast<uint64_t>(place));
  }
  /// Numbers inside of a store: zeros, which any rule on numbers accepts.
  static const int32_t* zeros(const KvStorage& /*store*/, void* inside) {
    std::memset(inside, 0, 64);
    return static_cast<const int32_t*>(inside);
  }
  static const int32_t* zeros(const KvStorage& s) {
    std::memset(s.memory.data(), 0, 64);
    return reinterpret_cast<const int32_t*>(s.memory.data());
  }
  /// Places from a list of slots of the paged store.
  void by_slots() {
    cache = paged.kv;
    options.slots = slots_memory.view;
  }
  Status call() const override { return kv_append(rows, positions, cache, options, exec); }
  std::vector<const Guarded*> outputs() const override {
    return {&storage.memory, &paged.memory, &ring.memory, &integers.memory, &integers.scales, &blocks.memory};
  }
};

TEST_P(BadCalls, KvAppend) {
  using C = KvAppendCall;
  const std::vector<Bad<C>> table = {
      {"rows null", kNullPointer, "rows", [](C& c) { c.rows.data = nullptr; }},
      {"cache null", kNullPointer, "kv", [](C& c) { c.cache.data = nullptr; }},
      {"start past the store", kRange, "options.start", [](C& c) { c.positions = {}, c.options.start = 38; }},
      {"a sequence's start past the store", kRange, "options.starts",
       [](C& c) { c.positions = {}, c.starts[1] = 38, c.options.starts = c.starts; }},
      {"more rows than there are", kRange, "options.counts",
       [](C& c) { c.counts[1] = 4, c.options.counts = c.counts; }},
      {"a negative number of rows", kRange, "options.counts",
       [](C& c) { c.counts[0] = -1, c.options.counts = c.counts; }},
      {"slots of floats", kDType, "options.slots", [](C& c) { c.by_slots(), c.options.slots.dtype = DType::kF32; }},
      {"slots of other shape", kShape, "options.slots", [](C& c) { c.by_slots(), c.options.slots.shape[1] = 2; }},
      {"slots of a store without data, for sequences of no tokens", kNullPointer, "kv.data",
       [](C& c) { c.by_slots(), c.cache.capacity = 0, c.cache.data = nullptr; }},
      {"slots of a store in the rows, for sequences of no tokens", kOverlap, "kv: overlaps row",
       [](C& c) { c.by_slots(), c.cache.capacity = 0, c.cache.data = const_cast<void*>(c.rows.data); }},
      {"slot past the pool", kRange, "options.slots",
       [](C& c) { c.by_slots(), c.slot(5, c.cache.n_pages * c.cache.page_size); }},
      {"options that were only cleared", kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
      {"store that was only cleared", kStructSize, "kv", [](C& c) { c.cache.struct_size = 0; }},
      {"reserved numbers", kStructSize, "kv", [](C& c) { c.cache.reserved[0] = 7; }},
      {"only cos", kNullPointer, "options.rope.sin", [](C& c) { c.options.rope.sin.data = nullptr; }},
      {"cos in bf16", kDType, "options.rope.cos", [](C& c) { c.options.rope.cos.dtype = DType::kBF16; }},
      {"pairing that does not exist", kRange, "options.rope.options.pairing",
       [](C& c) { c.options.rope.options.pairing = static_cast<RopePairing>(5); }},
      {"first dimension negative", kRange, "options.rope.options.first_dim",
       [](C& c) { c.options.rope.options.first_dim = -1; }},
      {"rows of integers", kDType, "rows", [](C& c) { c.rows.dtype = DType::kI32; }},
      {"cache of a type that does not exist", kDType, "kv.type", [](C& c) { c.cache.type = static_cast<KvType>(77); }},
      {"cache of a type that can be read only", kDType, "kv.type",
       [](C& c) { c.cache.type = KvType::kQ5_0, c.cache.layout = KvLayout::kRows; }},
      {"scales of a type that has none", kDType, "kv.scales", [](C& c) { c.cache.scales = c.scales; }},
      {"integers without scales", kNullPointer, "kv.scales", [](C& c) { c.narrow(), c.cache.scales = nullptr; }},
      {"scales between floats", kStride, "kv.scale", [](C& c) { c.narrow(), c.cache.scale_token_stride = 6; }},
      {"one scale for all tokens", kStride, "kv.scale", [](C& c) { c.narrow(), c.cache.scale_token_stride = 0; }},
      {"scales too far apart", kStride, "kv", [](C& c) { c.narrow(), c.cache.scale_head_stride = INT64_MAX - 3; }},
      {"scales in the store", kOverlap, "kv: overlaps", [](C& c) { c.narrow(), c.cache.scales = c.cache.data; }},
      {"rows in scales", kOverlap, "kv.scales: overlaps",
       [](C& c) { c.narrow(), c.cache.scales = const_cast<void*>(c.rows.data); }},
      {"positions in scales", kOverlap, "kv.scales: overlaps",
       [](C& c) { c.narrow(), c.cache.scales = const_cast<void*>(c.positions.data); }},
      {"starts in scales", kOverlap, "kv.scales: overlaps",
       [](C& c) { c.narrow(), c.options.starts = c.zeros(c.integers, c.scales), c.positions = {}; }},
      {"counts in scales", kOverlap, "kv.scales: overlaps",
       [](C& c) { c.narrow(), c.options.counts = c.zeros(c.integers, c.scales); }},
      {"cos in scales", kOverlap, "kv.scales: overlaps options.rope.cos",
       [](C& c) { c.narrow(), c.options.rope.cos.data = c.scales; }},
      {"a part of a block", kShape, "kv.dim", [](C& c) { c.cache.type = KvType::kQ8_0; }},
      {"a block that begins at an odd byte", kStride, "kv",
       [](C& c) {
         c.cache = c.blocks.kv, c.cache.dim = 32, c.rows.shape[3] = 32, c.rows.stride = {0, 0, 0, 1},
         c.cache.token_stride = 33;
       }},
      {"an integer row that is too long", kShape, "kv.dim", [](C& c) { c.narrow(), c.cache.dim = 8193; }},
      {"batch differs", kShape, "kv.batch", [](C& c) { c.cache.batch = 1; }},
      {"heads differ", kShape, "kv.heads", [](C& c) { c.cache.heads = 1; }},
      {"dimension differs", kShape, "kv.dim", [](C& c) { c.cache.dim = 15; }},
      {"dimension 0", kShape, "kv.dim", [](C& c) { c.cache.dim = 0, c.rows.shape[3] = 0; }},
      {"tokens negative", kShape, "kv.capacity", [](C& c) { c.cache.capacity = -1; }},
      {"positions of other shape", kShape, "positions", [](C& c) { c.positions.shape[1] = 2; }},
      {"positions of floats", kDType, "positions", [](C& c) { c.positions.dtype = DType::kF32; }},
      {"position past the cache", kRange, "positions", [](C& c) { c.position(5, 40); }},
      {"position past the table", kRange, "positions",
       [](C& c) { c.position(5, 39), c.options.rope.cos.shape[0] = c.options.rope.sin.shape[0] = 39; }},
      {"table wider than the dimension", kShape, "options.rope.cos.shape[1]",
       [](C& c) { c.options.rope.options.first_dim = 1; }},
      {"sin of other shape", kShape, "options.rope.sin.shape", [](C& c) { c.options.rope.sin.shape[0] = 39; }},
      {"layout that does not exist", kShape, "kv.layout", [](C& c) { c.cache.layout = static_cast<KvLayout>(5); }},
      {"ring that cuts panels", kRange, "kv.ring", [](C& c) { c.cache.ring = 33; }},
      {"ring negative", kRange, "kv.ring", [](C& c) { c.cache.ring = -32; }},
      {"pages and a ring", kRange, "kv", [](C& c) { c.cache = c.paged.kv, c.cache.ring = 32; }},
      {"page size negative", kShape, "kv.page_size", [](C& c) { c.cache = c.paged.kv, c.cache.page_size = -32; }},
      {"pages without a table", kNullPointer, "kv.block_table",
       [](C& c) { c.cache = c.paged.kv, c.cache.block_table = nullptr; }},
      {"block table that overlaps itself", kShape, "kv.block_table_stride",
       [](C& c) { c.cache = c.paged.kv, c.cache.block_table_stride = -2; }},
      {"page that cuts panels", kShape, "kv.page_size", [](C& c) { c.cache = c.paged.kv, c.cache.page_size = 33; }},
      {"page past the pool", kRange, "kv.block_table",
       [](C& c) { c.cache = c.paged.kv, c.paged.table.data()[0] = static_cast<int32_t>(c.cache.n_pages); }},
      {"rows not contiguous", kStride, "rows", [](C& c) { c.rows.stride[3] = 2; }},
      {"tokens of the cache coincide", kStride, "kv", [](C& c) { c.cache.token_stride = 8; }},
      {"rows in the cache", kOverlap, "kv", [](C& c) { c.rows.data = c.cache.data, c.rows.stride = {0, 0, 0, 1}; }},
      {"positions in the store", kOverlap, "kv: overlaps position",
       [](C& c) { c.positions.data = c.zeros(c.storage); }},
      {"slots in the store", kOverlap, "kv: overlaps options.slot",
       [](C& c) { c.by_slots(), c.options.slots.data = c.zeros(c.paged); }},
      {"starts in the store", kOverlap, "kv: overlaps options.start",
       [](C& c) { c.positions = {}, c.options.starts = c.zeros(c.storage); }},
      {"counts in the store", kOverlap, "kv: overlaps options.count",
       [](C& c) { c.options.counts = c.zeros(c.storage); }},
      {"block table in the store", kOverlap, "kv: overlaps kv.block",
       [](C& c) { c.cache = c.paged.kv, c.cache.block_table = c.zeros(c.paged); }},
      {"slots without pages", kRange, "options.slots", [](C& c) { c.options.slots = c.slots_memory.view; }},
      {"ring beyond all sizes", kRange, "kv.ring",
       [](C& c) { c.cache = c.ring.kv, c.cache.ring = std::numeric_limits<int64_t>::max(); }},
      {"pages beyond all sizes", kShape, "kv.page_size",
       [](C& c) { c.cache = c.paged.kv, c.cache.page_size = int64_t{1} << 40; }},
      {"batch beyond all sizes", kShape, "kv.batch", [](C& c) { c.cache.batch = int64_t{1} << 30; }},
      {"sin in the store", kOverlap, "kv: overlaps options.rope", [](C& c) { c.options.rope.sin.data = c.cache.data; }},
      {"cos in the cache", kOverlap, "kv", [](C& c) { c.options.rope.cos.data = c.cache.data; }},
  };
  check<C>("kv_append", table);
}

}  // namespace
}  // namespace simdattn::test
