// Facts of CPU families that instruction sets do not tell, as data. Times depend on them, results do not.
#ifndef SIMDATTN_DISPATCH_TUNING_H_
#define SIMDATTN_DISPATCH_TUNING_H_

#include <cstdint>

namespace simdattn {

struct Tuning {
  int64_t l1_bytes = 48 << 10;
  /// Rows from memory arrive faster if those of several pages are asked for in turns.
  bool memory_in_pages = false;
  /// Software prefetches of one stream from memory cost more than they bring.
  bool memory_by_hardware = false;
  /// VDPBF16PS takes longer than two multiply-adds of f32.
  bool slow_bf16_pairs = false;
};

/// Of the CPU that runs this.
inline Tuning tuning_of_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) {
    const bool small = __builtin_cpu_is("skylake-avx512") || __builtin_cpu_is("cascadelake");
    return {.l1_bytes = (small ? 32 : 48) << 10, .memory_in_pages = true, .slow_bf16_pairs = true};
  }
  if (__builtin_cpu_is("amdfam19h")) return {.l1_bytes = 32 << 10, .memory_by_hardware = true};  // Zen 3 and 4
#endif
  return {};
}

}  // namespace simdattn

#endif  // SIMDATTN_DISPATCH_TUNING_H_
