// Compiled for the CPUs of Isa::kAvx2; nothing but software_pairs() runs before somebody has asked it.
#include "tests/kernels/software_pairs.h"

#include <bit>

#include "dispatch/cpu.h"
#include "lib/definition/flushed.h"
#include "lib/overlays/avx512_bf16_kernels.h"

namespace simdattn::test {
namespace {

struct Software {
  [[gnu::noinline]] static void lanes(const uint32_t* a, const uint32_t* b, float* sum) {
    for (int i = 0; i < 16; ++i) {
      const auto number = [](uint32_t bits) { return std::bit_cast<float>(bits); };
      sum[i] = scalar::flushed_fma(number(a[i] & 0xFFFF0000u), number(b[i] & 0xFFFF0000u), sum[i]);
      sum[i] = scalar::flushed_fma(number(a[i] << 16), number(b[i] << 16), sum[i]);
    }
  }
  static Floats add(const Floats& sum, const Bits32& a, const Bits32& b) {
    uint32_t x[16], y[16];
    float s[16];
    a.store_unaligned(x);
    b.store_unaligned(y);
    store(sum, s);
    lanes(x, y, s);
    return load(s);
  }
};
struct Slots;
using Kernels = PairKernels<Software, Slots>;
struct Slots {
  static constexpr int64_t kUnit = Avx512Bf16::kUnit;
  static constexpr auto score_packed = Kernels::scores<Packed>;
  static constexpr auto score_tile = Kernels::scores<Panels>;
  static constexpr auto value_packed = Kernels::values<true>;
  static constexpr auto value_tile = Kernels::values<false>;
  static constexpr auto softmax_tile = simdattn::softmax_tile<true, Bf16Weights<kUnit>>;
  static constexpr auto prepare_weights = Bf16Weights<kUnit>::prepare;
};

}  // namespace

const Target* software_pairs() {
  if (*missing_feature(Isa::kAvx2) != '\0') return nullptr;
  static const UKernels table = [] {
    UKernels t = *targets().back()->kernels;
    t.attention[index_of(Arithmetic::kBF16)] = bf16_pairs<Slots>(t.attention[index_of(Arithmetic::kBF16)], 12);
    return t;
  }();
  static const Target target = {"test/software_pairs", &table, true, true, ""};
  return &target;
}

void software_vdpbf16ps(const void* a, const void* b, float* sum) {
  Software::lanes(static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), sum);
}

__attribute__((target("avx512f,avx512bf16"))) void hardware_vdpbf16ps(const void* a, const void* b, float* sum) {
  const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
  _mm512_storeu_ps(sum, _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)x, (__m512bh)y));
}

}  // namespace simdattn::test
