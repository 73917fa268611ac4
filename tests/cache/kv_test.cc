// kv_append() and kv_shift() against a model that knows where an element is and rotates in float64: every type, layout
// and way to name places, with sizes on both sides of what the library cuts at.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class KvStores : public TargetTest {};

constexpr KvForm kForms[] = {KvForm::kRows,        KvForm::kPanels,   KvForm::kPagedRows,
                             KvForm::kPagedPanels, KvForm::kRingRows, KvForm::kRingPanels};

int64_t near(Random& random, std::initializer_list<int64_t> cuts, int64_t low) {
  return std::max(low, random.of(cuts) + random.integer(-1, 1));
}

/// A store, and what its bytes should be: exact ones, or numbers that rounding may leave by a little.
struct Expected {
  const KvStorage& s;
  std::vector<unsigned char> bytes;
  struct Number {
    double value;
    double allowed;
  };
  std::map<int64_t, Number> numbers;  // by element

  explicit Expected(const KvStorage& storage)
      : s(storage), bytes(storage.memory.data(), storage.memory.data() + storage.memory.size()) {}

  void set_bits(int64_t at, uint64_t bits) {
    set_element_bits(bytes.data(), s.dtype(), at, bits);
    numbers.erase(at);
  }
  /// A number of norm `norm` in its pair, rotated in f32 and rounded to the storage type.
  void set_number(int64_t at, double value, double norm) {
    const double u = s.dtype() == DType::kF32 ? 0x1p-24 : s.dtype() == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    // Errors of f16 below its normal numbers are absolute.
    numbers[at] = {value, u * std::fabs(value) + 0x1p-22 * norm + (s.dtype() == DType::kF16 ? 0x1p-24 : 0x1p-140)};
  }
  /// One row, rotated or not; get_bits(d) is its element in the type `from`, get(d) the number.
  template <class GetBits, class Get>
  void set_row(int64_t b, int64_t h, int64_t t, DType from, const KeyRotation& rope, int64_t position, bool inverse,
               const GetBits& get_bits, const Get& get) {
    const int64_t dim = s.kv.dim;
    const RopeOptions& o = rope.options;
    const int64_t half = rope.cos.data != nullptr ? rope.cos.shape[1] : 0;
    const float* cosine = static_cast<const float*>(rope.cos.data);
    const float* sine = static_cast<const float*>(rope.sin.data);
    std::vector<bool> rotated(static_cast<size_t>(dim), false);
    for (int64_t i = 0; i < half; ++i) {
      const bool pairs = o.pairing == RopePairing::kInterleaved;
      const int64_t d0 = o.first_dim + (pairs ? 2 * i : i), d1 = pairs ? d0 + 1 : d0 + half;
      const double c = static_cast<double>(cosine[position * rope.cos.stride[0] + i]);
      const double sn = static_cast<double>(sine[position * rope.sin.stride[0] + i]) * (inverse ? -1 : 1);
      const double x0 = get(d0), x1 = get(d1), norm = std::hypot(x0, x1);
      set_number(s.at(b, h, t, d0), x0 * c - x1 * sn, norm);
      set_number(s.at(b, h, t, d1), x0 * sn + x1 * c, norm);
      rotated[static_cast<size_t>(d0)] = rotated[static_cast<size_t>(d1)] = true;
    }
    for (int64_t d = 0; d < dim; ++d) {
      if (rotated[static_cast<size_t>(d)]) continue;
      uint64_t bits = get_bits(d);
      if (from != s.dtype()) {
        const float x = static_cast<float>(get(d));
        bits = with_storage(s.dtype(), [&](auto v) {
          v = from_f32<decltype(v)>(x);
          return element_bits(&v, s.dtype(), 0);
        });
      }
      set_bits(s.at(b, h, t, d), bits);
    }
    // An odd last dimension of bf16 is paired with zero.
    const bool panels = s.kv.layout == KvLayout::kPanels;
    if (panels && s.dtype() == DType::kBF16 && dim % 2 != 0) set_bits(s.at(b, h, t, dim - 1) + 1, 0);
  }

