// What selects keys: top_k() against a sort of everything, index_scores() against scores of attention that the
// definition joins.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class Selection : public TargetTest {
 protected:
  /// With a workspace between guards.
  Status select(const ConstView<4>& scores, int64_t k, const View<4>& lists, const TopKOptions& options) {
    const Guarded memory(top_k_workspace(k), Guard::kAfter);
    return top_k(scores, k, lists, options,
                 {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()});
  }
};

/// What top_k() has to give for a row at `position`.
std::vector<int32_t> sorted_list(const float* row, int64_t n, int64_t k, int64_t size, const TopKOptions& o,
                                 int64_t position) {
  std::vector<bool> taken(static_cast<size_t>(std::max(n, position / o.block_size + 1)));
  int64_t left = k;
  const int64_t own = position < 0 ? -1 : position / o.block_size;
  std::vector<int32_t> list;
  const auto take = [&](int64_t c) {
    if (taken[static_cast<size_t>(c)]) return;
    taken[static_cast<size_t>(c)] = true;
    list.push_back(static_cast<int32_t>(c));
  };
  const bool besides = o.tail && own >= 0 && (position + 1) % o.block_size != 0;
  if (besides) take(own);
  for (int64_t c = std::min(besides ? own - 1 : own, n - 1); c >= 0 && c > own - o.local_blocks && left > 0;
       --c, --left)
    take(c);
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto rank = [&](int32_t c) { return std::isnan(row[c]) ? -kInf : row[c]; };
    return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
  });
  for (const int32_t c : order) {
    if (left == 0 || std::isnan(row[c]) || row[c] == -kInf) break;
    if (taken[static_cast<size_t>(c)]) continue;
    take(c);
    --left;
  }
  std::sort(list.begin(), list.end());
  list.resize(static_cast<size_t>(size), -1);
  return list;
}

TEST_P(Selection, IsTheSort) {
  Random random(seed() * 9000 + 21);
  for (int64_t c = 0; c < cases(400); ++c) {
    const bool is_long = c % 5 == 0;
    const int64_t n = is_long ? random.integer(5000, 20000) : random.size(1, 400),
                  k = random.integer(0, random.coin() ? n + 3 : 1 + n / 8), batch = random.integer(1, 2),
                  rows = random.integer(1, 3);
    TopKOptions o;
    o.block_size = random.coin() ? 1 : random.integer(2, 9);
    o.local_blocks = random.coin() ? 0 : random.integer(0, 3);
    o.tail = random.coin();
    std::vector<int32_t> offsets, lengths;
    for (int64_t b = 0; b < batch; ++b) {
      offsets.push_back(static_cast<int32_t>(random.integer(-2, n * o.block_size + 5)));
      lengths.push_back(static_cast<int32_t>(random.integer(0, n * o.block_size)));
    }
    if (random.coin()) o.keys = random.integer(0, n * o.block_size);
    if (random.coin()) o.offset = random.integer(-3, n * o.block_size);
    if (random.coin()) o.offsets = offsets.data();
    if (random.coin()) o.kv_length = lengths.data();
    Array<4> scores(random, DType::kF32, {batch, 2, rows, n}, Strides::kInput);
    // Kind 5: the k-th score so far has equals, and a few larger ones come.
    const int kind = c % 10 == 5 ? 5 : static_cast<int>(random.integer(0, 4));
    int64_t at = 0;
    for_each_element(scores.view, [&](int64_t e) {
      const float x = kind == 0   ? static_cast<float>(random.uniform() * 4 - 2)
                      : kind == 1 ? static_cast<float>(random.integer(-3, 3)) * (random.coin() ? 1.0f : 0.0f)
                      : kind == 2 ? static_cast<float>(at)
                      : kind == 3 ? random.of({kInf, -kInf, 0.0f, -0.0f, std::nanf(""), 0x1p-149f, -1.0f, 3e38f})
                      : kind == 4 ? (at % n < n - 700 ? -1.0f : static_cast<float>(random.uniform()))
                                  : static_cast<float>(1 + random.integer(0, 200) / 200);
      set_element_bits(scores.view.data, DType::kF32, e, std::bit_cast<uint32_t>(x));
      ++at;
    });
    const int64_t size = k + o.tail + random.integer(0, 3);
    Array<4> lists(random, DType::kI32, {batch, 2, rows, size}, Strides::kOutput);
    const Status s = select(scores.view, k, lists.view, o);
    ASSERT_TRUE(s.ok()) << s.detail;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = o.kv_length != nullptr ? lengths[static_cast<size_t>(b)]
                             : o.keys >= 0          ? o.keys
                                                    : n * o.block_size;
      const int64_t offset = o.offsets != nullptr       ? offsets[static_cast<size_t>(b)]
                             : o.offset == kBottomRight ? length - rows
                                                        : o.offset;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < rows; ++i) {
          const auto& st = scores.view.stride;
          const auto& lt = lists.view.stride;
          const float* row = static_cast<const float*>(scores.view.data) + b * st[0] + h * st[1] + i * st[2];
          const int32_t* list = static_cast<const int32_t*>(lists.view.data) + b * lt[0] + h * lt[1] + i * lt[2];
          ASSERT_EQ(std::vector<int32_t>(list, list + size), sorted_list(row, n, k, size, o, offset + i))
              << "case " << c << ", kind " << kind << ", n " << n << ", k " << k << ", blocks of " << o.block_size
              << ", local " << o.local_blocks << ", tail " << o.tail << ", position " << offset + i;
        }
      }
    }
    ASSERT_TRUE(lists.gaps_intact());
  }
}

