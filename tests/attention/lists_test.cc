// Attention over listed keys has the bits of attention over a cache that holds these keys in the order of the list:
// here a cache of pages of one token, whose table is the list. Masks, windows, lengths and ALiBi become a mask and a
// bias that were looked up by position.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Lists : public TargetTest {};

/// The tokens of a store as rows in pages of one token; `first` is where the sequence begins.
struct Pages {
  std::vector<unsigned char> bytes;
  std::vector<float> scales;
  ConstKv kv;

  /// `inside`: rows begin so many bytes inside of those of the storage.
  Pages(const ConstKv& from, const KvStorage& storage, int64_t sequence, int64_t first, int64_t inside = 0) {
    kv = from;
    if (from.layout == KvLayout::kRows && from.page_size == 0 && from.ring == 0) {
      kv.data = static_cast<const char*>(from.data) + (from.batch > 1 ? sequence * from.batch_stride : 0) +
                first * from.token_stride;
      if (from.scales != nullptr) {
        kv.scales = static_cast<const char*>(from.scales) + (from.batch > 1 ? sequence * from.scale_batch_stride : 0) +
                    first * from.scale_token_stride;
      }
    } else {
      bytes.resize(static_cast<size_t>(kv_bytes(from.type, KvLayout::kRows, 1, from.heads, from.capacity, from.dim)));
      scales.assign(static_cast<size_t>(from.heads * from.capacity), 1.0f);
      const Kv copy = contiguous_kv(bytes.data(), from.type, KvLayout::kRows, 1, from.heads, from.capacity, from.dim);
      kv = from.scales != nullptr ? contiguous_scales(copy, scales.data()) : copy;
      const int64_t oldest = from.ring > 0 ? std::max<int64_t>(from.keys() - from.ring, 0) : 0;
      for (int64_t h = 0; h < from.heads; ++h) {
        for (int64_t t = oldest; t < from.keys(); ++t) {
          if (from.page_size > 0 &&
              static_cast<uint32_t>(from.block_table[sequence * table_stride(from) + t / from.page_size]) >=
                  static_cast<uint32_t>(from.n_pages)) {
            continue;
          }
          unsigned char* const row = bytes.data() + h * copy.head_stride + t * copy.token_stride;
          if (from.type > KvType::kF16) {
            for (int64_t i = 0; i < copy.token_stride; ++i) row[i] = *storage.byte(sequence, h, t, inside + i);
            if (from.scales != nullptr)
              scales[static_cast<size_t>(h * from.capacity + t)] = *storage.scale(sequence, h, t);
          } else {
            for (int64_t d = 0; d < from.dim; ++d) {
              const int64_t at = storage.at(sequence, h, t, inside / size_of(storage.dtype()) + d);
              set_element_bits(row, storage.dtype(), d, element_bits(storage.kv.data, storage.dtype(), at));
            }
          }
        }
      }
    }
    kv.n_pages = from.capacity - first;
    kv.batch_stride = kv.token_stride;
    kv.scale_batch_stride = kv.scale_token_stride;
    kv.ring = 0;
    kv.page_size = 1;
    kv.batch = 1;
    kv.length = -1;
  }
  static int64_t table_stride(const ConstKv& kv) {
    return kv.block_table_stride >= 0 ? kv.block_table_stride : (kv.capacity + kv.page_size - 1) / kv.page_size;
  }
  ConstKv head(int64_t h, const std::vector<int32_t>& table) const {
    ConstKv one = kv;
    one.data = static_cast<const char*>(kv.data) + (kv.heads > 1 ? h * kv.head_stride : 0);
    if (kv.scales != nullptr)
      one.scales = static_cast<const char*>(kv.scales) + (kv.heads > 1 ? h * kv.scale_head_stride : 0);
    one.heads = 1;
    one.capacity = static_cast<int64_t>(table.size());
    one.block_table = table.data();
    one.block_table_stride = one.capacity;
    return one;
  }
};

template <int kRank>
int64_t element(const ConstView<kRank>& v, std::array<int64_t, kRank> at) {
  int64_t e = 0;
  for (size_t d = 0; d < kRank; ++d) e += v.shape[d] == 1 ? 0 : at[d] * v.stride[d];
  return e;
}

