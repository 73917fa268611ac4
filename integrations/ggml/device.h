// What ggml gets from ggml_backend_init(): a registration, with no device while the CPU backend is wrapped, and else
// with one.
//
// The device is of the type ACCEL, as that of ggml's BLAS backend, and takes nodes of the operators alone. It rests on
// ggml's interface of backends. Where it takes flash attention, llama.cpp's "-fa auto" turns that off, so it is for
// "-fa on".
#pragma once

#include <ggml-backend.h>

#include "layout.h"

namespace simdattn_ggml {

/// The registration, the same at each call. `with_device`: it counts at the first call. `cpu`: the CPU device, whose
/// buffers, threads and version of the interface ours have.
ggml_backend_reg_t registration(const Layout& layout, ggml_backend_dev_t cpu, bool with_device);

}  // namespace simdattn_ggml
