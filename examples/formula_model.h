// A llama2.c model without training: its weights are the numbers of a linear congruential generator, the same on every
// machine. Its text means nothing. It depends on every token before, which is what programs around a model are tried
// with.
#pragma once

#include <cstdint>
#include <string>

struct FormulaModel {
  int32_t dim = 48, hidden_dim = 80, n_layers = 3, n_heads = 6, n_kv_heads = 2, seq_len = 2304;
  bool shared_classifier = false;  // a model with one repeats itself more

  /// The bytes of a checkpoint. They are as many as the header says, whether or not the header makes sense.
  std::string checkpoint() const;
  /// The bytes of its tokenizer: bytes, small letters, space, comma, stop, and syllables.
  static std::string tokenizer();
};