/// By the rules on intervals: docs/semantics.md, "Which keys a row sees".
bool in_interval(const AttentionProblem& a, int64_t s, int64_t length, int64_t n_q, int64_t i, int64_t j) {
  const Scoring& r = a.scoring;
  const int64_t offset = r.offsets != nullptr ? r.offsets[s] : r.offset == kBottomRight ? length - n_q : r.offset;
  const int64_t p = i + offset;
  const auto floor_div = [](int64_t x, int64_t y) { return x >= 0 ? x / y : -((-x + y - 1) / y); };
  if (j >= length || (r.kv_start != nullptr && j < r.kv_start[s])) return false;
  if (r.prefix_end != nullptr ? j > std::max<int64_t>(p, r.prefix_end[s] - 1) : r.causal && j > p) return false;
  if ((r.window_left >= 0 && j < p - r.window_left) || (r.window_right >= 0 && j > p + r.window_right)) return false;
  if (r.chunk > 0 && floor_div(j, r.chunk) != floor_div(p, r.chunk)) return false;
  for (const int64_t ring : {a.k.ring, a.v.ring}) {
    if (ring > 0 && j < length - ring) return false;
  }
  return true;
}

TEST_P(Lists, AreACacheInTheirOrder) {
  Random random(seed() * 9000 + 31);
  for (int64_t c = 0; c < cases(400); ++c) {
    AttentionLimits limits;
    limits.rings = true;
    limits.max_kv = random.one_in(4) ? 400 : 80;
    limits.max_q = random.one_in(6) ? 40 : 5;
    limits.max_group = random.one_in(6) ? 20 : 4;
    limits.values = random.one_in(3) ? Values::kSpecial : Values::kOrdinary;
    AttentionCase t = random_attention(random, limits);
    AttentionProblem& a = t.problem;
    if (a.scoring.bias.data != nullptr) a.scoring.alibi_slopes = nullptr;
    const int64_t batch = a.q.shape[0], heads = a.q.shape[1], rows = a.q.shape[2], group = heads / a.k.heads;
    const int64_t sequences = a.cu_q != nullptr ? a.n_sequences : batch;
    KeyLists& lists = a.lists;
    lists.heads = random.coin() ? 1 : a.k.heads;
    lists.block_size = random.of<int64_t>({1, 1, 4, 7, 32, 64});
    lists.length = random.one_in(5) ? random.integer(250, 1500) / lists.block_size : random.integer(0, 40);
    const bool shared = random.one_in(4);  // all rows have one list
    lists.stride = {lists.heads * rows * lists.length, rows * lists.length, lists.length};
    if (shared) lists.stride[2] = 0;
    std::vector<int32_t> entries(static_cast<size_t>(batch * lists.heads * rows * lists.length) + 1, -1);
    lists.data = entries.data();
    const auto keys_of = [&](int64_t s) { return a.cu_k != nullptr ? int64_t{a.cu_k[s + 1]} - a.cu_k[s] : a.k.keys(); };
    const auto list_at = [&](int64_t s, int64_t h, int64_t i) {
      const int64_t b = a.cu_q != nullptr ? 0 : s, row = a.cu_q != nullptr ? a.cu_q[s] + i : i;
      return entries.data() + b * lists.stride[0] + h * lists.stride[1] + row * lists.stride[2];
    };
    const auto rows_of = [&](int64_t s) { return a.cu_q != nullptr ? int64_t{a.cu_q[s + 1]} - a.cu_q[s] : rows; };
    int64_t fewest = std::numeric_limits<int64_t>::max();
    for (int64_t s = 0; s < sequences; ++s) fewest = std::min(fewest, keys_of(s));
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t blocks =
          ((shared && a.cu_q != nullptr ? fewest : keys_of(s)) + lists.block_size - 1) / lists.block_size;
      for (int64_t h = 0; h < lists.heads; ++h) {
        for (int64_t i = 0; i < rows_of(s); ++i) {
          int32_t* const list = list_at(s, h, i);
          if (i > 0 && random.one_in(3)) {
            std::memmove(list, list_at(s, h, i - 1), static_cast<size_t>(lists.length) * 4);
            continue;
          }
          const bool ascending = random.coin();
          int32_t last = -1;
          for (int64_t e = 0; e < lists.length; ++e) {
            list[e] = -1;
            if (blocks == 0 || random.one_in(9)) continue;
            const int64_t next = ascending ? last + random.integer(1, 2) : random.integer(0, blocks - 1);
            if (next >= blocks || next == last) continue;
            last = list[e] = static_cast<int32_t>(next);
          }
        }
      }
    }
    ASSERT_TRUE(ok(run_attention(a, &target()))) << describe(a);
    const Result whole = written(t);
    t.clear();
    ASSERT_TRUE(ok(run_tasks(a, &target(), random))) << describe(a);
    ASSERT_TRUE(whole == written(t)) << "tasks, case " << c << ": " << describe(a);

    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t b = a.cu_q != nullptr ? 0 : s, first = a.cu_q != nullptr ? a.cu_q[s] : 0, n_q = rows_of(s);
      const int64_t store = a.cu_k != nullptr ? 0 : s, first_key = a.cu_k != nullptr ? a.cu_k[s] : 0;
      const int64_t length = a.scoring.kv_length != nullptr ? a.scoring.kv_length[s] : keys_of(s);
      const int64_t offset = a.scoring.offsets != nullptr       ? a.scoring.offsets[s]
                             : a.scoring.offset == kBottomRight ? length - n_q
                                                                : a.scoring.offset;
      const Pages keys(a.k, t.k, store, first_key), values(a.v, t.v, store, first_key);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < n_q; ++i) {
          const int32_t* const list = list_at(s, lists.heads > 1 ? h / group : 0, i);
          std::vector<int32_t> tokens;
          for (int64_t e = 0; e < lists.length; ++e) {
            for (int64_t j = list[e] * lists.block_size;
                 list[e] >= 0 && j < std::min((list[e] + 1) * lists.block_size, length); ++j)
              tokens.push_back(static_cast<int32_t>(j));
          }
          const int64_t n = static_cast<int64_t>(tokens.size());
          std::vector<uint8_t> keep(tokens.size());
          std::vector<uint32_t> bias(tokens.size());
          const Scoring& r = a.scoring;
          const int64_t mask_batch = a.cu_q != nullptr ? 0 : s, mask_row = first + i;
          std::vector<int32_t> safe = tokens;  // keys that nobody sees may be on no page
          for (size_t x = 0; x < tokens.size(); ++x) {
            const int64_t j = tokens[x];
            bool sees = in_interval(a, s, length, n_q, i, j);
            if (sees && r.mask.data != nullptr)
              sees = static_cast<const uint8_t*>(r.mask.data)[element<4>(r.mask, {mask_batch, h, mask_row, j})] != 0;
            if (const int64_t bit = j - (length - r.packed_mask.columns);
                sees && r.packed_mask.data != nullptr && bit >= 0) {
              const auto& st = r.packed_mask.stride;
              sees = (r.packed_mask.data[mask_batch * st[0] + h * st[1] + mask_row * st[2] + bit / 8] >> (bit % 8) &
                      1) != 0;
            }
            keep[x] = sees;
            if (!sees) safe[x] = 0;
            if (r.bias.data != nullptr && in_interval(a, s, length, n_q, i, j)) {
              bias[x] = static_cast<uint32_t>(
                  element_bits(r.bias.data, r.bias.dtype, element<4>(r.bias, {mask_batch, h, mask_row, j})));
            } else if (r.alibi_slopes != nullptr) {
              const float shift =
                  -(r.alibi_slopes[h] * static_cast<float>(std::abs(static_cast<int32_t>(i + offset - j))));
              std::memcpy(&bias[x], &shift, 4);
            }
          }
          if (n > 0 && values.kv.n_pages == 0) continue;
          std::vector<unsigned char> narrow_bias;
          const DType bias_type = r.bias.data != nullptr ? r.bias.dtype : DType::kF32;
          for (const uint32_t x : bias) {
            const size_t at = narrow_bias.size();
            narrow_bias.resize(at + static_cast<size_t>(dtype_bytes(bias_type)));
            std::memcpy(narrow_bias.data() + at, &x, static_cast<size_t>(dtype_bytes(bias_type)));
          }
          AttentionProblem one;
          one.arithmetic = a.arithmetic;
          one.q = ConstView<4>(
              static_cast<const char*>(a.q.data) + element<4>(a.q, {b, h, first + i, 0}) * dtype_bytes(a.q.dtype),
              a.q.dtype, {1, 1, 1, a.q.shape[3]});
          one.k = keys.head(h / group, safe);
          one.v = values.head(h / group, safe);
          if (n > 0) one.scoring.mask = ConstView<4>(keep.data(), DType::kU8, {1, 1, 1, n});
          if (n > 0 && (r.bias.data != nullptr || r.alibi_slopes != nullptr))
            one.scoring.bias = ConstView<4>(narrow_bias.data(), bias_type, {1, 1, 1, n});
          if (r.bias.data != nullptr && r.bias_scale != nullptr) one.scoring.bias_scale = r.bias_scale + h;
          one.scoring.scale = r.scale;
          one.scoring.softcap = r.softcap;
          if (r.sinks != nullptr) one.scoring.sinks = r.sinks + h;
          Array<4> out(random, a.out.dtype, {1, 1, 1, a.v.dim});
          Array<3> lse(random, DType::kF32, {1, 1, 1});
          one.out = out.view, one.lse = lse.view;
          ASSERT_TRUE(ok(run_attention(one, &target()))) << describe(one);
          for (int64_t d = 0; d < a.v.dim && a.out.data != nullptr; ++d) {
            ASSERT_EQ(element_bits(a.out.data, a.out.dtype, element<4>(a.out, {b, h, first + i, d})),
                      element_bits(out.view.data, a.out.dtype, d))
                << "case " << c << ", sequence " << s << ", head " << h << ", row " << i << ", dimension " << d << ", "
                << n << " keys, entries of " << lists.block_size << ": " << describe(a);
          }
          if (a.lse.data != nullptr) {
            ASSERT_EQ(element_bits(a.lse.data, DType::kF32, element<3>(a.lse, {b, h, first + i})),
                      element_bits(lse.view.data, DType::kF32, 0))
                << "lse, case " << c << ": " << describe(a);
          }
        }
      }
    }
  }
}

