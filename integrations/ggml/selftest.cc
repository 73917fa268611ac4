#include "selftest.h"

#include <ggml.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "host.h"
#include "operators.h"
#include "runner.h"

namespace simdattn_ggml {
namespace {

/// Of the squares of a result, which ggml's code rounds to f16 on the way: test-backend-ops allows 5e-4.
constexpr double kMostError = 1e-4;

std::vector<float> numbers_of(const ggml_tensor& t) {
  std::vector<float> x(static_cast<size_t>(host.ggml_nelements(&t)));
  std::memcpy(x.data(), t.data, x.size() * sizeof(float));
  return x;
}

bool near(const std::vector<float>& ours, const std::vector<float>& theirs) {
  double error = 0, size = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double a = ours[i], b = theirs[i];
    error += (a - b) * (a - b);
    size += b * b;
  }
  return size > 0 && error <= kMostError * size;  // false for NaN
}

/// One thread: threads that a forked process starts beside those that its parent had may wait for ever.
bool agrees(ggml_tensor* node, ggml_backend_t backend, ggml_context* context) {
  ggml_cgraph* graph = host.ggml_new_graph(context);
  host.ggml_build_forward_expand(graph, node);
  std::memset(node->data, 0xff, host.ggml_nbytes(node));  // NaN
  if (host.ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) return false;
  const std::vector<float> theirs = numbers_of(*node);
  std::memset(node->data, 0xff, host.ggml_nbytes(node));
  const ggml_tensor before = *node;
  const int64_t taken = counts.taken;
  Runner runner;
  if (runner.run(backend, graph, host.ggml_backend_graph_compute) != GGML_STATUS_SUCCESS) return false;
  const bool as_before = std::memcmp(&before, node, sizeof before) == 0;
  return counts.taken == taken + 1 && as_before && near(numbers_of(*node), theirs);
}

}  // namespace

bool tensor_as_compiled() {
  ggml_context* c = host.ggml_init({size_t{1} << 16, nullptr, false});
  if (c == nullptr) return false;
  ggml_tensor* t = host.ggml_new_tensor_4d(c, GGML_TYPE_F32, 11, 12, 13, 14 - 12);
  host.ggml_set_name(t, "name");
  host.ggml_set_output(t);
  ggml_tensor* view = host.ggml_view_2d(c, t, 5, 6, t->nb[2], 44);
  int here = 0;  // no fault: nobody reads it
  ggml_tensor* custom =
      host.ggml_custom_4d(c, GGML_TYPE_F32, 1, 1, 1, 1, &view, 1, [](ggml_tensor*, int, int, void*) {}, 1, &here);
  const void* const user = &here;
  const auto* const params = reinterpret_cast<const char*>(custom->op_params);
  bool holds_user = false;
  for (size_t at = 0; at + sizeof user <= sizeof custom->op_params; at += sizeof user)
    holds_user |= std::memcmp(params + at, &user, sizeof user) == 0;
  const bool good = t->type == GGML_TYPE_F32 && t->ne[0] == 11 && t->ne[3] == 2 && t->nb[3] == 11 * 12 * 13 * 4 &&
                    t->data == host.ggml_get_data(t) && t->name == host.ggml_get_name(t) &&
                    (t->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 && t->src[0] == nullptr &&
                    std::strcmp(host.ggml_op_name(t->op), "NONE") == 0 && view->view_src == t &&
                    view->view_offs == 44 && view->data == static_cast<char*>(t->data) + 44 &&
                    view->nb[1] == t->nb[2] && std::strcmp(host.ggml_op_name(custom->op), "CUSTOM") == 0 &&
                    custom->src[0] == view && custom->src[1] == nullptr && holds_user;
  host.ggml_free(c);
  return good;
}

unsigned agreeing_operators(ggml_backend_dev_t cpu) {
  ggml_backend_t backend = host.ggml_backend_dev_init(cpu, nullptr);
  if (backend == nullptr) return 0;
  void* const set_threads =
      host.ggml_backend_reg_get_proc_address(host.ggml_backend_dev_backend_reg(cpu), "ggml_backend_set_n_threads");
  if (set_threads == nullptr) return 0;
  reinterpret_cast<ggml_backend_set_n_threads_t>(set_threads)(backend, 1);
  const unsigned found = find_operators();
  take_operators(found);
  unsigned good = 0;
  for (int i = 0; i < kOperators; ++i) {
    if ((found >> i & 1u) == 0) continue;
    bool all = true;
    for (const auto sample : kTable[i].samples) {
      if (sample == nullptr) continue;
      ggml_context* context = host.ggml_init({kSampleBytes, nullptr, false});
      all = all && context != nullptr && agrees(sample(context), backend, context);
      host.ggml_free(context);
    }
    if (all) good |= 1u << i;
  }
  host.ggml_backend_free(backend);
  return good;
}

}  // namespace simdattn_ggml
