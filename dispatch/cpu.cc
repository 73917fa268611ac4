#include "dispatch/cpu.h"

#include <cerrno>
#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace simdattn {

// Each architecture has its instruction sets, kFirst .. kLast, and its features.
#if defined(__x86_64__)

struct Cpuid {
  unsigned a, b, c, d;
};
/// What some compilers' runtime does not name: leaf 7 of CPUID.
static Cpuid leaf_7(unsigned subleaf) {
  Cpuid r = {0, 0, 0, 0};
  if (__get_cpuid_count(7, 0, &r.a, &r.b, &r.c, &r.d) == 0 || r.a < subleaf) return {0, 0, 0, 0};
  if (subleaf > 0) __cpuid_count(7, subleaf, r.a, r.b, r.c, r.d);
  return r;
}
/// The operating system saves the configuration of tiles (bit 17) and their data (bit 18).
static bool saves_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0) return false;  // OSXSAVE
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a >> 17 & 3) == 3;
}

static constexpr Isa kFirst = Isa::kSse2;
static constexpr Isa kLast = Isa::kAmx;
// The compiler's runtime reads CPUID and, for AVX and AVX-512, XGETBV: a feature whose registers the operating system
// does not save counts as absent. Names are those of /proc/cpuinfo, but for dots.
#define SIMDATTN_FEATURE(shown, name, first) {shown, first, kLast, [] { return __builtin_cpu_supports(name) != 0; }}
static constexpr CpuFeature kFeatures[] = {
    SIMDATTN_FEATURE("ssse3", "ssse3", Isa::kSse4),
    SIMDATTN_FEATURE("sse4.1", "sse4.1", Isa::kSse4),
    SIMDATTN_FEATURE("sse4.2", "sse4.2", Isa::kSse4),
    SIMDATTN_FEATURE("popcnt", "popcnt", Isa::kSse4),
    SIMDATTN_FEATURE("avx", "avx", Isa::kAvx2),
    SIMDATTN_FEATURE("avx2", "avx2", Isa::kAvx2),
    SIMDATTN_FEATURE("fma", "fma", Isa::kAvx2),
    SIMDATTN_FEATURE("bmi1", "bmi", Isa::kAvx2),
    SIMDATTN_FEATURE("bmi2", "bmi2", Isa::kAvx2),
    SIMDATTN_FEATURE("f16c", "f16c", Isa::kAvx2),
    {"avx_vnni", Isa::kAvxVnni, Isa::kAvxVnni, [] { return (leaf_7(1).a >> 4 & 1) != 0; }},
    SIMDATTN_FEATURE("avx512f", "avx512f", Isa::kAvx3),
    SIMDATTN_FEATURE("avx512cd", "avx512cd", Isa::kAvx3),
    SIMDATTN_FEATURE("avx512vl", "avx512vl", Isa::kAvx3),
    SIMDATTN_FEATURE("avx512dq", "avx512dq", Isa::kAvx3),
    SIMDATTN_FEATURE("avx512bw", "avx512bw", Isa::kAvx3),
    SIMDATTN_FEATURE("avx512_vnni", "avx512vnni", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("avx512vbmi", "avx512vbmi", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("avx512_vbmi2", "avx512vbmi2", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("avx512_bitalg", "avx512bitalg", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("avx512_vpopcntdq", "avx512vpopcntdq", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("gfni", "gfni", Isa::kAvx3Dl),
    SIMDATTN_FEATURE("vpclmulqdq", "vpclmulqdq", Isa::kAvx3Dl),
    {"vaes", Isa::kAvx3Dl, kLast, [] { return (leaf_7(0).c >> 9 & 1) != 0; }},
    {"avx512_bf16", Isa::kAvx512Bf16, Isa::kAvx512Bf16, [] { return (leaf_7(1).a >> 5 & 1) != 0; }},
    {"amx_tile", Isa::kAmx, Isa::kAmx, [] { return (leaf_7(0).d >> 24 & 1) != 0 && saves_tiles(); }},
    {"amx_bf16", Isa::kAmx, Isa::kAmx, [] { return (leaf_7(0).d >> 22 & 1) != 0 && saves_tiles(); }},
    {"amx_int8", Isa::kAmx, Isa::kAmx, [] { return (leaf_7(0).d >> 25 & 1) != 0 && saves_tiles(); }},
};
#undef SIMDATTN_FEATURE

#elif defined(__aarch64__)

/// ASIMD is part of the base architecture.
static constexpr int kAsimd = 1;
#if defined(__linux__)
#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif
/// A bit of AT_HWCAP or, from 64 on, of AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h): older C libraries lack
/// names.
static bool has(int bit, const char* /*name*/) {
  return (getauxval(bit < 64 ? AT_HWCAP : AT_HWCAP2) >> bit % 64 & 1) != 0;
}
/// Of an SVE vector as the kernel has set them for this thread.
static bool sve_bytes_are(int bytes) {
  const int r = prctl(PR_SVE_GET_VL);
  return r >= 0 && (r & 0xFFFF) == bytes;
}
#elif defined(__APPLE__)
static bool has(int bit, const char* name) {
  int value = 0;
  size_t size = sizeof(value);
  return bit == kAsimd || (*name != '\0' && sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0);
}
static bool sve_bytes_are(int /*bytes*/) { return false; }
#else
static bool has(int bit, const char* /*name*/) { return bit == kAsimd; }
static bool sve_bytes_are(int /*bytes*/) { return false; }
#endif

static constexpr Isa kFirst = Isa::kSveVl128;
static constexpr Isa kLast = Isa::kSveVl256I8mm;
static bool has_sve() { return has(22, ""); }
static bool has_sve_bf16() { return has(64 + 12, ""); }
static bool has_sve_i8mm() { return has(64 + 9, ""); }
static constexpr CpuFeature kFeatures[] = {
    {"asimd", Isa::kNeon, Isa::kNeonI8mm, [] { return has(kAsimd, ""); }},
    {"asimddp", Isa::kNeonDotprod, Isa::kNeonI8mm, [] { return has(20, "hw.optional.arm.FEAT_DotProd"); }},
    {"bf16", Isa::kNeonI8mm, Isa::kNeonI8mm, [] { return has(64 + 14, "hw.optional.arm.FEAT_BF16"); }},
    {"i8mm", Isa::kNeonI8mm, Isa::kNeonI8mm, [] { return has(64 + 13, "hw.optional.arm.FEAT_I8MM"); }},
    {"sve", Isa::kSveVl128, Isa::kSve2Vl128I8mm, has_sve},
    {"sve", Isa::kSveVl512, kLast, has_sve},
    {"sve2, sveaes", Isa::kSve2Vl128, Isa::kSve2Vl128I8mm,
     [] { return has_sve() && has(64 + 1, "") && has(64 + 2, ""); }},
    {"an SVE vector length of 128 bits", Isa::kSveVl128, Isa::kSve2Vl128I8mm, [] { return sve_bytes_are(16); }},
    {"an SVE vector length of 512 bits", Isa::kSveVl512, Isa::kSveVl512, [] { return sve_bytes_are(64); }},
    {"an SVE vector length of 256 bits", Isa::kSveVl256, kLast, [] { return sve_bytes_are(32); }},
    {"svebf16", Isa::kSve2Vl128I8mm, Isa::kSve2Vl128I8mm, has_sve_bf16},
    {"svebf16", Isa::kSveVl256I8mm, kLast, has_sve_bf16},
    {"svei8mm", Isa::kSve2Vl128I8mm, Isa::kSve2Vl128I8mm, has_sve_i8mm},
    {"svei8mm", Isa::kSveVl256I8mm, kLast, has_sve_i8mm},
};

#elif defined(__powerpc64__) && defined(__linux__)

static constexpr Isa kFirst = Isa::kPower9;
static constexpr Isa kLast = Isa::kPower9;
static constexpr CpuFeature kFeatures[] = {
    {"arch_3_00", kFirst, kLast, [] { return (getauxval(AT_HWCAP2) & PPC_FEATURE2_ARCH_3_00) != 0; }}};

#elif defined(__riscv) && defined(__linux__)

static constexpr Isa kFirst = Isa::kRvvVl128;
static constexpr Isa kLast = Isa::kRvvVl256;
static bool has_v() { return (getauxval(AT_HWCAP) >> ('V' - 'A') & 1) != 0; }
static bool vector_bytes_are(unsigned long bytes) {
  unsigned long r = 0;
  // The register vlenb by its number: without V assemblers do not know its name.
  if (has_v()) __asm__("csrr %0, 0xC22" : "=r"(r));
  return r == bytes;
}
static constexpr CpuFeature kFeatures[] = {
    {"v", kFirst, kLast, has_v},
    {"a vector length of 128 bits", Isa::kRvvVl128, Isa::kRvvVl128, [] { return vector_bytes_are(16); }},
    {"a vector length of 256 bits", Isa::kRvvVl256, Isa::kRvvVl256, [] { return vector_bytes_are(32); }},
};

#elif defined(__wasm__)

// An engine without SIMD loads no module that has it.
static constexpr Isa kFirst = Isa::kWasm128;
static constexpr Isa kLast = Isa::kWasm128;
static constexpr std::span<const CpuFeature> kFeatures;

#else

static constexpr Isa kFirst = Isa::kBaseline;
static constexpr Isa kLast = Isa::kBaseline;
static constexpr std::span<const CpuFeature> kFeatures;

#endif

constinit const std::span<const CpuFeature> kCpuFeatures(kFeatures);

const char* missing_feature(Isa isa) {
  if (isa != Isa::kBaseline && (isa < kFirst || isa > kLast)) return "another architecture";
  for (const CpuFeature& feature : kFeatures) {
    if (feature.needed_by(isa) && !feature.here()) return feature.name;
  }
  return "";
}

static bool permitted = false;

bool has_permission() { return __atomic_load_n(&permitted, __ATOMIC_RELAXED); }

int request_permission() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM; older C libraries do not name it
  constexpr int kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return errno;
  __atomic_store_n(&permitted, true, __ATOMIC_RELAXED);
  return 0;
#else
  return ENOSYS;
#endif
}

const char* refusal(int error) {
  // Linux looks at the alternate stacks of all threads (arch/x86/kernel/fpu/xstate.c, __xstate_request_perm).
  return error == ENOSPC ? "request_amx: a thread has an alternate signal stack of less than AT_MINSIGSTKSZ bytes"
                         : "request_amx: the operating system refuses";
}

}  // namespace simdattn
