#include "llama2_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "llama2_checkpoint.h"  // read_file

Llama2Tokenizer::Llama2Tokenizer(const std::string& path, int64_t vocab_size) {
  const std::string file = read_file(path);
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(path + ": not a llama2.c tokenizer of " + std::to_string(vocab_size) + " tokens: " + why);
  };
  size_t at = 0;
  const auto read = [&](auto* value) {
    if (file.size() - at < sizeof *value) refuse("it ends after token " + std::to_string(pieces_.size()));
    std::memcpy(value, file.data() + at, sizeof *value);
    at += sizeof *value;
  };

  int32_t max_token_length = 0;
  read(&max_token_length);
  if (max_token_length <= 0) refuse("its max_token_length is not positive");
  for (int id = 0; id < vocab_size; ++id) {
    float score = 0;
    int32_t length = 0;
    read(&score);
    read(&length);
    if (length < 0 || length > max_token_length) refuse("token " + std::to_string(id) + " has an impossible length");
    if (file.size() - at < static_cast<size_t>(length)) refuse("it ends inside token " + std::to_string(id));
    pieces_.push_back(file.substr(at, static_cast<size_t>(length)));
    at += static_cast<size_t>(length);
    scores_.push_back(score);
    ids_.emplace(pieces_.back(), id);  // keeps the first of equal pieces
    longest_ = std::max(longest_, pieces_.back().size());
  }
  if (at != file.size()) refuse("it has bytes after the last token");
  if (vocab_size <= kBos) refuse("there is no room for the BOS token");
  for (int byte = 0; byte < 256; ++byte) bytes_.push_back(static_cast<char>(byte));
}

int Llama2Tokenizer::find(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<int> Llama2Tokenizer::encode(std::string_view text, int64_t max_tokens) const {
  if (static_cast<int64_t>(text.size() / longest_) > max_tokens) {
    throw std::runtime_error("the prompt is longer than the model's context of " + std::to_string(max_tokens) +
                             " tokens");
  }
  std::vector<int> tokens = {kBos};
  const auto push = [&](int id) {
    if (id < 0 || id >= static_cast<int>(pieces_.size())) {
      throw std::runtime_error("the tokenizer has no token for a byte of the prompt");
    }
    tokens.push_back(id);
  };

  if (!text.empty()) push(find(" "));  // sentencepiece's dummy prefix
  const auto continues = [&](size_t i) { return i < text.size() && (text[i] & 0xC0) == 0x80; };
  for (size_t i = 0; i < text.size();) {
    size_t n = 1;  // a code point, or what a broken one has of at most 4 bytes
    while (n < 4 && continues(i + n)) ++n;
    const std::string character(text.substr(i, n));
    if (const int id = find(character); id >= 0) {
      push(id);
    } else {  // byte fallback: the tokens of the 256 bytes follow <unk>, <s> and </s>
      for (const char c : character) push(3 + static_cast<unsigned char>(c));
    }
    i += n;
  }

  for (;;) {  // merge the best-scored adjacent pair, the leftmost of equals, until none is a token
    float best_score = -1e10f;
    int best_id = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const int id = find(pieces_[static_cast<size_t>(tokens[i])] + pieces_[static_cast<size_t>(tokens[i + 1])]);
      if (id >= 0 && scores_[static_cast<size_t>(id)] > best_score) {
        best_score = scores_[static_cast<size_t>(id)];
        best_id = id;
        best = i;
      }
    }
    if (best_id < 0) return tokens;
    tokens[best] = best_id;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::string_view Llama2Tokenizer::decode(int previous, int token) const {
  std::string_view piece = pieces_[static_cast<size_t>(token)];
  if (previous == kBos && piece.starts_with(' ')) piece.remove_prefix(1);
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>')) {  // such as <0x0A>
    unsigned byte = 0;
    const char* const end = piece.data() + 5;
    if (std::from_chars(piece.data() + 3, end, byte, 16).ptr == end) piece = std::string_view(bytes_).substr(byte, 1);
  }
  if (piece.size() == 1) {
    const unsigned char byte = static_cast<unsigned char>(piece[0]);
    const bool printable = byte >= 0x20 && byte < 0x7F;
    const bool space = byte >= '\t' && byte <= '\r';
    if (!printable && !space) return "";
  }
  return piece;
}
