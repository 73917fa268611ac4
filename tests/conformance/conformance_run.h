// One case on one engine: what is compared with its outputs, and the pieces that several ops share.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/conformance/conformance_engine.h"
#include "tests/support/case_reader.h"
#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace conformance {

using simdattn::test::indices;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kUnitF32 = 0x1p-24;

/// The case asks for what no public function computes; the reason is listed at the end.
struct NotExpressed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Failure {
  std::string output;  // empty: not a matter of one output's values
  std::string sentence;
};

/// What one case on one engine came to.
struct Outcome {
  double worst = 0;  // error over allowance
  std::string where = "-";
  std::vector<Failure> failures;
};

inline std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

class Run {
 public:
  Run(const Case& c, Engine& e) : test(c), engine(e) {}

  const Case& test;
  Engine& engine;
  Outcome outcome;

  using Extra = std::function<double(double want)>;

  /// Compares with output `name` if the case has it and gives an allowance; `way` says how `got` was computed.
  /// `extra` comes on top of the allowance.
  void expect(const std::string& name, const Tensor& got, const char* way = "", const Extra& extra = {}) {
    const Output* output = test.find_output(name);
    if (output == nullptr || !output->compared()) return;
    compared_.insert(name);
    const std::string label = name + (*way != '\0' ? std::string(" ") + way : "");
    const int64_t n = output->array.size();
    if (got.size() != n) {
      outcome.failures.push_back(
          {name, label + ": " + std::to_string(got.size()) + " elements, not " + std::to_string(n)});
      return;
    }
    int64_t failed = 0;
    int64_t first = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double want = output->array.value(i);
      double allowed = output->atol.value_or(0) + (output->rtol ? *output->rtol * std::fabs(want) : 0);
      if (output->tolerance) allowed = output->tolerance->value(i / (n / output->tolerance->size()));
      if (extra) allowed += extra(want);
      const double ratio = error_over_allowance(got[i], want, allowed);
      if (ratio > outcome.worst) {
        outcome.worst = ratio;
        outcome.where = label;
      }
      if (ratio > 1 && failed++ == 0) first = i;
    }
    if (failed > 0) {
      outcome.failures.push_back({name, label + ": " + std::to_string(failed) + " of " + std::to_string(n) +
                                            " elements, the first " + std::to_string(first) + ": " + text(got[first]) +
                                            ", expected " + text(output->array.value(first))});
    }
  }
  void expect_same(const Tensor& a, const Tensor& b, const char* what) {
    if (a.data.size() == b.data.size() &&
        (a.data.empty() || std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(double)) == 0)) {
      return;
    }
    outcome.failures.push_back({"", std::string(what) + ": other bits"});
  }
  /// No output that could be compared may be forgotten.
  void finish() {
    for (const Output& output : test.outputs) {
      const std::string& name = output.array.name;
      if (output.compared() && compared_.count(name) == 0) {
        outcome.failures.push_back({name, name + ": was not compared"});
      }
    }
  }

  /// What storing a result in a type costs, on top of an allowance written for the value before that.
  Extra stored_as(simdattn::DType dtype) const {
    if (dtype == simdattn::DType::kF32 && engine.float64()) return {};
    return [dtype](double want) { return reference::half_ulp(dtype, want); };
  }
  /// What f32 arithmetic costs where the allowance is one for float64 arithmetic.
  Extra f32_arithmetic(double bound) const {
    if (engine.float64()) return {};
    return [bound](double) { return bound; };
  }

 private:
  static double error_over_allowance(double got, double want, double allowed) {
    if (std::isinf(want) || std::isinf(got)) return got == want ? 0 : kInf;
    const double error = std::fabs(got - want);
    if (error == 0) return 0;
    return error / allowed >= 0 ? error / allowed : kInf;  // NaN fails
  }

  std::set<std::string> compared_;
};

struct Op {
  const char* name;
  void (*run)(Run&);
};
std::vector<Op> kernel_ops();
std::vector<Op> position_ops();
std::vector<Op> selection_ops();
std::vector<Op> state_ops();

// ---------------------------------------------------------------------------------------------------------------------
// Pieces that several ops share

/// scores, masked_softmax, weighted_values: what attention() must agree with. `probabilities` may be null.
inline AttentionOutputs unfused(Engine& engine, const AttentionCall& call, Tensor* probabilities = nullptr) {
  const Operand raw(engine.scores(call.q, call.k, 1.0));
  AttentionOutputs result;
  const Tensor p = engine.masked_softmax(as_rank4(raw), call.scoring, call.scale, &result.lse);
  if (probabilities != nullptr) *probabilities = p;
  const Operand weights(p);
  result.out = engine.weighted_values(as_rank4(weights), call.v);
  return result;
}

/// x w of two matrices, through weighted_values.
inline Tensor product(Engine& engine, const Operand& x, const Operand& w) {
  Tensor result = engine.weighted_values(as_rank4(x), as_rank4(w));
  result.shape.erase(result.shape.begin(), result.shape.begin() + 2);
  return result;
}

/// [B, H, n, d] as [B, n, H, d].
inline Tensor token_major(const Tensor& x) {
  Tensor result({x.dim(0), x.dim(2), x.dim(1), x.dim(3)});
  for (const auto [b, h, i] : indices(x.dim(0), x.dim(1), x.dim(2))) {
    for (int64_t d = 0; d < x.dim(3); ++d) result.at({b, i, h, d}) = x.at({b, h, i, d});
  }
  return result;
}

/// An operand [n, H, d] as [1, H, n, d].
inline Slice<4> heads_of_tokens(const Operand& x) {
  const std::vector<int64_t>& s = x.exact.shape;
  if (s.size() != 3) throw CaseError("three dimensions expected");
  return {&x, {1, s[1], s[0], s[2]}, {x.exact.size(), s[2], s[1] * s[2], 1}};
}

inline std::vector<float> floats(const Array* array) {
  std::vector<float> result;
  for (int64_t i = 0; array != nullptr && i < array->size(); ++i) result.push_back(static_cast<float>(array->value(i)));
  return result;
}

inline std::vector<int32_t> integers(const Array* array) {
  std::vector<int32_t> result;
  for (int64_t i = 0; array != nullptr && i < array->size(); ++i) {
    result.push_back(static_cast<int32_t>(array->integer(i)));
  }
  return result;
}

inline simdattn::RopePairing pairing(const Case& test) {
  const std::string& word = test.word("pairing");
  if (word == "interleaved") return simdattn::RopePairing::kInterleaved;
  if (word == "half") return simdattn::RopePairing::kHalfSplit;
  throw CaseError("unknown pairing " + word);
}

inline std::vector<int64_t> positions_of(const Array& array) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < array.size(); ++i) result.push_back(array.integer(i));
  return result;
}
inline Slice<2> table(const Operand& x) { return reshape<2>(x, {x.exact.dim(0), x.exact.dim(1)}); }

}  // namespace conformance
