// top_k(): the places of the largest scores of a row.
//
// A row is read once. Scores above a bound are gathered in ascending order of their places; whenever there are too many, the k largest of them
// stay, and the k-th one is the new bound. The first bound is guessed from a sample of the row: if it was too high, the row is read again
// without one.
#include <algorithm>
#include <bit>
#include <limits>

#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
/// Scores that are compared with a bound at a time.
constexpr int64_t kAtOnce = 2048;
/// Places above a bound that are written at a time.
constexpr int64_t kBitsAtOnce = 4;
/// Scores of a sample, and rows so short that none is taken.
constexpr int64_t kSample = 1024;

/// Numbers in the order of the scores; +0 and -0 are the same one.
uint32_t key_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | uint32_t{1} << 31);  // without a branch
}
float score_of(uint32_t key) { return std::bit_cast<float>(key ^ (key >> 31 != 0 ? uint32_t{1} << 31 : ~uint32_t{0})); }

/// Bits that are 1; std::popcount is a call where the CPU may lack the instruction.
int64_t bits_of(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  return static_cast<int64_t>(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u >> 56);
}

/// The k-th largest of n keys, 1 <= k <= n; `larger`: how many are larger. Digits of 8 bits of what a key is above the least one.
uint32_t kth_largest(const uint32_t* keys, int64_t n, int64_t k, int64_t* larger) {
  constexpr int kBits = 8;
  uint32_t base = *keys;
  uint32_t most = *keys;
  for (int64_t i = 1; i < n; ++i) {  // not minmax_element, which compares neighbours: a branch that nobody foresees
    base = std::min(base, keys[i]);
    most = std::max(most, keys[i]);
  }
  uint32_t prefix = 0;
  *larger = 0;
  for (int below = static_cast<int>(std::bit_width(most - base)), bits = 0; below > 0; below -= bits) {
    bits = std::min(kBits, below);
    const int shift = below - bits;
    const uint32_t mask = (uint32_t{1} << bits) - 1;
    int32_t count[1 << kBits] = {};
    for (int64_t i = 0; i < n; ++i) {
      if (uint64_t{(keys[i] - base) ^ prefix} >> below == 0) ++count[(keys[i] - base) >> shift & mask];
    }
    uint32_t digit = mask;
    for (; *larger + count[digit] < k; --digit) *larger += count[digit];
    prefix |= digit << shift;
  }
  return base + prefix;
}

/// Places with scores above a bound.
class Largest {
 public:
  Largest(Workspace& w, int64_t k)
      : k_(k),
        room_(k + std::max(k, 2 * kAtOnce)),
        places_(w.take<int32_t>(room_ + kBitsAtOnce)),
        keys_(w.take<uint32_t>(room_)) {}

  /// The k largest of scores [0, from) and [to, n) of a row, -inf and NaN aside; how many there are.
  int64_t select(const UKernels& uk, const float* row, int64_t from, int64_t to, int64_t n, int64_t k) {
    if (k == 0) return 0;
    k_ = k;
    const float guess = guessed_bound(row, n);
    if (read_row(uk, row, from, to, n, guess) < k_ && guess > -kInf) read_row(uk, row, from, to, n, -kInf);
    if (count_ > k_) prune();
    return count_;
  }
  int32_t operator[](int64_t i) const { return places_[i]; }

 private:
  /// Below the k-th largest score of a row, if a sample of it is like the row.
  float guessed_bound(const float* row, int64_t n) {
    if (n < 4 * kSample) return -kInf;
    const int64_t expected = k_ * kSample / n;
    const int64_t rank = expected + expected / 4 + 8;
    if (rank > kSample) return -kInf;
    int64_t size = 0;
    for (int64_t i = 0; i < kSample; ++i) {
      const float x = row[i * n / kSample];
      keys_[size] = key_of(x);
      size += x > -kInf;
    }
    int64_t larger;
    return size < rank ? -kInf : score_of(kth_largest(keys_, size, rank, &larger));
  }

  int64_t read_row(const UKernels& uk, const float* row, int64_t from, int64_t to, int64_t n, float bound) {
    count_ = 0;
    bound_ = bound;
    read(uk, row, 0, from);
    read(uk, row, to, n);
    return count_;
  }

