// docs/guide-rope.md against rotations in float64.
#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;
using guides::good;

constexpr int64_t kDim = 128, kPairs = 64;

/// Rows [n, d] as pairs (i, i + d/2), rotated by the angles of row r.
template <class Angle>
Floats rotate(const Floats& x, const Angle& angle) {
  Floats y(x.size());
  for (size_t r = 0; r < x.size() / kDim; ++r) {
    for (size_t i = 0; i < kPairs; ++i) {
      const double a = angle(r, i), x0 = static_cast<double>(x[r * kDim + i]);
      const double x1 = static_cast<double>(x[r * kDim + i + kPairs]);
      y[r * kDim + i] = static_cast<float>(x0 * std::cos(a) - x1 * std::sin(a));
      y[r * kDim + i + kPairs] = static_cast<float>(x0 * std::sin(a) + x1 * std::cos(a));
    }
  }
  return y;
}
double power(double theta, size_t i) { return std::pow(theta, -static_cast<double>(i) / kPairs); }

/// Llama 3.1's frequencies as its authors give them.
double llama3(size_t i) {
  const double pi = 3.14159265358979323846, f = power(500000, i), wave = 2 * pi / f;
  const double low = 8192.0 / 1, high = 8192.0 / 4;
  if (wave < high) return f;
  if (wave > low) return f / 8;
  const double smooth = (8192 / wave - 1) / (4 - 1);
  return (1 - smooth) * f / 8 + smooth * f;
}

}  // namespace

int main() {
  const LlamaRope llama(200);
  good(llama.status, "LlamaRope");
  const auto by_llama = [](size_t first) {
    return [first](size_t r, size_t i) { return static_cast<double>(first + r) * llama3(i); };
  };
  const Floats x = guides::numbers(5 * kDim, 1);
  Floats q = x;
  good(rotate_queries(llama, sa::view(q.data(), {1, 1, 5, kDim}), 150), "rotate_queries");
  guides::near(q, rotate(x, by_llama(150)), 1e-6, "rotate_queries");
  Floats cache(200 * kDim);
  good(store_keys(llama, sa::view(x.data(), {1, 1, 5, kDim}), sa::view(cache.data(), {1, 1, 200, kDim}), 150),
       "store_keys");
  guides::same_bits(Floats(cache.begin() + 150 * kDim, cache.begin() + 155 * kDim), q, "store_keys");

  // Three axes: columns 0 - 15 follow t, 16 - 39 h, 40 - 63 w.
  const int32_t thw[3][2] = {{7, 7}, {3, 4}, {90, 91}};
  Floats c(2 * kPairs), s(2 * kPairs), two = guides::numbers(2 * kDim, 2), rotated = two;
  const auto c2 = sa::view(c.data(), {2, kPairs}), s2 = sa::view(s.data(), {2, kPairs});
  good(qwen_vl_table(c2, s2, thw[0], 2), "qwen_vl_table");
  const auto both = sa::view(rotated.data(), {1, 1, 2, kDim});
  good(sa::rope(both, c2, s2, {}, both), "rope");
  guides::near(rotated,
               rotate(two,
                      [&](size_t r, size_t i) {
                        return static_cast<double>(thw[i < 16 ? 0 : i < 40 ? 1 : 2][r]) * power(1e6, i);
                      }),
               1e-6, "qwen_vl_table");

  // One position at a time, and without a table.
  const Frequencies f;
  good(f.status, "Frequencies");
  const auto c1 = sa::view(c.data(), {1, kPairs}), s1 = sa::view(s.data(), {1, kPairs});
  good(row_at(f, c1, s1, 12345), "row_at");
  for (size_t i = 0; i < kPairs; ++i) {
    const float cosine = static_cast<float>(std::cos(12345 * power(500000, i)));
    guides::near(&c[i], &cosine, 1, 1e-7, "row_at");
  }
  Floats direct = two;
  good(rotate_directly(f, sa::view(direct.data(), {1, 1, 2, kDim}), 12345), "rotate_directly");
  guides::near(direct,
               rotate(two, [](size_t r, size_t i) { return static_cast<double>(12345 + r) * power(500000, i); }), 1e-6,
               "rotate_directly");

  // 30 of 40 tokens stay: their keys are those of positions 0 - 29.
  const Floats k = guides::numbers(40 * kDim, 3), v = guides::numbers(40 * kDim, 4);
  Floats values = v;
  Floats keys = rotate(k, [](size_t r, size_t i) { return static_cast<double>(r) * power(500000, i); });
  good(row_at(f, c1, s1, 10), "row_at");
  good(forget(sa::view(keys.data(), {1, 1, 40, kDim}), sa::view(values.data(), {1, 1, 40, kDim}), 10, 40, c1, s1),
       "forget");
  keys.resize(30 * kDim);
  values.resize(keys.size());
  guides::near(keys,
               rotate(Floats(k.begin() + 10 * kDim, k.end()),
                      [](size_t r, size_t i) { return static_cast<double>(r) * power(500000, i); }),
               2e-6, "forget");
  guides::same_bits(values, Floats(v.begin() + 10 * kDim, v.end()), "forget");
}
