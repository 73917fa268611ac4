// Values as operands: where they are, or packed.
#include <bit>

#include "lib/drivers/shared/operands.h"

namespace simdattn {

bool Operands::finite(const BlockTokens& tokens, Interval see) const {
  bool finite = true;
  for_each_run(tokens, see, [&](int64_t, const TokenRun& run) {
    finite = finite && storage_.all_finite({run.data, run.stride, run.scales, run.tokens, dim_});
  });
  return finite;
}

bool Operands::negative_scales(const BlockTokens& tokens, Interval see) const {
  uint32_t signs = 0;
  for_each_run(tokens, see, [&](int64_t, const TokenRun& run) {
    for (int64_t j = 0; j < run.tokens; ++j) signs |= std::bit_cast<uint32_t>(run.scales[j]);
  });
  return signs >> 31 != 0;
}

void Operands::add_in_place(const BlockTokens& values, ValueTile tile) const {
  float scales[kKeyBlock];
  const Fetch fetch = tile.fetch;
  const bool takes_lists = slots.takes_lists && tile.dim % kValueGroup == 0;
  for (const int64_t end = tile.first_key + tile.keys; tile.first_key < end; tile.first_key += tile.keys) {
    const int64_t c = tile.first_key;
    tile.listed = takes_lists ? values.listed(c) : nullptr;
    const int64_t in_panel = std::min(kPanelWidth - c % kPanelWidth, end - c);
    const TokenRun run =
        tile.listed != nullptr ? TokenRun{*tile.listed, 0, in_panel, nullptr, false} : values.run(c, end - c, scales);
    tile.v = run.data;
    tile.key_stride = run.stride;
    tile.scales = run.scales;
    tile.keys = run.tokens;
    tile.fetch = run.goes_on ? fetch : Fetch::kNone;
    slots.value_tile(tile);
    tile.w += run.tokens;
    tile.alpha = nullptr;  // later runs of the key block continue the sum
  }
}

void Operands::pack_columns(const BlockTokens& values, Interval see, int64_t column, int64_t columns,
                            char* block) const {
  for_each_run(values, see, [&](int64_t first, const TokenRun& run) {
    PackValues pack = {run.data, run.stride, run.scales, first, run.tokens, dim_, column, columns, block};
    if (slots.pack_values != nullptr) return slots.pack_values(pack);
    pack.rows = rows_;
    pack.token_stride = 4 * dim_;
    pack.scales = nullptr;
    for (int64_t j = 0; j < run.tokens; j += kLoadedRows) {
      pack.first = first + j;
      pack.keys = std::min(kLoadedRows, run.tokens - j);
      const TokenRun part = {run.data + j * run.stride, run.stride, pack.keys,
                             run.scales == nullptr ? nullptr : run.scales + j, false};
      load(storage_.load_rows, part, rows_);
      f32().pack_values(pack);
    }
  });
}

/// Loads tokens into `rows`, as f32 or as they are stored.
void Operands::load(void (*slot)(const LoadRows&), const TokenRun& run, char* rows, bool as_stored) const {
  slot({.in = run.data,
        .stride = run.stride,
        .column = 0,
        .tokens = run.tokens,
        .dim = dim_,
        .rows = rows,
        .ld = as_stored ? row_bytes(type_, dim_) : 4 * dim_,
        .as_stored = as_stored,
        .scales = run.scales});
}

}  // namespace simdattn
