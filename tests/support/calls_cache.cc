// Caches, and the rotations of what goes into them: see calls.h.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/calls.h"
#include "tests/support/calls_parts.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

/// The bytes of a store once more, behind guards of their own.
struct Copy {
  Guarded memory, scales;
  Kv kv;
  Copy(Random& random, const KvStorage& s)
      : memory(s.memory.size(), random.guard()), scales(s.scales.size(), random.guard()), kv(s.kv) {
    std::memcpy(memory.data(), s.memory.data(), memory.size());
    kv.data = memory.data() + (static_cast<unsigned char*>(s.kv.data) - s.memory.data());
    if (scales.size() == 0) return;
    std::memcpy(scales.data(), s.scales.data(), scales.size());
    kv.scales = scales.data() + (static_cast<unsigned char*>(s.kv.scales) - s.scales.data());
  }
  bool same(const KvStorage& s) const {
    return std::memcmp(memory.data(), s.memory.data(), memory.size()) == 0 &&
           (scales.size() == 0 || std::memcmp(scales.data(), s.scales.data(), scales.size()) == 0);
  }
};

/// A table of cosines and sines for `rows` positions, or none.
struct RopeCase {
  Array<2> cosine, sine;
  KeyRotation rotation;
  RopeCase(Random& random, int64_t rows, int64_t dim) {
    if (dim < 2 || random.coin()) return;
    const int64_t half = random.integer(1, dim / 2);
    cosine = Array<2>(random, DType::kF32, {rows, half}, Strides::kInput);
    sine = Array<2>(random, DType::kF32, {rows, half}, Strides::kInput);
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    rotation.cos = cosine.view;
    rotation.sin = sine.view;
    rotation.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    rotation.options.inverse = random.coin();
    rotation.options.first_dim = random.integer(0, dim - 2 * half);
  }
};

KvForm any_form(Random& random) {
  return random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels, KvForm::kRingRows,
                    KvForm::kRingPanels});
}

/// Codes of a narrow type that can be written.
struct NarrowCase {
  int64_t batch, heads, tokens, dim;
  KvStorage store;
  explicit NarrowCase(Random& random)
      : batch(random.integer(1, 3)), heads(random.integer(1, 3)), tokens(random.size(1, 80)), dim(random.size(1, 100)) {
    const KvType type = kNarrowTypes[random.integer(0, std::ssize(kNarrowTypes) - 1)];
    if (row_bytes(type, 1) == 0) dim = (dim + 31) / 32 * 32;  // whole blocks
    const Array<4> rows(random, DType::kF32, {batch, heads, tokens, dim});
    store = random_codes(random, type, rows, any_form(random), values(random), random.integer(1, 90));
  }
  /// Tokens that exist, of which so many are taken.
  int64_t exist() const { return store.kv.ring > 0 ? std::min(store.kv.ring, tokens) : tokens; }
};

}  // namespace

