// Calls of the functions that have no stores, as fuzz_interface.cc has them.
#include <cstdint>
#include <cstring>

#include "simdattn/extras.h"
#include "tests/fuzz/fuzz_interface.h"

namespace simdattn::fuzz {

void scores(Call& c, Score score) {
  Input& in = c.in;
  const Heads h = heads(in);
  const int64_t n_q = in.size(0, 5), n_kv = in.size(0, 65), d = in.size(1, 65);
  const bool other = score == Score::kBilinear || score == Score::kAdditive;
  const int64_t d_k = other ? in.size(1, 33) : d, e = in.size(1, 33);
  simdattn_const_view4 q, k;
  simdattn_const_view3 m, wq, wk;
  simdattn_const_view2 w;
  simdattn_view4 out;
  c.shape(q, c.element(), {h.batch, h.all, n_q, d});
  c.shape(k, c.element(), {h.batch, h.kv, n_kv, d_k});
  c.shape(out, DType::kF32, {h.batch, h.all, n_q, n_kv});
  simdattn_score_options o;
  o.scale.given = in.one_in(2);
  o.scale.value = 0.25f;
  if (score == Score::kProducts)
    o.arithmetic = in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  c.breakable(&o.scale.value, kFloat);
  c.breakable(&o.arithmetic, kEnum);
  c.breakable(&o.struct_size, kStructSize);
  const bool has_wq = in.one_in(2), has_wk = in.one_in(2);
  if (score == Score::kBilinear) c.shape(m, c.element(), {h.all, d, d_k});
  if (score == Score::kAdditive) {
    const int64_t hidden = !has_wq ? d : !has_wk ? d_k : e;
    c.shape(w, DType::kF32, {h.all, hidden});
    if (has_wq) c.shape(wq, c.element(), {h.all, hidden, d});
    if (has_wk) c.shape(wk, c.element(), {h.kv, hidden, d_k});
  }
  c.break_some();
  c.memory_of_all(q, k, out);
  if (score == Score::kBilinear) c.memory_of(m);
  if (score == Score::kAdditive) {
    c.memory_of(w);
    if (has_wq) c.memory_of(wq);
    if (has_wk) c.memory_of(wk);
  }
  switch (score) {
    case Score::kProducts:
      c.workspace(simdattn_scores_workspace(o.arithmetic, q.shape[3]));
      c.compare([&](const simdattn_exec& exec) { return simdattn_scores(&q, &k, &out, &o, &exec); });
      break;
    case Score::kGaussian:
      c.compare([&](const simdattn_exec& exec) { return simdattn_gaussian_scores(&q, &k, &out, &o, &exec); });
      break;
    case Score::kBilinear:
      c.workspace(simdattn_bilinear_scores_workspace(q.shape[3], k.shape[3]));
      c.compare([&](const simdattn_exec& exec) { return simdattn_bilinear_scores(&q, &m, &k, &out, &o, &exec); });
      break;
    case Score::kAdditive:
      c.workspace(simdattn_additive_scores_workspace(has_wq ? q.shape[3] : 0, has_wk ? k.shape[3] : 0, w.shape[1]));
      c.compare([&](const simdattn_exec& exec) {
        return simdattn_additive_scores(&q, &k, &w, &out, has_wq ? &wq : nullptr, has_wk ? &wk : nullptr, &exec);
      });
      break;
  }
}

void softmax(Call& c) {
  const int64_t rows = c.in.size(0, 9), n = c.in.size(0, 257);
  simdattn_const_view2 x;
  simdattn_view2 out;
  simdattn_view1 lse;
  c.shape(x, DType::kF32, {rows, n});
  c.shape(out, DType::kF32, {rows, n});
  c.shape(lse, DType::kF32, {rows});
  const bool in_place = c.in.one_in(4), with_lse = !c.in.one_in(4);
  c.break_some();
  c.memory_of(x, in_place);
  c.memory_of(out);
  if (with_lse) c.memory_of(lse);
  if (in_place) {
    // Exactly x, or near it.
    const int64_t off = c.in.one_in(8) && x.shape[1] > 0 ? 4 : 0;
    if (off == 0) out.shape = x.shape;
    out.stride = x.stride;
    out.data = const_cast<char*>(static_cast<const char*>(x.data)) + off;
    if (off != 0) out.shape[1] = x.shape[1] - 1;
  }
  c.compare([&](const simdattn_exec& exec) { return simdattn_softmax(&x, &out, with_lse ? &lse : nullptr, &exec); });
}

void Scoring::choose(Call& c, int64_t batch, int64_t all, int64_t n_q, int64_t n_kv) {
  Input& in = c.in;
  s.scale.given = in.one_in(2);
  s.scale.value = 0.5f;
  if (in.one_in(4)) s.softcap = 3.0f;
  s.causal = in.one_in(2);
  if (in.one_in(3)) s.offset = in.below(40) - 10;
  if (in.one_in(4)) s.window_left = in.below(40);
  if (in.one_in(4)) s.window_right = in.below(40);
  if (in.one_in(6)) s.chunk = 1 + in.below(40);
  present = in.byte();
  if (in.one_in(4)) c.shape(s.bias, c.element(), {in.one_in(3) ? 1 : batch, in.one_in(3) ? 1 : all, n_q, n_kv});
  if (in.one_in(4)) c.shape(s.mask, DType::kU8, {in.one_in(3) ? 1 : batch, in.one_in(3) ? 1 : all, n_q, n_kv});
  if (in.one_in(4)) {
    s.packed_mask.columns = n_kv == 0 ? 0 : in.below(n_kv + 1);
    const int64_t row = (s.packed_mask.columns + 7) / 8;
    s.packed_mask.stride[2] = row;
    s.packed_mask.stride[1] = in.one_in(2) ? 0 : row * n_q;
    s.packed_mask.stride[0] = in.one_in(2) ? 0 : row * n_q * all;
    c.breakable(&s.packed_mask.columns, kSize);
    for (int64_t& n : s.packed_mask.stride) c.breakable(&n, kSize);
  }
  c.breakable(&s.struct_size, kStructSize);
  c.breakable(&s.scale.value, kFloat);
  c.breakable(&s.softcap, kFloat);
  for (int64_t* n : {&s.offset, &s.window_left, &s.window_right, &s.chunk}) c.breakable(n, kSize);
  c.breakable(&s.reserved[1], kSize);
}
void Scoring::give_memory(Call& c, int64_t sequences, int64_t mask_batch, int64_t all, int64_t n_q, int64_t n_kv) {
  if (present & 1) s.offsets = c.numbers(sequences, -5, 30);
  if (present & 2) s.prefix_end = c.numbers(sequences, 0, 30);
  if (present & 4) s.kv_start = c.numbers(sequences, 0, 20);
  if (present & 8) s.kv_length = c.numbers(sequences, 0, n_kv < 0 || n_kv > 2000 ? 0 : n_kv);
  if (present & 16) s.alibi_slopes = c.floats(all);
  if (present & 32) s.sinks = c.floats(all);
  if (s.bias.shape[3] != 0) {
    c.memory_of(s.bias);
    if (present & 64) s.bias_scale = c.floats(all);
  }
  if (s.mask.shape[3] != 0) c.memory_of(s.mask);
  if (s.packed_mask.columns > 0 && s.packed_mask.columns <= 4096 && mask_batch >= 0 && all >= 0 && n_q >= 0 &&
      mask_batch <= 64 && all <= 64 && n_q <= 64) {
    Call::Extent extent;
    bool skip = false;
    const int64_t counts[] = {mask_batch, all, n_q};
    for (size_t i = 0; i < 3; ++i) extent.add(counts[i], s.packed_mask.stride[i], 1, &skip);
    if (skip && !extent.refused) c.memory.skip = true;
    const int64_t bytes =
        extent.refused || c.memory.skip ? 1 : extent.high - extent.low + (s.packed_mask.columns + 7) / 8;
    unsigned char* const data = c.memory.add(bytes, false, false);
    if (c.memory.skip) return;
    c.memory.fill(data, bytes, 1);
    s.packed_mask.data = data - (extent.refused ? 0 : extent.low);
  }
}

void masked_softmax(Call& c) {
  const int64_t batch = c.in.size(1, 2), all = c.in.size(1, 4), n_q = c.in.size(0, 5), n_kv = c.in.size(0, 100);
  simdattn_const_view4 x;
  simdattn_view4 out;
  simdattn_view3 lse;
  c.shape(x, DType::kF32, {batch, all, n_q, n_kv});
  c.shape(out, DType::kF32, {batch, all, n_q, n_kv});
  c.shape(lse, DType::kF32, {batch, all, n_q});
  Scoring scoring;
  scoring.choose(c, batch, all, n_q, n_kv);
  c.break_some();
  c.memory_of_all(x, out, lse);
  scoring.give_memory(c, x.shape[0], x.shape[0], x.shape[1], x.shape[2], x.shape[3]);
  c.compare([&](const simdattn_exec& exec) { return simdattn_masked_softmax(&x, &out, &scoring.s, &lse, &exec); });
}

void weighted_values(Call& c) {
  const Heads h = heads(c.in);
  const int64_t n_q = c.in.size(0, 5), n_kv = c.in.size(0, 65), d = c.in.size(1, 65);
  simdattn_const_view4 p, v;
  simdattn_view4 out;
  c.shape(p, DType::kF32, {h.batch, h.all, n_q, n_kv});
  c.shape(v, c.element(), {h.batch, h.kv, n_kv, d});
  c.shape(out, c.element(), {h.batch, h.all, n_q, d});
  simdattn_value_options o;
  o.arithmetic = c.in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  c.breakable(&o.arithmetic, kEnum);
  c.breakable(&o.struct_size, kStructSize);
  c.break_some();
  c.memory_of_all(p, v, out);
  c.workspace(simdattn_weighted_values_workspace(o.arithmetic, v.shape[3]));
  c.compare([&](const simdattn_exec& exec) { return simdattn_weighted_values(&p, &v, &out, &o, &exec); });
}

void elementwise(Call& c) {
  const bool add = c.in.one_in(2);
  const int64_t batch = c.in.size(1, 2), all = c.in.size(1, 3), n = c.in.size(0, 9), d = c.in.size(1, 129);
  simdattn_const_view4 x, p;
  simdattn_view4 out;
  c.shape(x, c.element(), {batch, all, n, d});
  c.shape(p, c.element(), {batch, all, n, d});
  c.shape(out, c.element(), {batch, all, n, d});
  int64_t block = c.in.of<int64_t>({0, 1, 2, 4, 8, 16, 32, 64});
  c.breakable(&block, kSize);
  c.break_some();
  c.memory_of_all(x, p, out);
  c.compare([&](const simdattn_exec& exec) {
    return add ? simdattn_add_rows(&x, &p, &out, &exec) : simdattn_hadamard(&x, &out, block, &exec);
  });
}

void merge(Call& c) {
  const int64_t parts = c.in.size(0, 4), batch = c.in.size(1, 2), all = c.in.size(1, 3), n = c.in.size(0, 4),
                d = c.in.size(1, 65);
  simdattn_const_view5 x;
  simdattn_const_view4 part_lse;
  simdattn_view4 out;
  simdattn_view3 lse;
  c.shape(x, c.element(), {parts, batch, all, n, d});
  c.shape(part_lse, DType::kF32, {parts, batch, all, n});
  c.shape(out, c.element(), {batch, all, n, d});
  c.shape(lse, DType::kF32, {batch, all, n});
  const bool with_lse = c.in.one_in(2), with_sinks = c.in.one_in(2);
  c.break_some();
  c.memory_of_all(x, part_lse, out);
  if (with_lse) c.memory_of(lse);
  const float* const sinks = with_sinks ? c.floats(x.shape[2]) : nullptr;
  c.compare([&](const simdattn_exec& exec) {
    return simdattn_attention_merge(&x, &part_lse, &out, with_lse ? &lse : nullptr, sinks, &exec);
  });
}

// ---- Rotary positions -----------------------------------------------------------------------------------------------

namespace {
struct Table {
  simdattn_rope_table_options o;
  int64_t present = 0;
  void choose(Call& c, int64_t pairs) {
    Input& in = c.in;
    o.rope_type = static_cast<simdattn::RopeType>(in.below(7));
    o.factor = in.of({0.0, 1.0, 2.5, 8.0});
    o.original_max_position_embeddings = in.of<int64_t>({0, 32, 4096});
    o.max_position_embeddings = in.of<int64_t>({0, 64, 8192});
    o.seq_len = in.of<int64_t>({0, 10, 100000});
    o.truncate = !in.one_in(2);
    o.f32_angles = in.one_in(2);
    o.partial_rotary_factor = in.of({1.0, 0.5, 0.25});
    o.mscale = in.of({0.0, 1.0});
    o.mscale_all_dim = in.of({0.0, 0.7});
    o.attention_factor.given = in.one_in(3);
    o.attention_factor.value = 1.25;
    o.mrope_layout = static_cast<simdattn::MropeLayout>(in.below(3));
    if (in.one_in(3)) {
      o.mrope_section[0] = pairs / 3;
      o.mrope_section[1] = pairs / 3;
      o.mrope_section[2] = pairs - 2 * (pairs / 3);
    }
    present = in.byte();
    for (simdattn_doubles* list : {&o.short_factor, &o.long_factor, &o.freq_factors, &o.inv_freq}) list->size = pairs;
    c.breakable(&o.struct_size, kStructSize);
    c.breakable(&o.rope_type, kEnum);
    c.breakable(&o.mrope_layout, kEnum);
    for (double* x : {&o.rope_theta, &o.factor, &o.beta_fast, &o.beta_slow, &o.mscale, &o.mscale_all_dim,
                      &o.low_freq_factor, &o.high_freq_factor, &o.partial_rotary_factor, &o.attention_factor.value}) {
      c.breakable(x, kDouble);
    }
    for (int64_t* x : {&o.original_max_position_embeddings, &o.max_position_embeddings, &o.seq_len})
      c.breakable(x, kSize);
    for (int64_t& x : o.mrope_section) c.breakable(&x, kSize);
  }
  void give_memory(Call& c) {
    int64_t bit = 1;
    for (simdattn_doubles* list : {&o.short_factor, &o.long_factor, &o.freq_factors, &o.inv_freq}) {
      const bool there = (present & bit) != 0 || (o.rope_type == simdattn::RopeType::kLongRope && bit < 4);
      bit *= 2;
      if (!there) {
        *list = {};
        continue;
      }
      double* const data = reinterpret_cast<double*>(c.memory.add(8 * list->size, false, false));
      if (c.memory.skip) return;
      for (int64_t i = 0; i < list->size; ++i)
        data[i] = c.in.of({1.0, 0.5, 2.0, 1.5, 1.0, 0.25, -1.0, __builtin_nan("")});
      list->data = data;
    }
  }
};
}  // namespace

void rope(Call& c, bool direct) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), all = in.size(1, 4), n = in.size(0, 9), d = in.size(1, 66),
                rows = in.size(1, 20);
  int64_t pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_const_view4 x;
  simdattn_view4 out;
  simdattn_const_view2 cos, sin;
  simdattn_positions at;
  c.shape(x, c.element(), {batch, all, n, d});
  c.shape(out, c.element(), {batch, all, n, d});
  simdattn_rope_options o;
  o.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
  o.inverse = in.one_in(2);
  if (in.one_in(4)) o.first_dim = d - 2 * pairs;
  if (in.one_in(4)) at.start = in.below(12);
  c.breakable(&o.struct_size, kStructSize);
  c.breakable(&o.pairing, kEnum);
  c.breakable(&o.first_dim, kSize);
  c.breakable(&at.start, kSize);
  c.breakable(&o.norm, kEnum);
  const bool with_positions = in.one_in(2);
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  Table table;
  if (direct) {
    table.choose(c, pairs);
    c.breakable(&pairs, kSize);
    if (with_positions) c.shape(at.rows, index, {batch, in.one_in(3) ? 3 : 1, n});
  } else {
    c.shape(cos, DType::kF32, {rows, pairs});
    c.shape(sin, DType::kF32, {rows, pairs});
    if (with_positions) c.shape(at.rows, index, {1, batch, n});
  }
  c.break_some();
  c.memory_of_all(x, out);
  if (direct) {
    table.give_memory(c);
    if (with_positions) c.positions(at.rows, 100);
    c.workspace(simdattn_rope_direct_workspace(pairs));
    c.compare(
        [&](const simdattn_exec& exec) { return simdattn_rope_direct(&x, pairs, &table.o, &at, &out, &o, &exec); });
  } else {
    c.memory_of_all(cos, sin);
    if (with_positions) c.positions(at.rows, cos.shape[0]);
    c.compare([&](const simdattn_exec& exec) { return simdattn_rope(&x, &cos, &sin, &at, &out, &o, &exec); });
  }
}

