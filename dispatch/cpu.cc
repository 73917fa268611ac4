#include "dispatch/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__powerpc64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace simdattn {

#if defined(__x86_64__)

// The compiler's runtime reads CPUID and, for AVX and AVX-512, XGETBV: a feature whose registers the operating system
// does not save counts as absent. Names are those of /proc/cpuinfo, but for dots.
#define SIMDATTN_FEATURE(shown, name)                       \
  CpuFeature {                                              \
    shown, [] { return __builtin_cpu_supports(name) != 0; } \
  }
#define SIMDATTN_AVX2_FEATURES                                                                                    \
  SIMDATTN_FEATURE("ssse3", "ssse3"), SIMDATTN_FEATURE("sse4.1", "sse4.1"), SIMDATTN_FEATURE("sse4.2", "sse4.2"), \
      SIMDATTN_FEATURE("popcnt", "popcnt"), SIMDATTN_FEATURE("avx", "avx"), SIMDATTN_FEATURE("avx2", "avx2"),     \
      SIMDATTN_FEATURE("fma", "fma"), SIMDATTN_FEATURE("bmi1", "bmi"), SIMDATTN_FEATURE("bmi2", "bmi2"),          \
      SIMDATTN_FEATURE("f16c", "f16c")
#define SIMDATTN_AVX3_DL_FEATURES                                                                                 \
  SIMDATTN_AVX2_FEATURES, SIMDATTN_FEATURE("avx512f", "avx512f"), SIMDATTN_FEATURE("avx512cd", "avx512cd"),       \
      SIMDATTN_FEATURE("avx512vl", "avx512vl"), SIMDATTN_FEATURE("avx512dq", "avx512dq"),                         \
      SIMDATTN_FEATURE("avx512bw", "avx512bw"), SIMDATTN_FEATURE("avx512_vnni", "avx512vnni"),                    \
      SIMDATTN_FEATURE("avx512vbmi", "avx512vbmi"), SIMDATTN_FEATURE("avx512_vbmi2", "avx512vbmi2"),              \
      SIMDATTN_FEATURE("avx512_bitalg", "avx512bitalg"), SIMDATTN_FEATURE("avx512_vpopcntdq", "avx512vpopcntdq"), \
      SIMDATTN_FEATURE("gfni", "gfni"), SIMDATTN_FEATURE("vpclmulqdq", "vpclmulqdq"), CpuFeature {                \
    "vaes", [] { return (leaf_7(0).c >> 9 & 1) != 0; }                                                            \
  }

// What some compilers' runtime does not name: leaf 7 of CPUID.
struct Cpuid {
  unsigned a, b, c, d;
};
static Cpuid leaf_7(unsigned subleaf) {
  Cpuid r = {0, 0, 0, 0};
  if (__get_cpuid_count(7, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {0, 0, 0, 0};
  if (subleaf > 0) {
    Cpuid first = {0, 0, 0, 0};
    __get_cpuid_count(7, 0, &first.a, &first.b, &first.c, &first.d);
    if (first.a < subleaf) return {0, 0, 0, 0};
  }
  return r;
}
/// The operating system saves the configuration of tiles (bit 17) and their data (bit 18).
static bool saves_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0) return false;  // OSXSAVE
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a >> 17 & 3) == 3;
}

static constexpr CpuFeature kAvxVnniFeatures[] = {
    SIMDATTN_AVX2_FEATURES,
    {"avx_vnni", [] { return (leaf_7(1).a >> 4 & 1) != 0; }},
};
static constexpr CpuFeature kAvx512Bf16Features[] = {
    SIMDATTN_AVX3_DL_FEATURES,
    {"avx512_bf16", [] { return (leaf_7(1).a >> 5 & 1) != 0; }},
};
static constexpr CpuFeature kFeatures[] = {
    SIMDATTN_AVX3_DL_FEATURES,
    {"amx_tile", [] { return (leaf_7(0).d >> 24 & 1) != 0 && saves_tiles(); }},
    {"amx_bf16", [] { return (leaf_7(0).d >> 22 & 1) != 0 && saves_tiles(); }},
    {"amx_int8", [] { return (leaf_7(0).d >> 25 & 1) != 0 && saves_tiles(); }},
};
#undef SIMDATTN_AVX3_DL_FEATURES
#undef SIMDATTN_AVX2_FEATURES
#undef SIMDATTN_FEATURE