/// Position 5 in blocks of 4: the own block, 1, is not complete. It is taken besides, whatever else names it.
TEST_P(Selection, TailDoesNotCount) {
  const float row[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  struct {
    int64_t local_blocks;
    int64_t scores;
    std::vector<int32_t> list;
  } const rows[] = {{0, 8, {1, 6, 7}}, {1, 8, {1, 6, 7}}, {2, 8, {0, 1, 7}}, {1, 1, {0, 1, -1}}, {0, 0, {1, -1, -1}}};
  for (const auto& expected : rows) {
    std::vector<int32_t> list(3, 77);
    const Status s = select(ConstView<4>(row, DType::kF32, {1, 1, 1, expected.scores}), 2,
                            View<4>(list.data(), DType::kI32, {1, 1, 1, 3}),
                            {.block_size = 4, .local_blocks = expected.local_blocks, .tail = true, .offset = 5});
    ASSERT_TRUE(s.ok()) << s.detail;
    EXPECT_EQ(list, expected.list) << expected.local_blocks << " local blocks of " << expected.scores << " scores";
  }
}

TEST_P(Selection, Int8HasALimit) {
  constexpr int64_t kDim = 131072;
  const std::vector<float> x(kDim + 1, -1.0f);
  float score = 5;
  const IndexOptions options = {.scale = 1.0f, .arithmetic = Arithmetic::kInt8};
  std::vector<char> memory(index_scores_workspace(options.arithmetic, 1, kDim + 1));
  for (const int64_t dim : {kDim + 1, kDim}) {
    const ConstView<4> row = view(x.data(), {1, 1, 1, dim});
    const Status s = index_scores(row, row, {}, view(&score, {1, 1, 1, 1}), options,
                                  {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()});
    EXPECT_EQ(s.ok(), dim == kDim) << s.detail;
    if (!s.ok()) {
      EXPECT_EQ(std::string(s.detail).rfind("q.shape[3]", 0), 0u) << s.detail;
    }
    EXPECT_FLOAT_EQ(score, s.ok() ? kDim : 5);
  }
}

TEST_P(Selection, BadCalls) {
  std::vector<float> x(24, 1.0f);
  std::vector<int32_t> list(24, 5);
  std::vector<char> memory(top_k_workspace(3));
  const ConstView<4> scores = view(x.data(), {1, 2, 3, 4});
  const View<4> lists(list.data(), DType::kI32, {1, 2, 3, 4});
  const Exec good = {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()};
  ASSERT_TRUE(top_k(scores, 3, lists, {}, good).ok());
  const auto before = list;
  const auto refused = [&](const Status& s, Code code, const std::string& begins) {
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(begins, 0), 0u) << s.detail;
    EXPECT_EQ(list, before);
  };
  refused(top_k(scores, -1, lists, {}, good), Code::kRange, "k:");
  refused(top_k(scores, 5, lists, {}, good), Code::kShape, "k: more than");
  refused(top_k(scores, 4, lists, {.tail = true}, good), Code::kShape, "k: more than");
  refused(top_k(scores, 3, View<4>(list.data(), DType::kI64, {1, 2, 1, 4}), {}, good), Code::kDType, "lists.dtype");
  refused(top_k(scores, 3, View<4>(list.data(), DType::kI32, {1, 2, 1, 4}), {}, good), Code::kShape, "lists.shape");
  refused(top_k(ConstView<4>(x.data(), DType::kF16, {1, 2, 3, 4}), 3, lists, {}, good), Code::kDType, "scores.dtype");
  refused(top_k(scores, 3, View<4>(x.data(), DType::kI32, {1, 2, 3, 4}), {}, good), Code::kOverlap, "lists");
  refused(top_k(scores, 3, lists, {.block_size = 0}, good), Code::kRange, "options.block_size");
  refused(top_k(scores, 3, lists, {.local_blocks = -1}, good), Code::kRange, "options.local_blocks");
  refused(top_k(scores, 3, lists, {.keys = -2}, good), Code::kRange, "options.keys");
  const int32_t low[] = {-1}, far[] = {(1 << 30) + 1};
  refused(top_k(scores, 3, lists, {.kv_length = low}, good), Code::kRange, "options.kv_length");
  refused(top_k(scores, 3, lists, {.offset = int64_t{1} << 31}, good), Code::kRange, "options.offset");
  refused(top_k(scores, 3, lists, {.offsets = far}, good), Code::kRange, "options.offsets");
  TopKOptions reserved;
  reserved.reserved[2] = 1;
  refused(top_k(scores, 3, lists, reserved, good), Code::kStructSize, "options.reserved");
  Exec none = good;
  none.workspace = nullptr;
  refused(top_k(scores, 3, lists, {}, none), Code::kWorkspace, "exec.workspace");
  none = good;
  none.workspace_bytes -= 1;
  refused(top_k(scores, 3, lists, {}, none), Code::kWorkspace, "exec.workspace_bytes");
  none = good;
  none.workspace = x.data();
  refused(top_k(scores, 3, lists, {}, none), Code::kOverlap, "exec.workspace");
}

