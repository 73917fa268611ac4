// NEON: what the operators of xsimd::batch are made of, as the instructions they are. xsimd 13 picks them from tuples of
// functions, which gcc 12 then calls instead of inlining: 12 thousand calls in one object, of additions even.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_NEON_OPERATORS_H_
#define SIMDATTN_LIB_SIMD_NATIVE_NEON_OPERATORS_H_

#include "xsimd/xsimd.hpp"

namespace xsimd::kernel {

#define SIMDATTN_NEON_UNARY(operation, type, instruction)                                                     \
  template <>                                                                                                 \
  inline __attribute__((always_inline)) batch<type, neon64> operation<neon64>(batch<type, neon64> const& a,   \
                                                                              requires_arch<neon>) noexcept { \
    return instruction(a);                                                                                    \
  }
#define SIMDATTN_NEON_BINARY(result, operation, type, instruction)                                \
  template <>                                                                                     \
  inline __attribute__((always_inline)) result<type, neon64> operation<neon64>(                   \
      batch<type, neon64> const& a, batch<type, neon64> const& b, requires_arch<neon>) noexcept { \
    return instruction(a, b);                                                                     \
  }
#define SIMDATTN_NEON_SELECT(type, instruction)                                                      \
  template <>                                                                                        \
  inline __attribute__((always_inline)) batch<type, neon64> select<neon64>(                          \
      batch_bool<type, neon64> const& m, batch<type, neon64> const& a, batch<type, neon64> const& b, \
      requires_arch<neon>) noexcept {                                                                \
    return instruction(m, a, b);                                                                     \
  }
#define SIMDATTN_NEON_MASKS(operation, instruction)                                                           \
  template <>                                                                                                 \
  inline __attribute__((always_inline)) batch_bool<float, neon64> operation<neon64>(                          \
      batch_bool<float, neon64> const& a, batch_bool<float, neon64> const& b, requires_arch<neon>) noexcept { \
    return instruction(a, b);                                                                                 \
  }

SIMDATTN_NEON_UNARY(abs, float, vabsq_f32)
SIMDATTN_NEON_UNARY(abs, int32_t, vabsq_s32)
SIMDATTN_NEON_UNARY(bitwise_not, uint32_t, vmvnq_u32)
SIMDATTN_NEON_BINARY(batch, add, float, vaddq_f32)
SIMDATTN_NEON_BINARY(batch, add, int32_t, vaddq_s32)
SIMDATTN_NEON_BINARY(batch, add, uint32_t, vaddq_u32)
SIMDATTN_NEON_BINARY(batch, sub, float, vsubq_f32)
SIMDATTN_NEON_BINARY(batch, sub, int32_t, vsubq_s32)
SIMDATTN_NEON_BINARY(batch, mul, float, vmulq_f32)
SIMDATTN_NEON_BINARY(batch, max, float, vmaxq_f32)
SIMDATTN_NEON_BINARY(batch, max, int32_t, vmaxq_s32)
SIMDATTN_NEON_BINARY(batch, max, uint16_t, vmaxq_u16)
SIMDATTN_NEON_BINARY(batch, max, uint32_t, vmaxq_u32)
SIMDATTN_NEON_BINARY(batch, bitwise_and, uint16_t, vandq_u16)
SIMDATTN_NEON_BINARY(batch, bitwise_and, int32_t, vandq_s32)
SIMDATTN_NEON_BINARY(batch, bitwise_and, uint32_t, vandq_u32)
SIMDATTN_NEON_BINARY(batch, bitwise_or, int32_t, vorrq_s32)
SIMDATTN_NEON_BINARY(batch, bitwise_or, uint32_t, vorrq_u32)
SIMDATTN_NEON_BINARY(batch, bitwise_xor, int32_t, veorq_s32)
SIMDATTN_NEON_BINARY(batch, bitwise_xor, uint32_t, veorq_u32)
SIMDATTN_NEON_BINARY(batch_bool, eq, float, vceqq_f32)
SIMDATTN_NEON_BINARY(batch_bool, eq, uint16_t, vceqq_u16)
SIMDATTN_NEON_BINARY(batch_bool, eq, uint32_t, vceqq_u32)
SIMDATTN_NEON_BINARY(batch_bool, lt, float, vcltq_f32)
SIMDATTN_NEON_BINARY(batch_bool, lt, int32_t, vcltq_s32)
SIMDATTN_NEON_BINARY(batch_bool, gt, float, vcgtq_f32)
SIMDATTN_NEON_BINARY(batch_bool, gt, int32_t, vcgtq_s32)
SIMDATTN_NEON_BINARY(batch_bool, ge, int32_t, vcgeq_s32)
SIMDATTN_NEON_SELECT(float, vbslq_f32)
SIMDATTN_NEON_MASKS(bitwise_and, vandq_u32)
SIMDATTN_NEON_MASKS(bitwise_or, vorrq_u32)
SIMDATTN_NEON_MASKS(eq, vceqq_u32)
template <>
inline __attribute__((always_inline)) batch_bool<float, neon64> bitwise_not<neon64>(batch_bool<float, neon64> const& a,
                                                                                    requires_arch<neon>) noexcept {
  return vmvnq_u32(a);
}

#undef SIMDATTN_NEON_UNARY
#undef SIMDATTN_NEON_BINARY
#undef SIMDATTN_NEON_SELECT
#undef SIMDATTN_NEON_MASKS

}  // namespace xsimd::kernel

#endif  // SIMDATTN_LIB_SIMD_NATIVE_NEON_OPERATORS_H_
