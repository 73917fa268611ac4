// causal_conv(): a depthwise convolution over the tokens of each channel, with the last inputs as its state.
#include <algorithm>

#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rotate.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Tokens at a time: rows of channels are long, or rows of tokens.
constexpr int64_t most_tokens(bool channels_last) { return channels_last ? 8 : 32; }
/// Numbers on the stack: hundreds of channels of one token, of a prompt at least a panel of them.
constexpr int64_t kRoom = 8192;

/// Channels that are treated together. Arrays have rows of tokens (channels_last) or of channels. In the room rows are tokens.
struct Block {
  const UKernels& uk;
  bool last;
  int64_t channels, row, panel;  // as in ConvTile
  float* transposed;

  /// n numbers of each channel into panels; rows are `stride` elements apart, panels `pitch` numbers.
  void load_channels(DType type, const char* in, int64_t stride, int64_t n, float* out, int64_t pitch) const {
    const bool one = stride == n, stays = type == DType::kF32;  // rows that lie side by side are one
    if (!stays) {
      uk.kv[slot(type)].load_rows({.in = in,
                                   .stride = stride * size_of(type),
                                   .tokens = one ? 1 : channels,
                                   .dim = one ? channels * n : n,
                                   .rows = transposed,
                                   .ld = 4 * n});
    }
    uk.kv[slot(KvType::kF32)].store_panels({.rows = stays ? reinterpret_cast<const float*>(in) : transposed,
                                            .ld = 4 * (stays ? stride : n),
                                            .tokens = channels,
                                            .dim = n,
                                            .out = out,
                                            .stride = 4 * pitch,
                                            .as_stored = true});
  }
  void load(DType type, const char* in, int64_t stride, int64_t tokens, float* out) const {
    if (!last) return load_channels(type, in, stride, tokens, out, panel);
    uk.kv[slot(type)].load_rows(
        {.in = in, .stride = stride * size_of(type), .tokens = tokens, .dim = channels, .rows = out, .ld = 4 * row});
  }
  void store(const float* in, int64_t tokens, DType type, char* out, int64_t stride) const {
    if (last) return round_rows(uk, in, row, tokens, channels, type, out, stride);
    uk.kv[slot(KvType::kF32)].load_panels({.in = in,
                                           .stride = 4 * panel,
                                           .tokens = channels,
                                           .dim = tokens,
                                           .rows = transposed,
                                           .ld = 4 * tokens,
                                           .as_stored = true});
    const bool one = stride == tokens;
    round_rows(uk, transposed, tokens, one ? 1 : channels, one ? channels * tokens : tokens, type, out, stride);
  }
};

}  // namespace

Status drivers::causal_conv(const UKernels& uk, const CausalConvProblem& a) {
  SIMDATTN_CHECK(check_causal_conv(a));
  if (is_empty(a.x)) return {};

  const bool last = a.channels_last;
  const int64_t channels = a.weight.shape[0], width = a.weight.shape[1], past = width - 1;
  const int64_t n = a.x.shape[last ? 1 : 2], most = std::min(n, most_tokens(last)), rows = past + most;
  alignas(64) float room[kRoom] = {};
  const int64_t block = kRoom / (1 + width + rows + std::max(width, most)) / kStateGroup * kStateGroup;
  float *const bias = room, *const w = bias + block, *const z = w + width * block;
  for (int64_t c = 0; c < channels; c += block) {
    const Block some = {.uk = uk,
                        .last = last,
                        .channels = std::min(block, channels - c),
                        .row = last ? block : kStateGroup,
                        .panel = last ? kStateGroup : rows * kStateGroup,
                        .transposed = z + rows * block};
    const auto part = [c](const auto& v) {
      return static_cast<const char*>(v.data) + c * step_of(v, 0) * size_of(v.dtype);
    };
    some.load_channels(a.weight.dtype, part(a.weight), step_of(a.weight, 0), width, w, width * kStateGroup);
    if (a.bias.data != nullptr) some.load_channels(a.bias.dtype, part(a.bias), 1, 1, bias, kStateGroup);
    for (int64_t s = 0; s < sequences_of(a, a.x.shape[0]); ++s) {
      const StateSequence sequence = sequence_of(a, s, n);
      if (sequence.state < 0 || sequence.tokens == 0) continue;
      // Token t of these channels.
      const auto place = [&](const auto& v, int64_t unit, int64_t t) {
        return const_cast<char*>(static_cast<const char*>(v.data)) +
               (unit * step_of(v, 0) + (last ? t : c) * step_of(v, 1) + (last ? c : t)) * size_of(v.dtype);
      };
      ConvTile tile = {.w = w,
                       .bias = bias,
                       .z = z,
                       .row = some.row,
                       .panel = some.panel,
                       .panels = (some.channels + kStateGroup - 1) / kStateGroup,
                       .width = width,
                       .tokens = 0,
                       .silu = a.silu};
      if (past > 0) some.load(a.x.dtype, place(a.state, sequence.state, 0), step_of(a.state, 1), past, z);
      for (int64_t t = 0; t < sequence.tokens; t += tile.tokens) {
        for (int64_t i = 0; t > 0 && i < past * tile.panels; ++i) {
          float* const to = z + i / past * tile.panel + i % past * tile.row;
          std::copy_n(to + tile.tokens * tile.row, kStateGroup, to);
        }
        tile.tokens = std::min(most, sequence.tokens - t);
        some.load(a.x.dtype, place(a.x, sequence.batch, sequence.first + t), step_of(a.x, 1), tile.tokens,
                  z + past * tile.row);
        uk.convolve(tile);
        some.store(z, tile.tokens, a.out.dtype, place(a.out, sequence.batch, sequence.first + t), step_of(a.out, 1));
      }
      if (past == 0) continue;
      some.store(z + tile.tokens * tile.row, past, a.x.dtype, place(a.state, sequence.state, 0), step_of(a.state, 1));
    }
  }
  return {};
}

}  // namespace simdattn
