// What a conformance case is run on: the library on one target, or the float64 reference, behind one interface, so that
// the code that understands the cases exists once and the witness is checked by the same cases.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/case_reader.h"
#include "tests/support/reference.h"

namespace conformance {

using reference::Tensor;

/// A call was refused, or two ways to ask for the same result gave different bits.
struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Numbers twice: exactly as the case gives them, and as the library stores them (float64 becomes f32).
struct Operand {
  Tensor exact;
  simdattn::DType dtype = simdattn::DType::kF32;
  std::vector<unsigned char> storage;

  Operand() = default;
  explicit Operand(const Array& array);
  explicit Operand(const Tensor& tensor, simdattn::DType type = simdattn::DType::kF32);
};

/// A strided view of an operand; 0 strides broadcast.
template <int kRank>
struct Slice {
  const Operand* operand = nullptr;
  std::array<int64_t, kRank> shape{};
  std::array<int64_t, kRank> stride{};

  simdattn::ConstView<kRank> view() const { return {operand->storage.data(), operand->dtype, shape, stride}; }
  Tensor exact() const;
};

/// The whole operand as a contiguous view of this shape.
template <int kRank>
Slice<kRank> reshape(const Operand& operand, const std::array<int64_t, kRank>& shape) {
  int64_t elements = 1;
  for (const int64_t n : shape) elements *= n;
  if (elements != operand.exact.size()) throw CaseError("an array has not the shape that the op needs");
  const simdattn::ConstView<kRank> v(nullptr, simdattn::DType::kF32, shape);
  return {&operand, v.shape, v.stride};
}

/// The whole operand, its dimensions preceded by ones up to rank 4.
Slice<4> as_rank4(const Operand& operand);
/// The same, stretched to `shape` where a dimension is 1.
Slice<4> broadcast(const Operand& operand, const std::array<int64_t, 4>& shape);

struct AttentionCall {
  Slice<4> q, k, v;
  simdattn::Scoring scoring;  // its scale is not used
  double scale = 1;
  simdattn::KeyLists lists = {};
};

struct AttentionOutputs {
  Tensor out;
  Tensor lse;
  std::optional<Tensor> narrow;  // out stored in the type of q, if that is bf16 or f16
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string name() const = 0;
  /// Results are float64, not f32: an allowance holds as it stands, with no rounding of the result to add.
  virtual bool float64() const = 0;
  /// Of the library; null: the formulas.
  virtual const simdattn::Target* target() const { return nullptr; }

  virtual Tensor scores(const Slice<4>& q, const Slice<4>& k, double scale) = 0;
  virtual Tensor softmax(const Slice<2>& x, Tensor* lse) = 0;
  virtual Tensor masked_softmax(const Slice<4>& x, const simdattn::Scoring& scoring, double scale, Tensor* lse) = 0;
  virtual Tensor weighted_values(const Slice<4>& p, const Slice<4>& v) = 0;
  virtual Tensor rope(const Slice<4>& x, const Slice<2>& cos, const Slice<2>& sin,
                      const std::vector<int64_t>& positions, const simdattn::RopeOptions& options) = 0;
  virtual Tensor rope_frequencies(const simdattn::RopeTableOptions& options, int64_t rotary_dim) = 0;
  /// positions: [axes][n], for M-RoPE more than one axis.
  virtual void rope_table(const simdattn::RopeTableOptions& options, int64_t rotary_dim,
                          const std::vector<std::vector<int64_t>>& positions, Tensor* cos, Tensor* sin) = 0;
  virtual Tensor sinusoidal_table(int64_t d, const std::vector<int64_t>& positions) = 0;
  virtual Tensor alibi_slopes(int64_t heads) = 0;
  virtual AttentionOutputs attention(const AttentionCall& call) = 0;
  virtual AttentionOutputs attention_merge(const Slice<5>& parts, const Slice<4>& part_lse) = 0;
  /// A cache [B, H, n_past + n_now, d] of rows after both were appended to it.
  virtual Operand append(const Slice<4>& past, const Slice<4>& now) = 0;
};
// Contiguous copies of the keys and values with NaN where no row sees them; false if that is nowhere.
bool poison_hidden(const AttentionCall& call, Operand* k, Operand* v);

std::unique_ptr<Engine> library_engine(const simdattn::Target& target);
std::unique_ptr<Engine> reference_engine();

}  // namespace conformance
