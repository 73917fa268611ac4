// Structs that begin with their size, whatever version of the header the caller was compiled with.
#ifndef SIMDATTN_LIB_API_SIZED_H_
#define SIMDATTN_LIB_API_SIZED_H_

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "include/simdattn/simdattn.h"

namespace simdattn {

/// Bytes of the struct in the first version that had it: no version's struct is smaller. Adding members does not change this.
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<AttentionProblem> = offsetof(AttentionProblem, lists);

/// The caller's struct in this version's size. That is the struct itself, the defaults where the pointer is null, or a copy in
/// which members that the caller does not know have their defaults.
template <class T>
class Sized {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  explicit Sized(const T* given) {
    if (given == nullptr) {
      use_ = &kDefaults;
    } else if (given->struct_size == sizeof(T)) {
      use_ = given;
    } else {
      use_ = other_version(given, given->struct_size);
    }
  }
  Sized(const Sized&) = delete;
  Sized& operator=(const Sized&) = delete;

  bool ok() const { return use_ != nullptr; }
  const T& operator*() const { return *use_; }

 private:
  /// A copy in this version's size, which the rules compare; null if the size is none of any version.
  const T* other_version(const T* given, size_t size) {
    if (size < kFirstSize<T> || size > kMost || size % alignof(T) != 0) return nullptr;
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(given);
    // A newer caller: what this version does not know must be 0, that is, unused.
    for (size_t i = sizeof(T); i < size; ++i) {
      if (bytes[i] != 0) return nullptr;
    }
    std::memcpy(copy_, &kDefaults, sizeof(T));
    std::memcpy(copy_ + sizeof(size_t), bytes + sizeof(size_t), (size < sizeof(T) ? size : sizeof(T)) - sizeof(size_t));
    return reinterpret_cast<const T*>(copy_);
  }

  static constexpr T kDefaults{};
  static constexpr size_t kMost = size_t{1} << 16;  // an uninitialised size must not be walked
  const T* use_;
  alignas(T) unsigned char copy_[sizeof(T)];
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_API_SIZED_H_
