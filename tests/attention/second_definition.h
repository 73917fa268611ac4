// docs/numerics.md, section Arithmetics, once more: plain loops over one row at a time, every step in numbers that hold
// it exactly, then rounded. It gives bits, and shares with the library exp and tanh alone, whose bits the page does not
// define. Storage, visible keys and positions are those of tests/support/reference.h.
#pragma once

#include <cstdint>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/reference.h"

namespace second {

/// What 64-bit ARM does instead (docs/numerics.md): a result that is tiny before it is rounded becomes zero. For all
/// that follows.
void flush_before_rounding(bool yes);

/// One step of TDPBF16PS: a * b + c, and x + y.
float flushed_fma(float a, float b, float c);
float flushed_add(float x, float y);

/// Row by row, in logical order; NaN is the canonical one.
struct Attention {
  std::vector<float> out, acc;  // [B, H, n_q, d_v]
  std::vector<float> max, sum;  // [B, H, n_q]
};
/// Any arithmetic.
Attention attention(const simdattn::AttentionProblem& problem);
/// kBF16 and kInt8. [B, Hq, n_q, n_kv] and [B, Hq, n_q, d_v].
std::vector<float> scores(const reference::Tensor& q, const reference::Tensor& k, float scale,
                          simdattn::Arithmetic arithmetic);
std::vector<float> weighted_values(const reference::Tensor& p, const reference::Tensor& v,
                                   simdattn::Arithmetic arithmetic);

}  // namespace second
