// The default way into a program: ggml's CPU device makes backends whose graph_compute is ours.
//
// It rests on where two functions of a device and two of a backend stand, which layout.h finds, and on GGML_OP_CUSTOM.
// ggml and its users see the CPU backend that they know: no device more, no split more, and llama.cpp's "-fa auto"
// decides as ever.
#pragma once

#include <ggml-backend.h>

#include "layout.h"

namespace simdattn_ggml {

/// Wraps the CPU device; again does nothing. Backends that are there already stay as they are.
/// Returns null, or a sentence that says why nothing was touched.
const char* interpose(const Layout& layout, ggml_backend_dev_t cpu);

}  // namespace simdattn_ggml
