// The floating-point control word: as results are defined, while a call computes, and as matrix instructions compute.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simdattn {

/// kControl: the bits that have a say in results, kDefault: as they should be. kFlush: subnormal operands and results
/// count as zeros of their sign.
struct ControlWord {
#if defined(__x86_64__)
  // MXCSR: flush to zero 15, rounding 14:13, masks 12:7, subnormals are zeros 6. Bits 5:0 are what has happened. A
  // result is tiny if it is so after rounding.
  using Word = uint32_t;
  static constexpr Word kControl = 0xFFC0, kDefault = 0x1F80, kFlush = 0x8040;
  [[gnu::always_inline]] static Word read() { return _mm_getcsr(); }
  [[gnu::always_inline]] static void write(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  // FPCR: AHP 26, DN 25, FZ 24, rounding 23:22, FZ16 19, traps 15 and 12:8, and of FEAT_AFP NEP 2, AH 1, FIZ 0. A
  // result is tiny if it is so before rounding.
  using Word = uint64_t;
  static constexpr Word kControl = 0x07C89F07, kDefault = 0, kFlush = 1 << 24;
  [[gnu::always_inline]] static Word read() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));  // volatile: not moved across the writes below
    return w;
  }
  [[gnu::always_inline]] static void write(Word w) { asm volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
  // FPSCR: traps 7:3, non-IEEE mode 2, rounding 1:0. In the upper half VSCR: 16 flushes subnormal numbers in
  // instructions of VMX, which compilers take for a multiply-add with four registers. Linux sets it for every thread.
  using Word = uint64_t;
  using Vector [[gnu::vector_size(16)]] = uint32_t;
  static constexpr Word kControl = 0x00010000000000FF, kDefault = 0, kFlush = 0;
  [[gnu::always_inline]] static Word read() {
    double fpscr;
    Vector vscr;
    asm volatile("mffs %0\n\tmfvscr %1" : "=d"(fpscr), "=v"(vscr));
    return (std::bit_cast<Word>(fpscr) & 0xFFFFFFFF) | Word{vscr[0]} << 32;
  }
  [[gnu::always_inline]] static void write(Word w) {
    const Vector vscr = {static_cast<uint32_t>(w >> 32)};
    asm volatile("mtfsf 255,%0\n\tmtvscr %1" : : "d"(std::bit_cast<double>(w & 0xFFFFFFFF)), "v"(vscr) : "memory");
  }
#elif defined(__riscv)
  // FRM: rounding 2:0. There are no traps, and subnormal numbers are always kept.
  using Word = uint64_t;
  static constexpr Word kControl = 7, kDefault = 0, kFlush = 0;
  [[gnu::always_inline]] static Word read() {
    Word w;
    asm volatile("frrm %0" : "=r"(w));
    return w;
  }
  [[gnu::always_inline]] static void write(Word w) { asm volatile("fsrm %0" : : "r"(w) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kControl = 0, kDefault = 0, kFlush = 0;
  [[gnu::always_inline]] static Word read() { return 0; }
  [[gnu::always_inline]] static void write(Word) {}
#endif
};

/// The bits kMask of the word are kValue, and afterwards what they were. Where they are so already, as they nearly
/// always are in the caller's word, nothing is written, because writing it takes much longer than reading.
template <ControlWord::Word kMask, ControlWord::Word kValue>
class ControlBits {
 public:
  // Inlined, because a copy in an object for other instructions must not be taken for this one by the linker.
  [[gnu::always_inline]] ControlBits() : word_(ControlWord::read()), changes_((word_ & kMask) != kValue) {
    if (changes_) ControlWord::write((word_ & ~kMask) | kValue);
  }
  [[gnu::always_inline]] ~ControlBits() {
    if (changes_) ControlWord::write(word_);
  }
  ControlBits(const ControlBits&) = delete;
  ControlBits& operator=(const ControlBits&) = delete;

 private:
  ControlWord::Word word_;
  bool changes_;
};

/// While a call computes: round to nearest even, subnormal numbers kept, nothing trapped.
using Environment = ControlBits<ControlWord::kControl, ControlWord::kDefault>;

/// Arithmetic without subnormal numbers, while a slot computes. What is computed meanwhile must be behind a call that
/// is not inlined: compilers move plain arithmetic across changes of the control word.
using FlushSubnormals = ControlBits<ControlWord::kFlush, ControlWord::kFlush>;
/// Elsewhere operations flush by themselves.
constexpr bool kFlushesByControlWord = ControlWord::kFlush != 0;

}  // namespace simdattn
