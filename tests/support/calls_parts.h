// What the calls of several files draw.
#pragma once

#include <initializer_list>
#include <string>

#include "tests/support/problems.h"

namespace simdattn::test {

inline Values values(Random& random) {
  return random.of({Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
}

/// An output of the same shape, with the same or other strides.
template <int kRank>
Array<kRank> sibling(Random& random, const Array<kRank>& a) {
  return Array<kRank>(random, a.view.dtype, a.view.shape, Strides::kOutput);
}

inline std::string sizes(std::initializer_list<int64_t> list) {
  std::string text = " [";
  for (const int64_t n : list) text += std::to_string(n) + " ";
  return text + "]";
}

}  // namespace simdattn::test