  std::string difference() const {
    const int64_t size = size_of(s.dtype()), origin = static_cast<unsigned char*>(s.kv.data) - s.memory.data();
    for (int64_t at = 0; at < static_cast<int64_t>(bytes.size() / static_cast<size_t>(size)); ++at) {
      const auto it = numbers.find(at - origin / size);
      if (it == numbers.end()) {
        const uint64_t want = element_bits(bytes.data(), s.dtype(), at);
        const uint64_t got = element_bits(s.memory.data(), s.dtype(), at);
        if (want != got)
          return "element " + std::to_string(at) + ": bits " + std::to_string(got) + ", not " + std::to_string(want);
      } else {
        const double got = static_cast<double>(get(s.memory.data(), s.dtype(), at));
        if (!(std::fabs(got - it->second.value) <= it->second.allowed))
          return "element " + std::to_string(at) + ": " + std::to_string(got) + ", not " +
                 std::to_string(it->second.value);
      }
    }
    return "";
  }
};

struct Table {
  Array<2> cosine, sine;
  KeyRotation rotation;
  /// `usual`: whole vectors of pairs in two halves, forwards, which some targets rotate straight into panels.
  Table(Random& random, int64_t positions, int64_t dim, bool usual = false) {
    const int64_t half = usual           ? random.of<int64_t>({16, 32, dim / 2})
                         : random.coin() ? dim / 2
                                         : random.integer(0, dim / 2);
    cosine = Array<2>(random, DType::kF32, {positions, half}, Strides::kOutput);
    sine = Array<2>(random, DType::kF32, {positions, half}, Strides::kOutput);
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    if (half == 0 || (!usual && random.one_in(3))) return;
    rotation.cos = cosine.view;
    rotation.sin = sine.view;
    rotation.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    rotation.options.inverse = random.coin();
    rotation.options.first_dim = random.integer(0, dim - 2 * half);
    if (!usual) return;
    rotation.options.pairing = RopePairing::kHalfSplit;
    rotation.options.inverse = false;
    rotation.options.first_dim &= ~int64_t{1};
  }
};

/// Dimensions near those where the library begins to take fewer tokens at a time, or a token in pieces.
int64_t some_dim(Random& random, int64_t i) {
  if (i % 20 == 19) return near(random, {2048, 4096, 8192, 8194, 9217}, 1);
  return random.coin() ? random.size(1, 70) : near(random, {64, 128, 256, 512}, 1);
}

/// One way to say where rows go.
enum class Way : uint8_t { kPositions, kStart, kStarts, kSlots };

