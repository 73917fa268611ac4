#include <memory>

#include "bench/harness.h"

// The smallest call of each function: what validation and dispatch cost.

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
};

using Call = simdattn::Status (*)(Data&, const Exec&);

struct Function {
  const char* name;
  size_t outputs;
  Call call;
};

const Function kFunctions[] = {
    {"softmax_1x1", 1,
     [](Data& d, const Exec& e) { return simdattn::softmax(view(d.q, {1, 1}), view(d.out, {1, 1}), {}, e); }},
    {"masked_softmax_1x1", 1,
     [](Data& d, const Exec& e) {
       return simdattn::masked_softmax(view(d.q, {1, 1, 1, 1}), view(d.out, {1, 1, 1, 1}), {.causal = true}, {}, e);
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
       simdattn::Attention a;
       a.q = view(d.q, {1, 1, 1, 1});
       a.k = view(d.k, {1, 1, 1, 1});
       a.v = view(d.v, {1, 1, 1, 1});
       a.out = view(d.out, {1, 1, 1, 1});
       Exec exec = e;
       exec.workspace = d.workspace.data();
       exec.workspace_bytes = d.workspace.size();
       return simdattn::attention(a, exec);
     }},
};

Prepared prepare(const Function& f) {
  auto data = std::make_shared<Data>();
  data->workspace = Buffer(size_t{4} << 20);
  Prepared p;
  p.keep = data;
  p.run = [call = f.call, d = data.get()](const simdattn::Target* t, bool) { return call(*d, {.target = t}); };
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
    c.prepare = [&f] { return prepare(f); };
    cases.push_back(std::move(c));
  }
}

}  // namespace bench
