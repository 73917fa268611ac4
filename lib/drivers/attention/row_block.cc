#include "lib/drivers/attention/row_block.h"

namespace simdattn {

RowBlock::RowBlock(const AttentionRun& run, const RowBlockIndex& at)
    : problem(run.problem),
      division(run.division),
      kernels(run.kernels),
      arithmetic(kernels_of(kernels, problem.arithmetic, division.most_rows)),
      memory(run.memory),
      index(at),
      sequence(sequence_of(problem, at.sequence)),
      rows(std::min({division.row_block, at.rows, sequence.n_q * division.sizes.group - at.first_row})),
      heads_at_once(division.modifiers.by_head ? 1 : division.sizes.group),
      fetch(rows > 1 ? division.fetch : division.fetch_one_row),
      k_store(problem.k, problem.cu_k == nullptr ? at.sequence : 0, at.kv_head, sequence.first_key),
      v_store(problem.v, problem.cu_k == nullptr ? at.sequence : 0, at.kv_head, sequence.first_key),
      k(kernels, arithmetic, problem.k.type, division.sizes.d_qk, memory.rows),
      v(kernels, arithmetic, problem.v.type, division.sizes.d_v, memory.rows) {
  // Without any page, masks hide every key (check_pages).
  const auto no_pages = [](const ConstKv& kv) { return kv.page_size > 0 && kv.n_pages == 0; };
  if (no_pages(problem.k) || no_pages(problem.v)) sequence.rules.start = sequence.rules.length;
  for (int64_t r = 0, n; r < rows; r += n) {
    n = same_from(r);
    const int64_t i = position_of(r);
    std::fill_n(memory.see + r, n, visible_interval(problem.scoring, sequence.rules, i));
    if (!division.modifiers.any) continue;
    std::fill_n(memory.modifiers + r, n, row_modifiers(problem.scoring, place_of(sequence, head_of(r), i)));
  }
  fetch_masks(memory.see[0].lo / kKeyBlock * kKeyBlock, 0, rows);
}

void RowBlock::load_queries() const {
  const ConstView<4>& q = problem.q;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at =
        sequence.q_batch * q.stride[0] + head_of(r) * q.stride[1] + (sequence.first_row + position_of(r)) * q.stride[2];
    arithmetic.prepare_query[index_of(q.dtype)](static_cast<const char*>(q.data) + at * size_of(q.dtype), query(r),
                                                division.sizes.d_qk);
  }
}

}  // namespace simdattn
