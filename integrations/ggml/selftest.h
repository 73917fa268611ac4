// The library against ggml's own code, before anything of ggml's is touched.
#pragma once

#include <ggml-backend.h>

namespace simdattn_ggml {

/// Whether ggml_tensor is the struct that this file was compiled with, by what ggml's functions put into it.
bool tensor_as_compiled();

/// Computes a small node of each operator twice. Returns the bits of those that agree.
unsigned agreeing_operators(ggml_backend_dev_t cpu);

}  // namespace simdattn_ggml
