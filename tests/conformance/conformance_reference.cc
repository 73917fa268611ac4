// The formulas in float64 as an engine: they meet every case that the library meets.
#include <algorithm>

#include "tests/conformance/conformance_engine.h"

namespace conformance {

using simdattn::DType;
using simdattn::Scoring;

namespace {

class ReferenceEngine : public Engine {
 public:
  std::string name() const override { return "reference-f64"; }
  bool float64() const override { return true; }

  Tensor scores(const Slice<4>& q, const Slice<4>& k, double scale) override {
    return reference::scores(q.exact(), k.exact(), scale);
  }
  Tensor softmax(const Slice<2>& x, Tensor* lse) override { return reference::softmax(x.exact(), lse); }
  Tensor masked_softmax(const Slice<4>& x, const Scoring& scoring, double scale, Tensor* lse) override {
    return reference::masked_softmax(x.exact(), scoring, lse, scale);
  }
  Tensor weighted_values(const Slice<4>& p, const Slice<4>& v) override {
    return reference::weighted_values(p.exact(), v.exact());
  }
  Tensor rope(const Slice<4>& x, const Slice<2>& cos, const Slice<2>& sin, const std::vector<int64_t>& positions,
              const simdattn::RopeOptions& options) override {
    return reference::rope(x.exact(), cos.exact(), sin.exact(), positions, options);
  }
  Tensor rope_frequencies(const simdattn::RopeTableOptions& options, int64_t rotary_dim) override {
    Tensor result({rotary_dim / 2});
    const std::vector<long double> exact = reference::rope_frequencies(options, rotary_dim, nullptr);
    for (size_t i = 0; i < exact.size(); ++i) {
      result.data[i] = options.f32_angles ? static_cast<float>(exact[i]) : static_cast<double>(exact[i]);
    }
    return result;
  }
  void rope_table(const simdattn::RopeTableOptions& options, int64_t rotary_dim,
                  const std::vector<std::vector<int64_t>>& positions, Tensor* cos, Tensor* sin) override {
    reference::rope_table(options, rotary_dim, positions, cos, sin);
  }
  Tensor sinusoidal_table(int64_t d, const std::vector<int64_t>& positions) override {
    return reference::sinusoidal_table(d, 10000, positions);
  }
  Tensor alibi_slopes(int64_t heads) override {
    Tensor result({heads});
    result.data = reference::alibi_slopes(heads);
    return result;
  }
  AttentionOutputs attention(const AttentionCall& call) override {
    const reference::AttentionResult r =
        reference::attention(call.q.exact(), call.k.exact(), call.v.exact(), call.scoring, call.scale);
    AttentionOutputs result{r.out, r.lse, {}};
    if (const DType dtype = call.q.operand->dtype; dtype != DType::kF32) {
      const Operand stored(r.out, dtype);
      result.narrow = r.out;
      for (int64_t i = 0; i < r.out.size(); ++i) (*result.narrow)[i] = reference::load(stored.storage.data(), dtype, i);
    }
    return result;
  }
  AttentionOutputs attention_merge(const Slice<5>& parts, const Slice<4>& part_lse) override {
    const reference::AttentionResult r = reference::attention_merge(parts.exact(), part_lse.exact());
    return {r.out, r.lse, {}};
  }
  Operand append(const Slice<4>& past, const Slice<4>& now) override {
    const Tensor a = past.exact(), b = now.exact();
    Tensor all({b.dim(0), b.dim(1), a.dim(2) + b.dim(2), b.dim(3)});
    auto to = all.data.begin();
    for (int64_t bh = 0; bh < b.dim(0) * b.dim(1); ++bh) {
      for (const Tensor* part : {&a, &b}) {
        const int64_t count = part->dim(2) * part->dim(3);
        to = std::copy_n(part->data.begin() + bh * count, count, to);
      }
    }
    return Operand(all, now.operand->dtype);
  }
};

}  // namespace

std::unique_ptr<Engine> reference_engine() { return std::make_unique<ReferenceEngine>(); }

}  // namespace conformance
