// The operators of ggml that the library takes, and nodes of them as calls of the library.
#pragma once

#include <ggml.h>
#include <simdattn/simdattn.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "state_nodes.h"

namespace simdattn_ggml {

/// A node as calls of the library: each of `tasks` once, on any threads, and when all are done each of `reductions`
/// once.
struct Call {
  int64_t threads = 0;  // that will run it; 0: not known. Set before it is planned, and no result depends on it
  int64_t tasks = 0;
  int64_t reductions = 0;
  size_t workspace_bytes = 0;  // of each thread
  size_t partial_bytes = 0;    // of all together
  // That of its operator; the others are not looked at.
  sa::Plan attention;
  float slopes[kGgmlSlopes];  // of the plan
  sa::LinearAttentionProblem delta_net;
  sa::CausalConvProblem convolution;
};

struct Operator {
  const char* name;  // as ggml_op_name() has it: numbers move between releases
  /// False: ggml's code has to run. `shapes_alone`: the arrays may not exist yet.
  bool (*plan)(const ggml_tensor& node, bool shapes_alone, Call* call);
  sa::Status (*run)(const Call& call, int64_t first, int64_t last, void* partial, const sa::Exec& exec);
  sa::Status (*reduce)(const Call& call, int64_t first, int64_t last, void* partial, const sa::Exec& exec);
  /// Small nodes, whose arrays lie in the context; one or two. The first is null where this ggml has no such operator.
  ggml_tensor* (*samples[2])(ggml_context* context);
};

inline constexpr int kOperators = 3;
extern const Operator kTable[kOperators];
/// Room of a context for any sample.
inline constexpr size_t kSampleBytes = size_t{4} << 20;

/// The operators that are taken. Before the first call: none.
void take_operators(unsigned bits);
std::vector<ggml_op> operators_taken();
/// The operator of a node, or null if it is not taken.
const Operator* operator_of(const ggml_tensor& node);
/// Bits of the table's operators that this ggml has under the name of the table.
unsigned find_operators();

}  // namespace simdattn_ggml
