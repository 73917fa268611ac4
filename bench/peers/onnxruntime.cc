// ONNX Runtime: models of one operator each, written as bytes here, on its CPU provider.
#include <onnxruntime_cxx_api.h>

#include <bit>
#include <memory>
#include <vector>

#include "bench/peers/peer.h"

namespace bench {
namespace {

using simdattn::DType;

// As much of protocol buffers as a model of one node takes.
struct Message {
  std::string bytes;
  void varint(uint64_t v) {
    for (; v >= 128; v >>= 7) bytes.push_back(static_cast<char>(v | 128));
    bytes.push_back(static_cast<char>(v));
  }
  Message& number(uint64_t field, int64_t v) {
    varint(field << 3);
    varint(static_cast<uint64_t>(v));
    return *this;
  }
  Message& real(uint64_t field, float v) {
    varint(field << 3 | 5);
    const uint32_t b = std::bit_cast<uint32_t>(v);
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(b >> 8 * i));
    return *this;
  }
  Message& text(uint64_t field, const std::string& s) {
    varint(field << 3 | 2);
    varint(s.size());
    bytes += s;
    return *this;
  }
  Message& message(uint64_t field, const Message& m) { return text(field, m.bytes); }
};

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  const void* data;
  bool integers = false;
};

Message described(const Tensor& t) {
  Message shape;
  for (const int64_t d : t.shape) shape.message(1, Message().number(1, d));
  const Message tensor = Message().number(1, t.integers ? 7 : 1).message(2, shape);
  return Message().text(1, t.name).message(2, Message().message(1, tensor));
}

Message whole(const char* name, int64_t v) { return Message().text(1, name).number(3, v).number(20, 2); }
Message real(const char* name, float v) { return Message().text(1, name).real(2, v).number(20, 1); }

Ort::Env& environment() {
  static Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "bench");
  return env;
}

Call one_node(const char* op, const char* domain, const std::vector<Message>& attributes, const std::vector<Tensor>& in,
              const Tensor& out, int threads) {
  struct State {
    Ort::Session session{nullptr};
    std::unique_ptr<Ort::IoBinding> binding;
    std::vector<Ort::Value> values;
  };
  Message node, graph;
  for (const Tensor& t : in) node.text(1, t.name);
  node.text(2, out.name).text(4, op);
  for (const Message& a : attributes) node.message(5, a);
  node.text(7, domain);
  graph.message(1, node).text(2, "bench");
  for (const Tensor& t : in) graph.message(11, described(t));
  graph.message(12, described(out));
  const Message model = Message()
                            .number(1, 8)
                            .message(7, graph)
                            .message(8, Message().text(1, "").number(2, 17))
                            .message(8, Message().text(1, "com.microsoft").number(2, 1));
  const auto state = std::make_shared<State>();
  try {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads);
    options.SetInterOpNumThreads(1);
    options.SetGraphOptimizationLevel(ORT_ENABLE_ALL);
    state->session = Ort::Session(environment(), model.bytes.data(), model.bytes.size(), options);
    state->binding = std::make_unique<Ort::IoBinding>(state->session);
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const auto value = [&](const Tensor& t) -> Ort::Value& {
      size_t count = 1;
      for (const int64_t d : t.shape) count *= static_cast<size_t>(d);
      if (t.integers) {
        state->values.push_back(Ort::Value::CreateTensor<int64_t>(
            memory, const_cast<int64_t*>(static_cast<const int64_t*>(t.data)), count, t.shape.data(), t.shape.size()));
      } else {
        state->values.push_back(Ort::Value::CreateTensor<float>(
            memory, const_cast<float*>(static_cast<const float*>(t.data)), count, t.shape.data(), t.shape.size()));
      }
      return state->values.back();
    };
    for (const Tensor& t : in) state->binding->BindInput(t.name.c_str(), value(t));
    state->binding->BindOutput(out.name.c_str(), value(out));
    state->session.Run(Ort::RunOptions{nullptr}, *state->binding);
  } catch (const Ort::Exception& e) {
    std::fprintf(stderr, "onnxruntime: %s: %s\n", op, e.what());
    return {};
  }
  return {[state] { state->session.Run(Ort::RunOptions{nullptr}, *state->binding); }};
}

Call make(const Work& w) {
  static const int64_t zero = 0;
  const char* ms = "com.microsoft";
  switch (w.kind) {
    case Kind::kSoftmax:
      return one_node("Softmax", "", {whole("axis", -1)}, {{"x", {w.n_q, w.n}, w.q}}, {"o", {w.n_q, w.n}, w.out},
                      w.threads);
    case Kind::kScores:
      return one_node("FusedMatMul", ms, {whole("transB", 1), real("alpha", w.scale)},
                      {{"q", {w.n_q, w.d}, w.q}, {"k", {w.n, w.d}, w.k}}, {"o", {w.n_q, w.n}, w.out}, w.threads);
    case Kind::kWeightedValues:
      return one_node("MatMul", "", {}, {{"p", {w.n_q, w.n}, w.q}, {"v", {w.n, w.d}, w.v}}, {"o", {w.n_q, w.d}, w.out},
                      w.threads);
    case Kind::kRope:
      return one_node("RotaryEmbedding", ms, {whole("interleaved", w.interleaved)},
                      {{"x", {1, w.n_q, w.heads * w.d}, w.q},
                       {"p", {1}, &zero, true},
                       {"c", {w.n_q, w.d / 2}, w.cos},
                       {"s", {w.n_q, w.d / 2}, w.sin}},
                      {"o", {1, w.n_q, w.heads * w.d}, w.out}, w.threads);
    default: {
      // Decode: the group's heads are rows, the key heads a batch.
      const bool decode = w.n_q == 1;
      const int64_t rows = decode ? w.heads / w.kv_heads : w.n_q;
      return one_node(
          "MultiHeadAttention", ms,
          {whole("num_heads", 1), real("scale", w.scale), whole("unidirectional", w.causal && !decode)},
          {{"q", {w.kv_heads, rows, w.d}, w.q}, {"k", {w.kv_heads, w.n, w.d}, w.k}, {"v", {w.kv_heads, w.n, w.d}, w.v}},
          {"o", {w.kv_heads, rows, w.d}, w.out}, w.threads);
    }
  }
}

bool can(const Work& w) {
  if (w.type != DType::kF32) return false;
  if (w.kind == Kind::kRope) return !w.in_place;
  return w.kind != Kind::kAttention || w.n_q == 1 || (w.heads == w.kv_heads && w.n == w.n_q);
}

std::string settings() {
  return "ONNX Runtime " + Ort::GetVersionString() +
         ", CPU provider, all optimisations, bound inputs and outputs; MultiHeadAttention with the group folded into "
         "rows, " +
         "FusedMatMul, Softmax, RotaryEmbedding";
}

const Peer kPeers[] = {{"onnxruntime", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