TEST_P(KvStores, Append) {
  Random random(seed() * 6000 + 1);
  for (int64_t i = 0; i < cases(250); ++i) {
    const bool usual = i % 5 == 4;
    const KvForm form = usual ? random.of({KvForm::kPanels, KvForm::kPagedPanels}) : kForms[i % 6];
    const bool paged = form == KvForm::kPagedRows || form == KvForm::kPagedPanels;
    const Way way = random.of({Way::kPositions, Way::kStart, Way::kStarts, paged ? Way::kSlots : Way::kStart});
    const int64_t dim = usual ? random.of<int64_t>({64, 80, 128, 129}) : some_dim(random, i);
    const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3);
    const int64_t n = dim > 600 ? random.integer(1, 5) : near(random, {1, 4, 8, 32, 40, 64}, usual ? 0 : 1);
    const int64_t tokens = n + random.integer(0, 40);
    const DType from = usual ? DType::kF32 : random.storage(), type = usual ? DType::kBF16 : random.storage();
    Array<4> rows(random, from, {batch, heads, n, dim}, Strides::kInput);
    const Table table(random, tokens, dim, usual);
    rows.fill(random, table.rotation.cos.data != nullptr ? Values::kOrdinary : Values::kSpecial);
    const KvStorage s = make_kv(random, type, form, batch, heads, tokens, dim, 32 * random.integer(1, 3));
    if (paged && way != Way::kSlots && random.one_in(4)) s.table.data()[0] = -1;
    const int64_t places = s.kv.ring > 0 ? std::min(s.kv.ring, tokens) : tokens;

    // No two rows at one place.
    Array<2> positions(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kOutput);
    Array<2> slots(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kOutput);
    std::vector<int32_t> starts(static_cast<size_t>(batch)), counts(static_cast<size_t>(batch));
    const bool counted = random.coin();
    const bool shuffled = (way == Way::kPositions || way == Way::kSlots) && random.coin() && !usual;
    AppendOptions options;
    options.rope = table.rotation;
    options.start = random.integer(0, tokens - n);
    Expected want(s);
    for (int64_t b = 0; b < batch; ++b) {
      int32_t& start = starts[static_cast<size_t>(b)];
      int32_t& count = counts[static_cast<size_t>(b)];
      start = static_cast<int32_t>(way == Way::kStart ? options.start : random.integer(0, tokens - n));
      count = static_cast<int32_t>(std::min(places, counted ? random.integer(0, n) : n));
      std::vector<int64_t> list;
      for (int64_t r = 0; r < n; ++r) list.push_back(start + r);
      for (int64_t r = count; shuffled && r > 1; --r)
        std::swap(list[static_cast<size_t>(r - 1)], list[static_cast<size_t>(random.integer(0, r - 1))]);
      for (int64_t r = 0; r < n; ++r) {
        int64_t p = list[static_cast<size_t>(r)];
        const bool skipped = (way == Way::kPositions || way == Way::kSlots) && random.one_in(9);
        const bool padding = r >= count;
        int64_t slot = 0;
        if (way == Way::kSlots) slot = s.page(b, p) * s.kv.page_size + p % s.kv.page_size;
        // Padding may hold anything.
        if (padding) slot = int64_t{1} << 30, p = int64_t{1} << 29;
        set_element_bits(slots.view.data, slots.view.dtype, slots.at({b, r}),
                         static_cast<uint64_t>(skipped ? -random.integer(1, 9) : slot));
        set_element_bits(positions.view.data, positions.view.dtype, positions.at({b, r}),
                         static_cast<uint64_t>(skipped && way == Way::kPositions ? -random.integer(1, 99) : p));
        if (skipped || padding || (paged && way != Way::kSlots && s.page(b, p) < 0)) continue;
        for (int64_t h = 0; h < heads; ++h) {
          const auto at = [&](int64_t d) { return rows.at({b, h, r, d}); };
          want.set_row(
              b, h, p, from, table.rotation, p, table.rotation.options.inverse,
              [&](int64_t d) { return element_bits(rows.view.data, from, at(d)); },
              [&](int64_t d) { return static_cast<double>(get(rows.view.data, from, at(d))); });
        }
      }
    }
    if (way == Way::kStarts) options.starts = starts.data(), options.start = -7;
    options.counts = counts.data();
    Kv kv = s.kv;
    ConstView<2> given = positions.view;
    if (way == Way::kStart || way == Way::kStarts) given = {};
    if (way == Way::kSlots) {
      options.slots = slots.view;
      if (random.coin()) kv.block_table = nullptr;
      if (table.rotation.cos.data == nullptr && random.coin()) given = {};
    }
    ASSERT_TRUE(ok(kv_append(rows.view, given, kv, options, exec())));
    ASSERT_EQ(want.difference(), "") << "case " << i << ", form " << static_cast<int>(form) << ", way "
                                     << static_cast<int>(way) << ", from " << static_cast<int>(from) << " to "
                                     << static_cast<int>(type) << ", dim " << dim << ", rows " << n << ", tokens "
                                     << tokens << ", ring " << s.kv.ring << ", page " << s.kv.page_size;
  }
}

TEST_P(KvStores, Shift) {
  Random random(seed() * 6000 + 2);
  for (int64_t i = 0; i < cases(250); ++i) {
    const KvForm form = kForms[i % 6];
    const DType type = random.storage();
    const int64_t dim = some_dim(random, i), batch = random.integer(1, 2), heads = random.integer(1, 2);
    const int64_t tokens = dim > 600 ? random.integer(2, 9) : near(random, {32, 64, 100, 160}, 2);
    Array<4> rows(random, type, {batch, heads, tokens, dim});
    const Table table(random, tokens + 1, dim);
    const KeyRotation& rope = table.rotation;
    rows.fill(random, rope.cos.data != nullptr ? Values::kOrdinary : Values::kSpecial);
    const KvStorage s = store_kv(random, rows, form, random.integer(1, 100));
    if (s.kv.page_size > 0 && random.one_in(4)) s.table.data()[0] = -1;
    const int64_t exist = s.kv.ring > 0 ? std::min(s.kv.ring, tokens) : tokens;
    const int64_t count = random.one_in(4) ? exist : random.integer(0, exist);
    const int64_t first = random.integer(0, tokens - count), last = first + count;
    const int64_t delta = random.integer(-first, tokens - last);
    Expected want(s);
    const std::vector<unsigned char> before = want.bytes;
    const int64_t origin = (static_cast<unsigned char*>(s.kv.data) - s.memory.data()) / size_of(type);
    for (int64_t b = 0; b < batch && delta != 0; ++b) {
      for (int64_t t = first; t < last; ++t) {
        if (s.kv.page_size > 0 && (s.page(b, t) < 0 || s.page(b, t + delta) < 0)) continue;
        for (int64_t h = 0; h < heads; ++h) {
          const auto at = [&](int64_t d) { return origin + s.at(b, h, t, d); };
          want.set_row(
              b, h, t + delta, type, rope, std::abs(delta), rope.options.inverse != (delta < 0),
              [&](int64_t d) { return element_bits(before.data(), type, at(d)); },
              [&](int64_t d) { return static_cast<double>(get(before.data(), type, at(d))); });
        }
      }
    }
    ASSERT_TRUE(ok(kv_shift(s.kv, first, last, delta, rope, exec())));
    ASSERT_EQ(want.difference(), "") << "case " << i << ", form " << static_cast<int>(form) << ", type "
                                     << static_cast<int>(type) << ", dim " << dim << ", tokens " << tokens << " ["
                                     << first << ", " << last << ") by " << delta << ", ring " << s.kv.ring << ", page "
                                     << s.kv.page_size;
  }
}

