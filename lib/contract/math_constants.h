// Constants that every backend's exp and tanh share; with the order of operations in lib/definition/math.h they are the
// definition of the two functions.
#pragma once

namespace simdattn {

/// exp below this is 0: ln 2^-126, the smallest normal result.
inline constexpr float kExpLowest = -0x1.5d589ep6f;  // -87.33654, the lowest f32 above ln 2^-126 = -87.33654475
inline constexpr float kLog2E = 0x1.715476p0f;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
inline constexpr float kRoundMagic = 0x1.8p23f;
/// ln 2 in two parts; the first has 15 significant bits, so that n * kLn2Hi is exact for every n that occurs.
inline constexpr float kLn2Hi = 0x1.62e4p-1f;
inline constexpr float kLn2Lo = 0x1.7f7d1cp-20f;
/// (e^r - 1 - r) / r^2 on |r| <= ln(2)/2: minimax for the relative error of e^r (3.1e-9), then the f32 coefficients
/// tuned for the whole function's worst case.
inline constexpr float kExpPoly[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123aap-7f, 0x1.6a23cap-10f};
/// Below this tanh x = x + x^3 p(x^2), minimax (0.008 ulp): the quotient of the other branch would cost up to 2.6 ulp.
inline constexpr float kTanhSmall = 0.35f;
inline constexpr float kTanhPoly[4] = {-0x1.55554ep-2f, 0x1.110be8p-3f, -0x1.b81886p-5f, 0x1.3e3158p-6f};
/// tanh is 1 to within half a unit in the last place from here.
inline constexpr float kTanhSaturation = 9.011f;

}  // namespace simdattn