/// index_scores() is scores() of attention's order, joined by the definition: one head at a time has the same bits as
/// all of them.
class Indexers : public Selection {
 protected:
  std::vector<uint64_t> scores(Random& random, const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights,
                               const std::array<int64_t, 4>& shape, const IndexOptions& o, const Target& t) {
    const Array<4> out(random, DType::kF32, shape, Strides::kOutput);
    const Guarded memory(index_scores_workspace(o.arithmetic, q.shape[1], q.shape[3]), random.guard());
    std::memset(memory.data(), 0xFF, memory.size());
    const Status s = index_scores(q, k, weights, out.view, o,
                                  {.target = &t, .workspace = memory.data(), .workspace_bytes = memory.size()});
    EXPECT_TRUE(s.ok()) << s.detail;
    EXPECT_TRUE(out.gaps_intact());
    return out.bits();
  }
};

TEST_P(Indexers, HeadsAreJoinedInTheirOrder) {
  if (!is_exact()) return;
  Random random(seed() * 9000 + 41);
  for (int64_t c = 0; c < cases(150); ++c) {
    const int64_t batch = random.integer(1, 2),
                  heads = random.one_in(6) ? random.integer(60, 300) : random.integer(1, 9), n = random.integer(1, 4),
                  rows = random.one_in(8) ? random.integer(250, 600) : random.integer(1, 90),
                  dim = random.integer(1, 40);
    const Array<4> q(random, random.storage(), {batch, heads, n, dim},
                     random.one_in(3) ? Values::kSpecial : Values::kOrdinary, Strides::kInput);
    IndexOptions o;
    o.arithmetic = random_arithmetic(random);
    o.combine = random.of({IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach});
    o.relu = random.coin();
    o.causal = random.coin();
    o.keys_per_row = random.of<int64_t>({1, 1, 4});
    o.block_size = o.keys_per_row * random.of<int64_t>({1, 1, 3, 128});
    if (random.coin()) o.keys = random.integer(0, rows * o.keys_per_row + 3);
    if (random.coin()) o.offset = random.integer(-3, rows * o.keys_per_row);
    const bool narrow = random.coin() && dim % 32 == 0;
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    const Array<4> k_rows(random, narrow ? DType::kF32 : random.storage(), {batch, 1, rows, dim}, Values::kOrdinary);
    const KvStorage store =
        narrow ? random_codes(random, random_narrow_type(random, in_rows(form)), k_rows, form, Values::kOrdinary)
               : store_kv(random, k_rows, form);
    const Array<3> weights(random, DType::kF32, {batch, n, heads}, Values::kOrdinary, Strides::kInput);
    const bool weighted = o.combine == IndexCombine::kSum && random.coin();
    const int64_t per = o.block_size / o.keys_per_row, candidates = (rows + per - 1) / per;
    const bool each = o.combine == IndexCombine::kEach;
    const std::array<int64_t, 4> shape = {batch, each ? heads : 1, n, candidates};
    const auto got =
        scores(random, q.view, store.kv, weighted ? ConstView<3>(weights.view) : ConstView<3>(), shape, o, target());
    ASSERT_EQ(got, scores(random, q.view, store.kv, weighted ? ConstView<3>(weights.view) : ConstView<3>(), shape, o,
                          counterpart(target())))
        << "case " << c;

    // Every key of every head by itself, then joined here.
    IndexOptions one = o;
    one.combine = IndexCombine::kSum;
    one.relu = false;
    one.causal = false;
    one.keys = -1;
    one.block_size = one.keys_per_row;
    IndexOptions negated = one;
    negated.scale = -1.0f / std::sqrt(static_cast<float>(dim));
    std::vector<std::vector<float>> of_head;
    for (int64_t h = 0; h < heads; ++h) {
      ConstView<4> head = q.view;
      head.data =
          static_cast<const char*>(q.view.data) + (heads == 1 ? 0 : h * q.view.stride[1]) * dtype_bytes(q.view.dtype);
      head.shape[1] = 1;
      const auto plus = scores(random, head, store.kv, {}, {batch, 1, n, rows}, one, target());
      const auto minus = scores(random, head, store.kv, {}, {batch, 1, n, rows}, negated, target());
      std::vector<float>& all = of_head.emplace_back();
      for (size_t i = 0; i < plus.size(); ++i) {
        const float x = std::bit_cast<float>(static_cast<uint32_t>(plus[i]));
        // NaN is -inf with either sign of the scale.
        all.push_back(x == -kInf && plus[i] == minus[i] ? std::nanf("") : x);
      }
    }
    const int64_t keys = o.keys >= 0 ? o.keys : rows * o.keys_per_row;
    size_t at = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t p = i + (o.offset == kBottomRight ? keys - n : o.offset);
          for (int64_t x = 0; x < candidates; ++x, ++at) {
            float best = -kInf;
            for (int64_t r = x * per; r < std::min((x + 1) * per, rows); ++r) {
              const int64_t last = (r + 1) * o.keys_per_row - 1;
              if (last >= keys || (o.causal && last > p)) continue;
              float y = o.combine == IndexCombine::kSum ? 0.0f : -kInf;
              for (int64_t g = each ? h : 0; g < (each ? h + 1 : heads); ++g) {
                float t = of_head[static_cast<size_t>(g)][static_cast<size_t>((b * n + i) * rows + r)];
                if (o.relu) t = t > 0 ? t : 0.0f;
                const float w = weighted ? weights.get_at({b, i, g}) : 1.0f;
                y = o.combine == IndexCombine::kSum ? std::fma(w, t, y) : t > y ? t : y;
              }
              best = y > best ? y : best;
            }
            const float g = std::bit_cast<float>(static_cast<uint32_t>(got[at]));
            ASSERT_EQ(std::bit_cast<uint32_t>(best), std::bit_cast<uint32_t>(g))
                << "case " << c << ": " << g << ", expected " << best << ", candidate " << x << " of " << candidates
                << ", heads " << heads;
          }
        }
      }
    }
  }
}

