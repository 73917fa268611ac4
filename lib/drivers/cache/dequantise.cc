// dequantise(): tokens of a store as rows of f32.
#include <algorithm>

#include "lib/drivers/cache/kv_store.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::dequantise(const UKernels& uk, const ConstKv& kv, int64_t first, const View<4>& out) {
  SIMDATTN_CHECK(check_dequantise(kv, first, out));
  const KvKernels& kernels = uk.kv[slot(kv.type)];
  const int64_t n = out.shape[2];
  const int64_t ld = step_of(out, 2);
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      const KvStore store(kv, b, h);
      for (int64_t i = 0; i < n;) {
        const int64_t token = first + i;
        // At most to the end of a panel, so that a token's column is its place in the run.
        const int64_t column = store.panels() ? token % kPanelWidth : 0;
        int64_t run = 0;
        const char* const in = store.at(token, &run);
        const int64_t tokens = std::min({run, n - i, kPanelWidth - column});
        float scales[kPanelWidth];
        float* const rows = f32_row_of(out, b, h, i);
        (store.panels() ? kernels.load_panels : kernels.load_rows)({.in = in,
                                                                    .stride = kv.token_stride,
                                                                    .column = column,
                                                                    .tokens = tokens,
                                                                    .dim = kv.dim,
                                                                    .rows = rows,
                                                                    .ld = 4 * ld,
                                                                    .scales = store.scales(token, tokens, scales)});
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t d = 0; d < kv.dim; ++d) rows[t * ld + d] = canonical(rows[t * ld + d]);
        }
        i += tokens;
      }
    }
  }
  return {};
}

}  // namespace simdattn
