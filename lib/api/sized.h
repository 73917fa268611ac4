// Structs that begin with their size, whatever version of the header the caller was compiled with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "include/simdattn/simdattn.h"

namespace simdattn {

/// Bytes of the struct in the first version that had it: no version's struct is smaller. Adding members does not change
/// this.
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<Exec> = offsetof(Exec, threads);
template <>
inline constexpr size_t kFirstSize<AttentionProblem> = offsetof(AttentionProblem, lists);
template <>
inline constexpr size_t kFirstSize<LinearAttentionProblem> = offsetof(LinearAttentionProblem, state_in);
template <>
inline constexpr size_t kFirstSize<CausalConvProblem> = offsetof(CausalConvProblem, state_in);

/// A struct of `theirs` bytes over the defaults of this version's, of `size` bytes. False if members that this version
/// does not know hold anything but 0, that is, if they are used.
[[gnu::noinline, gnu::cold]] inline bool copy_sized(const void* given, size_t theirs, const void* defaults, size_t size,
                                                    void* copy) {
  constexpr size_t kMost = size_t{1} << 16;  // an uninitialised size must not be walked
  const auto* const bytes = static_cast<const unsigned char*>(given);
  if (theirs > kMost || std::any_of(bytes + size, bytes + std::max(size, theirs), [](auto byte) { return byte != 0; }))
    return false;
  std::memcpy(copy, defaults, size);
  std::memcpy(static_cast<char*>(copy) + sizeof size, bytes + sizeof size, std::min(theirs, size) - sizeof size);
  return true;
}

/// The caller's struct in this version's size. That is the struct itself, the defaults where the pointer is null, or a
/// copy in which members that the caller does not know have their defaults.
template <class T>
class Sized {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  explicit Sized(const T* given)
      : use_(given == nullptr                  ? &kDefaults
             : given->struct_size == sizeof(T) ? given
                                               : other_version(given)) {}
  Sized(const Sized&) = delete;
  Sized& operator=(const Sized&) = delete;

  bool ok() const { return use_ != nullptr; }
  const T& operator*() const { return *use_; }

 private:
  /// A copy in this version's size, which the rules compare; null if the size is none of any version.
  [[gnu::noinline, gnu::cold]] const T* other_version(const T* given) {
    const size_t size = given->struct_size;
    const bool known =
        size >= kFirstSize<T> && size % alignof(T) == 0 && copy_sized(given, size, &kDefaults, sizeof(T), copy_);
    return known ? reinterpret_cast<const T*>(copy_) : nullptr;
  }

  static constexpr T kDefaults{};
  const T* use_;
  alignas(T) unsigned char copy_[sizeof(T)];
};

}  // namespace simdattn
