// The way into a ggml that has the hook of hook.patch: its CPU backend asks for every node of an operator who computes
// it, in graphs that programs plan themselves too. Nothing of ggml's structs is touched. docs/upstream.md
#pragma once

#include <ggml-backend.h>

namespace simdattn_ggml {

/// Whether this ggml has it.
bool has_hook(ggml_backend_dev_t cpu);

/// Hooks the operators that are taken.
void set_hooks(ggml_backend_dev_t cpu);

}  // namespace simdattn_ggml
