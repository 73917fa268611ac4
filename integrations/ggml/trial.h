// What could end the process is tried in another one.
#pragma once

namespace simdattn_ggml {

struct Verdict {
  unsigned operators;  // bits of the table's operators that work; 0: none, for this reason
  char reason[160];    // a sentence without its full stop
};

/// What `f` finds in a forked process. If that crashes or does not end within seconds, the verdict is none, and says
/// so.
Verdict try_in_child(Verdict (*f)());

}  // namespace simdattn_ggml