void kv_append_call(Random& random, const Target& one, const Target& other) {
  const bool wide = random.one_in(100);  // more than the 2048 numbers that are rotated at once
  const int64_t batch = random.integer(1, 3), heads = random.integer(1, 3), n = random.integer(0, 6),
                half = wide ? random.integer(1000, 1100) : random.size(1, 30);
  const int64_t dim = 2 * half + (random.coin() ? 0 : random.integer(1, 9));
  const int64_t tokens = random.size(1, wide ? 40 : 150);
  Array<4> rows(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  rows.fill(random, values(random));
  const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels,
                                 KvForm::kRingRows, KvForm::kRingPanels});
  const DType type = random.storage();
  const KvStorage want = make_kv(random, type, form, batch, heads, tokens, dim, 40);
  // The same storage once more.
  Guarded copy(want.memory.size(), random.guard());
  std::memcpy(copy.data(), want.memory.data(), copy.size());
  Kv got = want.kv;
  got.data = copy.data();
  // Tokens whose page is negative are skipped.
  if (want.kv.page_size > 0 && random.coin()) want.table.data()[0] = -1;
  Array<2> positions(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kOutput);
  // No two tokens of a sequence at one place: which would win is nobody's business.
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = random.integer(0, tokens - 1);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t p = random.one_in(5) || first + t >= tokens ? -1 : first + t;
      set_element_bits(positions.view.data, positions.view.dtype, positions.at({b, t}), static_cast<uint64_t>(p));
    }
  }
  Array<2> cosine(random, DType::kF32, {tokens, half}), sine(random, DType::kF32, {tokens, half});
  cosine.fill(random, Values::kOrdinary);
  sine.fill(random, Values::kOrdinary);
  AppendOptions options;
  if (random.coin()) {
    options.rope.cos = cosine.view;
    options.rope.sin = sine.view;
    options.rope.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    options.rope.options.first_dim = random.integer(0, dim - 2 * half);
  }
  Status s = kv_append(rows.view, positions.view, want.kv, options, {.target = &one});
  ASSERT_TRUE(s.ok()) << s.detail;
  s = kv_append(rows.view, positions.view, got, options, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(std::memcmp(want.memory.data(), copy.data(), copy.size()), 0)
      << sizes({batch, heads, n, dim, tokens}) << " form " << static_cast<int>(form) << " type "
      << static_cast<int>(type) << " from " << static_cast<int>(rows.view.dtype);
}

