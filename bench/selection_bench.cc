#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "bench/harness.h"

// Models that select keys: scores of an indexer, the k largest of a row, attention over lists beside attention over as
// many keys in one piece.

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

/// What attention over lists is beside.
enum class Beside { kDense, kMask };

struct Model {
  int64_t heads, kv_heads, d_qk, d_v;
  int64_t rows = 1;  // with a list each
  DType type = DType::kBF16;
  Beside beside = Beside::kDense;
};

/// `count` sorted lists of `entries` of the tokens' blocks, one after another.
std::vector<int32_t> random_lists(size_t count, int64_t entries, int64_t block, std::mt19937& random) {
  std::vector<int32_t> all(static_cast<size_t>(kTokens / block)), lists(count * static_cast<size_t>(entries));
  std::iota(all.begin(), all.end(), 0);
  for (auto list = lists.begin(); list != lists.end(); list += entries) {
    std::shuffle(all.begin(), all.end(), random);
    std::copy_n(all.begin(), entries, list);
    std::sort(list, list + entries);
  }
  return lists;
}

/// The same attention over tokens [first, first + kListed).
AttentionProblem piece_of(AttentionProblem a, int64_t first) {
  for (auto* kv : {&a.k, &a.v}) {
    kv->data = static_cast<const char*>(kv->data) + first * kv->token_stride;
    kv->capacity = kTokens - first;
    kv->length = kListed;
  }
  return a;
}

/// Calls take turns of lists and of pieces, which the caches do not hold together.
Prepared prepare_lists(const Model& m, int64_t block, Arithmetic arithmetic) {
  constexpr size_t kTurns = 32;
  struct Data {
    Buffer q, k, v, out, memory;
    std::vector<int32_t> lists;
    std::vector<uint8_t> mask;
    std::vector<AttentionProblem> listed, other;
    size_t turn = 0, other_turn = 0;
  };
  auto data = std::make_shared<Data>();
  const auto elements = [&](int64_t tokens, int64_t dim) { return static_cast<size_t>(tokens * m.kv_heads * dim); };
  data->q = random_buffer(DType::kBF16, static_cast<size_t>(m.heads * m.rows * m.d_qk), 1);
  data->k = random_buffer(m.type, elements(kTokens, m.d_qk), 2);
  data->out = Buffer(static_cast<size_t>(m.heads * m.rows * m.d_v) * sizeof(float));
  AttentionProblem a;
  a.arithmetic = arithmetic;
  a.q = {data->q.data(), DType::kBF16, {1, m.heads, m.rows, m.d_qk}};
  a.k = simdattn::ConstView<4>(data->k.data(), m.type, {1, m.kv_heads, kTokens, m.d_qk});
  a.v = a.k;
  if (m.kv_heads == 1) {  // latent attention: a value is the start of its key
    a.v.dim = m.d_v;
  } else {
    data->v = random_buffer(m.type, elements(kTokens, m.d_v), 3);
    a.v = simdattn::ConstView<4>(data->v.data(), m.type, {1, m.kv_heads, kTokens, m.d_v});
  }
  a.out = {data->out.data(), DType::kF32, {1, m.heads, m.rows, m.d_v}};
  const int64_t entries = kListed / block;
  std::mt19937 random(4);
  data->lists = random_lists(kTurns * static_cast<size_t>(m.rows), entries, block, random);
  data->mask.resize(m.beside == Beside::kMask ? kTurns * kTokens : 0);
  for (size_t t = 0; t < kTurns; ++t) {
    AttentionProblem listed = a, other = a;
    const int32_t* const list = data->lists.data() + t * static_cast<size_t>(m.rows * entries);
    listed.lists = {.data = list, .heads = 1, .length = entries, .block_size = block, .stride = {0, 0, entries}};
    data->listed.push_back(listed);
    if (m.beside == Beside::kMask) {
      uint8_t* const keep = data->mask.data() + t * kTokens;
      for (int64_t e = 0; e < entries; ++e) std::fill_n(keep + list[e] * block, block, uint8_t{1});
      other.scoring.mask = {keep, DType::kU8, {1, 1, 1, kTokens}};
    } else {
      other = piece_of(a, static_cast<int64_t>(random() % (kTokens / kListed)) * kListed);
    }
    data->other.push_back(other);
  }
  data->memory = Buffer(most_workspace({&data->listed[0], &data->other[0]}));
  const auto run = [d = data.get()](const AttentionProblem& problem, const Target* target) {
    return simdattn::attention(problem,
                               {.target = target, .workspace = d->memory.data(), .workspace_bytes = d->memory.size()});
  };
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* target, bool) { return run(d->listed[d->turn++ % kTurns], target); };
  p.reset = [d = data.get()] { d->turn = 0; };
  p.companion = [=, d = data.get()](const Target* target) { return run(d->other[d->other_turn++ % kTurns], target); };
  p.out = data->out.data();
  p.out_elements = p.count = static_cast<size_t>(m.heads * m.rows * m.d_v);
  p.absolute = 1e-2;
  p.flops = 2.0 * static_cast<double>(m.heads * m.rows * kListed * (m.d_qk + m.d_v));
  return p;
}

}  // namespace

void add_selection_cases(std::vector<Case>& cases) {
  cases.push_back(named("top_k", "2048 of 131072", "f32"));
  cases.back().prepare = prepare_top_k;
  for (const auto& [arithmetic, name] : {std::pair(Arithmetic::kF32, "f32"), std::pair(Arithmetic::kBF16, "bf16")}) {
    cases.push_back(named("index_scores", "64 heads of 128, 32768 keys", name));
    cases.back().prepare = [=, a = arithmetic] { return prepare_index(a); };
    const auto add = [&, a = arithmetic](const Model& m, int64_t block) {
      cases.push_back(named("attention",
                            std::to_string(m.heads) + "/" + std::to_string(m.kv_heads) + " heads of " +
                                std::to_string(m.d_qk) + (m.rows > 1 ? ", " + std::to_string(m.rows) + " rows" : "") +
                                (m.type == DType::kF32 ? ", f32" : "") + ", 2048 listed of 131072, blocks of " +
                                std::to_string(block),
                            name));
      cases.back().companion = m.beside == Beside::kMask ? "the same by a mask" : "2048 keys in one piece";
      cases.back().prepare = [=] { return prepare_lists(m, block, a); };
    };
    for (const int64_t block : {1, 4, 128}) {
      for (const Model& m : {Model{16, 1, 576, 512}, Model{128, 1, 576, 512}, Model{32, 8, 128, 128}}) add(m, block);
    }
    add({128, 1, 576, 512, 8}, 1);
    add({16, 1, 576, 512, 1, DType::kF32}, 1);
    add({32, 8, 128, 128, 1, DType::kF32}, 1);
    add({16, 1, 576, 512, 1, DType::kBF16, Beside::kMask}, 1);
    add({32, 8, 128, 128, 1, DType::kBF16, Beside::kMask}, 1);
  }
}

}  // namespace bench
