// A user's program that brings another version of Highway: its own kernel and the library's have right results in one
// program. Prints both versions and targets.
#include <hwy/highway.h>
#include <simdattn/simdattn.h>

#include <cmath>
#include <cstdio>

namespace hn = hwy::HWY_NAMESPACE;

static float dot(const float* x, const float* y, size_t n) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

int main() {
  constexpr int64_t rows = 7, dim = 67;
  float q[dim], k[rows * dim], out[rows];
  for (int64_t i = 0; i < dim; ++i) q[i] = static_cast<float>(i % 13 - 6) / 8;
  for (int64_t i = 0; i < rows * dim; ++i) k[i] = static_cast<float>(i % 29 - 14) / 16;
  std::printf("Highway %d.%d", HWY_MAJOR, HWY_MINOR);
  for (const simdattn::Target* target : simdattn::targets()) {
    if (!simdattn::target_runnable(*target)) continue;
    simdattn::Exec exec;
    exec.target = target;
    simdattn::ScoreOptions options;
    options.scale = 1.0f;
    const simdattn::Status s = simdattn::scores(simdattn::view(q, {1, 1, 1, dim}), simdattn::view(k, {1, 1, rows, dim}),
                                                simdattn::view(out, {1, 1, 1, rows}), options, exec);
    if (!s.ok()) return std::printf(": %s\n", s.detail), 1;
    for (int64_t r = 0; r < rows; ++r) {
      const float own = dot(q, k + r * dim, dim);
      if (!(std::fabs(own - out[r]) < 1e-4f)) {
        return std::printf(": %s row %d: %g, by its own kernel %g\n", simdattn::target_name(*target),
                           static_cast<int>(r), static_cast<double>(out[r]), static_cast<double>(own)),
               1;
      }
    }
    std::printf(", %s", simdattn::target_name(*target));
  }
  std::printf(": the same scores\n");
  return 0;
}
