// Runs the conformance vectors of a directory on the library, every runnable target by turns, and says how far the worst
// element of each case is from its allowance. The format is described in the README beside the vectors.
//
//   conformance_test [DIRECTORY] [--target NAME] [--filter TEXT] [--reference]
//
// DIRECTORY is, if not given, $SIMDATTN_CONFORMANCE, or $SIMDATTN_SHARED/conformance, or the selection of tests/data.
// --reference runs the float64 formulas of tests/support/reference.cc instead of
// the library: a check of that witness. The exit status is 1 if a case fails.
//
// Allowances are those of the vectors. On top comes only what a result's own type makes unavoidable, as the README of
// the vectors has it for bf16 and f16: half a unit in the last place where the expected value is more exact than the
// type of the result (cosines of a table, given to 1e-9, are stored as f32), or an f32 error bound, derived where it
// is used, where a case is specified in float64 arithmetic throughout (`rope_relative`).

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/conformance/conformance_engine.h"
#include "tests/support/case_reader.h"
#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace conformance {
namespace {

using simdattn::test::indices;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kUnitF32 = 0x1p-24;

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

std::string text(double value) {
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
        std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(double)) == 0) {
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

// ---------------------------------------------------------------------------------------------------------------------
// Pieces that several ops share

/// scores, masked_softmax, weighted_values: what attention() must agree with. `probabilities` may be null.
AttentionOutputs unfused(Engine& engine, const AttentionCall& call, Tensor* probabilities = nullptr) {
  const Operand raw(engine.scores(call.q, call.k, 1.0));
  AttentionOutputs result;
  const Tensor p = engine.masked_softmax(as_rank4(raw), call.scoring, call.scale, &result.lse);
  if (probabilities != nullptr) *probabilities = p;
  const Operand weights(p);
  result.out = engine.weighted_values(as_rank4(weights), call.v);
  return result;
}

/// x w of two matrices, through weighted_values.
Tensor product(Engine& engine, const Operand& x, const Operand& w) {
  Tensor result = engine.weighted_values(as_rank4(x), as_rank4(w));
  result.shape.erase(result.shape.begin(), result.shape.begin() + 2);
  return result;
}

/// [B, H, n, d] as [B, n, H, d].
Tensor token_major(const Tensor& x) {
  Tensor result({x.dim(0), x.dim(2), x.dim(1), x.dim(3)});
  for (const auto [b, h, i] : indices(x.dim(0), x.dim(1), x.dim(2))) {
    for (int64_t d = 0; d < x.dim(3); ++d) result.at({b, i, h, d}) = x.at({b, h, i, d});
  }
  return result;
}

/// An operand [n, H, d] as [1, H, n, d].
Slice<4> heads_of_tokens(const Operand& x) {
  const std::vector<int64_t>& s = x.exact.shape;
  if (s.size() != 3) throw CaseError("three dimensions expected");
  return {&x, {1, s[1], s[0], s[2]}, {x.exact.size(), s[2], s[1] * s[2], 1}};
}

std::vector<float> floats(const Array* array) {
  std::vector<float> result;
  for (int64_t i = 0; array != nullptr && i < array->size(); ++i) result.push_back(static_cast<float>(array->value(i)));
  return result;
}

std::vector<int32_t> integers(const Array* array) {
  std::vector<int32_t> result;
  for (int64_t i = 0; array != nullptr && i < array->size(); ++i) {
    result.push_back(static_cast<int32_t>(array->integer(i)));
  }
  return result;
}

simdattn::RopePairing pairing(const Case& test) {
  const std::string& word = test.word("pairing");
  if (word == "interleaved") return simdattn::RopePairing::kInterleaved;
  if (word == "half") return simdattn::RopePairing::kHalfSplit;
  throw CaseError("unknown pairing " + word);
}

std::vector<int64_t> positions_of(const Array& array) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < array.size(); ++i) result.push_back(array.integer(i));
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Unfused kernels

void run_scores(Run& run) {
  const Operand q(run.test.input("q")), k(run.test.input("k"));
  run.expect("scores", run.engine.scores(as_rank4(q), as_rank4(k), run.test.number("scale")));
}

void run_softmax(Run& run) {
  const Operand x(run.test.input("x"));
  Tensor lse;
  run.expect("y", run.engine.softmax(reshape<2>(x, {x.exact.dim(0), x.exact.dim(1)}), &lse));
  run.expect("lse", lse);
  Tensor masked_lse;
  run.expect("y", run.engine.masked_softmax(as_rank4(x), {}, 1.0, &masked_lse), "by masked_softmax");
  run.expect("lse", masked_lse, "by masked_softmax");
}

