// The legacy checkpoint format of llama2.c: seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
// seq_len), then f32 weights, all little-endian. A negative vocab_size says that the classifier is a tensor of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Llama2Config {
  int64_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
  int64_t head_size() const { return dim / n_heads; }
  int64_t kv_dim() const { return head_size() * n_kv_heads; }
};

/// Matrices are row-major [out, in]; a leading n_layers dimension is not shown.
struct Llama2Checkpoint {
  Llama2Config config;
  std::vector<float> weights;    // what the pointers below point into
  const float* token_embedding;  // [vocab_size, dim]
  const float* rms_att;          // [dim]
  const float* wq;               // [dim, dim]
  const float* wk;               // [kv_dim, dim]
  const float* wv;               // [kv_dim, dim]
  const float* wo;               // [dim, dim]
  const float* rms_ffn;          // [dim]
  const float* w1;               // [hidden_dim, dim]
  const float* w2;               // [dim, hidden_dim]
  const float* w3;               // [hidden_dim, dim]
  const float* rms_final;        // [dim], not per layer
  const float* classifier;       // [vocab_size, dim], not per layer
};

/// The bytes of a regular file. Throws std::runtime_error with a sentence that names the file.
std::string read_file(const std::string& path);

/// Throws std::runtime_error with a sentence that names the file and what is wrong with it.
Llama2Checkpoint read_checkpoint(const std::string& path);
