#include "lib/rules/overlap.h"

#include <cstdlib>
#include <initializer_list>

namespace simdattn {
namespace {

/// The numbers step * 0 .. step * most.
struct Term {
  int64_t step;
  int64_t most;
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

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }
int64_t floor_mod(int64_t a, int64_t b) {
  const int64_t r = a % b;
  return r < 0 ? r + b : r;
}
/// By division, not by bits as std::gcd: steps mostly divide each other.
int64_t common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

/// The smallest y in 1 .. limit with low <= a * y mod m <= high, or -1. Wants 0 < low <= high < m, 0 < a < m without a
/// common divisor, and min(a, m - a) * limit + m below 2^63. Euclid's algorithm on (m, a): `a` at least halves with
/// each call, and at 1 there is a multiple in every window.
int64_t first_in_window(int64_t a, int64_t m, int64_t low, int64_t high, int64_t limit) {
  if (a > m / 2) {  // a walk downwards; walk its mirror image
    a = m - a;
    const int64_t mirrored = m - high;
    high = m - low;
    low = mirrored;
  }
  const int64_t y = ceil_div(low, a);
  if (y > limit) return -1;
  if (a * y <= high) return y;
  // No multiple of `a` lies in the window itself. After z wraps it is [low + m z, high + m z]: the first z for which
  // that contains a multiple of `a`, so -m z mod a must be in [low, high] mod a. limit bounds z, and so all products.
  const int64_t z = first_in_window(m % a, a, floor_mod(-high, a), floor_mod(-low, a), a * limit / m);
  if (z < 0) return -1;
  const int64_t wrapped = ceil_div(low + m * z, a);
  return wrapped <= limit ? wrapped : -1;
}

/// Whether some sum of one number of every term is in low .. high, which meets 0 .. the largest sum.
bool some_sum(const Term* given, int n, int64_t low, int64_t high, int* left) {
  constexpr int kMost = 2 * ByteSet::kMaxDims;
  Term terms[kMost];
  int64_t total = 0;
  for (int i = 0; i < n; ++i) {
    terms[i] = given[i];
    total += given[i].step * given[i].most;
  }
  Term* term = terms;
  int64_t divisor[kMost];  // of the terms 0 .. i
  for (;;) {
    // A term whose step is not longer than the interval leaves no gaps: the others must reach the interval so extended.
    while (n > 0 && term->step <= high - low + 1) {
      low -= term->step * term->most;
      total -= term->step * term->most;
      ++term;
      --n;
    }
    if (low <= 0 || high >= total) return true;  // all zero, or all at their most
    // Here n >= 1 and 0 < low <= high < total. What limits a term, 0 and total, are multiples of its step themselves.
    if (n == 1) return high / term->step * term->step >= low;
    divisor[0] = term->step;
    for (int i = 1; i < n; ++i) divisor[i] = common_divisor(term[i].step, divisor[i - 1]);
    const int64_t all = divisor[n - 1];
    if (all == 1) break;
    low = ceil_div(low, all);
    high /= all;
    if (low > high) return false;
    for (int i = 0; i < n; ++i) term[i].step /= all;
    total /= all;
    // If the smallest step divided all others, it is 1 now and goes.
  }

  // Two parts, the terms before and from `cut`. The upper part is a multiple of its common divisor, the lower part must
  // reach low .. high from there: few multiples remain. The cut that leaves the fewest.
  const int64_t width = high - low;
  int cut = n - 1;
  int64_t step = term[cut].step;
  int64_t lower = total - term[cut].step * term[cut].most;
  int64_t fewest = INT64_MAX;
  int64_t upper_step = 0;
  int64_t below = total;
  for (int k = n - 1; k > 0; --k) {
    upper_step = common_divisor(term[k].step, upper_step);
    below -= term[k].step * term[k].most;
    const int64_t candidates = (width + below) / upper_step / (divisor[k - 1] / (width + 1) + 1);
    if (candidates < fewest) {
      fewest = candidates;
      cut = k;
      step = upper_step;
      lower = below;
    }
  }
  const int64_t lower_step = divisor[cut - 1];
  const int64_t upper = total - lower;
  const int64_t last = (high < upper ? high : upper) / step;
  for (int64_t x = low > lower ? ceil_div(low - lower, step) : 0; x <= last; ++x) {
    const int64_t at = step * x;
    // The lower part is a multiple of lower_step; on to the first x for which the interval has one.
    const int64_t above = (high - at) % lower_step;
    if (above > width) {
      const int64_t skip = first_in_window(floor_mod(-step, lower_step), lower_step, lower_step - above,
                                           lower_step - above + width, last - x);
      if (skip < 0) return false;
      x += skip - 1;
      continue;
    }
    if (--*left < 0) return true;
    if ((cut == n - 1 || some_sum(term + cut, n - cut, at, at, left)) && some_sum(term, cut, low - at, high - at, left))
      return true;
  }
  return false;
}

}  // namespace

bool share_bytes_inside(const ByteSet& a, const ByteSet& b, int* left) {
  // A common byte is a.first + A + u = b.first + B + v, with sums A and B of positive steps, u < a.width, v < b.width.
  // Counted from its other end, B changes sides: A + B' = b.first - a.first + reach of b + v - u.
  Terms terms;
  for (const ByteSet* set : {&a, &b}) {
    for (int i = 0; i < set->outer; ++i) terms.insert(std::abs(set->dims[i].step), set->dims[i].count - 1);
  }
  const int64_t wanted = static_cast<int64_t>(b.first - a.first) + b.span - b.width;
  return some_sum(terms.term, terms.n, wanted - a.width + 1, wanted + b.width - 1, left);
}

bool self_overlap_inside(const ByteSet& a, int* left) {
  Terms terms;
  for (int i = 0; i < a.outer; ++i) terms.insert(std::abs(a.dims[i].step), a.dims[i].count - 1);
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
