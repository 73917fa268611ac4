// Fused attention in one call: a problem is checked, divided, and its tasks run one after the other. plan.cc has the
// same in parts, for calls that are alike and for threads.
#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/drivers/attention/row_block.h"
#include "lib/drivers/drivers.h"

namespace simdattn {

Status drivers::attention(const AttentionProblem& a, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  ProblemBytes bytes;
  Division d;
  SIMDATTN_CHECK(check_attention(a, Data::kNeeded, &d.sizes, &bytes));
  const Environment environment;
  SIMDATTN_CHECK(divide(a, 1, &d));
  for (int64_t s = 0; has_places(a) && s < d.sizes.sequences; ++s) {
    SIMDATTN_CHECK(check_places(a, d, s, {0, a.lists.heads}, 0, sequence_of(a, s).n_q));
  }
  if (d.row_blocks == 0) return {};
  const AttentionRun run = {a, d, *uk, exec.workspace};
  const size_t needed = run.memory.w.bytes();
  SIMDATTN_CHECK(check_attention_workspace(exec, needed));
  SIMDATTN_CHECK(check_attention_memory(bytes, workspace_bytes(exec, needed), {}));

  const KernelHooks hooks(run.memory.kernels);
  TaskIterator at(a, d, 0, 0);
  for (int64_t t = 0; t < d.row_blocks; ++t, at.next()) run_row_block(run, at.row_block());
  return {};
}

}  // namespace simdattn