/// A NaN is no candidate's score, whatever makes it and however many keys a candidate has.
TEST_P(Indexers, NaNIsNoScore) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Random random(seed() * 9000 + 42);
  const std::vector<float> q(2 * 4, 1.0f);
  for (const IndexCombine combine : {IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach}) {
    for (const int64_t block : {1, 2, 3}) {
      for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8}) {
        std::vector<float> k(6 * 4, 1.0f);
        for (int64_t j = 0; j < 3; ++j) k[static_cast<size_t>(j * 4 + j)] = kNaN;
        IndexOptions o;
        o.combine = combine, o.block_size = block, o.arithmetic = arithmetic, o.scale = 0.25f;
        const int64_t heads = combine == IndexCombine::kEach ? 2 : 1, columns = 6 / block;
        const auto bits =
            scores(random, view(q.data(), {1, 2, 1, 4}), ConstView<4>(k.data(), DType::kF32, {1, 1, 6, 4}), {},
                   {1, heads, 1, columns}, o, target());
        for (size_t i = 0; i < bits.size(); ++i) {
          const bool nan = static_cast<int64_t>(i) % columns < 3 / block;  // all keys of the candidate
          const float x = std::bit_cast<float>(static_cast<uint32_t>(bits[i]));
          EXPECT_FLOAT_EQ(x, nan                             ? -kInf
                             : combine == IndexCombine::kSum ? 2.0f
                                                             : 1.0f)
              << "column " << i << ", candidates of " << block << ", combine " << static_cast<int>(combine);
        }
      }
    }
  }
}

