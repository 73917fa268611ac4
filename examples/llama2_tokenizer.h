// The tokenizer format of llama2.c: int32 max_token_length, then per token f32 score, int32 length and its bytes; and
// the byte-pair encoding of its run.c.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

class Llama2Tokenizer {
 public:
  static constexpr int kBos = 1;  // begins every sequence, and ends it when generated

  /// The file does not say how many tokens it has; the model does. Throws std::runtime_error with a sentence.
  Llama2Tokenizer(const std::string& path, int64_t vocab_size);

  /// BOS and the tokens of `text`, whose bytes need not be UTF-8. Throws if that is certain to exceed max_tokens,
  /// before the quadratic merge, and if the vocabulary lacks a token that the text needs.
  std::vector<int> encode(std::string_view text, int64_t max_tokens) const;

  /// What printing `token` after `previous` adds to the text: nothing for a byte that is neither printable nor space.
  std::string_view decode(int previous, int token) const;

 private:
  int find(const std::string& piece) const;  // -1 if there is none

  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::unordered_map<std::string, int> ids_;
  std::string bytes_;  // all 256, for decode to point into
  size_t longest_ = 1;
};
