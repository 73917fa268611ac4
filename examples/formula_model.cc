#include "formula_model.h"

#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

constexpr int kFirstVisible = 3 + 256;  // <unk>, <s>, </s> and the 256 bytes come before

std::vector<std::string> pieces() {
  constexpr std::string_view kConsonants = "bcdfghjklmnprstvwz", kVowels = "aeiou";
  std::vector<std::string> all = {"<unk>", "\n<s>\n", "\n</s>\n"};
  for (int byte = 0; byte < 256; ++byte) {
    char piece[8];
    std::snprintf(piece, sizeof piece, "<0x%02X>", static_cast<unsigned>(byte));
    all.emplace_back(piece);
  }
  for (const char c : std::string_view(" ,.abcdefghijklmnopqrstuvwxyz")) all.emplace_back(1, c);
  for (const char c : kConsonants) {
    for (const char v : kVowels) all.push_back({c, v});
  }
  for (const char c : kConsonants) all.push_back({' ', c, 'a'});
  return all;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string FormulaModel::checkpoint() const {
  const int32_t vocab_size = static_cast<int32_t>(pieces().size());
  const int32_t head_size = dim / n_heads, kv_dim = head_size * n_kv_heads;
  std::string bytes;
  for (const int32_t field :
       {dim, hidden_dim, n_layers, n_heads, n_kv_heads, shared_classifier ? vocab_size : -vocab_size, seq_len}) {
    append(bytes, field);
  }

  uint64_t state = 1;
  const auto unit = [&] {  // of -1 .. 1, with 16 bits
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 48) * 0x1p-15f - 1;
  };
  // Of variance gain^2 / n_in, so that rows of variance 1 stay so but for the gain.
  const auto matrix = [&](int32_t n_out, int32_t n_in, float gain) {
    const float size = gain * std::sqrt(3.0f / static_cast<float>(n_in));
    for (int32_t i = 0; i < n_out * n_in; ++i) append(bytes, unit() * size);
  };
  const auto norm = [&] {
    for (int32_t i = 0; i < dim; ++i) append(bytes, 1 + unit() / 4);
  };
  const auto layers = [&](const auto& tensor) {
    for (int32_t l = 0; l < n_layers; ++l) tensor();
  };
  const auto vocabulary = [&] {  // bytes are unlikely, so that the text is letters
    for (int32_t id = 0; id < vocab_size; ++id) {
      matrix(1, dim, id == 1 || id >= kFirstVisible ? 2 : 0.125f);
    }
  };

  if (shared_classifier) vocabulary();
  else matrix(vocab_size, dim, std::sqrt(static_cast<float>(dim)));
  layers(norm);
  layers([&] { matrix(dim, dim, 2); });     // wq; with wk scores of variance 16, so that few keys matter
  layers([&] { matrix(kv_dim, dim, 2); });  // wk
  layers([&] { matrix(kv_dim, dim, 1); });  // wv
  layers([&] { matrix(dim, dim, 2); });     // wo
  layers(norm);
  layers([&] { matrix(hidden_dim, dim, 1); });  // w1
  layers([&] { matrix(dim, hidden_dim, 1); });  // w2
  layers([&] { matrix(hidden_dim, dim, 1); });  // w3
  norm();
  for (int32_t i = 0; i < seq_len * head_size; ++i) append(bytes, 0.0f);  // freq_cis, which readers compute
  if (!shared_classifier) vocabulary();
  return bytes;
}

std::string FormulaModel::tokenizer() {
  std::string bytes;
  append(bytes, int32_t{8});  // the longest piece
  float score = 0;
  for (const std::string& piece : pieces()) {
    append(bytes, score);
    append(bytes, static_cast<int32_t>(piece.size()));
    bytes += piece;
    score -= 1;
  }
  return bytes;
}
