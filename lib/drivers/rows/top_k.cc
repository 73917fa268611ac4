// top_k(): the places of the largest scores of a row.
// A row is read once. Scores above a bound are gathered in ascending order of their places; whenever there are too
// many, the k largest of them stay, and the k-th one is the new bound, found by counting scores above one bound after
// another. The first bound is guessed from a sample of the row: if it was too high, the row is read again without one.
#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Scores that are compared with a bound at a time.
constexpr int64_t kAtOnce = 2048;
/// Scores of a sample.
constexpr int64_t kSample = 1024;

/// Numbers in the order of the scores, and back. -0 is below +0, which no comparison sees.
uint32_t key_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits >> 31 != 0 ? ~bits : bits | uint32_t{1} << 31;
}
float score_of(uint32_t key) { return std::bit_cast<float>(key >> 31 != 0 ? key ^ uint32_t{1} << 31 : ~key); }

/// Places with scores above a bound.
struct Largest {
  Workspace w;
  int64_t k;  // at most; select() says how many
  const UKernels* uk = nullptr;
  int64_t capacity = k + std::max(k, 2 * kAtOnce);
  int32_t* places = w.take<int32_t>(capacity + kMorePlaces);
  int32_t* kept = w.take<int32_t>(capacity + kMorePlaces);  // of places
  float* scores = w.take<float>(capacity);
  int64_t count = 0;
  float bound = -kInf;

  /// The `most` largest of scores [0, from) and [to, n) of a row, -inf and NaN aside; how many there are.
  int64_t select(const float* row, int64_t from, int64_t to, int64_t n, int64_t most) {
    if (most == 0) return 0;
    k = most;
    for (float guess = guessed_bound(row, n);; guess = -kInf) {
      count = 0;
      bound = guess;
      read(row, 0, from);
      read(row, to, n);
      if (count >= k || guess == -kInf) break;
    }
    prune();
    return count;
  }

 private:
  /// The least bound that at most `most` of n scores are above; `larger`: how many. More than that are >= `low`.
  float bound_of(int64_t n, int64_t most, float low, int64_t* larger) const {
    uint32_t below = key_of(low) - 1, least = key_of(kInf);
    // From a bound that is near, larger steps until one is too large, then halves.
    uint32_t step = low == -kInf ? least : 1 << 20;
    *larger = 0;
    while (*larger < most && least - below > 1) {
      const uint32_t middle = below + std::min(step, (least - below) / 2);
      const int64_t above = uk->above(scores, score_of(middle), n, 0, nullptr);
      if (above <= most) *larger = above;
      (above > most ? below : least) = middle;
      step = std::max(step, 2 * step);
    }
    return score_of(least);
  }

  /// Below the k-th largest score of a row, if a sample of it is like the row.
  float guessed_bound(const float* row, int64_t n) {
    if (n < 4 * kSample) return -kInf;
    const int64_t expected = k * kSample / n, rank = expected + expected / 4 + 8;
    if (rank >= kSample) return -kInf;
    for (int64_t i = 0; i < kSample; ++i) scores[i] = row[i * n / kSample];
    int64_t larger = uk->above(scores, -kInf, kSample, 0, nullptr);
    return larger <= rank ? -kInf : bound_of(kSample, rank, -kInf, &larger);
  }

  void read(const float* row, int64_t from, int64_t to) {
    for (int64_t c = from; c < to; c += kAtOnce) {
      const int64_t n = std::min(kAtOnce, to - c);
      if (count + n > capacity) prune();
      int64_t i = count;
      count += uk->above(row + c, bound, n, static_cast<int32_t>(c), places + count);
      for (; i < count; ++i) scores[i] = row[places[i]];
    }
  }

  /// Leaves the k largest in their order, of equal ones the first. Later ones must be above the new bound.
  void prune() {
    if (count <= k) return;
    int64_t larger;
    bound = bound_of(count, k, bound, &larger);
    // Of those that are equal to the bound the first ones stay: without branches, because which are cannot be
    // predicted.
    const int64_t n = uk->above(scores, std::nextafter(bound, -kInf), count, 0, kept);
    for (int64_t i = 0, stay = 0, equal = k - larger; n > k && i < n; ++i) {
      const bool same = scores[kept[i]] == bound;
      kept[stay] = kept[i];
      stay += !same | (equal > 0);
      equal -= same;
    }
    count = std::min(n, k);
    for (int64_t i = 0; i < count; ++i) {
      places[i] = places[kept[i]];
      scores[i] = scores[kept[i]];
    }
  }
};

/// Candidates [from, to) that are taken whatever their scores are, `counted` of them among the k; and `last`, behind
/// all scores, or -1.
struct Forced {
  int64_t from = 0;
  int64_t to = 0;
  int64_t counted = 0;
  int64_t last = -1;

  Forced(const TopKOptions& options, int64_t position, int64_t k, int64_t n) {
    if (position < 0) return;
    const int64_t own = position / options.block_size;
    const bool besides = options.tail && (position + 1) % options.block_size != 0;
    to = std::min(besides ? own : own + 1, n);
    from = std::min(to, std::max(own + 1 - std::min(options.local_blocks, own + 1), to - k));
    counted = to - from;
    if (!besides) return;
    if (own < n) to = own + 1;
    else last = own;
  }
};

}  // namespace

size_t drivers::top_k_workspace(int64_t k) {
  if (!is_size(k)) return 0;
  return Largest{Workspace(nullptr), k}.w.bytes();
}

Status drivers::top_k(const UKernels& uk, const ConstView<4>& scores, int64_t k, const View<4>& lists,
                      const TopKOptions& options, const Exec& exec) {
  SIMDATTN_CHECK(check_top_k(scores, k, lists, options, exec, drivers::top_k_workspace(k)));
  if (is_empty(lists)) return {};
  const int64_t n = scores.shape[3];
  Largest largest = {Workspace(exec.workspace), k, &uk};
  for (int64_t b = 0; b < scores.shape[0]; ++b) {
    const int64_t length = length_of(options, b, n * options.block_size);
    const int64_t position = first_position(options, b, length, scores.shape[2]);
    for (int64_t h = 0; h < scores.shape[1]; ++h) {
      for (int64_t i = 0; i < scores.shape[2]; ++i) {
        const Forced forced(options, position + i, k, n);
        // Scores of no columns may be a null pointer, which has no rows to step over.
        const float* row = n > 0 ? reinterpret_cast<const float*>(row_of(scores, b, h, i)) : nullptr;
        const int64_t chosen = largest.select(row, forced.from, forced.to, n, k - forced.counted);
        int32_t* list = reinterpret_cast<int32_t*>(row_of(lists, b, h, i));
        int32_t* const end = list + lists.shape[3];
        const int32_t* const places = largest.places;
        const int32_t* const after = std::lower_bound(places, places + chosen, forced.from);
        list = std::copy(places, after, list);
        for (int64_t block = forced.from; block < forced.to; ++block) *list++ = static_cast<int32_t>(block);
        list = std::copy(after, places + chosen, list);
        if (forced.last >= 0) *list++ = static_cast<int32_t>(forced.last);
        std::fill(list, end, -1);
      }
    }
  }
  return {};
}

}  // namespace simdattn
