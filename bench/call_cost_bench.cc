#include <map>
#include <memory>

#include "bench/harness.h"
#include "dispatch/target.h"
#include "lib/contract/ukernels.h"

// The smallest call of each function, and the same with slots that do nothing: what validation and dispatch cost.

namespace bench {
namespace {

using simdattn::Exec;
using simdattn::view;

/// The arrays are apart: a masked load of one that reaches over the result stored by the last call would wait for it.
struct Data {
  alignas(128) float q[2] = {0.5f, 0.25f};
  alignas(128) float k[2] = {1, 2};
  alignas(128) float v[2] = {3, 4};
  alignas(128) float cos[1] = {0.6f};
  alignas(128) float sin[1] = {0.8f};
  alignas(128) float out[2] = {};
  Buffer workspace;
  /// Options that a caller keeps: filling a Scoring takes the caller up to 10 ns, by how its compiler clears structs.
  simdattn::Scoring causal{.causal = true};
  struct Hollow {
    simdattn::UKernels kernels;
    simdattn::Target target;
  };
  std::map<const simdattn::Target*, Hollow> hollow;

  const simdattn::Target* without_slots(const simdattn::Target* t) {
    const auto [it, is_new] = hollow.try_emplace(t);
    Hollow& h = it->second;
    if (is_new) {
      h.kernels = *t->kernels;
      h.kernels.softmax_rows = [](const simdattn::SoftmaxRows&) {};
      for (auto& slot : h.kernels.score_rows) slot = [](const simdattn::ScoreRows&) {};
      for (auto& kv : h.kernels.attention[0].kv) kv.value_tile = [](const simdattn::ValueTile&) {};
      h.kernels.any_zero = [](const float*, int64_t) { return false; };
      for (auto& slot : h.kernels.finish) slot = [](const float*, float, void*, int64_t) {};
      for (auto& slot : h.kernels.rope_heads) slot = [](const simdattn::RopeHeads&) {};
      h.target = *t;
      h.target.kernels = &h.kernels;
    }
    return &h.target;
  }
};

using Call = simdattn::Status (*)(Data&, const Exec&);

struct Function {
  const char* name;
  size_t outputs;
  Call call;
  bool fused = false;
};

const Function kFunctions[] = {
    {"softmax_1x1", 1,
     [](Data& d, const Exec& e) { return simdattn::softmax(view(d.q, {1, 1}), view(d.out, {1, 1}), {}, e); }},
    {"masked_softmax_1x1", 1,
     [](Data& d, const Exec& e) {
       return simdattn::masked_softmax(view(d.q, {1, 1, 1, 1}), view(d.out, {1, 1, 1, 1}), d.causal, {}, e);
     }},
    {"scores_1x1", 1,
     [](Data& d, const Exec& e) {
       return simdattn::scores(view(d.q, {1, 1, 1, 1}), view(d.k, {1, 1, 1, 1}), view(d.out, {1, 1, 1, 1}),
                               {.scale = 1.0f}, e);
     }},
    {"weighted_values_1x1", 1,
     [](Data& d, const Exec& e) {
       return simdattn::weighted_values(view(d.q, {1, 1, 1, 1}), view(d.v, {1, 1, 1, 1}), view(d.out, {1, 1, 1, 1}), {},
                                        e);
     }},
    {"rope_1x2", 2,
     [](Data& d, const Exec& e) {
       return simdattn::rope(view(d.q, {1, 1, 1, 2}), view(d.cos, {1, 1}), view(d.sin, {1, 1}), {},
                             view(d.out, {1, 1, 1, 2}), {}, e);
     }},
    {"attention_1x1", 1,
     [](Data& d, const Exec& e) {
       simdattn::AttentionProblem a;
       a.q = view(d.q, {1, 1, 1, 1});
       a.k = view(d.k, {1, 1, 1, 1});
       a.v = view(d.v, {1, 1, 1, 1});
       a.out = view(d.out, {1, 1, 1, 1});
       Exec exec = e;
       exec.workspace = d.workspace.data();
       exec.workspace_bytes = d.workspace.size();
       return simdattn::attention(a, exec);
     },
     true},
};

Prepared prepare(const Function& f) {
  auto data = std::make_shared<Data>();
  data->workspace = Buffer(size_t{4} << 20);
  Prepared p;
  p.keep = data;
  p.run = [call = f.call, d = data.get()](const simdattn::Target* t, bool) { return call(*d, {.target = t}); };
  // A fused call has its driver's work between slots.
  if (!f.fused) {
    p.companion = [call = f.call, d = data.get()](const simdattn::Target* t) {
      return call(*d, {.target = d->without_slots(t)});
    };
  }
  p.out = data->out;
  p.out_elements = 2;
  p.count = f.outputs;
  p.relative = 0x1p-20;
  return p;
}

}  // namespace

void add_call_cost_cases(std::vector<Case>& cases) {
  for (const Function& f : kFunctions) {
    Case c;
    c.kernel = "call_cost";
    c.shape = f.name;
    c.type = "f32";
    c.main = true;
    c.fixed_cost = true;
    if (!f.fused) c.companion = "without its slots";
    c.prepare = [&f] { return prepare(f); };
    cases.push_back(std::move(c));
  }
}

}  // namespace bench
