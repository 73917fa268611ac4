// scores(): dot products of query rows with row-major keys.
#include <cmath>

#include "dispatch/environment.h"
#include "lib/definition/scores.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/score_rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

namespace {

/// In other arithmetics than f32: query rows that share the packing of a panel of keys.
constexpr int64_t kPackedRows = 64;

/// Enough for every target: none has operands wider than f32, or rounds a dimension up to more than 64.
struct PackedScoreBuffers {
  Workspace w;
  int64_t dim;
  int64_t padded = (dim + 63) / 64 * 64;
  char* q = w.take<char>(kPackedRows * (4 * padded + 64));
  char* panel = w.take<char>(kPanelWidth * (4 * padded + 4));
  char* rows = w.take<char>(kLoadedRows * 4 * dim);
  float* s = w.take<float>(kPackedRows * kPanelWidth);
};

void packed_scores(const UKernels& uk, const AttentionKernels& ops, const ConstView<4>& q, const ConstView<4>& k,
                   const View<4>& out, float factor, const PackedScoreBuffers& w) {
  const ConstKv kv(k);
  const int64_t n_kv = k.shape[2];
  const GroupedRows grouped = {q, k.shape[1]};
  const int64_t n_rows = grouped.group * q.shape[2];
  const int64_t query_bytes = ops.query_bytes(w.dim);
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t kv_head = 0; kv_head < k.shape[1]; ++kv_head) {
      const HeadOperands keys(uk, ops, kv, b, kv_head, 0, w.rows);
      for (int64_t i = 0; i < n_rows; i += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, n_rows - i);
        for (int64_t r = 0; r < rows; ++r) {
          ops.prepare_query[slot(q.dtype)](grouped.row(q, b, kv_head, i + r), w.q + r * query_bytes, w.dim);
        }
        for (int64_t j = 0; j < n_kv; j += kPanelWidth) {
          const int64_t n = std::min(kPanelWidth, n_kv - j);
          keys.pack_panel(j, 0, n, w.panel, false);
          keys.slots.score_packed({.q = w.q,
                                   .q_stride = query_bytes,
                                   .rows = rows,
                                   .panels = w.panel,
                                   .panel_stride = keys.slots.panel_bytes(w.dim),
                                   .n_panels = 1,
                                   .dim = w.dim,
                                   .scale = factor,
                                   .s = w.s,
                                   .lds = kPanelWidth});
          for (int64_t r = 0; r < rows; ++r) {
            float* s = reinterpret_cast<float*>(grouped.row(out, b, kv_head, i + r)) + j;
            for (int64_t c = 0; c < n; ++c) s[c] = canonical(w.s[r * kPanelWidth + c]);
          }
        }
      }
    }
  }
}

}  // namespace

size_t drivers::scores_workspace(Arithmetic arithmetic, int64_t dim) {
  if (arithmetic == Arithmetic::kF32) return 0;
  return PackedScoreBuffers{Workspace(nullptr), std::clamp(dim, int64_t{0}, kMaxSize)}.w.bytes();
}

Status drivers::scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                       const ScoreOptions& options, const Exec& exec) {
  SIMDATTN_CHECK(check_scores(q, k, out, options, exec, drivers::scores_workspace(options.arithmetic, q.shape[3])));
  if (is_empty(out)) return {};
  const Environment environment;
  const float factor = options.scale ? *options.scale : 1.0f / std::sqrt(static_cast<float>(q.shape[3]));
  if (options.arithmetic != Arithmetic::kF32) {
    const AttentionKernels& ops = uk.attention[slot(options.arithmetic)];
    const KernelHooks hooks(ops);
    packed_scores(uk, ops, q, k, out, factor, {Workspace(exec.workspace), q.shape[3]});
    return {};
  }
  score_all_rows(
      uk, q, k, out, factor, [&](const ScoreRows& call, int64_t, int64_t) { uk.score_rows[slot(k.dtype)](call); },
      [&](const auto* row, const auto* key, int64_t) { return scalar::dot(row, key, q.shape[3]); });
  return {};
}

}  // namespace simdattn
