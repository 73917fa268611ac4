#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace simdattn_ggml {

/// Memory that only grows, so that a program which repeats its graphs allocates nothing.
class Memory {
 public:
  /// At least `bytes` bytes; null if there are none to be had.
  void* at_least(size_t bytes) {
    if (bytes > bytes_ || data_ == nullptr) {
      data_.reset();
      data_.reset(
          new (std::nothrow) char[std::max<size_t>(bytes, 1)]);  // not cleared: pages that nobody writes cost nothing
      bytes_ = data_ != nullptr ? bytes : 0;
    }
    return data_.get();
  }
  void* data() const { return data_.get(); }

 private:
  std::unique_ptr<char[]> data_;
  size_t bytes_ = 0;
};

}  // namespace simdattn_ggml
