// The ggml of the program that loads this file, found at run time.
//
// The file names no library of ggml, because it would then bring one along where a program has its own under another
// name, as node-llama-cpp's libggml.v0.4.0.so, and that second ggml has no CPU backend.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

namespace simdattn_ggml {

/// Every function of ggml that is called here.
// clang-format off: it moves each line further to the right than the one before.
#define SIMDATTN_GGML_FUNCTIONS(F) \
  F(ggml_abort) F(ggml_backend_buft_is_host) F(ggml_backend_dev_backend_reg) \
  F(ggml_backend_dev_buffer_from_host_ptr) F(ggml_backend_dev_buffer_type) F(ggml_backend_dev_by_type) \
  F(ggml_backend_dev_description) F(ggml_backend_dev_get_props) F(ggml_backend_dev_init) \
  F(ggml_backend_dev_memory) F(ggml_backend_dev_name) F(ggml_backend_dev_supports_buft) \
  F(ggml_backend_dev_supports_op) F(ggml_backend_dev_type) F(ggml_backend_free) F(ggml_backend_get_device) \
  F(ggml_backend_graph_compute) F(ggml_backend_graph_compute_async) F(ggml_backend_guid) F(ggml_backend_name) \
  F(ggml_backend_reg_dev_count) F(ggml_backend_reg_dev_get) F(ggml_backend_reg_get_proc_address) \
  F(ggml_backend_reg_name) F(ggml_build_forward_expand) F(ggml_custom_4d) F(ggml_flash_attn_ext) \
  F(ggml_fp32_to_bf16) F(ggml_fp32_to_fp16) F(ggml_free) F(ggml_get_data) F(ggml_get_name) F(ggml_graph_n_nodes) \
  F(ggml_graph_node) F(ggml_graph_overhead) F(ggml_init) F(ggml_log_get) F(ggml_nbytes) F(ggml_nelements) \
  F(ggml_new_graph) F(ggml_new_tensor_2d) F(ggml_new_tensor_3d) F(ggml_new_tensor_4d) F(ggml_op_name) \
  F(ggml_permute) F(ggml_reshape_4d) F(ggml_set_name) F(ggml_set_output) F(ggml_ssm_conv) F(ggml_tensor_overhead) \
  F(ggml_type_name) F(ggml_view_2d)
// clang-format on

struct Host {
#define SIMDATTN_GGML_MEMBER(name) decltype(&::name) name;
  SIMDATTN_GGML_FUNCTIONS(SIMDATTN_GGML_MEMBER)
#undef SIMDATTN_GGML_MEMBER
};
/// Null pointers before find_host().
extern Host host;

/// Fills `host` with the functions of the ggml that has the code at `caller`, or, where that is the program itself, of
/// the one that the program sees. Returns null, or the name of the first function that is not there.
const char* find_host(const void* caller);

/// A function of that ggml that older ones lack, or whose declaration differs; null if it is not there.
void* host_function(const char* name);

}  // namespace simdattn_ggml