void tables(Call& c) {
  Input& in = c.in;
  int64_t pairs = in.size(0, 33), rows = in.size(0, 9), first = in.below(30), count = in.size(1, 40);
  Table table;
  table.choose(c, pairs);
  simdattn_view2 cos, sin, out;
  simdattn_const_view2 positions;
  simdattn_const_view1 at;
  const int64_t which = in.below(4);
  const bool with_positions = in.one_in(2);
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  double base = 10000;
  c.breakable(&first, kSize);
  if (which == 0) {
    c.shape(cos, DType::kF32, {rows, pairs});
    c.shape(sin, DType::kF32, {rows, pairs});
    if (with_positions) c.shape(positions, index, {in.one_in(3) ? 3 : 1, rows});
  } else if (which == 1) {
    c.shape(out, DType::kF32, {rows, 2 * pairs});
    c.breakable(&base, kDouble);
    if (with_positions) c.shape(at, index, {rows});
  } else if (which == 2) {
    c.breakable(&pairs, kSize);
  } else {
    c.breakable(&count, kSize);
  }
  c.break_some();
  table.give_memory(c);
  switch (which) {
    case 0:
      c.memory_of_all(cos, sin);
      if (with_positions) c.positions(positions, 200);
      c.compare([&](const simdattn_exec&) {
        return simdattn_rope_table(&cos, &sin, &table.o, with_positions ? &positions : nullptr, first);
      });
      break;
    case 1:
      c.memory_of(out);
      if (with_positions) c.positions(at, 200);
      c.compare([&](const simdattn_exec&) {
        return simdattn_sinusoidal_table(&out, base, with_positions ? &at : nullptr, first);
      });
      break;
    case 2: {
      if (pairs > 1000 && pairs <= kMaxSize) return;
      double* const to = reinterpret_cast<double*>(c.memory.add(pairs < 0 || pairs > 1000 ? 8 : 8 * pairs, true, true));
      double factor = 0;
      c.compare([&](const simdattn_exec&) { return simdattn_rope_frequencies(to, pairs, &factor, &table.o); });
      break;
    }
    default: {
      if (count > 1000 && count <= kMaxSize) return;
      float* const to = reinterpret_cast<float*>(c.memory.add(count < 0 || count > 1000 ? 4 : 4 * count, true, true));
      c.compare([&](const simdattn_exec&) { return simdattn_alibi_slopes(count, to); });
    }
  }
}

}  // namespace simdattn::fuzz