CpuFeatures needed_features(Isa isa) {
  switch (isa) {
    case Isa::kSse4: return {kFeatures, 4};
    case Isa::kAvx2: return {kFeatures, 10};
    case Isa::kAvxVnni: return {kAvxVnniFeatures, 11};
    case Isa::kAvx3: return {kFeatures, 15};
    case Isa::kAvx3Dl: return {kFeatures, 23};
    case Isa::kAvx512Bf16: return {kAvx512Bf16Features, 24};
    case Isa::kAmx: return {kFeatures, 26};
    default: return {kFeatures, 0};
  }
}

const char* missing_feature(Isa isa) {
  if (isa > Isa::kAmx) return "another architecture";
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
static bool has_dot_product() { return hwcap(20); }
static bool has_bf16() { return hwcap2(14); }
static bool has_i8mm() { return hwcap2(13); }
static bool has_sve_bf16() { return hwcap2(12); }
static bool has_sve_i8mm() { return hwcap2(9); }
static bool has_sve() { return hwcap(22); }
static bool has_sve2_aes() { return has_sve() && hwcap2(1) && hwcap2(2); }
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
static bool has_dot_product() { return sysctl_flag("hw.optional.arm.FEAT_DotProd"); }
static bool has_bf16() { return sysctl_flag("hw.optional.arm.FEAT_BF16"); }
static bool has_i8mm() { return sysctl_flag("hw.optional.arm.FEAT_I8MM"); }
static bool has_sve_bf16() { return false; }
static bool has_sve_i8mm() { return false; }
static bool has_sve() { return false; }
static bool has_sve2_aes() { return false; }
static int sve_bytes() { return 0; }

#else

static bool has_neon() { return true; }  // part of the base architecture
static bool has_dot_product() { return false; }
static bool has_bf16() { return false; }
static bool has_i8mm() { return false; }
static bool has_sve_bf16() { return false; }
static bool has_sve_i8mm() { return false; }
static bool has_sve() { return false; }
static bool has_sve2_aes() { return false; }
static int sve_bytes() { return 0; }

#endif

static const char* missing_sve_i8mm(Isa isa) {
  const char* missing = missing_feature(isa);
  return *missing != '\0' ? missing : !has_sve_bf16() ? "svebf16" : !has_sve_i8mm() ? "svei8mm" : "";
}

const char* missing_feature(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "";
    case Isa::kNeon: return has_neon() ? "" : "asimd";
    case Isa::kNeonDotprod: return !has_neon() ? "asimd" : !has_dot_product() ? "asimddp" : "";
    case Isa::kNeonI8mm: {
      const char* missing = missing_feature(Isa::kNeonDotprod);
      return *missing != '\0' ? missing : !has_bf16() ? "bf16" : !has_i8mm() ? "i8mm" : "";
    }
    case Isa::kSveVl128: return !has_sve() ? "sve" : sve_bytes() != 16 ? "an SVE vector length of 128 bits" : "";
    case Isa::kSveVl256: return !has_sve() ? "sve" : sve_bytes() != 32 ? "an SVE vector length of 256 bits" : "";
    case Isa::kSveVl512: return !has_sve() ? "sve" : sve_bytes() != 64 ? "an SVE vector length of 512 bits" : "";
    case Isa::kSve2Vl128:
      return !has_sve2_aes() ? "sve2, sveaes" : sve_bytes() != 16 ? "an SVE vector length of 128 bits" : "";
    case Isa::kSveVl256I8mm: return missing_sve_i8mm(Isa::kSveVl256);
    case Isa::kSve2Vl128I8mm: return missing_sve_i8mm(Isa::kSve2Vl128);
    default: return "another architecture";
  }
}

#elif defined(__powerpc64__) && defined(__linux__)

const char* missing_feature(Isa isa) {
  if (isa == Isa::kPower9) return (getauxval(AT_HWCAP2) & PPC_FEATURE2_ARCH_3_00) != 0 ? "" : "arch_3_00";
  return isa == Isa::kBaseline ? "" : "another architecture";
}

#else

const char* missing_feature(Isa isa) { return isa == Isa::kBaseline ? "" : "another architecture"; }

#endif

static bool permitted = false;

bool has_permission() { return __atomic_load_n(&permitted, __ATOMIC_RELAXED); }

bool request_permission() {
  if (*missing_feature(Isa::kAmx) != '\0') return false;
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM; older C libraries do not name it
  constexpr int kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return false;
  __atomic_store_n(&permitted, true, __ATOMIC_RELAXED);
  return true;
#else
  return false;
#endif
}

}  // namespace simdattn
