// What the CPU and the operating system offer; shared by all backends.
#pragma once

#include <cstdint>
#include <span>

namespace simdattn {

/// Instruction sets that kernels are built for, better ones later: the list of targets is in descending order. The
/// names are Highway's; other backends use the ones they need.
enum class Isa : uint8_t {
  kBaseline,
  kSse2,
  kSse4,
  kAvx2,        // with FMA, BMI2 and F16C
  kAvxVnni,     // and AVX-VNNI
  kAvx3,        // AVX-512 F, CD, VL, DQ, BW
  kAvx3Dl,      // and VNNI, VBMI, VBMI2, BITALG, VPOPCNTDQ, VPCLMULQDQ, VAES, GFNI
  kAvx512Bf16,  // and AVX512-BF16
  kAmx,         // kAvx3Dl and AMX-TILE, AMX-BF16, AMX-INT8; runs with permission only
  kPower9,      // VSX with conversions of f16
  kRvvVl128,    // RISC-V V with vectors of exactly that many bits
  kRvvVl256,
  kWasm128,  // SIMD of WebAssembly
  // SVE with vectors of exactly that many bits. Those of 128 stand before NEON, which has as many: SVE's loops
  // broadcast by an instruction what NEON's multiply-adds take from a lane, and no pipe is idle for it.
  kSveVl128,
  kSve2Vl128,      // SVE2
  kSve2Vl128I8mm,  // and BFMLALB, BFMLALT, SMMLA, USMMLA of SVE
  kNeon,
  kNeonDotprod,  // NEON, SDOT and UDOT
  kNeonI8mm,     // and BFMLALB, BFMLALT, SMMLA, USMMLA
  kSveVl512,
  kSveVl256,
  kSveVl256I8mm,  // as kSve2Vl128I8mm
  kEnd
};

/// Name of the first feature of `isa` that this CPU lacks or whose registers the operating system does not save; ""
/// if there is none.
const char* missing_feature(Isa isa);

/// True once request_permission() has got it.
bool has_permission();
/// Asks for the state of AMX tiles (8 KiB a thread), which Linux gives a process that asks, never takes back, and
/// passes on to forked processes. 0, or the error number.
int request_permission();
/// Why Linux has refused, as a sentence of request_amx().
const char* refusal(int error);

/// A feature that the instruction sets first .. last need.
struct CpuFeature {
  const char* name;
  Isa first;
  Isa last;
  bool (*here)();

  bool needed_by(Isa isa) const { return first <= isa && isa <= last; }
};
/// Those of this architecture, in the order in which missing_feature() asks for them.
extern const std::span<const CpuFeature> kCpuFeatures;

}  // namespace simdattn
