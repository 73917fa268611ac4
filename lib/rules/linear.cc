#include <algorithm>
#include <iterator>

#include "lib/contract/dtypes.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// True if two of n entries are one number of 0 .. 2^30 - 1. A walk through the entries notes those of a window; the
/// next window begins at the smallest one behind it. A call has no memory for a sort or a table of all states.
bool has_equal_entries(const int32_t* index, int64_t n) {
  constexpr int64_t kWindow = 16384;
  uint64_t seen[kWindow / 64];
  for (int64_t first = 0, next; first <= kMaxSize; first = next) {
    std::fill_n(seen, std::size(seen), 0);
    next = kMaxSize + 1;
    for (int64_t s = 0; s < n; ++s) {
      const int64_t at = index[s] - first;
      if (at >= kWindow) next = std::min<int64_t>(next, index[s]);
      if (at < 0 || at >= kWindow) continue;
      uint64_t& word = seen[at / 64];
      const uint64_t bit = uint64_t{1} << at % 64;
      if ((word & bit) != 0) return true;
      word |= bit;
    }
  }
  return false;
}

/// Which of `states` states, those of kName, those of the sequences are.
template <Text kName>
Status check_state_index(const int32_t* index, int64_t sequences, int64_t states) {
  SIMDATTN_REQUIRE(index != nullptr || states == sequences, kShape,
                   kSentence<kName, ".shape[0]: must be the number of sequences where there is no state_index">);
  if (index == nullptr || sequences == 0) return {};
  SIMDATTN_REQUIRE(*std::max_element(index, index + sequences) < states, kRange,
                   kSentence<"state_index: must be below ", kName, ".shape[0]">);
  SIMDATTN_REQUIRE(!has_equal_entries(index, sequences), kRange, "state_index: two sequences must not have one state");
  return {};
}

/// The states before a call's tokens, if they are not those of `state`, and those after them, if they are kept. `shape`
/// but for the number of states; kShape says it.
template <Text kShape, class Problem, size_t kRank>
Status check_states(const Problem& a, int64_t batch, Accept accept, std::array<int64_t, kRank> shape, ByteSet* state_in,
                    ByteSet* state) {
  const bool apart = a.state_in.data != nullptr;
  const int64_t sequences = sequences_of(a, batch);
  if (a.state_index == nullptr) {
    SIMDATTN_CHECK(check_cu_q_given(a, batch, a.state.data != nullptr ? a.state.shape[0] : a.state_in.shape[0]));
  }
  if (apart) {
    SIMDATTN_CHECK(check_view(a.state_in, accept, kArgument<"state_in">, state_in));
    shape[0] = a.state_in.shape[0];
    SIMDATTN_REQUIRE(same_numbers(a.state_in.shape, shape), kShape, kSentence<"state_in.shape: ", kShape>);
    if (a.state.data == nullptr && is_empty(a.state))
      return check_state_index<"state_in">(a.state_index, sequences, shape[0]);
  }
  SIMDATTN_CHECK(check_view(a.state, accept, kArgument<"state">, state));
  SIMDATTN_REQUIRE(!apart || shape[0] == a.state.shape[0], kShape, "state_in.shape[0]: must be state.shape[0]");
  shape[0] = a.state.shape[0];
  SIMDATTN_REQUIRE(same_numbers(a.state.shape, shape), kShape, kSentence<"state.shape: ", kShape>);
  const bool same = a.state_in.data == a.state.data && same_numbers(a.state_in.stride, a.state.stride);
  SIMDATTN_REQUIRE(same || !share_bytes(*state, *state_in), kOverlap,
                   "state: overlaps state_in without being state_in");
  return check_state_index<"state">(a.state_index, sequences, shape[0]);
}

/// An optional array with one number a head and token, or one a channel.
template <Text kName>
Status check_gate(const ConstView<4>& gate, const ConstView<4>& v, int64_t other_heads, int64_t other_dim,
                  ByteSet* bytes) {
  SIMDATTN_CHECK(check_view(gate, Accept::kElements, kArgument<kName>, bytes));
  SIMDATTN_REQUIRE(gate.shape[0] == v.shape[0] && gate.shape[2] == v.shape[2], kShape,
                   kSentence<kName, ".shape: batch and tokens must be those of v">);
  SIMDATTN_REQUIRE(gate.shape[1] == v.shape[1] || gate.shape[1] == other_heads, kShape,
                   kSentence<kName, ".shape[1]: not as many heads as v has">);
  SIMDATTN_REQUIRE(gate.shape[3] == 1 || gate.shape[3] == other_dim, kShape,
                   kSentence<kName, ".shape[3]: must be 1, or of decay the head dimension of k">);
  return {};
}

}  // namespace

