// Ops of the vectors: positions, and worked examples of introductory texts.
#include "tests/conformance/conformance_run.h"

namespace conformance {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Positions

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

}  // namespace

std::vector<Op> position_ops() {
  return {
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
}

}  // namespace conformance
