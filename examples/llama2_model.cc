#include "llama2_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace {

/// out[r,i] = sum_j w[i,j] x[r,j], ascending j, for kRows rows: their sums do not wait for each other.
template <int kRows>
void products(float* out, const float* x, const float* w, int64_t i, int64_t n_in, int64_t n_out) {
  float sum[kRows] = {};
  for (int64_t j = 0; j < n_in; ++j) {
    for (int r = 0; r < kRows; ++r) sum[r] += w[i * n_in + j] * x[r * n_in + j];
  }
  for (int r = 0; r < kRows; ++r) out[r * n_out + i] = sum[r];
}

/// Columns of `out` are tasks.
void matmul(ThreadPool& pool, float* out, const float* x, const float* w, int64_t rows, int64_t n_in, int64_t n_out) {
  constexpr int64_t kColumns = 16, kRows = 8;
  pool.run((n_out + kColumns - 1) / kColumns, [&](int64_t task, int) {
    for (int64_t i = task * kColumns; i < std::min((task + 1) * kColumns, n_out); ++i) {
      int64_t r = 0;
      for (; r + kRows <= rows; r += kRows) products<kRows>(out + r * n_out, x + r * n_in, w, i, n_in, n_out);
      for (; r < rows; ++r) products<1>(out + r * n_out, x + r * n_in, w, i, n_in, n_out);
    }
  });
}

void rms_norm(float* out, const float* x, const float* weight, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r, x += dim, out += dim) {
    float squares = 0;
    for (int64_t j = 0; j < dim; ++j) squares += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(dim) + 1e-5f);
    for (int64_t j = 0; j < dim; ++j) out[j] = weight[j] * (scale * x[j]);
  }
}

}  // namespace

void check(const simdattn::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}

const simdattn::Target* find_target(const std::string& name) {
  const simdattn::Target* target = nullptr;
  const simdattn::Status found = simdattn::find_target(name.c_str(), &target);
  if (!found.ok()) throw std::runtime_error("--target " + name + ": " + found.detail);
  return target;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<float> forward(const Llama2Checkpoint& m, std::span<const int> tokens, std::span<const int64_t> wanted,
                           ThreadPool& pool, const Attend& attend) {
  const Llama2Config& c = m.config;
  const int64_t n = static_cast<int64_t>(tokens.size()), n_wanted = static_cast<int64_t>(wanted.size());
  const int64_t dim = c.dim, hidden = c.hidden_dim, kv_dim = c.kv_dim();
  std::vector<float> x(count(n * dim)), y(x.size()), q(x.size()), k(count(n * kv_dim)), v(k.size());
  std::vector<float> gate(count(n * hidden)), up(gate.size());
  for (int64_t r = 0; r < n; ++r) std::copy_n(m.token_embedding + tokens[count(r)] * dim, dim, x.data() + r * dim);

  for (int64_t l = 0; l < c.n_layers; ++l) {
    rms_norm(y.data(), x.data(), m.rms_att + l * dim, n, dim);
    matmul(pool, q.data(), y.data(), m.wq + l * dim * dim, n, dim, dim);
    matmul(pool, k.data(), y.data(), m.wk + l * dim * kv_dim, n, dim, kv_dim);
    matmul(pool, v.data(), y.data(), m.wv + l * dim * kv_dim, n, dim, kv_dim);
    attend(l, q.data(), k.data(), v.data(), y.data());
    matmul(pool, q.data(), y.data(), m.wo + l * dim * dim, n, dim, dim);
    for (size_t i = 0; i < x.size(); ++i) x[i] += q[i];

    rms_norm(y.data(), x.data(), m.rms_ffn + l * dim, n, dim);
    matmul(pool, gate.data(), y.data(), m.w1 + l * dim * hidden, n, dim, hidden);
    matmul(pool, up.data(), y.data(), m.w3 + l * dim * hidden, n, dim, hidden);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] * (1.0f / (1.0f + std::exp(-gate[i]))) * up[i];
    matmul(pool, y.data(), gate.data(), m.w2 + l * hidden * dim, n, hidden, dim);
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  std::vector<float> logits(count(n_wanted * c.vocab_size));
  for (int64_t i = 0; i < n_wanted; ++i) {  // wanted is ascending, so no row is overwritten before it is read
    std::copy_n(x.data() + wanted[count(i)] * dim, dim, x.data() + i * dim);
  }
  rms_norm(y.data(), x.data(), m.rms_final, n_wanted, dim);
  matmul(pool, logits.data(), y.data(), m.classifier, n_wanted, dim, c.vocab_size);
  return logits;
}

int best_token(std::span<const float> logits, int64_t row, int64_t vocab_size) {
  const auto of_row = logits.subspan(count(row * vocab_size), count(vocab_size));
  return static_cast<int>(std::max_element(of_row.begin(), of_row.end()) - of_row.begin());
}

RopeTable::RopeTable(int64_t capacity, int64_t head_size) {
  const int64_t pairs = head_size / 2;
  cos.resize(count(capacity * pairs));
  sin.resize(cos.size());
  const auto c = simdattn::view(cos.data(), {capacity, pairs}), s = simdattn::view(sin.data(), {capacity, pairs});
  check(simdattn::rope_table(c, s));
  rotation.cos = c;
  rotation.sin = s;
  rotation.options.pairing = simdattn::RopePairing::kInterleaved;
}

std::vector<int> encode_prompt(const Llama2Tokenizer& tokenizer, std::string_view prompt, int64_t context) {
  std::vector<int> tokens = tokenizer.encode(prompt, context);
  if (static_cast<int64_t>(tokens.size()) > context) {
    throw std::runtime_error("the prompt is " + std::to_string(tokens.size()) +
                             " tokens, more than the model's context of " + std::to_string(context));
  }
  return tokens;
}

std::string text_of(const Llama2Tokenizer& tokenizer, std::span<const int> tokens) {
  std::string text;
  for (size_t i = 1; i < tokens.size() && tokens[i] != Llama2Tokenizer::kBos; ++i) {
    text += tokenizer.decode(tokens[i - 1], tokens[i]);
  }
  return text;
}