void run_masked_softmax(Run& run) {
  const Operand x(run.test.input("x")), mask(run.test.input("mask"));
  const Slice<4> x4 = as_rank4(x);
  const Slice<4> keep = broadcast(mask, x4.shape);
  Tensor lse;
  simdattn::Scoring scoring;
  scoring.keep = keep.view();
  const Tensor y = run.engine.masked_softmax(x4, scoring, 1.0, &lse);
  run.expect("y", y);
  run.expect("lse", lse);

  const Tensor visible = keep.exact();
  const int64_t n = x4.shape[3], rows = x4.shape[2], row_bytes = (n + 7) / 8;
  std::vector<uint8_t> bits(static_cast<size_t>(rows * row_bytes));
  Tensor additive(visible.shape);
  for (int64_t i = 0; i < visible.size(); ++i) {
    additive[i] = visible[i] != 0 ? 0.0 : -kInf;
    if (visible[i] != 0)
      bits[static_cast<size_t>(i / n * row_bytes + i % n / 8)] |= static_cast<uint8_t>(1 << (i % n % 8));
  }
  simdattn::Scoring by_bits;
  by_bits.bits = {bits.data(), n, {0, 0, row_bytes}};
  run.expect_same(y, run.engine.masked_softmax(x4, by_bits, 1.0, nullptr), "bit mask instead of byte mask");
  for (const simdattn::DType dtype : {simdattn::DType::kF32, simdattn::DType::kBF16, simdattn::DType::kF16}) {
    const Operand bias(additive, dtype);
    simdattn::Scoring by_bias;
    by_bias.bias = as_rank4(bias).view();
    run.expect_same(y, run.engine.masked_softmax(x4, by_bias, 1.0, nullptr), "bias of -inf instead of a mask");
  }
}

void run_weighted_sum(Run& run) {
  const Operand p(run.test.input("p")), v(run.test.input("v"));
  run.expect("o", run.engine.weighted_values(as_rank4(p), as_rank4(v)));
}

void run_onnx_softmax(Run& run) {
  const Array& array = run.test.input("x");
  const int64_t rank = static_cast<int64_t>(array.shape.size());
  int64_t axis = run.test.integer("axis", -1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) throw CaseError("axis outside the rank");
  // [outer, n, inner] becomes rows [outer, inner] of n elements, and comes back.
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < axis; ++d) outer *= array.shape[static_cast<size_t>(d)];
  for (int64_t d = axis + 1; d < rank; ++d) inner *= array.shape[static_cast<size_t>(d)];
  const int64_t n = array.shape[static_cast<size_t>(axis)];
  const auto element = [&](int64_t row, int64_t j) { return (row / inner * n + j) * inner + row % inner; };
  Tensor rows({outer * inner, n});
  for (int64_t i = 0; i < rows.size(); ++i) rows[i] = array.value(element(i / n, i % n));
  const Operand x(rows);
  const Tensor y = run.engine.softmax(reshape<2>(x, {outer * inner, n}), nullptr);
  Tensor back(array.shape);
  for (int64_t i = 0; i < y.size(); ++i) back[element(i / n, i % n)] = y[i];
  run.expect("y", back);
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention

void run_attention(Run& run) {
  const Case& test = run.test;
  const Operand q(test.input("q")), k(test.input("k")), v(test.input("v"));
  AttentionCall call{as_rank4(q), as_rank4(k), as_rank4(v), {}, test.number("scale")};
  const std::array<int64_t, 4> full{call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2]};

  simdattn::Scoring& scoring = call.scoring;
  scoring.softcap = static_cast<float>(test.number("softcap"));
  scoring.window_left = test.integer("window_left");
  scoring.window_right = test.integer("window_right");
  const std::string& causal = test.word("causal");
  scoring.causal = causal != "none";
  if (causal == "top_left") {
    scoring.offset = 0;
    if (scoring.window_left >= 0 || scoring.window_right >= 0 || test.find_input("alibi_slopes") != nullptr) {
      throw NotExpressed("a causal corner and a window or ALiBi that count positions differently");
    }
  } else if (causal != "none" && causal != "bottom_right") {
    throw CaseError("unknown value of causal: " + causal);
  }
  const std::vector<float> slopes = floats(test.find_input("alibi_slopes"));
  const std::vector<float> sinks = floats(test.find_input("sinks"));
  const std::vector<int32_t> kv_len = integers(test.find_input("kv_len"));
  if (!slopes.empty()) scoring.alibi_slopes = slopes.data();
  if (!sinks.empty()) scoring.sinks = sinks.data();
  if (!kv_len.empty()) scoring.kv_length = kv_len.data();
  Operand bias, mask;
  if (const Array* array = test.find_input("bias")) {
    bias = Operand(*array);
    scoring.bias = broadcast(bias, full).view();
  }
  if (const Array* array = test.find_input("mask")) {
    mask = Operand(*array);
    scoring.keep = broadcast(mask, full).view();
  }

  const AttentionOutputs separate = unfused(run.engine, call);
  run.expect("o", separate.out, "by scores, masked_softmax, weighted_values");
  run.expect("lse", separate.lse, "by scores, masked_softmax, weighted_values");
  const AttentionOutputs fused = run.engine.attention(call);
  run.expect("o", fused.out);
  run.expect("lse", fused.lse);
  if (fused.narrow) run.expect("o", *fused.narrow, "in the input's type", run.stored_as(q.dtype));
}

