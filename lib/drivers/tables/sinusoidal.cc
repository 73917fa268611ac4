// The additive position encoding of Vaswani et al. 2017.
#include "lib/drivers/drivers.h"
#include "lib/drivers/tables/angles.h"
#include "lib/drivers/tables/double_double.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first) {
  SIMDATTN_CHECK(check_sinusoidal_table(out, base, positions, first));
  const auto [n, d] = out.shape;
  const bool given = positions.data != nullptr;

  const DoubleDouble ln_base = log(DoubleDouble(base));
  const int64_t pairs = (d + 1) / 2;
  for (int64_t begin = 0; begin < pairs; begin += kColumnChunk) {
    const int64_t end = begin + kColumnChunk < pairs ? begin + kColumnChunk : pairs;
    Turns frequency[kColumnChunk];
    for (int64_t i = begin; i < end; ++i) {
      const DoubleDouble exponent = DoubleDouble(static_cast<double>(2 * i)) / static_cast<double>(d);
      frequency[i - begin] = turns_of_frequency(exp(-(ln_base * exponent)));
    }
    for (int64_t p = 0; p < n; ++p) {
      const int64_t position = given ? index_at(positions.data, positions.dtype, p * positions.stride[0]) : first + p;
      float* row = static_cast<float*>(out.data) + p * out.stride[0];
      for (int64_t i = begin; i < end; ++i) {
        const CosSin cs = cos_sin(frequency[i - begin], position);
        row[2 * i] = static_cast<float>(cs.sin) + 0.0f;  // +0 at -0
        if (2 * i + 1 < d) row[2 * i + 1] = static_cast<float>(cs.cos);
      }
    }
  }
  return {};
}

}  // namespace simdattn
