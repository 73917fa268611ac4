#include "llama2_checkpoint.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <stdexcept>

std::string read_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw std::runtime_error(path + ": no such file");
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) throw std::runtime_error(path + ": cannot be opened");
  std::string bytes(size, '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) throw std::runtime_error(path + ": cannot be read");
  return bytes;
}

namespace {

/// Hands out consecutive tensors. Compares by division, so no product of header fields can overflow.
class Cursor {
 public:
  Cursor(const std::string& path, const std::vector<float>& weights)
      : path_(path), next_(weights.data()), left_(static_cast<int64_t>(weights.size())) {}

  const float* take(const char* name, std::initializer_list<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t extent : shape) {  // extents are positive: the header was checked
      if (extent > left_ / n) throw std::runtime_error(path_ + ": truncated or corrupt: the file ends inside " + name);
      n *= extent;
    }
    const float* tensor = next_;
    next_ += n;
    left_ -= n;
    return tensor;
  }

  int64_t left() const { return left_; }

 private:
  const std::string& path_;
  const float* next_;
  int64_t left_;
};

}  // namespace

Llama2Checkpoint read_checkpoint(const std::string& path) {
  const std::string bytes = read_file(path);
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(path + ": not a llama2.c checkpoint: " + why);
  };

  std::array<int32_t, 7> header;
  if (bytes.size() < sizeof header) refuse("shorter than its header of 28 bytes");
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const bool shared_classifier = header[5] > 0;
  Llama2Checkpoint m{};
  Llama2Config& c = m.config;
  c = {header[0], header[1], header[2], header[3], header[4], header[5], header[6]};
  if (!shared_classifier) c.vocab_size = -c.vocab_size;
  for (const int64_t extent : {c.dim, c.hidden_dim, c.n_layers, c.n_heads, c.n_kv_heads, c.vocab_size, c.seq_len}) {
    if (extent <= 0) refuse("a size in the header is not positive");
  }
  if (c.dim % c.n_heads != 0) refuse("dim is not a multiple of n_heads");
  if (c.n_heads % c.n_kv_heads != 0) refuse("n_heads is not a multiple of n_kv_heads");
  if (c.head_size() % 2 != 0) refuse("the head size is odd, so its dimensions do not pair up for rotation");

  const size_t payload = bytes.size() - sizeof header;
  if (payload % sizeof(float) != 0) refuse("its weights are not a whole number of floats");
  m.weights.resize(payload / sizeof(float));
  if (payload > 0) std::memcpy(m.weights.data(), bytes.data() + sizeof header, payload);

  Cursor cursor(path, m.weights);
  const int64_t layers = c.n_layers;
  m.token_embedding = cursor.take("token_embedding", {c.vocab_size, c.dim});
  m.rms_att = cursor.take("rms_att", {layers, c.dim});
  m.wq = cursor.take("wq", {layers, c.dim, c.dim});
  m.wk = cursor.take("wk", {layers, c.dim, c.kv_dim()});
  m.wv = cursor.take("wv", {layers, c.dim, c.kv_dim()});
  m.wo = cursor.take("wo", {layers, c.dim, c.dim});
  m.rms_ffn = cursor.take("rms_ffn", {layers, c.dim});
  m.w1 = cursor.take("w1", {layers, c.dim, c.hidden_dim});
  m.w2 = cursor.take("w2", {layers, c.hidden_dim, c.dim});
  m.w3 = cursor.take("w3", {layers, c.dim, c.hidden_dim});
  m.rms_final = cursor.take("rms_final", {c.dim});
  cursor.take("freq_cis", {c.seq_len, c.head_size()});  // cos and sin, recomputed instead, as run.c does
  m.classifier = shared_classifier ? m.token_embedding : cursor.take("classifier", {c.vocab_size, c.dim});
  if (cursor.left() != 0) refuse("it is longer than its header says");
  return m;
}
