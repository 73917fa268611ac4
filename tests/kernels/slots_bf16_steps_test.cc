// The steps of Arithmetic::kBF16 against what TDPBF16PS computed (recorded; tests/data/hardware.md), on every exact
// target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lib/contract/fma.h"
#include "lib/definition/flushed.h"
#include "tests/kernels/slots_bf16.h"
#include "tests/support/indices.h"
#include "tests/support/records.h"

namespace simdattn::test {
namespace {

class Bf16Steps : public Bf16Slots {};

/// a * b + c with what is tiny before rounding flushed: what 64-bit ARM computes with FPCR.FZ.
float flushed_before_rounding(float a, float b, float c) {
  a = scalar::flushed(a), b = scalar::flushed(b), c = scalar::flushed(c);
  const float r = simdattn::fma(a, b, c);
  const double p = static_cast<double>(a) * static_cast<double>(b), high = p + static_cast<double>(c);
  const double part = high - p, low = (p - (high - part)) + (static_cast<double>(c) - part);
  const double size = std::fabs(high);
  const bool tiny = size < kSmallest || (size == kSmallest && (high < 0 ? low > 0 : low < 0));
  return tiny ? std::copysign(0.0f, r) : scalar::flushed(r);
}

TEST_P(Bf16Steps, StepsAreTDPBF16PS) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  for (const char* name : kRecordedClasses) {
    const Bf16Records r(name);
    const std::vector<float> tdp = r.results("tdpbf16ps");
    int64_t flushed = 0;
    for (int64_t t = 0; t < r.tiles; ++t) {
      float w[16 * 32], o[16 * kValueGroup] = {};
      bf16 v[32 * kValueGroup] = {};
      for (int64_t k = 0; k < 32; ++k) {
        for (int64_t m = 0; m < 16; ++m) w[m * 32 + k] = to_f32(bf16{r.first(t, m, k)});
        for (int64_t n = 0; n < 16; ++n) {
          v[k * kValueGroup + n] = bf16{r.second(t, n, k)};
        }
      }
      for (int64_t m = 0; m < 16; ++m)
        std::memcpy(o + m * kValueGroup, &r.c[static_cast<size_t>((t * 16 + m) * 16)], 64);
      const KvOperands& operands = kernels().kv[index_of(KvType::kBF16)];
      const Guarded block(static_cast<size_t>(kernels().values_bytes(kValueGroup)), Guard::kAfter);
      std::memset(block.data(), 0, block.size());
      ValueTile tile = {.w = w,
                        .ldw = 32,
                        .rows = 16,
                        .v = v,
                        .first_key = 0,
                        .key_stride = 64,
                        .group_stride = 64,
                        .keys = 32,
                        .dim = kValueGroup,
                        .o = o,
                        .ldo = kValueGroup,
                        .alpha = nullptr,
                        .fetch = Fetch::kNone};
      std::vector<float> narrow;
      if (has_narrow_weights()) tile.w = prepared(kernels(), 0, tile, narrow);
      if (operands.value_tile != nullptr && t % 2 == 0) {
        operands.value_tile(tile);
      } else {
        operands.pack_values({.rows = v,
                              .token_stride = 64,
                              .first = 0,
                              .keys = 32,
                              .dim = kValueGroup,
                              .column = 0,
                              .columns = kValueGroup,
                              .packed = block.data()});
        tile.v = block.data();
        kernels().value_packed(tile);
      }
      for (const auto [m, n] : indices(16, 16)) {
        const float want = tdp[static_cast<size_t>((t * 16 + m) * 16 + n)], got = o[m * kValueGroup + n];
        const auto bits = [](float x) { return std::bit_cast<uint32_t>(canonical(x)); };
        if (bits(got) == bits(want)) continue;
        ASSERT_TRUE(kFlushesBeforeRounding) << name << ", tile " << t << ", row " << m << ", column " << n;
        float chain[2] = {};
        for (int64_t k = 0; k < 32; ++k)
          chain[k % 2] = flushed_before_rounding(w[m * 32 + k], to_f32(v[k * kValueGroup + n]), chain[k % 2]);
        const float arm = scalar::flushed_add(r.c[static_cast<size_t>((t * 16 + m) * 16 + n)],
                                              scalar::flushed_add(chain[0], chain[1]));
        ASSERT_EQ(bits(got), bits(arm)) << name << ", tile " << t << ", row " << m << ", column " << n;
        ++flushed;
      }
    }
    const bool flushes =
        kFlushesBeforeRounding && std::string(simdattn::target_name(target())) != "scalar";  // that rounds first
    EXPECT_EQ(flushed, !flushes || std::string(name) != "flush_boundary" ? 0 : r.tiles == 2 ? 4 : 16) << name;
  }
}

/// The mode in which the tiles compute ends with the slot.
TEST_P(Bf16Steps, SubnormalNumbersAreBack) {
  const volatile float tiny = std::numeric_limits<float>::denorm_min();
  const float q[16] = {1.0f}, panel[kPanelWidth] = {1.0f};
  float s[kPanelWidth] = {}, o[kValueGroup] = {};
  kernels().kv[0].score_packed({.q = q,
                                .q_stride = 64,
                                .rows = 0,
                                .panels = panel,
                                .panel_stride = 128,
                                .n_panels = 0,
                                .dim = 1,
                                .scale = 1.0f,
                                .s = s,
                                .lds = kPanelWidth,
                                .fetch = Fetch::kNone});
  EXPECT_GT(tiny * 3.0f, tiny);
  const Guarded block(static_cast<size_t>(kernels().values_bytes(kValueGroup)), Guard::kAfter);
  std::memset(block.data(), 0, block.size());
  const float w[1] = {1.0f};
  kernels().value_packed({.w = w,
                          .ldw = 1,
                          .rows = 1,
                          .v = block.data(),
                          .first_key = 0,
                          .key_stride = 0,
                          .group_stride = 0,
                          .keys = 1,
                          .dim = kValueGroup,
                          .o = o,
                          .ldo = kValueGroup,
                          .alpha = nullptr,
                          .fetch = Fetch::kNone});
  EXPECT_GT(tiny * 3.0f, tiny);
}

SIMDATTN_FOR_EACH_TARGET(Bf16Steps);

}  // namespace
}  // namespace simdattn::test
