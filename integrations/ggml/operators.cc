#include "operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "host.h"
#include "memory.h"
#include "settings.h"

namespace simdattn_ggml {
namespace {

/// The first n sources are there, and unless shapes alone count every array is: a run that fails later would be too
/// late.
bool has_sources(const ggml_tensor& node, int n, bool shapes_alone) {
  for (int i = 0; i < n; ++i) {
    if (node.src[i] == nullptr) return false;
  }
  if (shapes_alone) return true;
  for (const ggml_tensor* source : node.src) {
    if (source != nullptr && source->data == nullptr) return false;
  }
  return node.data != nullptr;
}

// ---- FLASH_ATTN_EXT -------------------------------------------------------------------------------------------------

/// Asks for AMX, once. A refusal leaves the other targets.
void want_amx() {
  static const bool granted = sa::request_amx().ok();
  (void)granted;
}

/// ggml rounds queries to the type of the keys before it multiplies, so for a cache of bf16 the library chooses as for
/// queries of bf16. It never chooses less than f32 for other caches, whose numbers have more bits than bf16.
sa::Arithmetic arithmetic_of(const sa::AttentionProblem& p) {
  if (settings().own_choice) {
    if (p.k.type == sa::KvType::kBF16 && p.v.type == sa::KvType::kBF16) want_amx();
    return sa::arithmetic_for(sa::DType::kBF16, p.k.type, p.v.type);
  }
  const int64_t rows = p.k.heads > 0 ? p.q.shape[2] * p.q.shape[1] / p.k.heads : 0;
  return rows >= kNarrowRows ? settings().arithmetic : sa::Arithmetic::kF32;
}

bool plan_attention(const ggml_tensor& node, bool shapes_alone, Call* call) {
  if (!has_sources(node, 3, shapes_alone)) return false;
  sa::AttentionProblem problem;
  if (!ggml_attention(node, call->slopes, &problem)) return false;
  // While ggml chooses a backend, arrays are missing or lie anywhere. A plan without its output counts on none of them.
  if (shapes_alone) problem.out.data = nullptr;
  problem.arithmetic = arithmetic_of(problem);
  sa::Exec exec;
  exec.threads = call->threads;
  if (!sa::attention_plan(problem, &call->attention, exec).ok()) return false;
  call->tasks = call->attention.tasks;
  call->reductions = call->attention.reduce_tasks;
  call->workspace_bytes = call->attention.workspace_bytes;
  call->partial_bytes = call->attention.partial_bytes;
  return true;
}

sa::Status run_attention(const Call& call, int64_t first, int64_t last, void* partial, const sa::Exec& exec) {
  return sa::attention_range(call.attention, first, last, partial, call.partial_bytes, exec);
}

sa::Status reduce_attention(const Call& call, int64_t first, int64_t last, void* partial, const sa::Exec& exec) {
  return sa::attention_reduce(call.attention, first, last, partial, call.partial_bytes, exec);
}

// ---- GATED_DELTA_NET ------------------------------------------------------------------------------------------------

/// The rules of the problem, by a range without tasks: a range that fails later would be too late.
bool delta_net_may_run(const Call& call) {
  static thread_local Memory workspace;
  sa::Exec exec;
  exec.workspace = workspace.at_least(call.workspace_bytes);
  exec.workspace_bytes = call.workspace_bytes;
  return exec.workspace != nullptr && sa::linear_attention_range(call.delta_net, 0, 0, exec).ok();
}

/// Tokens from which on a node that keeps the state behind each of them is taken. With fewer, writing these states is
/// most of the work, and ggml's own loop is up to a tenth faster.
constexpr int64_t kSnapshotTokens = 4;

bool plan_delta_net(const ggml_tensor& node, bool shapes_alone, Call* call) {
  call->delta_net = {};
  if (!has_sources(node, 6, shapes_alone) || !ggml_delta_net(node, &call->delta_net)) return false;
  if (call->delta_net.states.data != nullptr && call->delta_net.q.shape[2] < kSnapshotTokens) return false;
  call->tasks = sa::linear_attention_tasks(call->delta_net);
  call->reductions = 0;
  call->workspace_bytes = sa::linear_attention_workspace(call->delta_net);
  call->partial_bytes = 0;
  return call->tasks > 0 && (shapes_alone || delta_net_may_run(*call));
}

sa::Status run_delta_net(const Call& call, int64_t first, int64_t last, void*, const sa::Exec& exec) {
  return sa::linear_attention_range(call.delta_net, first, last, exec);
}

// ---- SSM_CONV -------------------------------------------------------------------------------------------------------

/// Channels of a task.
constexpr int64_t kSlice = 256;

/// The rules of the problem, by a call that skips every sequence. A width of 1 has no state to skip, and no model.
bool convolution_may_run(const sa::CausalConvProblem& problem) {
  if (problem.state_in.data == nullptr) return false;
  static thread_local Memory skipped;
  const size_t bytes = static_cast<size_t>(problem.x.shape[0]) * sizeof(int32_t);
  void* const index = skipped.at_least(bytes);
  if (index == nullptr) return false;
  std::memset(index, 0xFF, bytes);
  sa::CausalConvProblem none = problem;
  none.state_index = static_cast<const int32_t*>(index);
  return sa::causal_conv(none).ok();
}

bool plan_convolution(const ggml_tensor& node, bool shapes_alone, Call* call) {
  call->convolution = {};
  if (!has_sources(node, 2, shapes_alone) || !ggml_ssm_conv(node, &call->convolution)) return false;
  call->tasks = (call->convolution.x.shape[1] + kSlice - 1) / kSlice;
  call->reductions = 0;
  call->workspace_bytes = call->partial_bytes = 0;
  const int64_t width = call->convolution.weight.shape[1];
  return width > 1 && width <= 32 && call->tasks > 0 && (shapes_alone || convolution_may_run(call->convolution));
}

template <int kRank, bool kConst>
void slice(sa::BasicView<kRank, kConst>* view, size_t dimension, int64_t first, int64_t count) {
  if (view->data == nullptr) return;
  using Float = std::conditional_t<kConst, const float, float>;
  view->data = static_cast<Float*>(view->data) + first * view->stride[dimension];
  view->shape[dimension] = count;
}

sa::Status run_convolution(const Call& call, int64_t first, int64_t last, void*, const sa::Exec& exec) {
  sa::CausalConvProblem part = call.convolution;
  const int64_t from = first * kSlice, count = std::min(last * kSlice, part.x.shape[1]) - from;
  slice(&part.x, 1, from, count);
  slice(&part.state_in, 1, from, count);
  slice(&part.weight, 0, from, count);
  slice(&part.out, 2, from, count);
  return sa::causal_conv(part, exec);
}

// ---- Samples --------------------------------------------------------------------------------------------------------

/// Numbers between -1 and 1 without a pattern that a mistake of strides would keep.
class Numbers {
 public:
  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(state_)) * 0x1p-31f;
  }
  void fill(ggml_tensor* t) {
    for (int64_t i = 0, n = host.ggml_nelements(t); i < n; ++i) {
      const float x = next();
      if (t->type == GGML_TYPE_F16) static_cast<ggml_fp16_t*>(t->data)[i] = host.ggml_fp32_to_fp16(x);
      else if (t->type == GGML_TYPE_BF16) static_cast<ggml_bf16_t*>(t->data)[i] = host.ggml_fp32_to_bf16(x);
      else static_cast<float*>(t->data)[i] = x;
    }
  }

