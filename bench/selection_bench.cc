#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "bench/harness.h"

// Models that select keys: scores of an indexer, the k largest of a row, attention over lists beside attention over as many keys in one piece.

namespace bench {
namespace {

using simdattn::Arithmetic;
using simdattn::AttentionProblem;
using simdattn::DType;
using simdattn::Exec;
using simdattn::Status;
using simdattn::Target;

constexpr int64_t kTokens = 131072;
constexpr int64_t kListed = 2048;

Case named(const char* kernel, const std::string& shape, const char* type) {
  Case c;
  c.kernel = kernel;
  c.shape = shape;
  c.type = type;
  c.main = true;
  return c;
}

Prepared prepare_top_k() {
  struct Data {
    Buffer scores, lists, memory;
  };
  auto data = std::make_shared<Data>();
  data->scores = random_buffer(DType::kF32, kTokens, 1);
  data->lists = Buffer(kListed * sizeof(int32_t));
  data->memory = Buffer(simdattn::top_k_workspace(kListed));
  Prepared p;
  p.keep = data;
  p.run = [d = data.get()](const Target* target, bool) {
    return simdattn::top_k(simdattn::view(static_cast<const float*>(d->scores.as<float>()), {1, 1, 1, kTokens}),
                           kListed, {d->lists.data(), DType::kI32, {1, 1, 1, kListed}}, {},
                           {.target = target, .workspace = d->memory.data(), .workspace_bytes = d->memory.size()});
  };
  p.out = data->lists.data();  // places as bits of numbers: they are compared bit by bit
  p.out_elements = p.count = kListed;
  p.streams = {data->scores.bytes()};
  return p;
}

Prepared prepare_index(Arithmetic arithmetic) {
  constexpr int64_t kHeads = 64, kDim = 128, kKeys = 32768;
  struct Data {
    Buffer q, k, weights, scores, memory;
  };
  auto data = std::make_shared<Data>();
  data->q = random_buffer(DType::kBF16, kHeads * kDim, 1);
  data->k = random_buffer(DType::kBF16, kKeys * kDim, 2);
  data->weights = random_buffer(DType::kF32, kHeads, 3);
  data->scores = Buffer(kKeys * sizeof(float));
  data->memory = Buffer(simdattn::index_scores_workspace(arithmetic, kHeads, kDim));
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* target, bool) {
    return simdattn::index_scores(
        {d->q.data(), DType::kBF16, {1, kHeads, 1, kDim}},
        simdattn::ConstView<4>(d->k.data(), DType::kBF16, {1, 1, kKeys, kDim}),
        {d->weights.data(), DType::kF32, {1, 1, kHeads}}, {d->scores.data(), DType::kF32, {1, 1, 1, kKeys}},
        {.arithmetic = arithmetic, .relu = true},
        {.target = target, .workspace = d->memory.data(), .workspace_bytes = d->memory.size()});
  };
  p.out = data->scores.data();
  p.out_elements = p.count = kKeys;
  p.absolute = 1e-3;
  p.flops = 2.0 * kHeads * kDim * kKeys;
  p.streams = {data->k.bytes()};
  return p;
}

struct Model {
  int64_t heads, kv_heads, d_qk, d_v;
};

Prepared prepare_lists(const Model& m, int64_t block, Arithmetic arithmetic) {
  struct Data {
    Buffer q, k, v, out, memory;
    std::vector<int32_t> list;
    AttentionProblem listed, dense;
  };
  auto data = std::make_shared<Data>();
  const bool latent = m.kv_heads == 1;
  data->q = random_buffer(DType::kBF16, static_cast<size_t>(m.heads * m.d_qk), 1);
  data->k = random_buffer(DType::kBF16, static_cast<size_t>(kTokens * m.kv_heads * m.d_qk), 2);
  data->out = Buffer(static_cast<size_t>(m.heads * m.d_v) * sizeof(float));
  AttentionProblem& a = data->listed;
  a.arithmetic = arithmetic;
  a.q = {data->q.data(), DType::kBF16, {1, m.heads, 1, m.d_qk}};
  a.k = simdattn::ConstView<4>(data->k.data(), DType::kBF16, {1, m.kv_heads, kTokens, m.d_qk});
  a.v = a.k;
  if (latent) {
    a.v.dim = m.d_v;
  } else {
    data->v = random_buffer(DType::kBF16, static_cast<size_t>(kTokens * m.kv_heads * m.d_v), 3);
    a.v = simdattn::ConstView<4>(data->v.data(), DType::kBF16, {1, m.kv_heads, kTokens, m.d_v});
  }
  a.out = {data->out.data(), DType::kF32, {1, m.heads, 1, m.d_v}};
  data->dense = a;
  data->dense.k.length = data->dense.v.length = kListed;
  std::vector<int32_t> all(static_cast<size_t>(kTokens / block));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(4));
  data->list.assign(all.begin(), all.begin() + kListed / block);
  std::sort(data->list.begin(), data->list.end());
  a.lists = {
      .data = data->list.data(), .heads = 1, .length = kListed / block, .block_size = block, .stride = {0, 0, 0}};
  data->memory = Buffer(most_workspace({&a}));
  const auto run = [d = data.get()](const AttentionProblem& problem, const Target* target) {
    return simdattn::attention(problem,
                               {.target = target, .workspace = d->memory.data(), .workspace_bytes = d->memory.size()});
  };
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* target, bool) { return run(d->listed, target); };
  p.companion = [=, d = data.get()](const Target* target) { return run(d->dense, target); };
  p.out = data->out.data();
  p.out_elements = p.count = static_cast<size_t>(m.heads * m.d_v);
  p.absolute = 1e-2;
  p.flops = 2.0 * static_cast<double>(m.heads * kListed * (m.d_qk + m.d_v));
  return p;
}

}  // namespace

void add_selection_cases(std::vector<Case>& cases) {
  cases.push_back(named("top_k", "2048 of 131072", "f32"));
  cases.back().prepare = prepare_top_k;
  for (const auto& [arithmetic, name] : {std::pair(Arithmetic::kF32, "f32"), std::pair(Arithmetic::kBF16, "bf16")}) {
    cases.push_back(named("index_scores", "64 heads of 128, 32768 keys", name));
    cases.back().prepare = [=, a = arithmetic] { return prepare_index(a); };
    for (const int64_t block : {1, 4, 128}) {
      for (const Model& m : {Model{16, 1, 576, 512}, Model{128, 1, 576, 512}, Model{32, 8, 128, 128}}) {
        cases.push_back(named("attention",
                              std::to_string(m.heads) + "/" + std::to_string(m.kv_heads) + " heads of " +
                                  std::to_string(m.d_qk) + ", 2048 listed of 131072, blocks of " +
                                  std::to_string(block),
                              name));
        cases.back().companion = "2048 keys in one piece";
        cases.back().prepare = [=, a = arithmetic] { return prepare_lists(m, block, a); };
      }
    }
  }
}

}  // namespace bench
