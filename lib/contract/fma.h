// a * b + c, rounded once. The instruction, or the C library's function where that rounds once: not on Windows, where
// MinGW-w64's differs in the last bit for a quarter of random arguments. There it is built of IEEE operations.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace simdattn {

// Both ways after Boldo and Melquiond 2008: what is rounded to odd (cut off, and the last bit set if that lost
// anything) to more than twice the digits, or is the smaller part of the sum, may be rounded once more as if it were
// exact.

/// x + y rounded to odd, for a sum of normal size.
static inline double add_to_odd(double x, double y) {
  const double s = x + y;
  const double t = s - x;
  const double error = (x - (s - t)) + (y - t);
  uint64_t bits = std::bit_cast<uint64_t>(s);
  if ((bits & 1) == 0 && (error > 0 || error < 0)) bits += (error > 0) == (s > 0) ? uint64_t{1} : ~uint64_t{0};
  return std::bit_cast<double>(bits);
}

/// For every a, b, c: the product of two f32 is exact in f64.
static inline float fma_of_operations(float a, float b, float c) {
  return static_cast<float>(add_to_odd(static_cast<double>(a) * static_cast<double>(b), static_cast<double>(c)));
}

/// For arguments and products that are 0 or between 2^-900 and 2^900.
static inline double fma_of_operations(double a, double b, double c) {
  constexpr double kHalves = 0x1p27 + 1;  // Veltkamp: cuts 53 bits into two numbers of 26 bits
  const double a_cut = a * kHalves;
  const double b_cut = b * kHalves;
  const double a_high = a_cut - (a_cut - a);
  const double b_high = b_cut - (b_cut - b);
  const double a_low = a - a_high;
  const double b_low = b - b_high;
  const double product = a * b;
  const double rest =
      ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;  // exact (Dekker)
  const double low = c + rest;
  const double t = low - c;
  const double low_error = (c - (low - t)) + (rest - t);
  const double sum = product + low;
  const double u = sum - product;
  const double sum_error = (product - (sum - u)) + (low - u);
  return sum + add_to_odd(sum_error, low_error);
}

template <class T>
static inline T fma(T a, T b, T c) {
#if defined(_WIN32) && !defined(__FMA__)
  return fma_of_operations(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace simdattn