 private:
  uint32_t state_ = 1;
};

/// Two splits of keys, several queries, grouped heads, a mask, and a cache whose heads lie side by side.
ggml_tensor* sample_attention(ggml_context* c, ggml_type cache) {
  constexpr int64_t kDim = 64, kKeys = 1056, kQueries = 3, kHeads = 4, kKvHeads = 2;
  Numbers numbers;
  ggml_tensor* q = host.ggml_new_tensor_4d(c, GGML_TYPE_F32, kDim, kHeads, kQueries, 1);
  ggml_tensor* k = host.ggml_new_tensor_4d(c, cache, kDim, kKvHeads, kKeys, 1);
  ggml_tensor* v = host.ggml_new_tensor_4d(c, cache, kDim, kKvHeads, kKeys, 1);
  ggml_tensor* mask = host.ggml_new_tensor_2d(c, GGML_TYPE_F16, kKeys, 64);  // 0.9 wants 64 rows at least
  for (ggml_tensor* t : {q, k, v, mask}) numbers.fill(t);
  auto* const hidden = static_cast<ggml_fp16_t*>(mask->data);
  for (int64_t i = 0; i < kKeys; i += 3) hidden[i] = host.ggml_fp32_to_fp16(-INFINITY);
  return host.ggml_flash_attn_ext(c, host.ggml_permute(c, q, 0, 2, 1, 3), host.ggml_permute(c, k, 0, 2, 1, 3),
                                  host.ggml_permute(c, v, 0, 2, 1, 3), mask, 0.25f, 0, 0);
}

