// Numbers with 64 integer and 256 fractional bits, and the elementary functions on them: the reference for tables of
// positions. Plain schoolbook arithmetic on 32-bit limbs, shared with nothing; every result is off by a few hundred
// units of 2^-256 at most.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace high_precision {

class Fixed {
 public:
  static constexpr size_t kFraction = 8;
  static constexpr size_t kLimbs = kFraction + 2;
  using Limbs = std::array<uint32_t, kLimbs>;

  Fixed() = default;
  Fixed(double x) {  // NOLINT(google-explicit-constructor): exact for 2^-200 < |x| < 2^63
    negative_ = x < 0;
    double rest = std::fabs(x) * 0x1p-32;  // the integer part is the top limb from here on
    for (size_t k = kLimbs; k-- > 0;) {
      const double digit = std::floor(rest);
      limb_[k] = static_cast<uint32_t>(digit);
      rest = (rest - digit) * 0x1p32;
    }
  }

  explicit operator double() const {
    // 96 bits from the highest limb that is not zero: the truncation is below 2^-64 of the value.
    size_t top = kLimbs;
    while (top > 0 && limb_[top - 1] == 0) --top;
    double x = 0;
    for (size_t k = top > 3 ? top - 3 : 0; k < top; ++k)
      x += std::ldexp(static_cast<double>(limb_[k]), 32 * (static_cast<int>(k) - static_cast<int>(kFraction)));
    return negative_ ? -x : x;
  }

  bool negative() const { return negative_; }

  friend Fixed operator-(Fixed a) {
    a.negative_ = !a.negative_;
    return a;
  }
  friend Fixed operator+(const Fixed& a, const Fixed& b) {
    Fixed r;
    if (a.negative_ == b.negative_) {
      r.negative_ = a.negative_;
      uint64_t carry = 0;
      for (size_t k = 0; k < kLimbs; ++k) {
        carry += static_cast<uint64_t>(a.limb_[k]) + b.limb_[k];
        r.limb_[k] = static_cast<uint32_t>(carry);
        carry >>= 32;
      }
      return r;
    }
    const bool swap = compare(a, b) < 0;
    const Fixed& large = swap ? b : a;
    const Fixed& small = swap ? a : b;
    r.negative_ = large.negative_;
    int64_t borrow = 0;
    for (size_t k = 0; k < kLimbs; ++k) {
      int64_t digit = static_cast<int64_t>(large.limb_[k]) - small.limb_[k] - borrow;
      borrow = digit < 0;
      if (digit < 0) digit += int64_t{1} << 32;
      r.limb_[k] = static_cast<uint32_t>(digit);
    }
    return r;
  }
  friend Fixed operator-(const Fixed& a, const Fixed& b) { return a + -b; }
  friend Fixed operator*(const Fixed& a, const Fixed& b) {
    std::array<uint64_t, 2 * kLimbs> product{};
    for (size_t i = 0; i < kLimbs; ++i) {
      if (a.limb_[i] == 0) continue;
      uint64_t carry = 0;
      for (size_t j = 0; j < kLimbs; ++j) {
        carry += product[i + j] + static_cast<uint64_t>(a.limb_[i]) * b.limb_[j];
        product[i + j] = carry & 0xFFFFFFFFu;
        carry >>= 32;
      }
      product[i + kLimbs] = carry;
    }
    Fixed r;
    r.negative_ = a.negative_ != b.negative_;
    for (size_t k = 0; k < kLimbs; ++k) r.limb_[k] = static_cast<uint32_t>(product[k + kFraction]);
    return r;
  }
  friend Fixed operator/(Fixed a, uint32_t n) {
    uint64_t rest = 0;
    for (size_t k = kLimbs; k-- > 0;) {
      rest = rest << 32 | a.limb_[k];
      a.limb_[k] = static_cast<uint32_t>(rest / n);
      rest %= n;
    }
    return a;
  }
  /// Bit by bit: the quotient's integer part, then 256 bits more.
  friend Fixed operator/(const Fixed& a, Fixed b) {
    const bool negative = a.negative_ != b.negative_;
    b.negative_ = false;
    Fixed rest;
    Fixed quotient;
    for (size_t bit = 32 * (kLimbs + kFraction); bit-- > 0;) {
      rest = rest + rest;
      if (bit >= 32 * kFraction) {
        const size_t source = bit - 32 * kFraction;
        if (a.limb_[source / 32] >> source % 32 & 1) rest.limb_[0] |= 1;
      }
      quotient = quotient + quotient;
      if (compare(rest, b) >= 0) {
        rest = rest - b;
        quotient.limb_[0] |= 1;
      }
    }
    quotient.negative_ = negative;
    return quotient;
  }
  friend bool operator<(const Fixed& a, const Fixed& b) { return (a - b).negative_ && compare(a, b) != 0; }

