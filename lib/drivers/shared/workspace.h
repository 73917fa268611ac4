// Carves the caller's bytes. The same carving, run over no memory, is the size formula.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdattn {

class Workspace {
 public:
  /// `memory` of any alignment; null to measure.
  explicit Workspace(void* memory) : address_(reinterpret_cast<uintptr_t>(memory)), used_(begin()) {}

  template <class T>
  T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(address_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return p;
  }

  /// Of what was taken, enough for memory of any alignment.
  size_t bytes() const { return used_ - begin() + kAlignment - 1; }

 private:
  static constexpr size_t kAlignment = 64;
  size_t begin() const { return -address_ % kAlignment; }
  uintptr_t address_;
  size_t used_;
};

}  // namespace simdattn