void run_attention_merge(Run& run) {
  const Operand parts(run.test.input("part_o")), lse(run.test.input("part_lse"));
  const std::vector<int64_t>& s = parts.exact.shape;  // [parts, heads, d]
  const AttentionOutputs merged =
      run.engine.attention_merge(reshape<5>(parts, {s[0], 1, s[1], 1, s[2]}), reshape<4>(lse, {s[0], 1, s[1], 1}));
  run.expect("o", merged.out);
  run.expect("lse", merged.lse);
}

void run_alibi_slopes(Run& run) { run.expect("slopes", run.engine.alibi_slopes(run.test.integer("heads"))); }

/// A mask of ONNX broadcast to `full`; columns that it lacks are masked.
Operand onnx_mask(const Array& array, const std::array<int64_t, 4>& full) {
  Operand mask(array);
  const Slice<4> given = as_rank4(mask);
  if (given.shape[3] == 1 || given.shape[3] >= full[3]) return mask;
  const bool boolean = array.type == Type::kBool;
  Tensor padded({given.shape[0], given.shape[1], given.shape[2], full[3]}, boolean ? 0.0 : -kInf);
  for (const auto [row, j] : indices(padded.size() / full[3], given.shape[3])) {
    padded[row * full[3] + j] = mask.exact[row * given.shape[3] + j];
  }
  return Operand(padded, mask.dtype);
}

