// causal_conv(): a depthwise convolution over the tokens of each channel, with the last inputs as its state.
#include <algorithm>
#include <cstring>

#include "lib/contract/steps.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Tokens at a time: rows of channels are long, or rows of tokens.
constexpr int64_t most_tokens(bool channels_last) { return channels_last ? 8 : 32; }
/// Numbers on the stack: hundreds of channels of one token, of a prompt at least a panel of them.
constexpr int64_t kScratch = 8192;

/// Rows of numbers in an array: tokens where channels are contiguous (`last`), else channels.
struct Rows {
  DType type;
  char* data;
  int64_t stride;  // elements from row to row
  bool last;
};

/// Channels that are treated together. In scratch memory they are rows of tokens if all arrays have such rows, else
/// panels of kStateGroup channels.
struct Block {
  const UKernels& uk;
  int64_t channels, row, panel;  // as in ConvTile
  float* transposed;

  bool one_row() const { return row >= channels; }
  /// n numbers of each channel into panels `pitch` numbers apart.
  void load_channels(const Rows& in, int64_t n, float* out, int64_t pitch) const {
    const bool stays = in.type == DType::kF32;
    if (!stays) widen_rows(uk, in.type, in.data, in.stride, channels, n, transposed, n);
    uk.kv[index_of(KvType::kF32)].store_panels({.rows = stays ? reinterpret_cast<const float*>(in.data) : transposed,
                                                .ld = 4 * (stays ? in.stride : n),
                                                .tokens = channels,
                                                .dim = n,
                                                .out = out,
                                                .stride = 4 * pitch,
                                                .as_stored = true});
  }
  /// Rows of tokens in scratch memory and in an array: f(in scratch, pitch, in the array, pitch, rows, n) for as many
  /// as have one pitch.
  template <class F>
  void for_each_part(int64_t tokens, int64_t stride, const F& f) const {
    const int64_t whole = channels / kStateGroup, rest = channels % kStateGroup;
    if (one_row()) return f(0, row, 0, stride, tokens, channels);
    for (int64_t t = 0; t < tokens && tokens < whole; ++t) {
      f(t * row, panel, t * stride, kStateGroup, whole, kStateGroup);
    }
    for (int64_t p = tokens < whole ? whole : 0; p < whole + (rest > 0); ++p) {
      f(p * panel, row, p * kStateGroup, stride, tokens, p < whole ? kStateGroup : rest);
    }
  }
  void load(const Rows& in, int64_t tokens, float* out) const {
    if (!in.last) return load_channels(in, tokens, out, panel);
    for_each_part(tokens, in.stride,
                  [&](int64_t to, int64_t ld, int64_t from, int64_t stride, int64_t rows, int64_t n) {
                    widen_rows(uk, in.type, in.data + from * size_of(in.type), stride, rows, n, out + to, ld);
                  });
  }
  void store(const float* in, int64_t tokens, const Rows& out) const {
    if (out.last) {
      for_each_part(tokens, out.stride,
                    [&](int64_t from, int64_t ld, int64_t to, int64_t stride, int64_t rows, int64_t n) {
                      round_rows(uk, in + from, ld, rows, n, out.type, out.data + to * size_of(out.type), stride);
                    });
      return;
    }
    uk.kv[index_of(KvType::kF32)].load_panels({.in = in,
                                               .stride = 4 * panel,
                                               .tokens = channels,
                                               .dim = tokens,
                                               .rows = transposed,
                                               .ld = 4 * tokens,
                                               .as_stored = true});
    round_rows(uk, transposed, tokens, channels, tokens, out.type, out.data, out.stride);
  }
};

/// The rows of a view's batch entry or state from token t on, for channels from c on.
template <bool kConst>
Rows rows_of(const BasicView<3, kConst>& v, bool last, int64_t unit, int64_t t, int64_t c) {
  const int64_t at = unit * step_of(v, 0) + (last ? t : c) * step_of(v, 1) + (last ? c : t);
  return {v.dtype, const_cast<char*>(static_cast<const char*>(v.data)) + at * size_of(v.dtype), step_of(v, 1), last};
}

/// The state of a sequence without tokens, bit by bit.
void copy_state(const CausalConvProblem& a, const StateSequence& sequence, int64_t channels, int64_t past) {
  const Rows from = rows_of(a.state_in, a.channels_last, sequence.state, 0, 0);
  const Rows to = rows_of(a.state, a.channels_last, sequence.state, 0, 0);
  const int64_t rows = a.channels_last ? past : channels, n = a.channels_last ? channels : past;
  const int64_t size = size_of(to.type);
  for (int64_t r = 0; r < rows && from.data != to.data; ++r) {
    std::memcpy(to.data + r * to.stride * size, from.data + r * from.stride * size, static_cast<size_t>(n * size));
  }
}