ggml_tensor* sample_f16(ggml_context* c) { return sample_attention(c, GGML_TYPE_F16); }
/// The only cache for which the library may choose other instructions.
ggml_tensor* sample_bf16(ggml_context* c) { return sample_attention(c, GGML_TYPE_BF16); }

/// Two sequences, with two snapshots of as few tokens as are taken. Before there were snapshots the function had one
/// argument less, and such nodes are not taken.
ggml_tensor* sample_delta_net(ggml_context* c) {
  constexpr int64_t kDim = 32, kHeads = 4, kKeyHeads = 2, kTokens = kSnapshotTokens, kBatch = 2, kSnapshots = 2;
  using Make = ggml_tensor* (*)(ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*,
                                ggml_tensor*, int64_t);
  const auto make = reinterpret_cast<Make>(host_function("ggml_gated_delta_net"));
  if (make == nullptr) return nullptr;
  Numbers numbers;
  const auto tensor = [&](int64_t d, int64_t heads, int64_t tokens) {
    ggml_tensor* t = host.ggml_new_tensor_4d(c, GGML_TYPE_F32, d, heads, tokens, kBatch);
    numbers.fill(t);
    return t;
  };
  ggml_tensor *q = tensor(kDim, kKeyHeads, kTokens), *k = tensor(kDim, kKeyHeads, kTokens),
              *v = tensor(kDim, kHeads, kTokens);
  ggml_tensor *decay = tensor(1, kHeads, kTokens), *beta = tensor(1, kHeads, kTokens);
  return make(c, q, k, v, decay, beta,
              host.ggml_reshape_4d(c, tensor(kDim * kDim, kHeads, 1), kDim, kDim, kHeads, kBatch), kSnapshots);
}

ggml_tensor* sample_convolution(ggml_context* c) {
  constexpr int64_t kWidth = 4, kChannels = 300, kTokens = 5, kBatch = 2;
  Numbers numbers;
  ggml_tensor* inputs = host.ggml_new_tensor_3d(c, GGML_TYPE_F32, kWidth - 1 + kTokens, kChannels, kBatch);
  ggml_tensor* weight = host.ggml_new_tensor_2d(c, GGML_TYPE_F32, kWidth, kChannels);
  for (ggml_tensor* t : {inputs, weight}) numbers.fill(t);
  return host.ggml_ssm_conv(c, inputs, weight);
}

/// Which of the table's operators are taken, and their numbers in this ggml.
unsigned taken = 0;
ggml_op op_numbers[kOperators];

}  // namespace

const Operator kTable[kOperators] = {
    {"FLASH_ATTN_EXT", plan_attention, run_attention, reduce_attention, {sample_f16, sample_bf16}},
    {"GATED_DELTA_NET", plan_delta_net, run_delta_net, nullptr, {sample_delta_net, nullptr}},
    {"SSM_CONV", plan_convolution, run_convolution, nullptr, {sample_convolution, nullptr}},
};

const Operator* operator_of(const ggml_tensor& node) {
  for (int i = 0; i < kOperators; ++i) {
    if (node.op == op_numbers[i] && (taken >> i & 1u) != 0) return &kTable[i];
  }
  return nullptr;
}

void take_operators(unsigned bits) { taken = bits; }

std::vector<ggml_op> operators_taken() {
  std::vector<ggml_op> all;
  for (int i = 0; i < kOperators; ++i) {
    if ((taken >> i & 1u) != 0) all.push_back(op_numbers[i]);
  }
  return all;
}

unsigned find_operators() {
  unsigned found = 0;
  for (int i = 0; i < kOperators; ++i) {
    ggml_context* context = host.ggml_init({kSampleBytes, nullptr, false});
    if (context == nullptr) return 0;
    const ggml_tensor* node = kTable[i].samples[0](context);
    if (node != nullptr && std::strcmp(host.ggml_op_name(node->op), kTable[i].name) == 0) {
      op_numbers[i] = node->op;
      found |= 1u << i;
    }
    host.ggml_free(context);
  }
  return found;
}

}  // namespace simdattn_ggml
