#include "node.h"

#include <cstring>

namespace simdattn_onnxruntime {
namespace {

// ---- The operators --------------------------------------------------------------------------------------------------

/// An attribute, and the member that takes it; no member: it changes nothing here, or examine() looks at its node.
struct Attribute {
  const char* name;
  int64_t Node::* integer = nullptr;
  float Node::* number = nullptr;
  std::string Node::* word = nullptr;
};

struct Operator {
  const char* domain;  // "": that of ONNX
  const char* type;
  Kind kind;
  int first_version, last_version;
  int inputs;  // that the library knows
  const char* input_names[kInputs];
  Attribute attributes[14];
};

constexpr int kAnyVersion = 1 << 20;
const Operator kOperators[] = {
    {"com.microsoft",
     "GroupQueryAttention",
     Kind::kGroupQuery,
     1,
     kAnyVersion,
     12,
     {"query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
      "position_ids", "attention_bias", "head_sink"},
     {{"num_heads", &Node::num_heads},
      {"kv_num_heads", &Node::kv_num_heads},
      {"scale", nullptr, &Node::scale},
      {"softcap", nullptr, &Node::softcap},
      {"local_window_size", &Node::local_window_size},
      {"do_rotary", &Node::do_rotary},
      {"rotary_interleaved", &Node::interleaved},
      {"smooth_softmax", &Node::smooth_softmax},
      {"causal", &Node::causal},
      {"qk_norm_epsilon"},  // of inputs that the library does not know
      {"qk_output"}}},
    {"com.microsoft",
     "MultiHeadAttention",
     Kind::kMultiHead,
     1,
     kAnyVersion,
     8,
     {"query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"},
     {{"num_heads", &Node::num_heads},
      {"mask_filter_value", nullptr, &Node::mask_filter_value},
      {"scale", nullptr, &Node::scale},
      {"unidirectional", &Node::causal}}},
    {"",
     "Attention",
     Kind::kAttention,
     23,
     24,
     7,
     {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"},
     {{"q_num_heads", &Node::num_heads},
      {"kv_num_heads", &Node::kv_num_heads},
      {"scale", nullptr, &Node::scale},
      {"softcap", nullptr, &Node::softcap},
      {"is_causal", &Node::causal},
      {"qk_matmul_output_mode"},
      {"softmax_precision"}}},  // sums are f32 in every case
    {"com.microsoft",
     "RotaryEmbedding",
     Kind::kRotary,
     1,
     kAnyVersion,
     4,
     {"input", "position_ids", "cos_cache", "sin_cache"},
     {{"num_heads", &Node::num_heads},
      {"interleaved", &Node::interleaved},
      {"rotary_embedding_dim", &Node::rotary_embedding_dim},
      {"scale", nullptr, &Node::scale}}},
    {"",
     "RotaryEmbedding",
     Kind::kRotary,
     23,
     24,
     4,
     {"X", "cos_cache", "sin_cache", "position_ids"},
     {{"num_heads", &Node::num_heads},
      {"interleaved", &Node::interleaved},
      {"rotary_embedding_dim", &Node::rotary_embedding_dim}}},
    {"com.microsoft",
     "LinearAttention",
     Kind::kLinear,
     1,
     kAnyVersion,
     6,
     {"query", "key", "value", "past_state", "decay", "beta"},
     {{"q_num_heads", &Node::num_heads},
      {"kv_num_heads", &Node::kv_num_heads},
      {"scale", nullptr, &Node::scale},
      {"update_rule", nullptr, nullptr, &Node::update_rule},
      {"chunk_size"}}},  // how another kernel divides its work
    {"com.microsoft",
     "CausalConvWithState",
     Kind::kConv,
     1,
     kAnyVersion,
     4,
     {"input", "weight", "bias", "past_state"},
     {{"activation", nullptr, nullptr, &Node::activation},
      {"ndim", &Node::ndim},
      {"dilation", &Node::dilation},
      {"channels_last", &Node::channels_last}}},
};

const Operator* operator_of(const OrtNode* node) {
  const char *type = nullptr, *domain = nullptr;
  check(host.api->Node_GetOperatorType(node, &type));
  check(host.api->Node_GetDomain(node, &domain));
  if (std::strcmp(domain, "ai.onnx") == 0) domain = "";
  for (const Operator& op : kOperators) {
    if (std::strcmp(op.type, type) == 0 && std::strcmp(op.domain, domain) == 0) return &op;
  }
  return nullptr;
}

// ---- Attributes -----------------------------------------------------------------------------------------------------

std::string text_of(const OrtOpAttr* attribute) {
  std::string text(64, '\0');
  size_t bytes = 0;
  OrtStatus* const status = host.api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, text.data(), text.size() - 1, &bytes);
  if (status != nullptr) {  // it is longer than every word that is known
    host.api->ReleaseStatus(status);
    return "?";
  }
  return text.c_str();
}

/// ONNX Runtime gives a node the attributes that it does not have, with their defaults. So those of newer versions are
/// there without being used: zeros and the words for nothing.
bool is_off(const OrtOpAttr* attribute) {
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  check(host.api->OpAttr_GetType(attribute, &type));
  size_t bytes = 0;
  if (type == ORT_OP_ATTR_INT) {
    int64_t value = 1;
    check(host.api->ReadOpAttr(attribute, type, &value, sizeof value, &bytes));
    return value == 0;
  }
  if (type != ORT_OP_ATTR_STRING) return false;
  const std::string text = text_of(attribute);
  return text.empty() || text == "NONE";
}

/// False: `reason` names an attribute that the library does not know.
bool read_attributes(const OrtNode* node, const Operator& op, Node* result, std::string* reason) {
  size_t n = 0;
  check(host.api->Node_GetNumAttributes(node, &n));
  std::vector<const OrtOpAttr*> attributes(n);
  check(host.api->Node_GetAttributes(node, attributes.data(), n));
  for (const OrtOpAttr* attribute : attributes) {
    const char* name = nullptr;
    check(host.api->OpAttr_GetName(attribute, &name));
    const Attribute* known = nullptr;
    for (const Attribute& a : op.attributes) {
      if (a.name != nullptr && std::strcmp(a.name, name) == 0) known = &a;
    }
    size_t bytes = 0;
    if (known == nullptr) {
      if (is_off(attribute)) continue;
      *reason = std::string("attribute ") + name;
      return false;
    }
    if (known->integer != nullptr)
      check(host.api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &(result->*known->integer), sizeof(int64_t), &bytes));
    if (known->number != nullptr)
      check(host.api->ReadOpAttr(attribute, ORT_OP_ATTR_FLOAT, &(result->*known->number), sizeof(float), &bytes));
    if (known->word != nullptr) result->*known->word = text_of(attribute);
  }
  return true;
}

// ---- Inputs and outputs ---------------------------------------------------------------------------------------------

Values values_of(const OrtNode* node, bool outputs) {
  Values v;
  size_t n = 0;
  check(outputs ? host.api->Node_GetNumOutputs(node, &n) : host.api->Node_GetNumInputs(node, &n));
  v.infos.assign(n, nullptr);
  check(outputs ? host.api->Node_GetOutputs(node, v.infos.data(), n)
                : host.api->Node_GetInputs(node, v.infos.data(), n));
  for (const OrtValueInfo* info : v.infos) {
    const char* name = "";
    if (info != nullptr) check(host.api->GetValueInfoName(info, &name));
    v.names.emplace_back(name);
  }
  return v;
}

/// What a model says of a tensor before it runs; rank -1 where it says nothing.
struct Known {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> dims;
  bool has_shape = false;
};
Known known_of(const OrtValueInfo* info) {
  Known k;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (info == nullptr) return k;
  check(host.api->GetValueInfoTypeInfo(info, &type));
  if (type == nullptr) return k;
  check(host.api->CastTypeInfoToTensorInfo(type, &tensor));
  if (tensor == nullptr) return k;
  check(host.api->GetTensorElementType(tensor, &k.element));
  size_t rank = 0;
  check(host.api->GetDimensionsCount(tensor, &rank));
  k.dims.resize(rank);
  if (rank != 0) check(host.api->GetDimensions(tensor, k.dims.data(), rank));
  k.has_shape = rank != 0;
  return k;
}

// ---- Which nodes ----------------------------------------------------------------------------------------------------

/// Why a node of each kind is left; null: it is taken.
const char* why_not_group_query(const Node& node, const Values& in, const Values& out) {
  if (out.has(3)) return "the output output_qk";
  if (node.causal == 0) return "causal is 0";
  if (!out.has(1) || !out.has(2)) return "no present_key and present_value";
  if (in.has(3) != in.has(4)) return "one of past_key and past_value alone";
  if (in.has(1) != in.has(2)) return "one of key and value alone";
  if (node.do_rotary != 0 && (!in.has(7) || !in.has(8))) return "do_rotary without cos_cache and sin_cache";
  return nullptr;
}

const char* why_not_multi_head(const Node& node, const Values& in, const Values& out) {
  if (!in.has(1) || !in.has(2)) return "query, key and value packed in one input";
  if (out.has(3)) return "the output qk";
  if (in.has(6) != in.has(7)) return "one of past_key and past_value alone";
  if (in.has(6) && (!out.has(1) || !out.has(2))) return "a past without a present";
  if (in.has(4)) {
    const Known mask = known_of(in.infos[4]);
    if (mask.dims.size() != 2 && mask.dims.size() != 3) return "a key_padding_mask of neither two nor three dimensions";
  }
  // ONNX Runtime has a kernel for this case that is as fast.
  const bool all_keys = node.causal == 0 && !in.has(4) && !in.has(5) && !in.has(6) && !out.has(1) && !out.has(2);
  const Known query = known_of(in.infos[0]);
  const bool one_row = query.dims.size() == 3 && query.dims[1] == 1;
  if (all_keys && !one_row && query.element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
    return "rows that see all keys, for which ONNX Runtime is as fast";
  return nullptr;
}

const char* why_not_attention(const Node& node, const Values& in, const Values& out) {
  if (out.has(3)) return "the output qk_matmul_output";
  if (in.has(4) != in.has(5)) return "one of past_key and past_value alone";
  if (in.has(4) && (!out.has(1) || !out.has(2))) return "a past without a present";
  // Before 1.30 ONNX Runtime adds masks before the softcap, which makes masked keys visible, and versions differ in
  // where rows of a causal mask stand beside lengths.
  if (host.minor < 30 && node.softcap != 0 && (node.causal != 0 || in.has(3) || in.has(6)))
    return "softcap with masked keys, whose order is another one before 1.30";
  if (node.causal != 0 && in.has(6)) return "is_causal with nonpad_kv_seqlen";
  return nullptr;
}

const char* why_not_rotary(const Node& node, const Values&, const Values&) {
  if (node.scale != 1) return "a scale";
  if (node.element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && node.interleaved == 0)
    return "halves of float rows, for which ONNX Runtime is as fast";
  return nullptr;
}

const char* why_not_linear(const Node& node, const Values& in, const Values& out) {
  if (!in.has(1) || !in.has(2)) return "no key and value";
  if (!out.has(1)) return "no present_state";
  if (known_of(out.infos[1]).element != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return "a state that is not float";
  for (const char* rule : {"linear", "gated", "delta", "gated_delta"}) {
    if (node.update_rule == rule) return nullptr;
  }
  return "its update_rule";
}

const char* why_not_conv(const Node& node, const Values& in, const Values& out) {
  if (!in.has(1)) return "no weight";
  if (!out.has(1)) return "no present_state";
  if (node.ndim != 1) return "ndim other than 1";
  if (node.dilation != 1) return "a dilation";
  if (node.activation != "none" && node.activation != "silu" && node.activation != "swish") return "its activation";
  return nullptr;
}

/// Sets where ONNX Runtime is as fast: where a call or a mask costs more than its rows do, where keys do not fill a
/// panel, and where a state is read once from memory.
void find_level_calls(const Values& in, Node* node) {
  const bool f32 = node->element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  switch (node->kind) {
    case Kind::kAttention:
      // ONNX Runtime has no present without a past.
      if (!f32 || in.has(4) || in.has(6) || node->outputs != 1) break;
      node->level_by_rows = !in.has(3) && node->causal == 0;
      node->first_level_row = in.has(3) ? 1 : 5;
      node->last_level_row = in.has(3) ? 64 : node->causal != 0 ? 48 : INT64_MAX;
      node->last_level_key = in.has(3) ? 64 : node->causal != 0 ? 32 : 320;
      break;
    case Kind::kRotary:
      if (node->element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 && node->interleaved == 0) node->last_level_row = 1;
      break;
    case Kind::kLinear:
      // Versions differ in how wide their output is where groups of query heads share a state.
      if (f32 && node->num_heads <= node->kv_num_heads &&
          (node->update_rule == "delta" || node->update_rule == "gated_delta"))
        node->last_level_row = 1;
      break;
    default: break;
  }
}

/// Whether each call of the node is one of those, by shapes that the model states. What a mask hides is not known.
bool is_always_level(const Values& in, const Node& node) {
  const auto dims_of = [&](size_t input) {
    const std::vector<int64_t> dims = in.has(input) ? known_of(in.infos[input]).dims : std::vector<int64_t>{};
    return dims.size() < 3 ? std::vector<int64_t>(3, -1) : dims;
  };
  const std::vector<int64_t> q = dims_of(0), k = dims_of(1);
  const int64_t rows = q[q.size() - 2], keys = k[k.size() - 2];
  if (node.kind != Kind::kAttention) return node.is_level(rows, 1, false);
  const bool own_keys = q.size() == 4 ? q[1] > 0 && q[1] == k[1] : node.num_heads == node.kv_num_heads;
  return !in.has(3) && node.is_level(rows, keys, !own_keys);
}

/// How many values there are, without those behind the last one that has a name.
int count_of(const Values& v) {
  size_t n = v.names.size();
  while (n > 0 && !v.has(n - 1)) --n;
  return static_cast<int>(n);
}

}  // namespace

Values inputs_of(const OrtNode* node) { return values_of(node, false); }
Values outputs_of(const OrtNode* node) { return values_of(node, true); }

bool Node::is_level(int64_t rows, int64_t keys, bool grouped) const {
  if (rows < first_level_row || rows > last_level_row || keys < 1 || keys > last_level_key) return false;
  constexpr int64_t kFewRows = 16, kScores = 1024 * 320;  // of a head: more of them leave the cache
  return !level_by_rows || (keys <= (grouped ? 2 : 4) * std::max(rows, kFewRows) && rows * keys <= kScores);
}

Verdict examine(const OrtNode* node, Node* result, std::string* reason) {
  const Operator* const op = operator_of(node);
  if (op == nullptr) return Verdict::kOther;
  const char* name = nullptr;
  check(host.api->Node_GetName(node, &name));
  *result = {};
  result->name = std::string(op->type) + " '" + (name != nullptr ? name : "") + "'";
  result->kind = op->kind;
  result->onnx = *op->domain == '\0';
  result->input_names = op->input_names;
  result->scale = op->kind == Kind::kRotary ? 1.0f : 0.0f;
  result->causal = op->kind == Kind::kGroupQuery ? 1 : 0;
  int version = 0;
  check(host.api->Node_GetSinceVersion(node, &version));
  const Values in = inputs_of(node), out = outputs_of(node);
  const auto leave = [&](const std::string& why) {
    *reason = why;
    return Verdict::kLeft;
  };
  if (version < op->first_version || version > op->last_version) return leave("version " + std::to_string(version));
  for (size_t i = static_cast<size_t>(op->inputs); i < in.names.size(); ++i) {
    if (in.has(i)) return leave("input " + std::to_string(i));
  }
  if (!in.has(0)) return leave("no first input");
  const Known first = known_of(in.infos[0]);
  result->element = first.element;
  result->inputs = count_of(in);
  result->outputs = count_of(out);
  switch (first.element) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: break;
    default: return leave("a type that is neither float, float16 nor bfloat16");
  }
  if (!read_attributes(node, *op, result, reason)) return Verdict::kLeft;
  constexpr const char* (*kWhyNot[])(const Node&, const Values&, const Values&) = {
      why_not_group_query, why_not_multi_head, why_not_attention, why_not_rotary, why_not_linear, why_not_conv};
  const char* const why = kWhyNot[static_cast<size_t>(op->kind)](*result, in, out);
  if (why != nullptr) return leave(why);
  find_level_calls(in, result);
  if (is_always_level(in, *result)) return leave("few rows, for which ONNX Runtime is as fast");
  return Verdict::kTaken;
}

}  // namespace simdattn_onnxruntime
