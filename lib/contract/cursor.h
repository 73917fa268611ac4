// Places in memory that loops walk to.
#ifndef SIMDATTN_LIB_CONTRACT_CURSOR_H_
#define SIMDATTN_LIB_CONTRACT_CURSOR_H_

#include <cstdint>

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// A pointer that moves by a stride. After the last step it may lie outside of the object, where a pointer must not be
/// formed, but an address may. To peel the last step off instead would double the loops.
template <class T>
class Cursor {
 public:
  explicit Cursor(T* p) : address_(reinterpret_cast<uintptr_t>(p)) {}
  T* get() const { return reinterpret_cast<T*>(address_); }
  void operator+=(int64_t elements) { address_ += static_cast<uintptr_t>(elements) * sizeof(T); }
  friend void hide(Cursor& c) { __asm__("" : "+r"(c.address_)); }

 private:
  uintptr_t address_;
};

/// The compiler no longer knows what it has computed or loaded from p. A loop over rows then steps p, where it would
/// keep a pointer to each row and an index for all. Only for AVX-512: with AVX2 it is one instruction more a row.
template <class T>
void hide(T*& p) {
  __asm__("" : "+r"(p));
}

/// The address of p[elements], which may lie outside of every object: for prefetches.
template <class T>
uintptr_t address_at(const T* p, int64_t elements) {
  return reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(elements) * sizeof(T);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_CURSOR_H_