// Rows longer than the buffer of a move, which go in pieces.
TEST_P(KvStores, ShiftOfLongRows) {
  Random random(seed() * 6000 + 3);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t delta : {-1, 1}) {
      const int64_t dim = 8192 + random.integer(1, 70), tokens = 3;
      Array<4> rows(random, type, {1, 1, tokens, dim}, Values::kOrdinary);
      const Table table(random, tokens, dim);
      const KvStorage s = store_kv(random, rows, KvForm::kRows);
      // The same by rope(), from a table whose row 1 is the one that moves by one place.
      Array<4> want(random, type, {1, 1, tokens - 1, dim});
      const int64_t first = delta > 0 ? 0 : 1;
      ConstView<4> moved = rows.view;
      moved.shape[2] = tokens - 1;
      moved.data = static_cast<const char*>(rows.view.data) + first * dim * size_of(type);
      RopeOptions options = table.rotation.options;
      options.inverse = options.inverse != (delta < 0);
      const std::vector<int64_t> ones(static_cast<size_t>(tokens), 1);
      const bool rotates = table.rotation.cos.data != nullptr;
      if (rotates) {
        const ConstView<2> positions = view(ones.data(), {1, tokens - 1});
        ASSERT_TRUE(rope(moved, table.rotation.cos, table.rotation.sin, positions, want.view, options, exec()).ok());
      }
      ASSERT_TRUE(kv_shift(s.kv, first, first + tokens - 1, delta, table.rotation, exec()).ok());
      for (const auto [t, d] : indices(tokens - 1, dim)) {
        const uint64_t bits = rotates ? element_bits(want.view.data, type, want.at({0, 0, t, d}))
                                      : element_bits(moved.data, type, t * dim + d);
        ASSERT_EQ(element_bits(s.kv.data, type, s.at(0, 0, t + first + delta, d)), bits) << t << ", " << d;
      }
    }
  }
}

// A full ring that turns by a part of itself is moved in closed cycles, codes with their scales.
TEST_P(KvStores, FullRingsOfNarrowTypesTurn) {
  Random random(seed() * 6000 + 4);
  for (const KvType type : kNarrowTypes) {
    for (const KvForm form : {KvForm::kRingRows, KvForm::kRingPanels}) {
      // The longest rows now and then: they fill the buffers.
      const int64_t tokens = 200, dim = form == KvForm::kRingRows && random.coin() ? 8192 : 64, heads = 2;
      const KvStorage s = make_kv(random, type, form, 2, heads, tokens, dim, 60);
      for (size_t i = 0; i < s.memory.size(); ++i) s.memory.data()[i] = static_cast<unsigned char>(random.bits());
      for (size_t i = 0; i + 4 <= s.scales.size(); i += 4)
        put(s.scales.data(), DType::kF32, static_cast<int64_t>(i / 4), random.uniform());
      const int64_t ring = s.kv.ring, first = random.integer(40, 60),
                    delta = random.of<int64_t>({-24, -15, 12, 20, 31});
      std::vector<unsigned char> codes;
      std::vector<float> scales;
      const auto each = [&](int64_t by, const auto& f) {
        for (const auto [b, h] : indices(2, heads)) {
          for (int64_t t = first; t < first + ring; ++t) f(b, h, t + by);
        }
      };
      each(0, [&](int64_t b, int64_t h, int64_t t) {
        for (int64_t i = 0; i < row_bytes(type, dim); ++i) codes.push_back(*s.byte(b, h, t, i));
        if (s.scale(b, h, t) != nullptr) scales.push_back(*s.scale(b, h, t));
      });
      ASSERT_TRUE(ok(kv_shift(s.kv, first, first + ring, delta, {}, exec())));
      size_t code = 0, scale = 0;
      each(delta, [&](int64_t b, int64_t h, int64_t t) {
        for (int64_t i = 0; i < row_bytes(type, dim); ++i)
          ASSERT_EQ(*s.byte(b, h, t, i), codes[code++]) << t << " by " << delta;
        if (s.scale(b, h, t) != nullptr) {
          ASSERT_EQ(*s.scale(b, h, t), scales[scale++]);
        }
      });
    }
  }
}

