// Facts of CPU families that instruction sets do not tell, as data. Times depend on them, results do not.
#pragma once

#include <cstdint>

#include "dispatch/cpu.h"

namespace simdattn {

struct Tuning {
  int64_t l1_bytes = 48 << 10;
  /// Rows from memory arrive faster if those of several pages are asked for in turns.
  bool memory_in_pages = false;
  /// Software prefetches of one stream from memory cost more than they bring.
  bool memory_by_hardware = false;
  /// Results larger than the caches are written sooner by stores that bypass these.
  bool stream_results = false;
  /// VDPBF16PS takes longer than two multiply-adds of f32.
  bool slow_bf16_pairs = false;
};

struct CpuFamily {
  const char* name;
  Tuning tuning;
};
/// A CPU that is none of the others is the first one.
enum : int { kOtherCpu, kSkylakeSp, kIntel, kZen3AndZen4 };
inline constexpr CpuFamily kCpuFamilies[] = {
    {"other CPUs", {}},
    {"Intel Skylake-SP and Cascade Lake", {.l1_bytes = 32 << 10, .memory_in_pages = true, .slow_bf16_pairs = true}},
    {"Intel", {.memory_in_pages = true, .slow_bf16_pairs = true}},
    {"AMD Zen 3 and Zen 4", {.l1_bytes = 32 << 10, .memory_by_hardware = true, .stream_results = true}},
};

/// Of the CPU that runs this.
inline const Tuning& tuning_of_cpu() {
  int family = kOtherCpu;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) {
    const bool small = __builtin_cpu_is("skylake-avx512") || __builtin_cpu_is("cascadelake");
    family = small ? kSkylakeSp : kIntel;
  } else if (__builtin_cpu_is("amdfam19h")) {
    family = kZen3AndZen4;
  }
#endif
  return kCpuFamilies[family].tuning;
}

/// Whether the instruction set's own products of bf16 are faster than multiply-adds of f32. BFMLALB and BFMLALT of ARM
/// are none of these: a pair of them adds as many products as two multiply-adds.
inline bool has_fast_bf16(Isa isa, const Tuning& tuning) {
  return isa == Isa::kAmx || (isa == Isa::kAvx512Bf16 && !tuning.slow_bf16_pairs);
}

/// The list of targets is in descending order of Isa, because later instruction sets are faster as a rule. But one
/// whose own instruction is slow on this CPU stands behind its base. The instruction set at a place of the list,
/// counted from its end.
inline Isa isa_at(int place, const Tuning& tuning) {
  const auto isa = static_cast<Isa>(place);
  static_assert(static_cast<int>(Isa::kAvx512Bf16) == static_cast<int>(Isa::kAvx3Dl) + 1);
  if (!tuning.slow_bf16_pairs) return isa;
  return isa == Isa::kAvx512Bf16 ? Isa::kAvx3Dl : isa == Isa::kAvx3Dl ? Isa::kAvx512Bf16 : isa;
}

}  // namespace simdattn
