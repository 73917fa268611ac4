// A llama2.c model but for its attention: embedding, norms, projections, feed-forward and classifier, as plain loops in
// the order of llama2.c's run.c. Every row is computed by itself, so it has the same bits in any company.
#pragma once

#include <simdattn/simdattn.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llama2_checkpoint.h"
#include "llama2_tokenizer.h"
#include "thread_pool.h"

/// q, k, v of all rows of a step to out, in one layer: [rows, n_heads, head_size] and [rows, n_kv_heads, head_size].
using Attend = std::function<void(int64_t layer, float* q, float* k, float* v, float* out)>;

/// Logits [wanted.size(), vocab_size] of the rows that `wanted` names, ascending.
std::vector<float> forward(const Llama2Checkpoint& model, std::span<const int> tokens, std::span<const int64_t> wanted,
                           ThreadPool& pool, const Attend& attend);

/// The largest of row `row`, the first of equals.
int best_token(std::span<const float> logits, int64_t row, int64_t vocab_size);

/// Rows [n, heads, head_size], as projections leave them, as the library names dimensions.
inline simdattn::View<4> rows_of(float* x, int64_t n, int64_t heads, int64_t head_size) {
  return simdattn::view(x, {1, heads, n, head_size}, {n * heads * head_size, head_size, heads * head_size, 1});
}

/// Cosines and sines of positions 0 .. capacity - 1, and the pairing of llama2.c.
struct RopeTable {
  RopeTable(int64_t capacity, int64_t head_size);
  RopeTable(const RopeTable&) = delete;
  RopeTable& operator=(const RopeTable&) = delete;

  std::vector<float> cos, sin;
  simdattn::KeyRotation rotation;  // views of them
};

/// BOS and the tokens of `prompt`. Throws std::runtime_error if they are more than the model's context.
std::vector<int> encode_prompt(const Llama2Tokenizer& tokenizer, std::string_view prompt, int64_t context);

/// The text of tokens[0], tokens[1], ...; tokens[0] is BOS and no part of it, and the next BOS ends it.
std::string text_of(const Llama2Tokenizer& tokenizer, std::span<const int> tokens);

/// The target that --target names. Throws std::runtime_error.
const simdattn::Target* find_target(const std::string& name);

/// A status that is not OK becomes std::runtime_error.
void check(const simdattn::Status& status);

inline size_t count(int64_t n) { return static_cast<size_t>(n); }

/// Seconds of a clock that does not jump.
double now();