TEST_P(Indexers, BadCalls) {
  std::vector<float> q(2 * 4 * 3 * 8, 1.0f), k(2 * 10 * 8, 1.0f), out(2 * 3 * 10, 7.0f), w(24, 1.0f);
  std::vector<char> memory(index_scores_workspace(Arithmetic::kF32, 4, 8));
  const ConstView<4> queries = view(q.data(), {2, 4, 3, 8});
  const ConstKv keys = ConstView<4>(k.data(), DType::kF32, {2, 1, 10, 8});
  const View<4> scores = view(out.data(), {2, 1, 3, 10});
  const ConstView<3> weights(w.data(), DType::kF32, {2, 3, 4});
  const Exec good = {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()};
  ASSERT_TRUE(index_scores(queries, keys, weights, scores, {}, good).ok());
  const auto before = out;
  const auto refused = [&](const Status& s, Code code, const std::string& begins) {
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(begins, 0), 0u) << s.detail;
    EXPECT_EQ(out, before);
  };
  ConstKv bad = keys;
  bad.heads = 2;
  bad.capacity = 5;
  refused(index_scores(queries, bad, weights, scores, {}, good), Code::kShape, "k.heads");
  bad = keys;
  bad.dim = 7;
  refused(index_scores(queries, bad, weights, scores, {}, good), Code::kShape, "k.dim");
  bad = keys;
  bad.batch = 1;
  refused(index_scores(queries, bad, weights, scores, {}, good), Code::kShape, "k.batch");
  bad = keys;
  bad.ring = 10;
  refused(index_scores(queries, bad, weights, scores, {}, good), Code::kRange, "k.ring");
  const int32_t missing[] = {0, -1};
  bad = keys;
  bad.page_size = 10, bad.n_pages = 2, bad.block_table = missing;
  refused(index_scores(queries, bad, weights, scores, {}, good), Code::kRange, "k.block_table");
  refused(index_scores(queries, keys, ConstView<3>(w.data(), DType::kF32, {2, 4, 3}), scores, {}, good), Code::kShape,
          "weights.shape");
  refused(index_scores(queries, keys, weights, scores, {.combine = IndexCombine::kMax}, good), Code::kRange, "weights");
  refused(index_scores(queries, keys, {}, scores, {.combine = IndexCombine::kEach}, good), Code::kShape,
          "scores.shape");
  refused(index_scores(queries, keys, weights, scores, {.combine = static_cast<IndexCombine>(3)}, good), Code::kRange,
          "options.combine");
  refused(index_scores(queries, keys, weights, scores, {.arithmetic = static_cast<Arithmetic>(3)}, good), Code::kRange,
          "options.arithmetic");
  refused(index_scores(queries, keys, weights, scores, {.scale = kInf}, good), Code::kRange, "options.scale");
  refused(index_scores(queries, keys, weights, scores, {.first = 1}, good), Code::kShape, "scores.shape[3]");
  const View<4> none_left(out.data(), DType::kF32, {2, 1, 3, 0});
  EXPECT_TRUE(index_scores(queries, keys, weights, none_left, {.first = 10}, good).ok());
  refused(index_scores(queries, keys, weights, none_left, {.first = 11}, good), Code::kRange, "options.first");
  refused(index_scores(queries, keys, weights, none_left, {.first = -1}, good), Code::kRange, "options.first");
  refused(index_scores(queries, keys, weights, scores, {.block_size = 2}, good), Code::kShape, "scores.shape[3]");
  refused(index_scores(queries, keys, weights, scores, {.block_size = 3, .keys_per_row = 2}, good), Code::kRange,
          "options.block_size");
  refused(index_scores(queries, keys, weights, scores, {.keys_per_row = 0}, good), Code::kRange,
          "options.keys_per_row");
  refused(index_scores(queries, keys, weights, scores, {.offset = int64_t{1} << 31}, good), Code::kRange,
          "options.offset");
  refused(index_scores(view(out.data(), {2, 1, 3, 8}), keys, {}, scores, {}, good), Code::kOverlap, "scores");
  Exec none = good;
  none.workspace_bytes -= 1;
  refused(index_scores(queries, keys, weights, scores, {}, none), Code::kWorkspace, "exec.workspace_bytes");
  none.workspace = nullptr;
  refused(index_scores(queries, keys, weights, scores, {}, none), Code::kWorkspace, "exec.workspace");
}

SIMDATTN_FOR_EACH_TARGET(Selection);
SIMDATTN_FOR_EACH_TARGET(Indexers);

}  // namespace
}  // namespace simdattn::test
