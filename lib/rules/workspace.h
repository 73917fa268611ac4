// The rule on the workspace of functions without a plan.
#ifndef SIMDATTN_LIB_RULES_WORKSPACE_H_
#define SIMDATTN_LIB_RULES_WORKSPACE_H_

#include "lib/rules/views.h"

namespace simdattn {

/// An array of the call, and the sentence that says that the workspace overlaps it.
struct BesideWorkspace {
  const ByteSet& bytes;
  const char* sentence;
};

/// `memory`: the bytes of the workspace that the call uses.
inline Status check_workspace(const Exec& exec, size_t needed, const BesideWorkspace (&arrays)[3], ByteSet* memory) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace,
                   "exec.workspace: null; the function ending in _workspace tells the size");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, Code::kWorkspace,
                   "exec.workspace_bytes: less than the function ending in _workspace tells");
  *memory = ByteSet::of(exec.workspace, static_cast<int64_t>(needed));
  for (const BesideWorkspace& a : arrays) {
    SIMDATTN_REQUIRE(!share_bytes(*memory, a.bytes), Code::kOverlap, a.sentence);
  }
  return {};
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_WORKSPACE_H_
