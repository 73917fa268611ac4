// What rows see of a key block, against masks that are read key by key.
#include <string>

#include "tests/attention/parts.h"

namespace simdattn::test {
namespace {

/// Masks of any kind over [heads or 1, rows, keys]. A bias or a byte may be one for all keys of its row.
struct Masks {
  int64_t heads, rows, keys;
  int64_t biases, byte_masks;  // of a row: `keys` or 1
  std::vector<float> bias;
  std::vector<uint8_t> bytes, bits;

  Masks(Random& random, int64_t h, int64_t n_q, int64_t n_kv)
      : heads(h), rows(n_q), keys(n_kv), biases(random.one_in(4) ? 1 : keys), byte_masks(random.one_in(4) ? 1 : keys) {
    const bool any[] = {random.coin(), random.coin(), random.coin()};
    if (any[0]) bias.assign(static_cast<size_t>(heads * rows * biases), 0.0f);
    if (any[1] || !any[0]) bytes.assign(static_cast<size_t>(heads * rows * byte_masks), 1);
    if (any[2]) bits.assign(static_cast<size_t>(heads * rows * ((keys + 7) / 8)), 0xFF);
    for (int64_t h2 = 0; h2 < heads; ++h2) {
      // A band, hidden keys here and there, sequences in turns, or nothing.
      const int64_t kind = random.integer(0, 4), width = random.integer(1, keys), rare = random.integer(2, 40);
      for (int64_t i = 0; i < rows; ++i) {
        if (biases == 1 && !bias.empty()) bias[bias_of(h2, i, 0)] = any_bias(random);
        if (byte_masks == 1 && !bytes.empty()) bytes[byte_of(h2, i, 0)] = !random.one_in(4);
        for (int64_t j = 0; j < keys; ++j) {
          const bool hide = kind == 0   ? j > i + width
                            : kind == 1 ? random.one_in(rare)
                            : kind == 2 ? j % rare != 0
                            : kind == 3 ? j < width || random.one_in(3)
                                        : false;
          if (!hide) continue;
          const int64_t by = random.integer(0, 2);
          if (by == 0 && biases > 1 && !bias.empty()) bias[bias_of(h2, i, j)] = random.one_in(8) ? 0.5f : -kInfinity;
          else if (by == 1 && byte_masks > 1 && !bytes.empty()) bytes[byte_of(h2, i, j)] = 0;
          else if (!bits.empty())
            bits[row_of(h2, i) + static_cast<size_t>(j / 8)] &= static_cast<uint8_t>(~(1 << j % 8));
        }
      }
    }
  }
  static float any_bias(Random& random) { return random.one_in(4) ? -kInfinity : random.coin() ? 0.5f : 0.0f; }
  size_t bias_of(int64_t h, int64_t i, int64_t j) const {
    return static_cast<size_t>((h * rows + i) * biases + std::min(j, biases - 1));
  }
  size_t byte_of(int64_t h, int64_t i, int64_t j) const {
    return static_cast<size_t>((h * rows + i) * byte_masks + std::min(j, byte_masks - 1));
  }
  size_t row_of(int64_t h, int64_t i) const { return static_cast<size_t>((h * rows + i) * ((keys + 7) / 8)); }
  void put_into(Scoring* s) const {
    if (!bias.empty()) s->bias = view(bias.data(), {1, heads, rows, biases});
    if (!bytes.empty()) s->mask = view(bytes.data(), {1, heads, rows, byte_masks});
    if (!bits.empty())
      s->packed_mask = {bits.data(), keys, {0, heads > 1 ? rows * ((keys + 7) / 8) : 0, (keys + 7) / 8}};
  }
  float bias_at(int64_t h, int64_t i, int64_t j) const {
    return bias.empty() ? 0.0f : bias[bias_of(heads > 1 ? h : 0, i, j)];
  }
  bool shows(int64_t h, int64_t i, int64_t j) const {
    h = heads > 1 ? h : 0;
    return bias_at(h, i, j) != -kInfinity && (bytes.empty() || bytes[byte_of(h, i, j)] != 0) &&
           (bits.empty() || (bits[row_of(h, i) + static_cast<size_t>(j / 8)] >> j % 8 & 1) != 0);
  }
};

class Look : public TargetTest {};

TEST_P(Look, FindsWhatEachRowSees) {
  Random random(1);
  int64_t narrowed = 0, unchanged = 0, few = 0;
  for (int64_t n = 0; n < 400; ++n) {
    const int64_t group = random.integer(1, 5), n_q = random.integer(1, 9), n_kv = random.size(1, 600);
    const Masks masks(random, random.coin() ? 1 : group, n_q, n_kv);
    Scoring scoring;
    scoring.causal = random.coin();
    if (random.one_in(3)) scoring.window_left = random.integer(0, n_kv);
    masks.put_into(&scoring);
    const SmallProblem p(random, KvType::kF32, KvForm::kRows, scoring, group, n_q, n_kv, 4, target());
    // A row block may begin in the middle of a group.
    const RowBlock rows(*p.run, {0, 0, random.coin() ? 0 : random.integer(0, group * n_q - 1)});
    for (int64_t base = 0; base < n_kv; base += kKeyBlock) {
      KeyBlock block = block_of(rows, base);
      look(rows, &block);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const SeenColumns& seen = block.row[r];
        const int64_t h = rows.head_of(r), i = rows.position_of(r), position = i + n_kv - n_q;
        int64_t visible = 0;
        for (int64_t j = base; j < std::min(base + kKeyBlock, n_kv); ++j) {
          const bool in_rules =
              (!scoring.causal || j <= position) && (scoring.window_left < 0 || j >= position - scoring.window_left);
          const int64_t c = j - base;
          const bool in_seen = c >= seen.lo && c < seen.hi;
          const std::string at =
              "problem " + std::to_string(n) + ", row " + std::to_string(r) + ", key " + std::to_string(j);
          ASSERT_TRUE(in_rules || !in_seen) << at;
          if (in_rules && masks.shows(h, i, j)) {
            ASSERT_TRUE(in_seen) << at;
            ++visible;
          }
          if (in_seen && (c < seen.from || c >= seen.to)) {
            ASSERT_TRUE(masks.shows(h, i, j) && masks.bias_at(h, i, j) == 0.0f) << at;
            ++unchanged;
          }
        }
        narrowed += seen.none() && rows.see(r).hi > base;
        if (r > 0 || !seen.few()) continue;
        ASSERT_LE(visible, seen.visible);
        ++few;
      }
    }
  }
  // It finds something: blocks that a row does not see, columns that no mask changes, few keys of many.
  EXPECT_GT(narrowed, 50);
  EXPECT_GT(unchanged, 1000);
  EXPECT_GT(few, 5);
}

TEST_P(Look, FindsWhatEachRowSeesOfAList) {
  Random random(2);
  bool with_holes = false, without = false;
  for (int64_t n = 0; n < 100; ++n) {
    const int64_t n_q = random.integer(1, 6), n_kv = random.size(1, 256);
    Scoring scoring;
    scoring.causal = random.coin();
    if (random.coin()) scoring.window_left = random.integer(0, n_kv);
    const SmallProblem p(random, KvType::kF32, KvForm::kRows, scoring, 2, n_q, n_kv, 4, target());
    const RowBlock rows(*p.run, {0, 0, 0});
    std::vector<int32_t> tokens;
    for (int64_t j = 0; j < n_kv; ++j)
      tokens.push_back(static_cast<int32_t>(random.coin() ? j : random.integer(0, n_kv - 1)));
    KeyBlock block(0, tokens.data(), {rows.k_store, 0}, {rows.v_store, 0});
    look_at_list(rows, n_kv, &block);
    bool holes = false;
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = 0; c < n_kv; ++c) {
        const bool sees = rows.see(r).has(tokens[static_cast<size_t>(c)]);
        const bool in_seen = c >= block.row[r].lo && c < block.row[r].hi;
        ASSERT_TRUE(in_seen || !sees) << n << " row " << r << " column " << c;
        holes |= in_seen && !sees;
      }
    }
    ASSERT_EQ(block.holes, holes) << n;
    (holes ? with_holes : without) = true;
  }
  EXPECT_TRUE(with_holes && without);
}

SIMDATTN_FOR_EACH_TARGET(Look);

}  // namespace
}  // namespace simdattn::test