  void read(const UKernels& uk, const float* row, int64_t from, int64_t to) {
    uint32_t words[kAtOnce / 32 + 1];
    for (int64_t c = from; c < to; c += kAtOnce) {
      const int64_t n = std::min(kAtOnce, to - c);
      if (count_ + n > room_) prune();
      uk.above(row + c, bound_, n, words);
      words[(n + 31) / 32] = 0;
      const int64_t before = count_;
      for (int64_t i = 0; i < n; i += 64) {
        // A few places at a time, whether there are as many or not: most words have some, and branches would be guesses.
        int32_t* to_come = places_ + count_;
        uint64_t left = uint64_t{words[i / 32 + 1]} << 32 | words[i / 32];
        count_ += bits_of(left);
        do {
          for (int64_t bit = 0; bit < kBitsAtOnce; ++bit, left &= left - 1) {
            *to_come++ = static_cast<int32_t>(c + i + std::countr_zero(left));
          }
        } while (left != 0);
      }
      for (int64_t i = before; i < count_; ++i) keys_[i] = key_of(row[places_[i]]);
    }
  }

  /// Leaves the k largest in their order, of equal ones the first. Later ones must be larger than all that were left.
  void prune() {
    if (count_ <= k_) return;
    int64_t larger;
    const uint32_t least = kth_largest(keys_, count_, k_, &larger);
    int64_t equal = k_ - larger;  // that stay
    int64_t kept = 0;
    for (int64_t i = 0; i < count_; ++i) {
      places_[kept] = places_[i];
      keys_[kept] = keys_[i];
      const bool same = keys_[kept] == least;
      kept += keys_[kept] > least || (same && equal > 0);
      equal -= same;
    }
    count_ = kept;
    bound_ = score_of(least);
  }

  int64_t k_;
  int64_t room_;
  int32_t* places_;
  uint32_t* keys_;
  int64_t count_ = 0;
  float bound_ = -kInf;
};

/// Blocks [from, to) that are taken whatever their scores are, `counted` of them among the k; and `last`, behind all scores, or -1.
struct Forced {
  int64_t from = 0;
  int64_t to = 0;
  int64_t counted = 0;
  int64_t last = -1;

  Forced(const TopKOptions& options, int64_t position, int64_t k, int64_t n) {
    if (position < 0) return;
    const int64_t own = position / options.block_size;
    to = std::min(own + 1, n);
    from = std::min(to, std::max(own + 1 - std::min(options.local_blocks, own + 1), to - k));
    counted = to - from;
    if (!options.tail || (position + 1) % options.block_size == 0) return;
    if (counted == 0) {
      from = own;
      to = own + 1;
    } else if (to <= own) {
      last = own;
    }
  }
};

}  // namespace

size_t drivers::top_k_workspace(int64_t k) {
  if (k < 0 || k > kMaxSize) return 0;
  Workspace w(nullptr);
  Largest(w, k);
  return w.bytes();
}

Status drivers::top_k(const UKernels& uk, const ConstView<4>& scores, int64_t k, const View<4>& lists,
                      const TopKOptions& options, const Exec& exec) {
  SIMDATTN_CHECK(check_top_k(scores, k, lists, options, exec, drivers::top_k_workspace(k)));
  if (is_empty(lists)) return {};
  const int64_t n = scores.shape[3];
  const int64_t size = options.block_size;
  const RowPositions positions = {options.kv_length, options.offsets, options.keys == -1 ? n * size : options.keys,
                                  options.offset, scores.shape[2]};
  Workspace w(exec.workspace);
  Largest largest(w, k);
  for (int64_t b = 0; b < scores.shape[0]; ++b) {
    for (int64_t h = 0; h < scores.shape[1]; ++h) {
      for (int64_t i = 0; i < scores.shape[2]; ++i) {
        const Forced forced(options, positions.of_row(b, i), k, n);
        const int64_t chosen = largest.select(uk, reinterpret_cast<const float*>(row_of(scores, b, h, i)),
                                              std::min(forced.from, n), std::min(forced.to, n), n, k - forced.counted);
        int32_t* list = reinterpret_cast<int32_t*>(row_of(lists, b, h, i));
        int32_t* const end = list + lists.shape[3];
        int64_t c = 0;
        while (c < chosen && largest[c] < forced.from) *list++ = largest[c++];
        for (int64_t block = forced.from; block < forced.to; ++block) *list++ = static_cast<int32_t>(block);
        while (c < chosen) *list++ = largest[c++];
        if (forced.last >= 0) *list++ = static_cast<int32_t>(forced.last);
        std::fill(list, end, -1);
      }
    }
  }
  return {};
}

}  // namespace simdattn