/// Values inside of the rows of their keys, as in multi-head latent attention, for few and for many query heads: of
/// every storage type in every arithmetic. Lists of scattered tokens, of neighbours, and of pieces of 64
/// neighbours, which kernels read where they are.
TEST_P(Lists, OfLatentRows) {
  constexpr int64_t kTokens = 1400, kDim = 96;
  Random random(seed() * 9000 + 32);
  for (const KvType type : kStorageTypes) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPagedRows, KvForm::kRingRows}) {
      const bool narrow = type > KvType::kF16;
      const Array<4> rows(random, narrow ? DType::kF32 : element_type(type), {1, 1, kTokens, kDim}, Values::kOrdinary);
      const KvStorage store = narrow ? random_codes(random, type, rows, form, Values::kOrdinary, kTokens)
                                     : store_kv(random, rows, form, kTokens);
      // Integers are multiplied where they are if no scale of a block is negative.
      for (size_t i = 3; i < store.scales.size(); i += sizeof(float)) store.scales.data()[i] &= 0x7F;
      for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8}) {
        for (const int64_t first : {0, 0, 32}) {
          for (int64_t c = 0; c < cases(8); ++c) {
            const int64_t heads = random.of<int64_t>({1, 4, 16, 70}), n = random.of<int64_t>({1, 32, 40, 100, 700}),
                          kind = random.integer(0, 2);
            std::vector<int32_t> list(static_cast<size_t>(n));
            for (int64_t j = 0; j < n; ++j) {
              list[static_cast<size_t>(j)] = static_cast<int32_t>(kind == 0   ? (j * 1151 + 7) % kTokens
                                                                  : kind == 1 ? j + 5
                                                                              : j / 64 * 128 + j % 64);
            }
            AttentionProblem a;
            a.arithmetic = arithmetic;
            a.k = a.v = ConstKv(store.kv);
            a.v.dim = c % 2 == 0 ? kDim - first : 64;
            const int64_t inside = first == 0 ? 0 : row_bytes(type, first);
            a.v.data = static_cast<const char*>(a.k.data) + inside;
            const Array<4> q(random, DType::kF32, {1, heads, 1, kDim}, Values::kOrdinary),
                got(random, DType::kF32, {1, heads, 1, a.v.dim}), want = got.like(random);
            a.q = q.view, a.out = got.view;
            AttentionProblem one = a;
            a.lists = {.data = list.data(), .heads = 1, .length = n, .block_size = 1, .stride = {}};
            ASSERT_TRUE(ok(run_attention(a, &target()))) << describe(a);
            const Pages keys(a.k, store, 0, 0), values(a.v, store, 0, 0, inside);
            one.k = keys.head(0, list), one.v = values.head(0, list);
            one.out = want.view;
            ASSERT_TRUE(ok(run_attention(one, &target()))) << describe(one);
            ASSERT_EQ(difference(want, got), "") << heads << " heads, " << n << " keys, kind " << kind << ", type "
                                                 << static_cast<int>(type) << ", form " << static_cast<int>(form)
                                                 << ", " << arithmetic_name(arithmetic) << ", values from " << first;
          }
        }
      }
    }
  }
}