/// The tokens of a sequence, in chunks.
void convolve_sequence(const Block& block, const CausalConvProblem& a, const StateSequence& sequence, int64_t c,
                       int64_t most, ConvTile tile) {
  const bool last = a.channels_last;
  const int64_t past = tile.width - 1;
  const ConstView<3> before = a.state_in.data != nullptr ? a.state_in : ConstView<3>(a.state);
  int64_t loaded = 0;  // tokens of the first chunk
  if (past > 0) {
    const Rows from = rows_of(before, last, sequence.state, 0, c);
    const Rows x = rows_of(a.x, last, sequence.batch, sequence.first, c);
    // Inputs that follow their past are read with it.
    const char* const behind = from.data + past * (last ? from.stride : 1) * size_of(from.type);
    if (x.data == behind && x.stride == from.stride) loaded = std::min(most, sequence.tokens);
    block.load(from, past + loaded, tile.z);
  }
  for (int64_t t = 0; t < sequence.tokens; t += tile.tokens) {
    for (int64_t i = 0; t > 0 && i < past * tile.panels; ++i) {
      float* const to = tile.z + i / past * tile.panel + i % past * tile.row;
      std::copy_n(to + tile.tokens * tile.row, kStateGroup, to);
    }
    tile.tokens = std::min(most, sequence.tokens - t);
    if (t >= loaded) {
      block.load(rows_of(a.x, last, sequence.batch, sequence.first + t, c), tile.tokens, tile.z + past * tile.row);
    }
    block.uk.convolve(tile);
    block.store(tile.z, tile.tokens, rows_of(a.out, last != a.out_transposed, sequence.batch, sequence.first + t, c));
  }
  if (a.state.data == nullptr) return;
  block.store(tile.z + tile.tokens * tile.row, past, rows_of(a.state, last, sequence.state, 0, c));
}

}  // namespace

Status drivers::causal_conv(const UKernels& uk, const CausalConvProblem& a) {
  SIMDATTN_CHECK(check_causal_conv(a));
  const bool last = a.channels_last && !a.out_transposed;
  const int64_t channels = a.weight.shape[0], width = a.weight.shape[1], past = width - 1;
  const int64_t n = a.x.shape[a.channels_last ? 1 : 2], most = std::min(n, most_tokens(last)), rows = past + most;
  const int64_t sequences = sequences_of(a, a.x.shape[0]);
  const bool moves = a.state_in.data != nullptr && a.state.data != nullptr;
  bool any = false;  // sequence with tokens that is not skipped
  for (int64_t s = 0; s < sequences; ++s) {
    const StateSequence sequence = sequence_of(a, s, n);
    if (sequence.state < 0) continue;
    if (sequence.tokens > 0) any = true;
    else if (moves) copy_state(a, sequence, channels, past);
  }
  if (!any || is_empty(a.x)) return {};

  alignas(64) float scratch[kScratch] = {};
  const int64_t most_transposed = std::max(width, last ? most : rows);
  const int64_t block = kScratch / (1 + width + rows + most_transposed) / kStateGroup * kStateGroup;
  float *const bias = scratch, *const w = bias + block, *const z = w + width * block;
  for (int64_t c = 0; c < channels; c += block) {
    const Block some = {.uk = uk,
                        .channels = std::min(block, channels - c),
                        .row = last ? block : kStateGroup,
                        .panel = last ? kStateGroup : rows * kStateGroup,
                        .transposed = z + rows * block};
    const auto part = [&](const auto& v, int64_t each, int64_t stride) {
      return rows_of(ConstView<3>(v.data, v.dtype, {1, channels, each}, {0, stride, 1}), false, 0, 0, c);
    };
    some.load_channels(part(a.weight, width, a.weight.stride[0]), width, w, width * kStateGroup);
    if (a.bias.data != nullptr) some.load_channels(part(a.bias, 1, 1), 1, bias, kStateGroup);
    const ConvTile tile = {.w = w,
                           .bias = bias,
                           .z = z,
                           .row = some.row,
                           .panel = some.panel,
                           .panels = steps_of(some.channels, kStateGroup),
                           .width = width,
                           .tokens = 0,
                           .silu = a.silu};
    for (int64_t s = 0; s < sequences; ++s) {
      const StateSequence sequence = sequence_of(a, s, n);
      if (sequence.state >= 0 && sequence.tokens > 0) convolve_sequence(some, a, sequence, c, most, tile);
    }
  }
  return {};
}

}  // namespace simdattn