Status check_linear_attention(const LinearAttentionProblem& a, const Exec& exec, size_t needed) {
  SIMDATTN_REQUIRE(is_zero(a.reserved), kStructSize, "reserved: must be 0");
  SIMDATTN_REQUIRE(is_enumerator(a.rule, LinearRule::kGatedDelta), kRange, "rule: not a LinearRule");
  SIMDATTN_REQUIRE(is_enumerator(a.head_order, HeadOrder::kRepeated), kRange, "head_order: not a HeadOrder");
  SIMDATTN_REQUIRE(!a.scale || is_finite(*a.scale), kRange, "scale: must be finite");
  ByteSet q, k, v, decay, beta, state_in, state, out, states;
  SIMDATTN_CHECK(check_view(a.q, Accept::kElements, kArgument<"q">, &q));
  SIMDATTN_CHECK(check_view(a.k, Accept::kElements, kArgument<"k">, &k));
  SIMDATTN_CHECK(check_view(a.v, Accept::kElements, kArgument<"v">, &v));
  SIMDATTN_CHECK(check_view(a.out, Accept::kElements, kArgument<"out">, &out));
  const auto [batch, q_heads, n, d_k] = a.q.shape;
  const int64_t k_heads = a.k.shape[1], heads = a.v.shape[1], d_v = a.v.shape[3];
  SIMDATTN_REQUIRE(d_k >= 1, kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(d_v >= 1, kShape, "v.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(q_heads >= 1 && k_heads >= 1 && heads >= 1, kShape,
                   "q.shape[1], k.shape[1], v.shape[1]: there must be at least one head");
  SIMDATTN_REQUIRE(a.k.shape[0] == batch && a.k.shape[2] == n && a.k.shape[3] == d_k, kShape,
                   "k.shape: batch, tokens and head dimension must be those of q");
  SIMDATTN_REQUIRE(a.v.shape[0] == batch && a.v.shape[2] == n, kShape, "v.shape: batch and tokens must be those of q");
  SIMDATTN_REQUIRE(heads % k_heads == 0, kShape, "v.shape[1]: value heads must be a multiple of key heads");
  SIMDATTN_REQUIRE(heads % q_heads == 0 || q_heads % heads == 0, kShape,
                   "q.shape[1]: query heads must be a multiple or a divisor of value heads");
  SIMDATTN_REQUIRE(q_heads / heads <= kMaxStateQueries, kShape,
                   "q.shape[1]: more than 256 query heads for a value head");
  SIMDATTN_REQUIRE(same_numbers(a.out.shape, {batch, q_heads > heads ? q_heads : heads, n, d_v}), kShape,
                   "out.shape: must be [q.shape[0], the larger number of heads of q and v, q.shape[2], v.shape[3]]");
  SIMDATTN_REQUIRE(a.decay.data == nullptr || is_gated(a.rule), kRange, "decay: given although the rule has none");
  SIMDATTN_REQUIRE(a.beta.data == nullptr || is_delta(a.rule), kRange, "beta: given although the rule has none");
  SIMDATTN_REQUIRE(a.decay.data != nullptr || !is_gated(a.rule) || is_empty(a.v), kNullPointer,
                   "decay.data: null although the rule has a decay");
  if (a.decay.data != nullptr) SIMDATTN_CHECK(check_gate<"decay">(a.decay, a.v, heads, d_k, &decay));
  if (a.beta.data != nullptr) SIMDATTN_CHECK(check_gate<"beta">(a.beta, a.v, 1, 1, &beta));
  if (a.cu_q != nullptr) SIMDATTN_CHECK(check_cu_q<"q", "q.shape[2]">(a.cu_q, a.n_sequences, batch, n));
  const int64_t sequences = sequences_of(a, batch);
  const int64_t rows = a.transposed ? d_v : d_k, columns = a.transposed ? d_k : d_v;
  SIMDATTN_CHECK(
      check_states<"must be [states, v.shape[1], q.shape[3], v.shape[3]], the last two exchanged if transposed">(
          a, batch, Accept::kF32, std::array<int64_t, 4>{0, heads, rows, columns}, &state_in, &state));
  if (a.states.data != nullptr) {
    SIMDATTN_CHECK(check_view(a.states, Accept::kF32, kArgument<"states">, &states));
    SIMDATTN_REQUIRE(same_numbers(a.states.shape, {sequences, a.states.shape[1], heads, rows, columns}), kShape,
                     "states.shape: must be [sequences, tokens to go back, and the last three sizes of state]");
  }
  const ByteSet cu_q = ByteSet::of(a.cu_q, (sequences + 1) * 4), index = ByteSet::of(a.state_index, sequences * 4);
  SIMDATTN_CHECK(check_apart<"out", "q, k, v, decay, beta, cu_q, state_index, state_in">(
      out, {&q, &k, &v, &decay, &beta, &cu_q, &index, &state_in}));
  SIMDATTN_CHECK(check_apart<"state", "q, k, v, decay, beta, cu_q, state_index, out">(
      state, {&q, &k, &v, &decay, &beta, &cu_q, &index, &out}));
  SIMDATTN_CHECK(check_apart<"states", "q, k, v, decay, beta, cu_q, state_index, out, state, state_in">(
      states, {&q, &k, &v, &decay, &beta, &cu_q, &index, &out, &state, &state_in}));
  return check_workspace<"q, k, v, decay, beta, cu_q, state_index, out, state, states, state_in">(
      exec, needed, {&q, &k, &v, &decay, &beta, &cu_q, &index, &out, &state, &states, &state_in});
}

Status check_causal_conv(const CausalConvProblem& a) {
  SIMDATTN_REQUIRE(is_zero(a.reserved), kStructSize, "reserved: must be 0");
  ByteSet x, weight, bias, state_in, state, out;
  SIMDATTN_CHECK(check_view(a.x, Accept::kElements, kArgument<"x">, &x));
  SIMDATTN_CHECK(check_view(a.out, Accept::kElements, kArgument<"out">, &out));
  const int64_t batch = a.x.shape[0], channels = a.x.shape[a.channels_last ? 2 : 1],
                n = a.x.shape[a.channels_last ? 1 : 2];
  const auto shape_of = [&](bool last, int64_t units, int64_t tokens) -> std::array<int64_t, 3> {
    return {units, last ? tokens : channels, last ? channels : tokens};
  };
  SIMDATTN_REQUIRE(same_numbers(a.out.shape, shape_of(a.channels_last != a.out_transposed, batch, n)), kShape,
                   "out.shape: must be that of x, the last two exchanged if out_transposed");
  SIMDATTN_CHECK(check_view(a.weight, Accept::kElements, kArgument<"weight">, &weight));
  const int64_t width = a.weight.shape[1];
  SIMDATTN_REQUIRE(a.weight.shape[0] == channels, kShape, "weight.shape[0]: must be the channels of x");
  SIMDATTN_REQUIRE(width >= 1 && width <= kMaxConvWidth, kShape, "weight.shape[1]: must be in 1 .. 32");
  if (a.bias.data != nullptr) {
    SIMDATTN_CHECK(check_view(a.bias, Accept::kElements, kArgument<"bias">, &bias));
    SIMDATTN_REQUIRE(a.bias.shape[0] == channels, kShape, "bias.shape[0]: must be the channels of x");
  }
  if (a.cu_q != nullptr) SIMDATTN_CHECK(check_cu_q<"x", "the tokens of x">(a.cu_q, a.n_sequences, batch, n));
  const int64_t sequences = sequences_of(a, batch);
  const size_t tokens = a.channels_last ? 1 : 2;  // the dimension of states that has them
  const bool same_past =
      a.state.data != nullptr && a.state_in.data != nullptr && a.state.shape[tokens] == a.state_in.shape[tokens];
  SIMDATTN_REQUIRE(!same_past || a.state.shape[tokens] == width - 1, kShape,
                   "weight.shape[1]: must be one more than the tokens of state and state_in");
  if (width > 1) {
    SIMDATTN_CHECK(check_states<"must be [states, channels, width - 1], the last two exchanged if channels_last">(
        a, batch, Accept::kElements, shape_of(a.channels_last, 0, width - 1), &state_in, &state));
    SIMDATTN_REQUIRE(a.state.data == nullptr || a.state.dtype == a.x.dtype, kDType, "state.dtype != x.dtype");
    SIMDATTN_REQUIRE(a.state_in.data == nullptr || a.state_in.dtype == a.x.dtype, kDType, "state_in.dtype != x.dtype");
  } else {
    SIMDATTN_REQUIRE(a.state.data == nullptr, kRange, "state: given although a width of 1 has none");
    SIMDATTN_REQUIRE(a.state_in.data == nullptr, kRange, "state_in: given although a width of 1 has no state");
    SIMDATTN_REQUIRE(a.state_index == nullptr, kRange, "state_index: given although a width of 1 has no state");
  }
  if (a.out_transposed) {
    SIMDATTN_CHECK(check_apart<"out", "x">(out, {&x}));
  } else {
    SIMDATTN_CHECK(check_in_place(a.x, a.out, x, out));
  }
  const ByteSet cu_q = ByteSet::of(a.cu_q, (sequences + 1) * 4), index = ByteSet::of(a.state_index, sequences * 4);
  SIMDATTN_CHECK(
      check_apart<"out", "weight, bias, cu_q, state_index, state_in">(out, {&weight, &bias, &cu_q, &index, &state_in}));
  return check_apart<"state", "x, weight, bias, cu_q, state_index, out">(state,
                                                                         {&x, &weight, &bias, &cu_q, &index, &out});
}

}  // namespace simdattn