/// A range reads the lists of its own heads and rows alone, and refuses what is wrong in these.
TEST_P(Lists, RangesReadTheirOwn) {
  Random random(seed() * 9000 + 33);
  constexpr int64_t kHeads = 2, kRows = 300, kKeys = 50, kDim = 8;
  const Array<4> q(random, DType::kF32, {1, kHeads, kRows, kDim}, Values::kOrdinary),
      k(random, DType::kF32, {1, kHeads, kKeys, kDim}, Values::kOrdinary),
      out(random, DType::kF32, {1, kHeads, kRows, kDim});
  for (const int64_t list_heads : {int64_t{1}, kHeads}) {
    std::vector<int32_t> entries(static_cast<size_t>(list_heads * kRows), 7);
    AttentionProblem a;
    a.q = q.view, a.k = k.view, a.v = k.view, a.out = out.view;
    a.lists = {.data = entries.data(), .heads = list_heads, .length = 1, .stride = {0, kRows, 1}};
    Plan plan;
    ASSERT_TRUE(ok(attention_plan(a, &plan, exec())));
    std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
    const Exec e = {.target = GetParam(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    ASSERT_GE(plan.tasks, 2 * kHeads);
    ASSERT_EQ(plan.reduce_tasks, 0);
    const auto range = [&](int64_t first, int64_t last) {
      return attention_range(plan, first, last, partial.data(), partial.size(), e);
    };
    for (const auto& [head, row] : {std::array<int64_t, 2>{0, 0}, {1, 299}, {1, 130}}) {
      std::vector<bool> reads;  // the list of this row, of each task: it writes that row of a head that has the list
      for (int64_t t = 0; t < plan.tasks; ++t) {
        out.fill_bytes(0xFF);
        ASSERT_TRUE(ok(range(t, t + 1)));
        bool writes = false;
        for (int64_t h = 0; h < kHeads; ++h) {
          const float x = out.get_at({0, h, row, 0});
          writes |= x == x && (list_heads == 1 || h == head);
        }
        reads.push_back(writes);
      }
      int32_t& entry = entries[static_cast<size_t>((list_heads == 1 ? 0 : head) * kRows + row)];
      entry = kKeys;
      for (int64_t first = 0; first < plan.tasks; ++first) {
        for (int64_t last = first; last <= plan.tasks; ++last) {
          const bool refused = std::find(reads.begin() + first, reads.begin() + last, true) != reads.begin() + last;
          const Status s = range(first, last);
          ASSERT_EQ(s.ok(), !refused) << first << " " << last << ", head " << head << ": " << s.detail;
        }
      }
      entry = 7;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Lists);

}  // namespace
}  // namespace simdattn::test
