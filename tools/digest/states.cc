// Lines of attention with a state, and of the convolution before it.
#include "tools/digest/run.h"

namespace simdattn::digest {
namespace {

bool run_linear_attention(Run& run, LinearRule rule, DType type) {
  Random& random = run.random;
  const Values values = run.values();
  const int64_t d_k = run.size(1, 140), d_v = run.size(1, 140), n = random.integer(1, 40),
                key_heads = random.integer(1, 2), heads = key_heads * random.integer(1, 2),
                query_heads = random.one_in(2) ? key_heads : 2 * heads;
  LinearAttentionProblem a;
  a.rule = rule;
  a.head_order = random.one_in(2) ? HeadOrder::kRepeated : HeadOrder::kNeighbours;
  a.transposed = random.one_in(3);
  const Array<4> q = input(random, type, {1, query_heads, n, d_k}, values),
                 k = input(random, type, {1, key_heads, n, d_k}, values),
                 v = input(random, type, {1, heads, n, d_v}, values),
                 decay = input(random, type, {1, heads, n, random.one_in(2) ? 1 : d_k}, values),
                 beta = input(random, type, {1, heads, n, 1}, values);
  Array<4> state(DType::kF32, {1, heads, a.transposed ? d_v : d_k, a.transposed ? d_k : d_v}),
      out(type, {1, query_heads > heads ? query_heads : heads, n, d_v});
  Array<5> states(DType::kF32, {1, 2, heads, state.view.shape[2], state.view.shape[3]});
  state.buffer.fill(random, values);
  a.q = q.view, a.k = k.view, a.v = v.view, a.state = state.view, a.out = out.view, a.states = states.view;
  if (rule == LinearRule::kGated || rule == LinearRule::kGatedDelta) a.decay = decay.view;
  if (rule == LinearRule::kDelta || rule == LinearRule::kGatedDelta) a.beta = beta.view;
  if (!run.ok(linear_attention(a, run.exec_with(linear_attention_workspace(a))))) return false;
  run.add(state.buffer);
  run.add(out.buffer);
  run.add(states.buffer);
  return true;
}

bool run_causal_conv(Run& run, DType type) {
  Random& random = run.random;
  const Values values = run.values();
  const int64_t channels = run.size(1, 100), n = random.integer(1, 70), width = random.integer(2, 9);
  Array<3> x(type, {1, channels, n}), state(type, {1, channels, width - 1}), out(type, {1, channels, n});
  Array<2> weight(type, {channels, width});
  for (Buffer* b : {&x.buffer, &state.buffer, &weight.buffer}) b->fill(random, values);
  CausalConvProblem a;
  a.x = x.view, a.weight = weight.view, a.state = state.view, a.out = out.view, a.silu = random.one_in(2);
  if (!run.ok(causal_conv(a, run.exec()))) return false;
  run.add(state.buffer);
  run.add(out.buffer);
  return true;
}

}  // namespace

void add_state_lines(Lines* lines) {
  constexpr std::pair<LinearRule, const char*> kRules[] = {{LinearRule::kLinear, "linear"},
                                                           {LinearRule::kGated, "gated"},
                                                           {LinearRule::kDelta, "delta"},
                                                           {LinearRule::kGatedDelta, "gated_delta"}};
  for (const DType type : kTypes) {
    for (const auto& [rule, name] : kRules) {
      lines->push_back({std::string("linear_attention ") + name + " " + type_name(type), 6,
                        [by = rule, type](Run& r) { return run_linear_attention(r, by, type); }});
    }
    lines->push_back(
        {std::string("causal_conv ") + type_name(type), 8, [=](Run& r) { return run_causal_conv(r, type); }});
  }
}

}  // namespace simdattn::digest
