// Loops over several dimensions: for (const auto [row, column] : indices(rows, columns)), the last one fastest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace simdattn::test {

template <size_t kRank>
struct Indices {
  std::array<int64_t, kRank> sizes, index = {};
  bool done;

  explicit Indices(const std::array<int64_t, kRank>& n) : sizes(n), done(false) {
    for (const int64_t size : n) done = done || size <= 0;
  }
  Indices begin() const { return *this; }
  static std::default_sentinel_t end() { return {}; }
  const std::array<int64_t, kRank>& operator*() const { return index; }
  Indices& operator++() {
    for (size_t d = kRank; d-- > 0;) {
      if (++index[d] < sizes[d]) return *this;
      index[d] = 0;
    }
    done = true;
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return done; }
};

template <class... Sizes>
Indices<sizeof...(Sizes)> indices(Sizes... sizes) {
  return Indices<sizeof...(Sizes)>({static_cast<int64_t>(sizes)...});
}

}  // namespace simdattn::test
