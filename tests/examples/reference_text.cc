// A witness of llama2_generate: the same model in float64, as the formulas of a Llama transformer say, with nothing of
// the library or of the examples' model. Prints the text at temperature 0, and on stderr the smallest distance of a
// best logit to the second.
//
//   reference_text MODEL TOKENIZER PROMPT STEPS
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama2_tokenizer.h"

namespace {

using Row = std::vector<double>;

class Model {
 public:
  explicit Model(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (bytes.size() < 28) throw std::runtime_error(path + ": too short");
    int32_t header[7];
    std::memcpy(header, bytes.data(), sizeof header);
    dim = header[0], hidden = header[1], layers = header[2], heads = header[3], kv_heads = header[4];
    vocab = std::abs(header[5]), head = dim / heads, kv = head * kv_heads;
    const char* at = bytes.data() + 28;
    const char* const end = bytes.data() + bytes.size();
    const auto take = [&](int n) {
      if (end - at < 4 * n) throw std::runtime_error(path + ": too short");
      Row x;
      for (int i = 0; i < n; ++i, at += 4) {
        float f;
        std::memcpy(&f, at, sizeof f);
        x.push_back(static_cast<double>(f));
      }
      return x;
    };
    embedding = take(vocab * dim);
    norm1 = take(layers * dim);
    wq = take(layers * dim * dim);
    wk = take(layers * dim * kv);
    wv = take(layers * dim * kv);
    wo = take(layers * dim * dim);
    norm2 = take(layers * dim);
    w1 = take(layers * dim * hidden);
    w2 = take(layers * dim * hidden);
    w3 = take(layers * dim * hidden);
    norm3 = take(dim);
    take(header[6] * head);
    classifier = header[5] > 0 ? embedding : take(vocab * dim);
    keys.resize(static_cast<size_t>(layers));
    values.resize(static_cast<size_t>(layers));
  }

  /// The logits after `token`, which stands behind those of the calls before.
  Row step(int token) {
    Row x(embedding.begin() + token * dim, embedding.begin() + (token + 1) * dim);
    for (int l = 0; l < layers; ++l) {
      const size_t at = static_cast<size_t>(l);
      const Row y = norm(x, norm1, l);
      Row q = times(wq, l, y, dim), k = times(wk, l, y, kv);
      rotate(q);
      rotate(k);
      keys[at].push_back(k);
      values[at].push_back(times(wv, l, y, kv));
      add(x, times(wo, l, attention(q, keys[at], values[at]), dim));
      const Row z = norm(x, norm2, l), up = times(w3, l, z, hidden);
      Row gate = times(w1, l, z, hidden);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      add(x, times(w2, l, gate, dim));
    }
    ++position;
    return times(classifier, 0, norm(x, norm3, 0), vocab);
  }

  int vocab;

 private:
  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static Row norm(const Row& x, const Row& weight, int layer) {
    double squares = 0;
    for (const double e : x) squares += e * e;
    const double root = std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / root * weight[static_cast<size_t>(layer) * x.size() + i];
    return y;
  }
  static Row times(const Row& w, int layer, const Row& x, int n_out) {
    Row y(static_cast<size_t>(n_out));
    size_t at = static_cast<size_t>(layer) * y.size() * x.size();
    for (double& e : y) {
      for (const double f : x) e += w[at++] * f;
    }
    return y;
  }
  void rotate(Row& x) const {
    for (size_t i = 0; i < x.size(); i += 2) {
      const double column = static_cast<double>(i % static_cast<size_t>(head));
      const double angle = position * std::pow(10000.0, -column / head);
      const double a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  Row attention(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v) const {
    Row out(q.size());
    for (int h = 0; h < heads; ++h) {
      const size_t width = static_cast<size_t>(head), mine = static_cast<size_t>(h) * width;
      const size_t theirs = static_cast<size_t>(h / (heads / kv_heads)) * width;
      Row p(k.size());
      double largest = -INFINITY, sum = 0;
      for (size_t j = 0; j < k.size(); ++j) {
        for (size_t e = 0; e < width; ++e) p[j] += q[mine + e] * k[j][theirs + e];
        p[j] /= std::sqrt(head);
        largest = p[j] > largest ? p[j] : largest;
      }
      for (double& e : p) sum += e = std::exp(e - largest);
      for (size_t j = 0; j < k.size(); ++j) {
        for (size_t e = 0; e < width; ++e) out[mine + e] += p[j] / sum * v[j][theirs + e];
      }
    }
    return out;
  }

  int dim, hidden, layers, heads, kv_heads, head, kv;
  int position = 0;
  Row embedding, norm1, wq, wk, wv, wo, norm2, w1, w2, w3, norm3, classifier;
  std::vector<std::vector<Row>> keys, values;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::runtime_error("usage: reference_text MODEL TOKENIZER PROMPT STEPS");
  Model model(argv[1]);
  const Llama2Tokenizer tokenizer(argv[2], model.vocab);
  const std::vector<int> prompt = tokenizer.encode(argv[3], 1 << 20);
  const size_t steps = static_cast<size_t>(std::atoi(argv[4]));
  double closest = INFINITY;
  int token = prompt[0];
  for (size_t position = 1; position <= steps; ++position) {
    const Row logits = model.step(token);
    int next = 0;
    if (position < prompt.size()) {
      next = prompt[position];
    } else {
      double best = -INFINITY, second = -INFINITY;
      for (int id = 0; id < model.vocab; ++id) {
        const double logit = logits[static_cast<size_t>(id)];
        if (logit > best) second = best, best = logit, next = id;
        else if (logit > second) second = logit;
      }
      closest = best - second < closest ? best - second : closest;
    }
    if (next == Llama2Tokenizer::kBos) break;
    const std::string_view piece = tokenizer.decode(token, next);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    token = next;
  }
  std::fprintf(stderr, "closest decision %.2g\n", closest);
  return std::fflush(stdout) == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "reference_text: %s\n", error.what());
  return 1;
}