void run_onnx_attention(Run& run) {
  const Case& test = run.test;
  Engine& engine = run.engine;
  const Operand q(test.input("Q")), k_now(test.input("K")), v_now(test.input("V"));
  const bool flat = q.exact.shape.size() == 3;  // [B, n, H * d]
  const auto heads = [&](const Operand& x, const char* attribute) {
    if (!flat) return as_rank4(x);
    const int64_t h = test.integer(attribute), n = x.exact.dim(1), d = x.exact.dim(2) / h;
    return Slice<4>{&x, {x.exact.dim(0), h, n, d}, {n * h * d, d, h * d, 1}};
  };
  AttentionCall call{heads(q, "q_num_heads"), heads(k_now, "kv_num_heads"), heads(v_now, "kv_num_heads"), {}, 1};

  Operand k_all, v_all;
  int64_t past = 0;
  if (const Array* past_key = test.find_input("past_key")) {
    const Operand k_past(*past_key), v_past(test.input("past_value"));
    past = k_past.exact.dim(2);
    k_all = engine.append(as_rank4(k_past), call.k);
    v_all = engine.append(as_rank4(v_past), call.v);
    call.k = as_rank4(k_all);
    call.v = as_rank4(v_all);
    run.expect("present_key", k_all.exact);
    run.expect("present_value", v_all.exact);
  }

  const std::array<int64_t, 4> full{call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2]};
  call.scale = test.number("scale", 1.0 / std::sqrt(static_cast<double>(call.q.shape[3])));
  simdattn::Scoring& scoring = call.scoring;
  scoring.softcap = static_cast<float>(test.number("softcap", 0));
  scoring.causal = test.integer("is_causal", 0) != 0;
  scoring.window_left = test.integer("left_window_size", -1);
  scoring.window_right = test.integer("right_window_size", -1);
  scoring.offset = past;
  const std::vector<int32_t> lengths = integers(test.find_input("nonpad_kv_seqlen"));
  if (!lengths.empty()) {
    scoring.kv_length = lengths.data();
    if (past == 0) scoring.offset = simdattn::kBottomRight;
  }
  Operand mask;
  if (const Array* array = test.find_input("attn_mask")) {
    mask = onnx_mask(*array, full);
    (array->type == Type::kBool ? scoring.keep : scoring.bias) = broadcast(mask, full).view();
  }

  const auto shaped = [&](const Tensor& y) { return flat ? token_major(y) : y; };
  Tensor probabilities;
  const AttentionOutputs separate = unfused(engine, call, &probabilities);
  run.expect("Y", shaped(separate.out), "by scores, masked_softmax, weighted_values");
  const AttentionOutputs fused = engine.attention(call);
  run.expect("Y", shaped(fused.out));
  if (fused.narrow) run.expect("Y", shaped(*fused.narrow), "in the input's type");

  // No function returns scores after the cap or the mask; they are ln(p) + lse of a softmax that stops there.
  if (test.find_output("qk_matmul_output") == nullptr) return;
  const int64_t mode = test.integer("qk_matmul_output_mode", 0);
  if (mode == 0) {
    run.expect("qk_matmul_output", engine.scores(call.q, call.k, call.scale), "by scores");
  } else if (mode == 3) {
    run.expect("qk_matmul_output", probabilities, "by scores, masked_softmax");
  } else {
    simdattn::Scoring stage = call.scoring;
    if (mode == 1) {
      stage = {};
      stage.softcap = call.scoring.softcap;
    }
    const Operand raw(engine.scores(call.q, call.k, 1.0));
    Tensor lse;
    Tensor t = engine.masked_softmax(as_rank4(raw), stage, call.scale, &lse);
    for (int64_t i = 0; i < t.size(); ++i) t[i] = std::log(t[i]) + lse[i / t.dim(3)];
    run.expect("qk_matmul_output", t, "by scores, masked_softmax, ln p + lse");
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions

Slice<2> table(const Operand& x) { return reshape<2>(x, {x.exact.dim(0), x.exact.dim(1)}); }

void run_rope_apply(Run& run) {
  const Case& test = run.test;
  const Operand x(test.input("x")), cos(test.input("cos")), sin(test.input("sin"));
  const Slice<4> rows = heads_of_tokens(x);
  simdattn::RopeOptions options;
  options.pairing = pairing(test);
  run.expect("y", token_major(run.engine.rope(rows, table(cos), table(sin), {}, options)));

  // The table of the library in place of the one given, from the frequencies given.
  const std::vector<double> frequencies = Operand(test.input("inv_freq")).exact.data;
  simdattn::RopeTableOptions own;
  own.inv_freq = frequencies;
  own.attention_factor = test.number("attention_factor");
  Tensor c, s;
  run.engine.rope_table(own, 2 * cos.exact.dim(1), {positions_of(test.input("positions"))}, &c, &s);
  const Operand own_cos(c), own_sin(s);
  run.expect("y", token_major(run.engine.rope(rows, table(own_cos), table(own_sin), {}, options)), "with rope_table");
}

/// The configuration of a model; `factors` owns what the options point to.
simdattn::RopeTableOptions rope_options(const Case& test, std::vector<double> (*factors)[2]) {
  using simdattn::RopeType;
  simdattn::RopeTableOptions options;
  const std::string& type = test.word("rope_type");
  if (type == "default") options.rope_type = RopeType::kDefault;
  else if (type == "linear") options.rope_type = RopeType::kLinear;
  else if (type == "dynamic") options.rope_type = RopeType::kDynamic;
  else if (type == "yarn") options.rope_type = RopeType::kYarn;
  else if (type == "llama3") options.rope_type = RopeType::kLlama3;
  else if (type == "longrope") options.rope_type = RopeType::kLongRope;
  else throw NotExpressed("rope_type " + type);
  options.rope_theta = test.number("rope_theta");
  options.factor = test.number("rope_factor", options.factor);
  options.original_max_position_embeddings = test.integer("rope_original_max", 0);
  options.max_position_embeddings = test.integer("rope_max_position", 0);
  options.seq_len = test.integer("rope_seq_len", 0);
  if (test.integer("rope_use_long", 0) != 0) options.seq_len = options.original_max_position_embeddings + 1;
  options.beta_fast = test.number("rope_beta_fast", options.beta_fast);
  options.beta_slow = test.number("rope_beta_slow", options.beta_slow);
  options.mscale = test.number("rope_mscale", options.mscale);
  options.mscale_all_dim = test.number("rope_mscale_all_dim", options.mscale_all_dim);
  options.truncate = test.integer("rope_truncate", 1) != 0;
  options.low_freq_factor = test.number("rope_low_freq_factor", options.low_freq_factor);
  options.high_freq_factor = test.number("rope_high_freq_factor", options.high_freq_factor);
  if (const Array* array = test.find_input("short_factor")) {
    (*factors)[0] = Operand(*array).exact.data;
    options.short_factor = (*factors)[0];
  }
  if (const Array* array = test.find_input("long_factor")) {
    (*factors)[1] = Operand(*array).exact.data;
    options.long_factor = (*factors)[1];
  }
  return options;
}

void run_rope_table(Run& run) {
  const Case& test = run.test;
  const int64_t r = test.integer("rotary_dim");
  std::vector<double> factors[2];
  simdattn::RopeTableOptions options = rope_options(test, &factors);
  const std::vector<std::vector<int64_t>> positions{positions_of(test.input("positions"))};
  Tensor cos, sin;
  run.engine.rope_table(options, r, positions, &cos, &sin);
  run.expect("cos", cos, "", run.stored_as(simdattn::DType::kF32));
  run.expect("sin", sin, "", run.stored_as(simdattn::DType::kF32));
  run.expect("inv_freq", run.engine.rope_frequencies(options, r));

  options.f32_angles = true;
  run.expect("inv_freq_f32", run.engine.rope_frequencies(options, r), "with f32_angles");

  // A caller who has the frequencies in f32, as a model's file may hold them, gets their exact cosines.
  const Output* frequencies_f32 = test.find_output("inv_freq_f32");
  if (frequencies_f32 == nullptr) return;
  const std::vector<double> frequencies = Operand(frequencies_f32->array).exact.data;
  simdattn::RopeTableOptions given;
  given.inv_freq = frequencies;
  given.attention_factor = test.number("attention_factor");
  run.engine.rope_table(given, r, positions, &cos, &sin);
  run.expect("cos_from_f32_inv_freq", cos, "from inv_freq", run.stored_as(simdattn::DType::kF32));
  run.expect("sin_from_f32_inv_freq", sin, "from inv_freq", run.stored_as(simdattn::DType::kF32));
}

void run_rope_mrope(Run& run) {
  const Case& test = run.test;
  const Array& thw = test.input("positions_thw");
  const auto sections = test.attributes.find("sections");
  if (sections == test.attributes.end() || sections->second.numbers.size() > 4) throw CaseError("sections");
  simdattn::RopeTableOptions options;
  options.rope_theta = test.number("rope_theta");
  for (size_t a = 0; a < sections->second.numbers.size(); ++a) {
    options.mrope_section[a] = static_cast<int64_t>(sections->second.numbers[a]);
  }
  const std::string& layout = test.word("section_layout");
  if (layout == "contiguous") options.mrope_layout = simdattn::MropeLayout::kContiguous;
  else if (layout == "interleaved") options.mrope_layout = simdattn::MropeLayout::kInterleaved;
  else throw NotExpressed("section_layout " + layout);
  std::vector<std::vector<int64_t>> positions(static_cast<size_t>(thw.shape[1]));
  for (int64_t i = 0; i < thw.size(); ++i) positions[static_cast<size_t>(i % thw.shape[1])].push_back(thw.integer(i));

  Tensor c, s;
  run.engine.rope_table(options, test.integer("rotary_dim"), positions, &c, &s);
  run.expect("cos", c, "", run.stored_as(simdattn::DType::kF32));
  run.expect("sin", s, "", run.stored_as(simdattn::DType::kF32));
  const Operand x(test.input("x")), cos(c), sin(s);
  simdattn::RopeOptions rotation;
  rotation.pairing = pairing(test);
  run.expect("y", token_major(run.engine.rope(heads_of_tokens(x), table(cos), table(sin), {}, rotation)));
}

void run_onnx_rotary_embedding(Run& run) {
  const Case& test = run.test;
  const Operand x(test.input("input")), cos(test.input("cos_cache")), sin(test.input("sin_cache"));
  const bool flat = x.exact.shape.size() == 3;  // [B, n, H * d]
  Slice<4> rows = as_rank4(x);
  if (flat) {
    const int64_t h = test.integer("num_heads"), n = x.exact.dim(1), d = x.exact.dim(2) / h;
    rows = {&x, {x.exact.dim(0), h, n, d}, {n * h * d, d, h * d, 1}};
  }
  simdattn::RopeOptions options;
  if (test.integer("interleaved", 0) != 0) options.pairing = simdattn::RopePairing::kInterleaved;
  std::vector<int64_t> positions;
  if (const Array* ids = test.find_input("position_ids")) {
    positions = positions_of(*ids);
  } else {
    // The caches are [B, n, r/2] then, a row of its own for every token.
    for (int64_t i = 0; i < rows.shape[0] * rows.shape[2]; ++i) positions.push_back(i);
  }
  const int64_t pairs = cos.exact.shape.back(), cached = cos.exact.size() / pairs;
  if (const int64_t r = test.integer("rotary_embedding_dim", 0); r != 0 && r != 2 * pairs)
    throw CaseError("cache width");
  const Tensor y =
      run.engine.rope(rows, reshape<2>(cos, {cached, pairs}), reshape<2>(sin, {cached, pairs}), positions, options);
  run.expect("output", flat ? token_major(y) : y);
}

void run_sinusoidal(Run& run) {
  run.expect("pe", run.engine.sinusoidal_table(run.test.integer("d_model"), positions_of(run.test.input("positions"))),
             "", run.stored_as(simdattn::DType::kF32));
}

// ---------------------------------------------------------------------------------------------------------------------
// Worked examples of introductory texts

void run_attention_weights(Run& run) {
  const Operand m(run.test.input("m"));
  const Operand raw(run.engine.scores(as_rank4(m), as_rank4(m), run.test.number("scale")));
  run.expect("probs", run.engine.masked_softmax(as_rank4(raw), {}, 1.0, nullptr));
}

void run_attention_with_additive_mask(Run& run) {
  const Case& test = run.test;
  if (test.word("mask_placement") != "outside_scale") throw NotExpressed("a mask that is scaled");
  const Operand q(test.input("q")), k(test.input("k")), v(test.input("v")), m(test.input("m"));
  AttentionCall call{as_rank4(q), as_rank4(k), as_rank4(v), {}, test.number("scale")};
  call.scoring.bias = as_rank4(m).view();
  run.expect("o", unfused(run.engine, call).out, "by scores, masked_softmax, weighted_values");
  run.expect("o", run.engine.attention(call).out);
}

void run_weighted_sum_rows(Run& run) {
  const Operand p(run.test.input("p")), v(run.test.input("v"));
  run.expect("o", run.engine.weighted_values(as_rank4(p), as_rank4(v)));
}

void run_kv_cache_example(Run& run) {
  const Case& test = run.test;
  Engine& engine = run.engine;
  const bool step = test.find_input("k_cache") != nullptr;  // one more token for a cache
  const Operand x(test.input(step ? "x4" : "x"));
  const Operand q(product(engine, x, Operand(test.input("w_q"))));
  Operand k(product(engine, x, Operand(test.input("w_k"))));
  Operand v(product(engine, x, Operand(test.input("w_v"))));
  if (step) {
    k = engine.append(as_rank4(Operand(test.input("k_cache"))), as_rank4(k));
    v = engine.append(as_rank4(Operand(test.input("v_cache"))), as_rank4(v));
  }
  AttentionCall call{as_rank4(q), as_rank4(k), as_rank4(v), {}, test.number("scale")};
  call.scoring.causal = true;
  const Tensor o = engine.attention(call).out;
  if (step) {
    run.expect("o4", o);
  } else {
    run.expect("q", q.exact, "by weighted_values");
    run.expect("k", k.exact, "by weighted_values");
    run.expect("v", v.exact, "by weighted_values");
    run.expect("o", o);
  }
}

void run_self_attention(Run& run) {
  const Case& test = run.test;
  const Array& permutation = test.input("permutation");
  const Tensor x = Operand(test.input("x")).exact;
  Tensor permuted(x.shape);
  for (int64_t i = 0; i < x.dim(0); ++i) {
    for (int64_t d = 0; d < x.dim(1); ++d) permuted.at({i, d}) = x.at({permutation.integer(i), d});
  }
  for (const auto& [name, rows] : {std::pair{"o", x}, std::pair{"o_permuted", permuted}}) {
    const Operand tokens(rows);
    const Operand q(product(run.engine, tokens, Operand(test.input("w_q"))));
    const Operand k(product(run.engine, tokens, Operand(test.input("w_k"))));
    const Operand v(product(run.engine, tokens, Operand(test.input("w_v"))));
    run.expect(name, run.engine.attention({as_rank4(q), as_rank4(k), as_rank4(v), {}, test.number("scale")}).out);
  }
}

void run_rope_relative(Run& run) {
  const Case& test = run.test;
  const int64_t d = test.integer("d");
  const Operand q(test.input("q")), k(test.input("k"));
  const Array& pairs = test.input("position_pairs");
  simdattn::RopeOptions options;
  options.pairing = pairing(test);
  const auto rotated = [&](const Operand& x, int64_t position) {
    Tensor c, s;
    simdattn::RopeTableOptions frequencies;
    frequencies.rope_theta = test.number("rope_theta");
    run.engine.rope_table(frequencies, d, {{position}}, &c, &s);
    const Operand cos(c), sin(s);
    return Operand(run.engine.rope(as_rank4(x), table(cos), table(sin), {}, options));
  };
  Tensor dot({pairs.shape[0]});
  for (int64_t i = 0; i < dot.size(); ++i) {
    const Operand a = rotated(q, pairs.integer(2 * i)), b = rotated(k, pairs.integer(2 * i + 1));
    dot[i] = run.engine.scores(as_rank4(a), as_rank4(b), 1.0)[0];
  }
  // In f32, with u = 2^-24: an input is rounded (u), a cosine is within 1 ulp (2u), the rotation rounds twice (2u), so
  // an element of a rotated pair is off by 5u of at most |x0| + |x1|; the dot product adds 6u (its published bound).
  const auto pair_sum = [](const Tensor& x, int64_t i) {
    return std::fabs(x[i / 2 * 2]) + std::fabs(x[i / 2 * 2 + 1]);
  };
  double magnitude = 0;
  for (int64_t i = 0; i < d; ++i) magnitude += pair_sum(q.exact, i) * pair_sum(k.exact, i);
  if (options.pairing != simdattn::RopePairing::kInterleaved) throw NotExpressed("rope_relative with half pairing");
  run.expect("dot", dot, "", run.f32_arithmetic(17 * kUnitF32 * magnitude));
}

void run_rope_frequencies(Run& run) {
  const int64_t d = run.test.integer("d");
  run.expect("theta_from_0", run.engine.rope_frequencies({}, d));
  // One text counts from 1: its frequencies are those of two more dimensions at a base that makes up for it.
  simdattn::RopeTableOptions shifted;
  shifted.rope_theta = std::pow(10000.0, static_cast<double>(d + 2) / static_cast<double>(d));
  Tensor from_1 = run.engine.rope_frequencies(shifted, d + 2);
  from_1.data.erase(from_1.data.begin());
  run.expect("theta_from_1", from_1);
}

void run_sinusoidal_shift(Run& run) {
  const int64_t d = run.test.integer("d"), t = run.test.integer("t"), delta = run.test.integer("delta");
  run.expect("p_t_plus_delta", run.engine.sinusoidal_table(d, {t + delta}), "by sinusoidal_table",
             run.stored_as(simdattn::DType::kF32));
  // (sin, cos) at t rotated by the negative angle of delta. In f32: p_t, cosine and sine are each off by half an ulp, a
  // product and the sum are rounded, all of terms |x0 c| + |x1 s| <= 1, and the result is rounded once more.
  Tensor c, s;
  run.engine.rope_table({}, d, {{delta}}, &c, &s);
  const Operand p(run.engine.sinusoidal_table(d, {t})), cos(c), sin(s);
  simdattn::RopeOptions options;
  options.pairing = simdattn::RopePairing::kInterleaved;
  options.inverse = true;
  run.expect("p_t_plus_delta", run.engine.rope(as_rank4(p), table(cos), table(sin), {}, options), "by rope",
             run.f32_arithmetic(4 * kUnitF32));
}

void run_generate_greedy(Run&) { throw NotExpressed("run by the test of examples/llama2_generate"); }

struct Op {
  const char* name;
  void (*run)(Run&);
};
constexpr Op kOps[] = {
    {"scores", run_scores},
    {"softmax", run_softmax},
    {"masked_softmax", run_masked_softmax},
    {"weighted_sum", run_weighted_sum},
    {"Softmax", run_onnx_softmax},
    {"attention", run_attention},
    {"attention_merge", run_attention_merge},
    {"alibi_slopes", run_alibi_slopes},
    {"Attention", run_onnx_attention},
    {"rope_apply", run_rope_apply},
    {"rope_table", run_rope_table},
    {"rope_mrope", run_rope_mrope},
    {"RotaryEmbedding", run_onnx_rotary_embedding},
    {"sinusoidal_position_encoding", run_sinusoidal},
    {"attention_weights", run_attention_weights},
    {"attention_with_additive_mask", run_attention_with_additive_mask},
    {"weighted_sum_rows", run_weighted_sum_rows},
    {"kv_cache_example", run_kv_cache_example},
    {"self_attention", run_self_attention},
    {"rope_relative", run_rope_relative},
    {"rope_frequencies", run_rope_frequencies},
    {"sinusoidal_shift", run_sinusoidal_shift},
    {"generate_greedy", run_generate_greedy},
};

/// Its node tests follow ONNX up to release 1.20, which added the mask before the soft cap: they must not pass.
constexpr const char* kSupersededGroup = "onnx_attention_1_20";

// ---------------------------------------------------------------------------------------------------------------------
// The program

struct Options {
  std::string directory;
  std::string target;
  std::string filter;
  bool reference = false;
};

struct Totals {
  int passed = 0;
  int failed = 0;
  int different = 0;                                     // as expected of the superseded group
  std::map<std::string, std::set<std::string>> skipped;  // reason: cases
};

void run_case(const std::string& directory, const IndexEntry& entry, Engine& engine, Totals* totals) {
  const auto line = [&](const char* verdict, const std::string& rest) {
    std::printf("%s %s %s %s\n", entry.id.c_str(), engine.name().c_str(), verdict, rest.c_str());
  };
  const Op* op = nullptr;
  for (const Op& candidate : kOps) {
    if (entry.op == candidate.name) op = &candidate;
  }
  const std::string group = entry.id.substr(0, entry.id.find('/'));
  if (op == nullptr) {
    totals->skipped["group " + group + ", op " + entry.op + ": unknown to this program"].insert(entry.id);
    line("not-run", "op " + entry.op + " is unknown to this program");
    return;
  }
  Outcome outcome;
  try {
    const Case test = read_case(directory, entry.id);
    Run run(test, engine);
    try {
      op->run(run);
      run.finish();
    } catch (const EngineError& error) {
      run.outcome.failures.push_back({"", error.what()});
    }
    outcome = run.outcome;
  } catch (const NotExpressed& reason) {
    totals->skipped["group " + group + ", op " + entry.op + ": " + reason.what()].insert(entry.id);
    line("not-run", reason.what());
    return;
  } catch (const std::exception& error) {  // a case that contradicts itself
    outcome.failures.push_back({"", error.what()});
  }
  std::string rest = "worst " + text(outcome.worst) + " (" + outcome.where + ")";
  for (const Failure& failure : outcome.failures) rest += "; " + failure.sentence;
  if (group == kSupersededGroup) {
    bool different = false, otherwise_wrong = false;
    for (const Failure& failure : outcome.failures) {
      different = different || failure.output == "Y";
      otherwise_wrong = otherwise_wrong || (failure.output != "Y" && failure.output != "qk_matmul_output");
    }
    if (different && !otherwise_wrong) {
      ++totals->different;
      line("differs-as-expected", rest);
      return;
    }
    if (!different) rest += "; Y agrees with an order that ONNX gave up after release 1.20";
    ++totals->failed;
    line("fail", rest);
    return;
  }
  ++(outcome.failures.empty() ? totals->passed : totals->failed);
  line(outcome.failures.empty() ? "pass" : "fail", rest);
}

int run_all(const Options& options) {
  (void)simdattn::request_amx();  // a target the more, where there is AMX
  std::vector<std::unique_ptr<Engine>> engines;
  if (options.reference) {
    engines.push_back(reference_engine());
  } else if (!options.target.empty()) {
    const simdattn::Target* target = nullptr;
    const simdattn::Status status = simdattn::find_target(options.target.c_str(), &target);
    if (!status.ok()) {
      std::fprintf(stderr, "conformance_test: %s: %s\n", options.target.c_str(), status.detail);
      return 2;
    }
    engines.push_back(library_engine(*target));
  } else {
    for (const simdattn::Target* target : simdattn::targets()) {
      if (simdattn::runnable(*target)) engines.push_back(library_engine(*target));
    }
  }

  std::vector<IndexEntry> index;
  for (IndexEntry& entry : read_index(options.directory)) {
    if (entry.id.find(options.filter) != std::string::npos) index.push_back(entry);
  }
  Totals totals;
  for (const auto& engine : engines) {
    for (const IndexEntry& entry : index) run_case(options.directory, entry, *engine, &totals);
  }
  size_t not_run = 0;
  for (const auto& [reason, ids] : totals.skipped) {
    std::printf("not run: %zu of %s\n", ids.size(), reason.c_str());
    not_run += ids.size();
  }
  std::printf("%zu cases, %zu of them not run, on %zu target(s): %d passed, %d failed, %d differ as expected\n",
              index.size(), not_run, engines.size(), totals.passed, totals.failed, totals.different);
  if (totals.passed + totals.failed + totals.different == 0) {
    std::fprintf(stderr, "conformance_test: no case was run\n");
    return 1;
  }
  return totals.failed == 0 ? 0 : 1;
}

int usage() {
  std::fprintf(stderr, "usage: conformance_test [DIRECTORY] [--target NAME] [--filter TEXT] [--reference]\n");
  return 2;
}

int main_with(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--reference") {
      options.reference = true;
    } else if ((argument == "--target" || argument == "--filter") && i + 1 < argc) {
      (argument == "--target" ? options.target : options.filter) = argv[++i];
    } else if (!argument.empty() && argument[0] != '-' && options.directory.empty()) {
      options.directory = argument;
    } else {
      return usage();
    }
  }
  if (options.directory.empty()) {
    if (const char* named = std::getenv("SIMDATTN_CONFORMANCE")) options.directory = named;
  }
  if (options.directory.empty()) {
    if (const char* shared = std::getenv("SIMDATTN_SHARED")) options.directory = std::string(shared) + "/conformance";
  }
  if (options.directory.empty()) options.directory = SIMDATTN_TEST_DATA "/conformance";
  if (!std::filesystem::exists(options.directory + "/index.txt")) {
    std::fprintf(stderr, "conformance_test: no conformance vectors, %s/index.txt does not exist\n",
                 options.directory.c_str());
    return 1;
  }
  return run_all(options);
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  try {
    return conformance::main_with(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance_test: %s\n", error.what());
    return 1;
  }
}
