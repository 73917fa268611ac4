// Calls of attention with a state, as fuzz_interface.cc has them.
#include <cstdint>

#include "tests/fuzz/fuzz_interface.h"

namespace simdattn::fuzz {
namespace {

/// What is read, and written in place.
template <int kRank>
void in_place(Call& c, BasicView<kRank, true>& now, BasicView<kRank, false>& member) {
  c.memory_of(now, true);
  member.data = const_cast<void*>(now.data);
  member.dtype = now.dtype;
  member.shape = now.shape;
  member.stride = now.stride;
}

/// Which tokens are those of a sequence, and which state it has: memory, after breaking.
template <class Problem>
void sequences(Call& c, Problem& a, bool varlen, int64_t batch, int64_t tokens, int64_t states, bool with_index) {
  if (varlen) a.cu_q = c.offsets(a.n_sequences, tokens);
  if (!with_index) return;
  const int64_t count = varlen ? a.n_sequences : batch;
  int32_t* const index = c.numbers(count, -1, states);
  // Mostly a state each, in turn.
  for (int64_t s = 0; !c.memory.skip && !c.in.one_in(4) && s < c.listed(count); ++s) index[s] = static_cast<int32_t>(s);
  a.state_index = index;
}

/// States that are read, of the shape of those that are written.
template <int kRank>
void state_in(Call& c, const BasicView<kRank, true>& now, BasicView<kRank, true>& before) {
  int64_t shape[kRank];
  for (size_t i = 0; i < kRank; ++i) shape[i] = now.shape[i];
  c.shape(before, now.dtype, shape);
}

}  // namespace

void linear_attention(Call& c) {
  Input& in = c.in;
  const int64_t k_heads = 1 + in.below(2), heads = k_heads * (1 + in.below(2)),
                q_heads = in.of({heads, k_heads, 2 * heads}), n = in.size(0, 34), d_k = in.size(1, 34),
                d_v = in.size(1, 66), many = in.size(1, 2);
  const bool varlen = in.one_in(4), with_index = in.one_in(4), with_states = in.one_in(4), with_beta = in.one_in(2);
  const int64_t batch = varlen ? 1 : many;
  simdattn_linear_attention_problem a;
  a.rule = static_cast<simdattn::LinearRule>(3 - in.below(4));
  a.head_order = static_cast<simdattn::HeadOrder>(in.below(2));
  a.transposed = in.one_in(3);
  const bool gated = (static_cast<int>(a.rule) & 1) != 0;
  const int64_t rows = a.transposed ? d_v : d_k, columns = a.transposed ? d_k : d_v;
  simdattn_const_view4 state;
  c.shape(a.q, c.element(), {batch, q_heads, n, d_k});
  c.shape(a.k, c.element(), {batch, k_heads, n, d_k});
  c.shape(a.v, c.element(), {batch, heads, n, d_v});
  c.shape(a.out, c.element(), {batch, q_heads > heads ? q_heads : heads, n, d_v});
  c.shape(state, DType::kF32, {many + in.below(2) * (with_index ? 1 : 0), heads, rows, columns});
  if (gated) c.shape(a.decay, c.element(), {batch, heads, n, in.of({int64_t{1}, d_k})});
  if (with_beta) c.shape(a.beta, c.element(), {batch, in.of({heads, int64_t{1}}), n, 1});
  if (with_states) c.shape(a.states, DType::kF32, {many, in.below(4), heads, rows, columns});
  if (varlen) a.n_sequences = many;
  a.scale.given = in.one_in(2);
  a.scale.value = 0.25f;
  int64_t cut = in.byte(), extra = 0;
  const bool in_ranges = in.one_in(2), apart = in.one_in(3), kept = !apart || !in.one_in(4);
  if (apart) state_in(c, state, a.state_in);
  c.breakable(&a.struct_size, kStructSize);
  c.breakable(&a.rule, kEnum);
  c.breakable(&a.head_order, kEnum);
  c.breakable(&a.transposed, kFlag);
  c.breakable(&a.scale.value, kFloat);
  for (int64_t* size : {&a.n_sequences, &extra}) c.breakable(size, kSize);
  c.breakable(&a.reserved[1], kSize);
  c.break_some();
  c.memory_of_all(a.q, a.k, a.v, a.out);
  if (kept) in_place(c, state, a.state);
  if (apart) c.memory_of(a.state_in);
  if (gated) c.memory_of(a.decay);
  if (with_beta) c.memory_of(a.beta);
  if (with_states) c.memory_of(a.states);
  sequences(c, a, varlen, a.q.shape[0], a.q.shape[2], state.shape[0], with_index);
  if (c.memory.skip) return;
  c.workspace(simdattn_linear_attention_workspace(&a));
  c.compare([&](const simdattn_exec& exec) {
    if (!in_ranges) return simdattn_linear_attention(&a, &exec);
    // The later half first.
    const int64_t tasks = simdattn_linear_attention_tasks(&a), middle = tasks == 0 ? 0 : cut % (tasks + 1);
    const simdattn_status s = simdattn_linear_attention_range(&a, middle, extra == 0 ? tasks : extra, &exec);
    return s.code != simdattn::Code::kOk ? s : simdattn_linear_attention_range(&a, 0, middle, &exec);
  });
}

void causal_conv(Call& c) {
  Input& in = c.in;
  const int64_t channels = in.size(0, 100), n = in.size(0, 66), width = in.one_in(4) ? in.size(1, 34) : 4,
                many = in.size(1, 2);
  const bool varlen = in.one_in(4), with_index = in.one_in(4), with_bias = in.one_in(2), same = in.one_in(4);
  const int64_t batch = varlen ? 1 : many, states = many + in.below(2) * (with_index ? 1 : 0);
  simdattn_causal_conv_problem a;
  a.channels_last = in.one_in(2);
  a.silu = in.one_in(2);
  const DType type = c.element();
  simdattn_const_view3 state, inputs;
  const int64_t past = width - 1;
  c.shape(inputs, type, {batch, a.channels_last ? n : channels, a.channels_last ? channels : n});
  a.out_transposed = !same && in.one_in(3);
  const bool out_last = a.channels_last != a.out_transposed;
  if (!same) c.shape(a.out, c.element(), {batch, out_last ? n : channels, out_last ? channels : n});
  c.shape(a.weight, c.element(), {channels, width});
  if (with_bias) c.shape(a.bias, c.element(), {channels});
  if (width > 1) c.shape(state, type, {states, a.channels_last ? past : channels, a.channels_last ? channels : past});
  if (varlen) a.n_sequences = many;
  const bool apart = width > 1 && in.one_in(3), kept = width > 1 && (!apart || !in.one_in(4));
  if (apart) state_in(c, state, a.state_in);
  c.breakable(&a.struct_size, kStructSize);
  c.breakable(&a.channels_last, kFlag);
  c.breakable(&a.out_transposed, kFlag);
  c.breakable(&a.n_sequences, kSize);
  c.breakable(&a.reserved[3], kSize);
  c.break_some();
  if (same) {
    in_place(c, inputs, a.out);
    a.x = inputs;
  } else {
    c.memory_of_all(inputs, a.out);
    a.x = inputs;
  }
  c.memory_of(a.weight);
  if (with_bias) c.memory_of(a.bias);
  if (kept) in_place(c, state, a.state);
  if (apart) c.memory_of(a.state_in);
  const int64_t tokens = a.x.shape[a.channels_last ? 1 : 2];
  sequences(c, a, varlen, a.x.shape[0], tokens, width > 1 ? state.shape[0] : many, with_index);
  if (c.memory.skip) return;
  c.compare([&](const simdattn_exec& exec) { return simdattn_causal_conv(&a, &exec); });
}

}  // namespace simdattn::fuzz
