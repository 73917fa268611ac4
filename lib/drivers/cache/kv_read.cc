// kv_read(): tokens of a store as rows of f32.
#include <algorithm>

#include "lib/drivers/cache/token_store.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::kv_read(const UKernels& uk, const ConstKv& kv, int64_t first, const View<4>& out) {
  SIMDATTN_CHECK(check_kv_read(kv, first, out));
  const BasicTokenStore<true> store(uk, kv);
  const int64_t n = out.shape[2];
  const int64_t ld = step_of(out, 2);
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      for (int64_t i = 0; i < n;) {
        const TokenPlace p = place_of(kv, b, first + i);
        // At most to the end of a panel, so that a token's column is its place in the run.
        const int64_t tokens = std::min({store.tokens_left(p), n - i, kPanelWidth - store.column(p)});
        float* const rows = f32_row_of(out, b, h, i);
        store.load(rows, 4 * ld, tokens, p, h, false);
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
