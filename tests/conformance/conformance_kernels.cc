// Ops of the vectors: the unfused kernels and attention.
#include "tests/conformance/conformance_run.h"

namespace conformance {
namespace {

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
  scoring.mask = keep.view();
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
  by_bits.packed_mask = {bits.data(), n, {0, 0, row_bytes}};
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
    scoring.mask = broadcast(mask, full).view();
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
    (array->type == Type::kBool ? scoring.mask : scoring.bias) = broadcast(mask, full).view();
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

}  // namespace

std::vector<Op> kernel_ops() {
  return {
      {"scores", run_scores},
      {"softmax", run_softmax},
      {"masked_softmax", run_masked_softmax},
      {"weighted_sum", run_weighted_sum},
      {"Softmax", run_onnx_softmax},
      {"attention", run_attention},
      {"attention_merge", run_attention_merge},
      {"alibi_slopes", run_alibi_slopes},
      {"Attention", run_onnx_attention},
  };
}

}  // namespace conformance
