// The floating-point control word while a call computes: round to nearest even, subnormal numbers kept, nothing trapped.
#ifndef SIMDATTN_DISPATCH_ENVIRONMENT_H_
#define SIMDATTN_DISPATCH_ENVIRONMENT_H_

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simdattn {

/// Sets what the definition of every result relies on, and leaves the caller's word as it was. Where the word says so
/// already, as it nearly always does, nothing is written: writing it takes much longer than reading.
class Environment {
 public:
  Environment() : word_(read()) {
    changed_ = (word_ & kControl) != kDefault;
    if (changed_) write((word_ & ~kControl) | kDefault);
  }
  ~Environment() {
    if (changed_) write(word_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: flush to zero 15, rounding 14:13, masks 12:7, subnormals are zeros 6. Bits 5:0 are what has happened.
  using Word = uint32_t;
  static constexpr Word kControl = 0xFFC0;
  static constexpr Word kDefault = 0x1F80;
  static Word read() { return _mm_getcsr(); }
  static void write(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  // FPCR: AHP 26, DN 25, FZ 24, rounding 23:22, FZ16 19, traps 15 and 12:8, and of FEAT_AFP NEP 2, AH 1, FIZ 0.
  using Word = uint64_t;
  static constexpr Word kControl = 0x07C89F07;
  static constexpr Word kDefault = 0;
  static Word read() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));  // volatile: not moved across the writes below
    return w;
  }
  static void write(Word w) { asm volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
  // FPSCR: traps 7:3, non-IEEE mode 2, rounding 1:0. In the upper half VSCR: 16 flushes subnormal numbers in instructions of VMX, which
  // compilers take for a multiply-add with four registers. Linux sets it for every thread.
  using Word = uint64_t;
  using Vector [[gnu::vector_size(16)]] = uint32_t;
  static constexpr Word kControl = 0x00010000000000FF;
  static constexpr Word kDefault = 0;
  static Word read() {
    double fpscr;
    Vector vscr;
    asm volatile("mffs %0\n\tmfvscr %1" : "=d"(fpscr), "=v"(vscr));
    return (std::bit_cast<Word>(fpscr) & 0xFFFFFFFF) | Word{vscr[0]} << 32;
  }
  static void write(Word w) {
    const Vector vscr = {static_cast<uint32_t>(w >> 32)};
    asm volatile("mtfsf 255,%0\n\tmtvscr %1" : : "d"(std::bit_cast<double>(w & 0xFFFFFFFF)), "v"(vscr) : "memory");
  }
#else
  using Word = uint32_t;
  static constexpr Word kControl = 0;
  static constexpr Word kDefault = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif
  Word word_;
  bool changed_;
};

}  // namespace simdattn

#endif  // SIMDATTN_DISPATCH_ENVIRONMENT_H_
