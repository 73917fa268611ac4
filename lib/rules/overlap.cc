#include "lib/rules/overlap.h"

#include <cstdlib>
#include <initializer_list>

namespace simdattn {
namespace {

/// The numbers step * 0 .. step * most.
struct Term {
  int64_t step, most;
};
/// By ascending step, all different.
struct Terms {
  int n = 0;
  Term term[2 * ByteSet::kMaxDims];

  void insert(int64_t step, int64_t most) {
    int i = n;
    while (i > 0 && term[i - 1].step > step) --i;
    if (i > 0 && term[i - 1].step == step) {
      term[i - 1].most += most;
      return;
    }
    for (int j = n; j > i; --j) term[j] = term[j - 1];
    term[i] = {step, most};
    ++n;
  }
};

/// steps_of() would overflow near the largest int64_t, where bytes of a tensor may lie.
int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }
/// Whether some sum of one number of every term is in low .. high; or *left became negative.
bool some_sum(const Term* term, int n, int64_t low, int64_t high, int* left) {
  int64_t below = 0;  // the largest sum without the last term
  for (int i = 0; i < n - 1; ++i) below += term[i].step * term[i].most;
  const int64_t total = n > 0 ? below + term[n - 1].step * term[n - 1].most : 0;
  if (high < 0 || low > total) return false;
  if (low <= 0 || high >= total) return true;  // all zero, or all at their most
  const Term& largest = term[n - 1];
  const int64_t last = high / largest.step < largest.most ? high / largest.step : largest.most;
  for (int64_t i = low > below ? ceil_div(low - below, largest.step) : 0; i <= last; ++i) {
    if (--*left < 0) return true;
    const int64_t at = largest.step * i;
    if (some_sum(term, n - 1, low - at, high - at, left)) return true;
  }
  return false;
}

}  // namespace

bool share_bytes_inside(const ByteSet& a, const ByteSet& b, int* left) {
  // A common byte is a.first + A + u = b.first + B + v, with sums A and B of positive steps, u < a.width, v < b.width.
  // Counted from its other end, B changes sides: A + B' = b.first - a.first + reach of b + v - u.
  Terms terms;
  for (const ByteSet* set : {&a, &b}) {
    for (int i = 0; i < set->outer; ++i) terms.insert(std::abs(set->step[i]), set->count[i] - 1);
  }
  const int64_t wanted = static_cast<int64_t>(b.first - a.first) + b.span - b.width;
  return some_sum(terms.term, terms.n, wanted - a.width + 1, wanted + b.width - 1, left);
}

bool self_overlap_inside(const ByteSet& a, int* left) {
  Terms terms;
  for (int i = 0; i < a.outer; ++i) terms.insert(std::abs(a.step[i]), a.count[i] - 1);
  if (terms.n < a.outer) return true;  // two dimensions of the same step
  // The largest step in which two tuples differ is `k`, by 1 or more. What the smaller ones make of it: a difference of
  // -most .. most, here counted from -most.
  int64_t reached = 0;
  Term* const term = terms.term;
  for (int k = 0; k < terms.n; ++k) {
    const Term largest = term[k];
    if (largest.step < reached + a.width) {
      const int64_t wanted = reached - largest.step;
      term[k].most = largest.most - 1;
      if (some_sum(term, k + (largest.most > 1), wanted - a.width + 1, wanted + a.width - 1, left)) return true;
    }
    term[k].most = 2 * largest.most;
    reached += largest.step * largest.most;
  }
  return false;
}

}  // namespace simdattn