TEST(KvStoreRules, SizesBeyondAllLimits) {
  std::vector<float> memory(4096, 7.0f);
  const Kv store = view(memory.data(), {2, 2, 10, 8});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto expect = [&](Code code, const std::string& argument, const Kv& kv) {
    const Status s = kv_shift(kv, 2, 4, 1);
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(argument, 0), 0u) << s.detail;
  };
  for (const int64_t size : {int64_t{1} << 30, int64_t{1} << 40, kMost}) {
    Kv kv = store;
    kv.ring = size;
    expect(Code::kRange, "kv.ring", kv);
    kv = store;
    kv.batch = size;
    expect(Code::kShape, "kv.batch", kv);
    kv = store;
    kv.heads = size;
    expect(Code::kShape, "kv.heads", kv);
    kv = store;
    kv.capacity = size;
    expect(Code::kShape, "kv.capacity", kv);
    const int32_t table[20] = {};
    kv = store;
    kv.block_table = table;
    kv.page_size = size;
    kv.n_pages = 1;
    expect(Code::kShape, "kv.page_size", kv);
    kv.page_size = 2;
    kv.block_table_stride = size;
    expect(Code::kShape, "kv.block_table_stride", kv);
  }
  for (const float m : memory) ASSERT_EQ(m, 7.0f);
}

/// A store whose table lies in its own pages.
TEST(KvStoreRules, ShiftOverItsOwnTable) {
  std::vector<int32_t> memory(4096, 0);
  Kv kv = contiguous_kv(reinterpret_cast<char*>(memory.data()), KvType::kF32, KvLayout::kRows, 1, 2, 4, 8);
  kv.capacity = 8;
  kv.page_size = 4;
  kv.n_pages = 1;
  kv.block_table = memory.data() + 5;
  const Status s = kv_shift(kv, 2, 4, -1);
  EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(Code::kOverlap)) << s.detail;
}

SIMDATTN_FOR_EACH_TARGET(KvStores);

/// A store to which something is assigned is one that is made of it, whatever it was before: no member is forgotten.
TEST(KvAssignment, LeavesNothingOfBefore) {
  static_assert(std::is_trivially_copyable_v<Kv> && std::is_trivially_copyable_v<ConstKv> &&
                std::is_standard_layout_v<Kv>);
  static_assert(!std::is_assignable_v<Kv&, ConstKv> && !std::is_assignable_v<Kv&, ConstView<4>>);
  const auto filled = [](auto store) {
    std::memset(static_cast<void*>(&store), 0x5A, sizeof store);
    return store;
  };
  const auto same = [](const auto& x, const auto& y) { return std::memcmp(&x, &y, sizeof x) == 0; };
  float number = 0;
  for (const int64_t last : {1, 2}) {
    const View<4> view(&number, DType::kF32, {2, 3, 4, 5}, {70, 20, 6, last});
    EXPECT_TRUE(same(filled(Kv()) = view, Kv(view)));
    EXPECT_TRUE(same(filled(ConstKv()) = view, ConstKv(view)));
    EXPECT_TRUE(same(filled(ConstKv()) = ConstView<4>(view), ConstKv(view)));
    EXPECT_EQ(Kv(view).dim, last == 1 ? 5 : -1);
    EXPECT_EQ(Kv(view).length, -1);
    EXPECT_EQ(Kv(view).block_table_stride, -1);
    EXPECT_EQ(Kv(view).token_stride, 24);
  }
  Kv kv = filled(Kv());
  kv.struct_size = sizeof(Kv);
  EXPECT_TRUE(same(filled(ConstKv()) = kv, ConstKv(kv)));
  const ConstKv copy = kv;
  EXPECT_EQ(std::memcmp(&kv, &copy, sizeof kv), 0);
}

}  // namespace
}  // namespace simdattn::test
