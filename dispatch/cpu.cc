#include "dispatch/cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace simdattn {

#if defined(__x86_64__)

// The compiler's runtime reads CPUID and, for AVX and AVX-512, XGETBV: a feature whose registers the operating system
// does not save counts as absent.
#define SIMDATTN_FEATURE(name)                             \
  CpuFeature {                                             \
    name, [] { return __builtin_cpu_supports(name) != 0; } \
  }
static constexpr CpuFeature kFeatures[] = {
    SIMDATTN_FEATURE("ssse3"),    SIMDATTN_FEATURE("sse4.1"),   SIMDATTN_FEATURE("sse4.2"),
    SIMDATTN_FEATURE("avx"),      SIMDATTN_FEATURE("avx2"),     SIMDATTN_FEATURE("fma"),
    SIMDATTN_FEATURE("bmi"),      SIMDATTN_FEATURE("bmi2"),     SIMDATTN_FEATURE("f16c"),
    SIMDATTN_FEATURE("avx512f"),  SIMDATTN_FEATURE("avx512cd"), SIMDATTN_FEATURE("avx512vl"),
    SIMDATTN_FEATURE("avx512dq"), SIMDATTN_FEATURE("avx512bw"), SIMDATTN_FEATURE("avx512vnni"),
    SIMDATTN_FEATURE("avx512vbmi"), SIMDATTN_FEATURE("avx512vbmi2"), SIMDATTN_FEATURE("avx512bitalg"),
    SIMDATTN_FEATURE("avx512vpopcntdq"), SIMDATTN_FEATURE("gfni"), SIMDATTN_FEATURE("vpclmulqdq"),
};
#undef SIMDATTN_FEATURE

CpuFeatures needed_features(Isa isa) {
  switch (isa) {
    case Isa::kSse4: return {kFeatures, 3};
    case Isa::kAvx2: return {kFeatures, 9};
    case Isa::kAvx3: return {kFeatures, 14};
    case Isa::kAvx3Dl: return {kFeatures, 21};
    default: return {kFeatures, 0};
  }
}

const char* missing_feature(Isa isa) {
  if (isa > Isa::kAvx3Dl) return "another architecture";
  const CpuFeatures needed = needed_features(isa);
  for (int i = 0; i < needed.count; ++i) {
    if (!needed.data[i].here()) return needed.data[i].name;
  }
  return "";
}

#elif defined(__aarch64__)

#if defined(__linux__)

#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif

// Bits of AT_HWCAP and AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h); older C libraries lack the later names.
static bool hwcap(int bit) { return (getauxval(AT_HWCAP) >> bit & 1) != 0; }
static bool hwcap2(int bit) { return (getauxval(AT_HWCAP2) >> bit & 1) != 0; }
static bool has_neon() { return hwcap(1); }
static bool has_aes() { return hwcap(3); }
static bool has_fp16() { return hwcap(9) && hwcap(10); }
static bool has_dot_product() { return hwcap(20); }
static bool has_bf16() { return hwcap2(14); }
static bool has_sve() { return hwcap(22); }
static bool has_sve2() { return has_sve() && hwcap2(1); }
static bool has_sve2_aes() { return has_sve2() && hwcap2(2); }
/// Bytes of an SVE vector as the kernel has set them for this thread.
static int sve_bytes() {
  const int r = prctl(PR_SVE_GET_VL);
  return r < 0 ? 0 : r & 0xFFFF;
}

#elif defined(__APPLE__)

static bool sysctl_flag(const char* name) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
static bool has_neon() { return true; }
static bool has_aes() { return sysctl_flag("hw.optional.arm.FEAT_AES"); }
static bool has_fp16() { return sysctl_flag("hw.optional.arm.FEAT_FP16"); }
static bool has_dot_product() { return sysctl_flag("hw.optional.arm.FEAT_DotProd"); }
static bool has_bf16() { return sysctl_flag("hw.optional.arm.FEAT_BF16"); }
static bool has_sve() { return false; }
static bool has_sve2() { return false; }
static bool has_sve2_aes() { return false; }
static int sve_bytes() { return 0; }

#else

static bool has_neon() { return true; }  // part of the base architecture
static bool has_aes() { return false; }
static bool has_fp16() { return false; }
static bool has_dot_product() { return false; }
static bool has_bf16() { return false; }
static bool has_sve() { return false; }
static bool has_sve2() { return false; }
static bool has_sve2_aes() { return false; }
static int sve_bytes() { return 0; }

#endif

const char* missing_feature(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "";
    case Isa::kNeon: return has_neon() ? "" : "asimd";
    case Isa::kNeonAes: return !has_neon() ? "asimd" : !has_aes() ? "aes" : "";
    case Isa::kNeonBf16:
      return !has_neon()          ? "asimd"
             : !has_aes()         ? "aes"
             : !has_fp16()        ? "fphp, asimdhp"
             : !has_dot_product() ? "asimddp"
             : !has_bf16()        ? "bf16"
                                  : "";
    case Isa::kSve: return has_sve() ? "" : "sve";
    case Isa::kSveVl128: return !has_sve() ? "sve" : sve_bytes() != 16 ? "an SVE vector length of 128 bits" : "";
    case Isa::kSveVl256: return !has_sve() ? "sve" : sve_bytes() != 32 ? "an SVE vector length of 256 bits" : "";
    case Isa::kSveVl512: return !has_sve() ? "sve" : sve_bytes() != 64 ? "an SVE vector length of 512 bits" : "";
    case Isa::kSve2: return has_sve2() ? "" : "sve2";
    case Isa::kSve2Vl128:
      return !has_sve2_aes() ? "sve2, sveaes" : sve_bytes() != 16 ? "an SVE vector length of 128 bits" : "";
    default: return "another architecture";
  }
}

#else

const char* missing_feature(Isa isa) { return isa == Isa::kBaseline ? "" : "another architecture"; }

#endif

}  // namespace simdattn
