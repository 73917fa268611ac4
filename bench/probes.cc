// Compiled several times: BENCH_ISA names the instruction set of this object. Vectors are the compilers' own extension,
// as wide as that set has them, and no header with inline functions is included: the linker would be free to use this
// object's copies in the rest of the program.
#include "bench/probes.h"

#ifdef __ARM_FEATURE_SVE
#include <arm_sve.h>
#endif

namespace bench {
namespace {

#ifdef __ARM_FEATURE_SVE

using Floats = svfloat32_t;
using Words = svuint64_t;
size_t vector_bytes() { return svcntb(); }
inline Floats splat(float x) { return svdup_n_f32(x); }
inline Floats multiply_add(Floats a, Floats m, Floats c) { return svmad_f32_x(svptrue_b32(), a, m, c); }
inline Floats add(Floats a, Floats b) { return svadd_f32_x(svptrue_b32(), a, b); }
inline float first(Floats v) { return svlastb_f32(svpfalse_b(), v); }
inline Words zero() { return svdup_n_u64(0); }
inline Words join(Words a, Words b) { return svorr_u64_x(svptrue_b64(), a, b); }
inline Words load(const uint64_t* p) { return svld1_u64(svptrue_b64(), p); }
inline void store(Words v, uint64_t* p) { svst1_u64(svptrue_b64(), p, v); }
inline uint64_t first(Words v) { return svlastb_u64(svpfalse_b(), v); }

#else

#if defined(__AVX512F__)
constexpr size_t kBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kBytes = 32;
#else
constexpr size_t kBytes = 16;
#endif
using Floats __attribute__((vector_size(kBytes))) = float;
using Words __attribute__((vector_size(kBytes))) = uint64_t;
using Unaligned __attribute__((vector_size(kBytes), aligned(8), may_alias)) = uint64_t;
constexpr size_t vector_bytes() { return kBytes; }
inline Floats splat(float x) { return x - Floats{}; }
inline Floats multiply_add(Floats a, Floats m, Floats c) { return a * m + c; }  // -ffp-contract=fast
inline Floats add(Floats a, Floats b) { return a + b; }
inline float first(Floats v) { return v[0]; }
inline Words zero() { return Words{}; }
inline Words join(Words a, Words b) { return a | b; }
inline Words load(const uint64_t* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(Words v, uint64_t* p) { *reinterpret_cast<Unaligned*>(p) = v; }
inline uint64_t first(Words v) { return v[0]; }

#endif

// Every vector has a name of its own: arrays of vectors go through memory with gcc. Twelve chains cover two pipes of
// four cycles and fit sixteen registers; where there are thirty-two, twenty-four cover four pipes.
#define BENCH_8(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define BENCH_12(f) BENCH_8(f) f(8) f(9) f(10) f(11)
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr size_t kChains = 24;
#define BENCH_CHAINS(f) BENCH_12(f) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23)
#else
constexpr size_t kChains = 12;
#define BENCH_CHAINS(f) BENCH_12(f)
#endif

double fma(size_t steps) {
  const Floats m = splat(0.999f);
  const Floats c = splat(0.001f);
  // Every chain starts elsewhere: of equal ones the compiler would compute one.
#define BENCH_START(i) Floats a##i = splat(2.0f + i);
#define BENCH_STEP(i) a##i = multiply_add(a##i, m, c);
#define BENCH_ADD(i) sum = add(sum, a##i);
  BENCH_CHAINS(BENCH_START)
  for (size_t i = 0; i < steps; ++i) {
    BENCH_CHAINS(BENCH_STEP)
  }
  Floats sum = splat(0);
  BENCH_CHAINS(BENCH_ADD)
  volatile float sink = first(sum);
  (void)sink;
  return 2.0 * static_cast<double>(kChains * vector_bytes() / sizeof(float) * steps);
}

template <bool kPrefetch>
uint64_t read(const void* data, size_t bytes) {
  const size_t n = vector_bytes() / sizeof(uint64_t);
  const size_t step = 8 * n;
  const uint64_t* p = static_cast<const uint64_t*>(data);
  const uint64_t* end = p + bytes / sizeof(uint64_t) / step * step;
#define BENCH_ZERO(i) Words w##i = zero();
#define BENCH_JOIN_NEXT(i) w##i = join(w##i, load(p + i * n));
#define BENCH_JOIN_ALL(i) all = join(all, w##i);
  BENCH_8(BENCH_ZERO)
  for (; p != end; p += step) {
    if constexpr (kPrefetch) {
      for (size_t i = 0; i < step; i += 8) __builtin_prefetch(p + 512 + i);
    }
    BENCH_8(BENCH_JOIN_NEXT)
  }
  Words all = zero();
  BENCH_8(BENCH_JOIN_ALL)
  return first(all);
}

void copy(const void* from, void* to, size_t bytes) {
  const size_t n = vector_bytes() / sizeof(uint64_t);
  const size_t step = 8 * n;
  const uint64_t* p = static_cast<const uint64_t*>(from);
  const uint64_t* end = p + bytes / sizeof(uint64_t) / step * step;
  uint64_t* out = static_cast<uint64_t*>(to);
#define BENCH_LOAD(i) const Words v##i = load(p + i * n);
#define BENCH_STORE(i) store(v##i, out + i * n);
  for (; p != end; p += step, out += step) {
    BENCH_8(BENCH_LOAD)
    BENCH_8(BENCH_STORE)
  }
}

}  // namespace

#define BENCH_QUOTE_(x) #x
#define BENCH_QUOTE(x) BENCH_QUOTE_(x)
#define BENCH_JOIN_(a, b) a##b
#define BENCH_JOIN(a, b) BENCH_JOIN_(a, b)

// A function, since the length of an SVE vector is known only where there is SVE.
Isa BENCH_JOIN(probes_, BENCH_ISA)();
Isa BENCH_JOIN(probes_, BENCH_ISA)() {
  return {BENCH_QUOTE(BENCH_ISA), vector_bytes(), fma, read<false>, read<true>, copy};
}

}  // namespace bench
