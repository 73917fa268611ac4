// Arithmetic without subnormal numbers, as matrix instructions have it, while a slot computes.
#ifndef SIMDATTN_LIB_FLUSH_SUBNORMALS_H_
#define SIMDATTN_LIB_FLUSH_SUBNORMALS_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Subnormal operands and results count as zeros of their sign; with kResults, results alone (x86). What is computed meanwhile
/// must be behind a call that is not inlined: compilers move plain arithmetic across changes of the control word.
class FlushSubnormals {
 public:
  enum Which : bool { kAll, kResults };
  explicit FlushSubnormals(Which which = kAll) : word_(read()) {
    write((word_ & ~(kFlush | kMet)) | (which == kAll ? kFlush : kFlushResults));
  }
  ~FlushSubnormals() { write(word_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
  /// With kResults, on x86: true if an operand has been subnormal since.
  static bool met() { return (read() & kMet) != 0; }
  /// False where met() never is true: emulators do not all keep that flag (QEMU 7 does not).
  static bool tells() {
    static int known = 0;
    int tells = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (tells == 0) {
      const FlushSubnormals flush(kResults);
      volatile float x = 0x1p-130f;
      x = x * 65537.0f;
      tells = met() ? 1 : -1;
      __atomic_store_n(&known, tells, __ATOMIC_RELAXED);
    }
    return tells > 0;
  }

 private:
#if defined(__x86_64__)
  // MXCSR: flush to zero 15, subnormals are zeros 6, an operand was subnormal 1. A result is tiny if it is so after rounding.
  using Word = uint32_t;
  static constexpr Word kFlush = 0x8040, kFlushResults = 0x8000, kMet = 2;
  static Word read() { return _mm_getcsr(); }
  static void write(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  // FPCR: FZ 24. A result is tiny if it is so before rounding.
  using Word = uint64_t;
  static constexpr Word kFlush = 1 << 24, kFlushResults = kFlush, kMet = 0;
  static Word read() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void write(Word w) { asm volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#else
#error "this CPU's way to flush subnormal numbers is not known"
#endif
  Word word_;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_FLUSH_SUBNORMALS_H_
