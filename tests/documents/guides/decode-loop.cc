// docs/decode-loop.md with a model of random projections, whose layers are compared with the formula.
#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;

/// q, k and v are random for each (token, layer); all of them are remembered.
class Model {
 public:
  Model(const Shape& s, double tolerance) : s_(s), tolerance_(tolerance), layers_(static_cast<size_t>(s.layers)) {}

  void embed(const std::vector<int>& tokens) { tokens_ = tokens; }
  void project(int64_t layer, float* q, float* k, float* v) {
    Layer& l = layers_[static_cast<size_t>(layer)];
    l.q.clear();
    const auto add = [&](int64_t heads, uint32_t what, float* out, Floats& all) {
      for (const int token : tokens_) {
        const Floats x = guides::numbers(heads * s_.dim, static_cast<uint32_t>(token * 97 + layer * 13) + what);
        all.insert(all.end(), x.begin(), x.end());
        for (float f : x) *out++ = f;
      }
    };
    add(s_.heads, 1000, q, l.q);
    add(s_.kv_heads, 2000, k, l.k);
    add(s_.kv_heads, 3000, v, l.v);
  }
  void finish(int64_t layer, const float* out) {
    Layer& l = layers_[static_cast<size_t>(layer)];
    const int64_t n = static_cast<int64_t>(tokens_.size());
    const int64_t n_kv = static_cast<int64_t>(l.k.size()) / (s_.kv_heads * s_.dim);
    const Floats expected =
        guides::attention(guides::rotated(l.q, n, s_.heads, s_.dim, n_kv - n),
                          guides::rotated(l.k, n_kv, s_.kv_heads, s_.dim, 0), l.v, s_.heads, s_.kv_heads, s_.dim);
    guides::near(out, expected.data(), expected.size(), tolerance_, "a layer of decode-loop.md");
    last_.assign(out, out + expected.size());
  }
  int sample() const {
    double sum = 0;
    for (const float x : last_) sum += static_cast<double>(x);
    return static_cast<int>(std::fabs(sum) * 1000) % 100;
  }
  const Floats& last() const { return last_; }

 private:
  struct Layer {
    Floats q, k, v;
  };
  Shape s_;
  double tolerance_;
  std::vector<Layer> layers_;
  std::vector<int> tokens_;
  Floats last_;
};

Floats last_row(Shape shape, sa::KvType type, int threads, double tolerance) {
  shape.type = type;
  Decoder decoder(shape, threads);
  Model model(shape, tolerance);
  std::vector<int> prompt(1030);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int>(i * i % 101);
  const std::vector<int> made = generate(model, decoder, shape, prompt, 4);
  if (made.size() != 4 || decoder.length() != 1033) std::exit(1);
  return model.last();
}

}  // namespace

int main() {
  const Shape shape{.layers = 2, .heads = 2, .kv_heads = 1, .dim = 16, .capacity = 1100};
  const Floats one = last_row(shape, sa::KvType::kF32, 1, 2e-6);
  guides::same_bits(one, last_row(shape, sa::KvType::kF32, 3, 2e-6), "threads of decode-loop.md");
  last_row(shape, sa::KvType::kF16, 2, 1e-3);
}
