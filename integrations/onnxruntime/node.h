// Nodes of a graph that the library computes, and why it leaves the others.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "host.h"

namespace simdattn_onnxruntime {

enum class Kind { kGroupQuery, kMultiHead, kAttention, kRotary, kLinear, kConv };

inline constexpr int kInputs = 16, kOutputs = 4;

/// A node: what its attributes say, and where its inputs and outputs are. Attributes have their names of ONNX;
/// operators that lack one have its default.
struct Node {
  Kind kind = Kind::kGroupQuery;
  std::string name;  // "GroupQueryAttention 'layer.0'", for messages
  const char* const* input_names = nullptr;
  bool onnx = false;  // in the domain of ONNX itself
  int64_t num_heads = 0, kv_num_heads = 0, local_window_size = -1;
  int64_t do_rotary = 0, interleaved = 0, rotary_embedding_dim = 0;
  int64_t smooth_softmax = 0, causal = 0;
  int64_t ndim = 1, dilation = 1, channels_last = 0;
  float scale = 0, softcap = 0, mask_filter_value = -10000;
  std::string update_rule = "gated_delta", activation = "none";
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // of input 0
  /// Where ONNX Runtime's kernel is as fast: from the first to the last number of rows, with so many keys at most.
  /// Other calls of the node are worth taking.
  int64_t first_level_row = 1, last_level_row = 0, last_level_key = INT64_MAX;
  /// Rows limit the keys too, because a kernel for few rows is faster here, and many scores take memory there.
  bool level_by_rows = false;
  int inputs = 0, outputs = 0;  // how many there are, up to the last one that is not ""
  /// Which input of the node that ONNX Runtime runs is input i of the operator; -1: absent.
  std::array<int, kInputs> input;
  std::array<int, kOutputs> output;

  /// Whether a call of so many rows and keys is one for ONNX Runtime's kernel. `grouped`: heads share keys, of which
  /// that kernel makes copies.
  bool is_level(int64_t rows, int64_t keys, bool grouped) const;
};

/// Inputs or outputs of a node: their names, "" where one is absent, and what is known of them.
struct Values {
  std::vector<std::string> names;
  std::vector<const OrtValueInfo*> infos;
  bool has(size_t i) const { return i < names.size() && !names[i].empty(); }
};
Values inputs_of(const OrtNode* node);
Values outputs_of(const OrtNode* node);

enum class Verdict { kTaken, kLeft, kOther };  // kOther: no operator of attention
/// Whether the library computes a node. kTaken: `result` has all but `input` and `output`; kLeft: `reason` says why.
Verdict examine(const OrtNode* node, Node* result, std::string* reason);

}  // namespace simdattn_onnxruntime