 private:
  /// Of magnitudes.
  static int compare(const Fixed& a, const Fixed& b) {
    for (size_t k = kLimbs; k-- > 0;)
      if (a.limb_[k] != b.limb_[k]) return a.limb_[k] < b.limb_[k] ? -1 : 1;
    return 0;
  }
  bool negative_ = false;
  Limbs limb_{};  // least significant first
};

inline Fixed abs(const Fixed& a) { return a.negative() ? -a : a; }

inline Fixed arctan_of_inverse(uint32_t n) {
  Fixed power = Fixed(1.0) / n;
  Fixed sum = power;
  for (uint32_t k = 3; k < 400; k += 2) {
    power = power / (n * n);
    sum = (k / 2) % 2 != 0 ? sum - power / k : sum + power / k;
  }
  return sum;
}
/// Machin 1706.
inline const Fixed& pi() {
  static const Fixed value = Fixed(16.0) * arctan_of_inverse(5) - Fixed(4.0) * arctan_of_inverse(239);
  return value;
}

inline Fixed two_artanh(const Fixed& f) {
  const Fixed f2 = f * f;
  Fixed power = f;
  Fixed sum;
  for (uint32_t k = 1; k < 200; k += 2) {
    sum = sum + power / k;
    power = power * f2;
  }
  return sum + sum;
}
inline Fixed log(const Fixed& a) {
  static const Fixed ln2 = two_artanh(Fixed(1.0) / 3);
  const int k = std::ilogb(static_cast<double>(a));
  const Fixed m = a * Fixed(std::ldexp(1.0, -k));
  return two_artanh((m - Fixed(1.0)) / (m + Fixed(1.0))) + ln2 * Fixed(static_cast<double>(k));
}
inline Fixed exp(const Fixed& a) {
  if (a.negative()) return Fixed(1.0) / exp(-a);
  Fixed s = a / (1u << 14);
  Fixed sum = 1.0;
  Fixed term = 1.0;
  for (uint32_t n = 1; n < 40; ++n) {
    term = term * s / n;
    sum = sum + term;
  }
  for (int n = 0; n < 14; ++n) sum = sum * sum;
  return sum;
}
inline Fixed sqrt(const Fixed& a) {
  Fixed x = std::sqrt(static_cast<double>(a));
  for (int n = 0; n < 4; ++n) x = (x + a / x) / 2;
  return x;
}

struct CosSin {
  Fixed cos;
  Fixed sin;
};
inline CosSin cos_sin(const Fixed& angle) {
  static const Fixed half_pi = pi() / 2;
  const double n = std::nearbyint(static_cast<double>(angle) / 1.5707963267948966);
  const Fixed r = angle - half_pi * Fixed(n);
  const Fixed r2 = r * r;
  Fixed cosine = 1.0;
  Fixed sine = r;
  Fixed c = 1.0;
  Fixed s = r;
  for (uint32_t k = 1; k < 28; ++k) {
    c = -(c * r2 / ((2 * k - 1) * (2 * k)));
    s = -(s * r2 / ((2 * k) * (2 * k + 1)));
    cosine = cosine + c;
    sine = sine + s;
  }
  switch (static_cast<int64_t>(n) & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

/// |got - exact| in units of the last place that f32 has at the exact value.
inline double ulp_error(float got, const Fixed& exact) {
  const double e = static_cast<double>(exact);
  const double difference = std::fabs(static_cast<double>(Fixed(static_cast<double>(got)) - exact));
  if (e == 0) return difference == 0 ? 0 : INFINITY;
  return std::ldexp(difference, 23 - std::ilogb(e));
}

}  // namespace high_precision