void kv_append_places_call(Random& random, const Target& one, const Target& other) {
  const int64_t batch = random.integer(1, 3), heads = random.integer(1, 3), n = random.integer(1, 6),
                half = random.size(1, 20), tokens = random.size(n, 150), dim = 2 * half;
  Array<4> rows(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  rows.fill(random, values(random));
  const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
  const KvStorage want = make_kv(random, random.storage(), form, batch, heads, tokens, dim);
  Guarded copy(want.memory.size(), random.guard());
  std::memcpy(copy.data(), want.memory.data(), copy.size());
  Kv got = want.kv;
  got.data = copy.data();
  Array<2> cosine(random, DType::kF32, {tokens, half}), sine(random, DType::kF32, {tokens, half});
  cosine.fill(random, Values::kOrdinary);
  sine.fill(random, Values::kOrdinary);
  AppendOptions options;
  if (random.coin()) {
    options.rope.cos = cosine.view;
    options.rope.sin = sine.view;
  }
  // 0: start, 1: starts, 2: counts beside them, 3: slots.
  const int64_t way = random.integer(0, want.kv.page_size > 0 ? 3 : 2);
  const bool counted = way >= 2 && random.coin();
  std::vector<int32_t> starts(static_cast<size_t>(batch)), counts(static_cast<size_t>(batch), static_cast<int32_t>(n));
  const int32_t start = static_cast<int32_t>(random.integer(0, tokens - n));
  Array<2> stored(random, DType::kI32, {batch, n}), positions(random, DType::kI32, {batch, n}),
      slots(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n});
  for (int64_t b = 0; b < batch; ++b) {
    const size_t s = static_cast<size_t>(b);
    starts[s] = way == 0 ? start : static_cast<int32_t>(random.integer(0, tokens - n));
    if (way == 2 || counted) counts[s] = static_cast<int32_t>(random.integer(0, n));
    for (int64_t t = 0; t < n; ++t) {
      const int64_t p = starts[s] + t;
      bool skipped = t >= counts[s];
      set_element_bits(positions.view.data, DType::kI32, positions.at({b, t}), static_cast<uint64_t>(p));
      if (want.kv.page_size > 0) {
        const bool no_slot = way == 3 && random.one_in(5);
        const int64_t place = want.page(b, p) * want.kv.page_size + p % want.kv.page_size;
        set_element_bits(slots.view.data, slots.view.dtype, slots.at({b, t}),
                         static_cast<uint64_t>(no_slot ? -1 : place));
        skipped = skipped || no_slot;
      }
      set_element_bits(stored.view.data, DType::kI32, stored.at({b, t}), static_cast<uint64_t>(skipped ? -1 : p));
    }
  }
  Status s = kv_append(rows.view, stored.view, want.kv, options, {.target = &one});
  ASSERT_TRUE(s.ok()) << s.detail;
  if (way == 0) options.start = start;
  if (way == 1 || way == 2) options.starts = starts.data();
  if (way == 2 || counted) options.counts = counts.data();
  if (way == 3) options.slots = slots.view;
  const ConstView<2> absent;
  s = kv_append(rows.view, way == 3 ? ConstView<2>(positions.view) : absent, got, options, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(std::memcmp(want.memory.data(), copy.data(), copy.size()), 0)
      << sizes({batch, heads, n, dim, tokens}) << " form " << static_cast<int>(form) << " way " << way;
}

void narrow_append_call(Random& random, const Target& one, const Target& other) {
  const NarrowCase c(random);
  const int64_t n = random.integer(0, std::min<int64_t>(6, c.exist()));
  Array<4> rows(random, random.storage(), {c.batch, c.heads, n, c.dim}, Strides::kInput);
  rows.fill(random, values(random));
  const RopeCase rope_by(random, c.tokens, c.dim);
  AppendOptions options;
  options.rope = rope_by.rotation;
  options.start = random.integer(0, c.tokens - n);
  if (c.dim % 4 == 0 && random.coin()) options.rope.hadamard_block = 4;
  const Copy copy(random, c.store);
  ASSERT_TRUE(kv_append(rows.view, {}, c.store.kv, options, {.target = &one}).ok());
  const Status s = kv_append(rows.view, {}, copy.kv, options, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_TRUE(copy.same(c.store)) << static_cast<int>(c.store.kv.type) << sizes({c.batch, c.heads, c.tokens, c.dim, n});
}

void kv_read_call(Random& random, const Target& one, const Target& other) {
  const NarrowCase c(random);
  const int64_t n = random.integer(0, c.exist()), first = random.integer(c.tokens - c.exist(), c.tokens - n);
  Array<4> want(random, DType::kF32, {c.batch, c.heads, n, c.dim}, Strides::kOutput), got = sibling(random, want);
  ASSERT_TRUE(kv_read(c.store.kv, first, want.view, {.target = &one}).ok());
  const Status s = kv_read(c.store.kv, first, got.view, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << static_cast<int>(c.store.kv.type)
                                       << sizes({c.batch, c.heads, c.tokens, c.dim, first, n});
}

void kv_shift_call(Random& random, const Target& one, const Target& other) {
  NarrowCase c(random);
  if (random.coin()) {
    Array<4> rows(random, random.storage(), {c.batch, c.heads, c.tokens, c.dim});
    rows.fill(random, values(random));
    c.store = store_kv(random, rows, any_form(random), random.integer(1, 90));
  }
  const int64_t count = random.integer(0, c.exist()), first = random.integer(0, c.tokens - count),
                delta = random.integer(-first, c.tokens - first - count);
  RopeCase rope_by(random, c.tokens + 1, c.dim);
  if (c.dim % 4 == 0 && random.coin()) rope_by.rotation.hadamard_block = 4;
  const Copy copy(random, c.store);
  ASSERT_TRUE(kv_shift(c.store.kv, first, first + count, delta, rope_by.rotation, {.target = &one}).ok());
  const Status s = kv_shift(copy.kv, first, first + count, delta, rope_by.rotation, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_TRUE(copy.same(c.store)) << static_cast<int>(c.store.kv.type)
                                  << sizes({c.batch, c.heads, c.tokens, c.dim, first, count, delta});
}

void rope_call(Random& random, const Target& one, const Target& other) {
  const int64_t half = random.size(1, 70);
  RopeOptions options;
  options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  options.inverse = random.coin();
  options.first_dim = random.coin() ? 0 : random.integer(0, 20);
  const int64_t dim = options.first_dim + 2 * half + (random.coin() ? 0 : random.integer(1, 20));
  const int64_t batch = random.integer(1, 3), heads = random.integer(1, 5), n = random.integer(0, 7),
                n_positions = n + random.integer(1, 9);
  Array<4> x(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  x.fill(random, values(random));
  const bool in_place = random.one_in(3);
  Array<4> want(random, in_place ? x.view.dtype : random.storage(), {batch, heads, n, dim}, Strides::kOutput),
      got = sibling(random, want);
  if (in_place) got.assign(x.bits());
  Array<2> cosine(random, DType::kF32, {n_positions, half}, Strides::kInput),
      sine(random, DType::kF32, {n_positions, half}, Strides::kInput);
  cosine.fill(random, values(random));
  sine.fill(random, values(random));
  Array<2> positions(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kInput);
  for_each_element(positions.view, [&](int64_t at) {
    set_element_bits(positions.view.data, positions.view.dtype, at,
                     static_cast<uint64_t>(random.integer(0, n_positions - 1)));
  });
  Array<1> weight(random, DType::kF32, {dim});
  weight.fill(random, values(random));
  if (random.coin()) {
    options.norm = random.of({RowNorm::kRms, RowNorm::kRmsPlusOne});
    options.norm_epsilon = 1e-6f;
    options.norm_weight = static_cast<const float*>(weight.view.data);
  }
  const ConstView<2> absent;
  const ConstView<2> given = random.coin() ? ConstView<2>(positions.view) : absent;
  ASSERT_TRUE(rope(x.view, cosine.view, sine.view, given, want.view, options, {.target = &one}).ok());
  const Status s = rope(in_place ? ConstView<4>(got.view) : ConstView<4>(x.view), cosine.view, sine.view, given,
                        got.view, options, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, n, dim, half, options.first_dim}) << " in place "
                                       << in_place;
}

void rope_start_call(Random& random, const Target& one, const Target& other) {
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(0, 6),
                half = random.size(1, 30), start = random.integer(0, 50);
  Array<4> x(random, random.storage(), {batch, heads, n, 2 * half}, Strides::kInput);
  x.fill(random, Values::kOrdinary);
  Array<2> cosine(random, DType::kF32, {start + n, half}), sine(random, DType::kF32, {start + n, half}),
      positions(random, DType::kI32, {batch, n});
  cosine.fill(random, Values::kOrdinary);
  sine.fill(random, Values::kOrdinary);
  for (const auto [b, t] : indices(batch, n)) {
    set_element_bits(positions.view.data, DType::kI32, positions.at({b, t}), static_cast<uint64_t>(start + t));
  }
  Array<4> want(random, random.storage(), x.view.shape, Strides::kOutput), got = sibling(random, want);
  ASSERT_TRUE(rope(x.view, cosine.view, sine.view, positions.view, want.view, {}, {.target = &one}).ok());
  const Status s = rope(x.view, cosine.view, sine.view, start, got.view, {}, {.target = &other});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, n, half, start});
}

void rope_direct_call(Random& random, const Target& one, const Target& other) {
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(0, 5),
                pairs = random.one_in(40) ? random.integer(1020, 1030) : random.size(1, 40),
                dim = 2 * pairs + random.integer(0, 5), start = random.integer(0, 1000);
  Array<4> x(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  x.fill(random, values(random));
  RopeTableOptions table;
  table.rope_theta = random.of({10000.0, 500000.0, 1.5});
  table.f32_angles = random.coin();
  if (random.coin()) table.rope_type = RopeType::kLinear, table.factor = random.of({1.0, 2.0, 8.0});
  RopeOptions options;
  options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  options.inverse = random.coin();
  Array<2> cosine(random, DType::kF32, {start + n, pairs}), sine(random, DType::kF32, {start + n, pairs});
  ASSERT_TRUE(rope_table(cosine.view, sine.view, table).ok());
  Array<4> want(random, random.storage(), x.view.shape, Strides::kOutput), got = sibling(random, want);
  const Guarded workspace(rope_direct_workspace(pairs), random.guard());
  ASSERT_TRUE(rope(x.view, cosine.view, sine.view, start, want.view, options, {.target = &one}).ok());
  const Status s = rope_direct(x.view, pairs, table, start, got.view, options,
                               {.target = &other, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, n, dim, pairs, start});
}

}  // namespace simdattn::test
