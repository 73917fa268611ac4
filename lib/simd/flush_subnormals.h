// Arithmetic without subnormal numbers, as matrix instructions have it, while a slot computes.
#ifndef SIMDATTN_LIB_SIMD_FLUSH_SUBNORMALS_H_
#define SIMDATTN_LIB_SIMD_FLUSH_SUBNORMALS_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Subnormal operands and results count as zeros of their sign. What is computed meanwhile
/// must be behind a call that is not inlined: compilers move plain arithmetic across changes of the control word.
class FlushSubnormals {
 public:
#if defined(__x86_64__) || defined(__aarch64__)
  static constexpr bool kByControlWord = true;
#else
  static constexpr bool kByControlWord = false;
#endif
  FlushSubnormals() : word_(read()) { write(word_ | kFlush); }
  ~FlushSubnormals() { write(word_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: flush to zero 15, subnormals are zeros 6. A result is tiny if it is so after rounding.
  using Word = uint32_t;
  static constexpr Word kFlush = 0x8040;
  static Word read() { return _mm_getcsr(); }
  static void write(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  // FPCR: FZ 24. A result is tiny if it is so before rounding.
  using Word = uint64_t;
  static constexpr Word kFlush = 1 << 24;
  static Word read() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void write(Word w) { asm volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#else
  // None is known: operations flush by themselves (kByControlWord).
  using Word = uint32_t;
  static constexpr Word kFlush = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif
  Word word_;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_FLUSH_SUBNORMALS_H_
