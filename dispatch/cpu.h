// What the CPU and the operating system offer; shared by all backends.
#ifndef SIMDATTN_DISPATCH_CPU_H_
#define SIMDATTN_DISPATCH_CPU_H_

#include <cstdint>

namespace simdattn {

/// Instruction sets that kernels are built for. The names are Highway's; other backends use the ones they need.
enum class Isa : uint8_t {
  kBaseline,
  kSse2,
  kSse4,
  kAvx2,  // with FMA, BMI2 and F16C
  kAvx3,    // AVX-512 F, CD, VL, DQ, BW
  kAvx3Dl,  // with VNNI and what else came with Ice Lake
  kNeon,
  kNeonAes,
  kNeonBf16,
  kSve,
  kSveVl128,  // SVE with vectors of exactly that many bits
  kSveVl256,
  kSveVl512,
  kSve2,
  kSve2Vl128,
};

/// Name of the first feature of `isa` that this CPU lacks or whose registers the operating system does not save; ""
/// if there is none.
const char* missing_feature(Isa isa);

#if defined(__x86_64__)
/// What missing_feature() asks for, in this order.
struct CpuFeature {
  const char* name;
  bool (*here)();
};
struct CpuFeatures {
  const CpuFeature* data;
  int count;
};
CpuFeatures needed_features(Isa isa);
#endif

}  // namespace simdattn

#endif  // SIMDATTN_DISPATCH_CPU_H_
