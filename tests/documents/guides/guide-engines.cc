// docs/guide-engines.md against attention in float64: the engines' arrays are filled here as the engines lay them out.
#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;
using guides::good;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16;

struct Tensor {  // what the page uses of a ggml tensor
  int32_t type;
  int64_t ne[4];
  size_t nb[4];
  int32_t op_params[16];
  const Tensor* src[10];
  void* data;
};
Tensor tensor(void* data, std::array<int64_t, 4> ne, size_t size) {
  Tensor t = {size == 4 ? 0 : 1, {ne[0], ne[1], ne[2], ne[3]}, {}, {}, {}, data};
  t.nb[0] = size;
  for (size_t i = 1; i < 4; ++i) t.nb[i] = t.nb[i - 1] * static_cast<size_t>(ne[i - 1]);
  return t;
}

sa::Status run(const sa::AttentionProblem& problem) {
  sa::Plan plan;
  if (const sa::Status s = sa::attention_plan(problem, &plan); !s.ok()) return s;
  std::vector<char> workspace(plan.workspace_bytes);
  sa::Exec exec;
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  return sa::attention(problem, exec);
}

/// [heads, n, d] as [n, heads, d].
Floats by_token(const Floats& x, int64_t heads, int64_t n, int64_t d) {
  Floats y(x.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(x.begin() + (h * n + i) * d, d, y.begin() + (i * heads + h) * d);
    }
  }
  return y;
}
Floats part(const Floats& x, int64_t first, int64_t n) { return Floats(x.begin() + first, x.begin() + first + n); }

/// A node as `nth` threads run it, one after the other. Two rounds: in the second one each finds the partial results of
/// all, as behind a barrier. Returns the reductions.
int64_t run_node(const Tensor& dst, int nth, const char* what) {
  Tensor shapes[5], no_data = dst;  // as the sizing plan may see it
  for (int i = 0; i < 5; ++i) {
    if (dst.src[i] == nullptr) continue;
    shapes[i] = *dst.src[i];
    shapes[i].data = nullptr;
    no_data.src[i] = &shapes[i];
  }
  no_data.data = nullptr;
  GgmlCall sizes;
  if (!ggml_plan(no_data, &sizes)) guides::refused({}, what);
  std::vector<char> work(ggml_work_bytes(sizes.plan, nth));
  for (int i = 0; i < 2 * nth; ++i) {
    GgmlCall call;
    if (!ggml_plan(dst, &call) || ggml_work_bytes(call.plan, nth) != work.size()) guides::refused({}, what);
    good(ggml_share(call.plan, i % nth, nth, work.data(), [] {}), what);
  }
  return sizes.plan.reduce_tasks;
}

void ggml() {
  constexpr int64_t n = 3, n_kv = 40, seen = 37, padded = 64;
  Floats q = guides::numbers(kHeads * n * kDim, 1), k = guides::numbers(kKvHeads * n_kv * kDim, 2),
         v = guides::numbers(kKvHeads * n_kv * kDim, 3), out(static_cast<size_t>(n * kHeads * kDim));
  Floats sinks = guides::numbers(kHeads, 4);
  // A causal mask with distances, as ggml has it for ALiBi: f16, which holds these integers exactly.
  std::vector<sa::f16> mask(static_cast<size_t>(padded * n_kv), sa::f16{0xFC00});
  const auto distance = [](int64_t i, int64_t j) { return j - (i + seen - n); };
  const uint16_t negative[] = {0x0000, 0xBC00, 0xC000, 0xC200, 0xC400};  // 0, -1, -2, -3, -4
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < seen; ++j) {
      if (distance(i, j) <= 0 && distance(i, j) >= -4) {
        mask[static_cast<size_t>(i * n_kv + j)] = {negative[-distance(i, j)]};
      }
    }
  }
  const Tensor tq = tensor(q.data(), {kDim, n, kHeads, 1}, 4), tk = tensor(k.data(), {kDim, n_kv, kKvHeads, 1}, 4),
               tv = tensor(v.data(), {kDim, n_kv, kKvHeads, 1}, 4), tsinks = tensor(sinks.data(), {kHeads, 1, 1, 1}, 4);
  Tensor tmask = tensor(mask.data(), {n_kv, padded, 1, 1}, 2), dst = tensor(out.data(), {kDim, kHeads, n, 1}, 4);
  float slopes[kHeads];
  ggml_slopes(kHeads, 8.0f, slopes);
  const float expected_slopes[] = {0.25f, 0.0625f, 0.015625f, 0.00390625f};
  guides::near(slopes, expected_slopes, 4, 0, "ggml_slopes");
  const Floats tokens_of_q = by_token(q, kHeads, n, kDim), tokens_of_k = by_token(k, kKvHeads, n_kv, kDim),
               tokens_of_v = by_token(v, kKvHeads, n_kv, kDim);
  const auto with_slopes = [&](int64_t h, int64_t i, int64_t j) {
    const int64_t far = distance(i, j);
    if (j >= seen || far > 0 || far < -4) return -HUGE_VAL;
    return static_cast<double>(far) * static_cast<double>(expected_slopes[h]);
  };

  const float scale = 1 / std::sqrt(static_cast<float>(kDim));
  float params[] = {scale, 8.0f, 0.0f};
  std::memcpy(dst.op_params, params, sizeof params);
  dst.src[0] = &tq;
  dst.src[1] = &tk;
  dst.src[2] = &tv;
  dst.src[3] = &tmask;
  run_node(dst, 2, "ggml");
  guides::near(out, guides::attention(tokens_of_q, tokens_of_k, tokens_of_v, kHeads, kKvHeads, kDim, with_slopes), 1e-5,
               "ggml");

  // A row that the mask hides wholly.
  std::fill_n(mask.begin(), n_kv, sa::f16{0xFC00});
  run_node(dst, 2, "ggml, a hidden row");
  guides::near(part(out, 0, kHeads * kDim), Floats(static_cast<size_t>(kHeads * kDim)), 0, "ggml, a hidden row");

  // Sinks; one head of values for all, so only the first of v's heads is read. Without a mask everything is seen.
  const Tensor one_head = tensor(v.data(), {kDim, n_kv, 1, 1}, 4);
  dst.src[2] = &one_head;
  dst.src[3] = nullptr;
  dst.src[4] = &tsinks;
  run_node(dst, 3, "ggml with sinks");
  Floats twice = part(v, 0, n_kv * kDim);
  twice.insert(twice.end(), twice.begin(), twice.begin() + n_kv * kDim);
  Floats keys = tokens_of_k, values = by_token(twice, kKvHeads, n_kv, kDim);
  keys.resize(keys.size() + kKvHeads * kDim);  // a sink is a key of value 0
  values.resize(keys.size());
  const auto sink = [&](int64_t h, int64_t, int64_t j) {
    return j < n_kv ? 0.0 : static_cast<double>(sinks[static_cast<size_t>(h)]);
  };
  guides::near(out, guides::attention(tokens_of_q, keys, values, kHeads, kKvHeads, kDim, sink), 1e-5,
               "ggml with sinks");

  // Long keys of one query: splits, and so partial results.
  constexpr int64_t many = 4200;
  Floats long_k = guides::numbers(kKvHeads * many * kDim, 17), long_v = guides::numbers(kKvHeads * many * kDim, 18);
  const Tensor q1 = tensor(q.data(), {kDim, 1, kHeads, 1}, 4), k1 = tensor(long_k.data(), {kDim, many, kKvHeads, 1}, 4),
               v1 = tensor(long_v.data(), {kDim, many, kKvHeads, 1}, 4);
  Tensor dst1 = tensor(out.data(), {kDim, kHeads, 1, 1}, 4);
  params[1] = 0;
  std::memcpy(dst1.op_params, params, sizeof params);
  dst1.src[0] = &q1;
  dst1.src[1] = &k1;
  dst1.src[2] = &v1;
  if (run_node(dst1, 2, "ggml, long") == 0) guides::refused({}, "ggml, long: reductions");
  guides::near(part(out, 0, kHeads * kDim),
               guides::attention(part(q, 0, kHeads * kDim), by_token(long_k, kKvHeads, many, kDim),
                                 by_token(long_v, kKvHeads, many, kDim), kHeads, kKvHeads, kDim),
               1e-5, "ggml, long");

  // What falls back.
  const auto falls_back = [](const Tensor& node, const char* what) {
    GgmlCall call;
    if (ggml_plan(node, &call)) guides::refused({}, what);
  };
  Tensor other = tk;
  other.type = 41;  // GGML_TYPE_Q1_0
  dst.src[1] = &other;
  falls_back(dst, "ggml, a type without KvType");
  const Tensor four_heads = tensor(k.data(), {kDim / 2, n_kv, 4, 1}, 4),
               q_half = tensor(q.data(), {kDim / 2, n, kHeads, 1}, 4),
               two_heads = tensor(v.data(), {kDim, n_kv, 2, 1}, 4);
  dst.src[0] = &q_half;
  dst.src[1] = &four_heads;
  dst.src[2] = &two_heads;
  falls_back(dst, "ggml, four heads of keys and two of values");
  dst.src[0] = &tq;
  dst.src[1] = &tk;
  dst.src[2] = &tv;
  tmask.ne[2] = 2;
  dst.src[3] = &tmask;
  falls_back(dst, "ggml, two masks of four heads");
}

/// Two nodes of a layer with a state and n tokens, against the operators' own words.
void ggml_states(int64_t n) {
  constexpr int64_t d = 8, batch = 2, key_heads = 2, width = 4, channels = 37;
  const int64_t d2 = d * d * kHeads * batch, rows = batch * n * kHeads * d;
  Floats q = guides::numbers(batch * n * key_heads * d, 21), k = guides::numbers(batch * n * key_heads * d, 22),
         v = guides::numbers(rows, 23), g = guides::numbers(rows / d, 24), beta = guides::numbers(rows / d, 25),
         s = guides::numbers(d2, 26);
  for (float& x : g) x -= 1;
  Tensor src[6] = {tensor(q.data(), {d, key_heads, n, batch}, 4), tensor(k.data(), {d, key_heads, n, batch}, 4),
                   tensor(v.data(), {d, kHeads, n, batch}, 4),    tensor(g.data(), {1, kHeads, n, batch}, 4),
                   tensor(beta.data(), {1, kHeads, n, batch}, 4), tensor(s.data(), {d, d, kHeads, batch}, 4)};
  for (const int64_t snapshots : {1, 3}) {
    Floats out(static_cast<size_t>(rows + snapshots * d2)), want = out;
    Tensor dst = tensor(out.data(), {d * kHeads, n * batch + snapshots * d * batch, 1, 1}, 4);
    dst.op_params[0] = static_cast<int32_t>(snapshots);
    for (size_t i = 0; i < 6; ++i) dst.src[i] = &src[i];
    sa::LinearAttentionProblem problem;
    if (!ggml_delta_net(dst, &problem)) guides::refused({}, "ggml_delta_net");
    std::vector<char> workspace(sa::linear_attention_workspace(problem));
    good(sa::linear_attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}),
         "gated_delta_net");
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        std::vector<double> state(s.begin() + (b * kHeads + h) * d * d, s.begin() + (b * kHeads + h + 1) * d * d);
        for (int64_t t = 0; t < n; ++t) {
          const int64_t row = (b * n + t) * kHeads + h, key = (b * n + t) * key_heads + h % key_heads;
          for (int64_t j = 0; j < d; ++j) {
            double* const column = state.data() + j * d;
            double read = 0, sum = 0;
            for (int64_t i = 0; i < d; ++i) column[i] *= std::exp(static_cast<double>(g[row]));
            for (int64_t i = 0; i < d; ++i) read += column[i] * k[key * d + i];
            for (int64_t i = 0; i < d; ++i) column[i] += k[key * d + i] * (v[row * d + j] - read) * beta[row];
            for (int64_t i = 0; i < d; ++i) sum += column[i] * q[key * d + i];
            want[row * d + j] = static_cast<float>(sum / std::sqrt(static_cast<double>(d)));
          }
          const int64_t slot = n - 1 - t;
          if (slot < snapshots)
            std::copy(state.begin(), state.end(), want.begin() + rows + slot * d2 + (b * kHeads + h) * d * d);
        }
      }
    }
    guides::near(out, want, 1e-5, "gated_delta_net");
  }
  src[0].ne[3] = 1;
  sa::LinearAttentionProblem problem;
  Tensor dst = tensor(nullptr, {d * kHeads, n, 1, 1}, 4);
  for (size_t i = 0; i < 6; ++i) dst.src[i] = &src[i];
  if (ggml_delta_net(dst, &problem)) guides::refused({}, "ggml_delta_net, one q for all");

  Floats inputs = guides::numbers((width - 1 + n) * channels * batch, 27),
         weight = guides::numbers(width * channels, 28), out(static_cast<size_t>(n * channels * batch)), want = out;
  const Tensor x = tensor(inputs.data(), {width - 1 + n, channels, batch, 1}, 4),
               w = tensor(weight.data(), {width, channels, 1, 1}, 4);
  Tensor conv = tensor(out.data(), {channels, n, batch, 1}, 4);
  conv.src[0] = &x;
  conv.src[1] = &w;
  sa::CausalConvProblem convolution;
  if (!ggml_ssm_conv(conv, &convolution)) guides::refused({}, "ggml_ssm_conv");
  good(sa::causal_conv(convolution), "ssm_conv");
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t j = 0; j < width; ++j) {
          want[(b * n + t) * channels + c] +=
              inputs[(b * channels + c) * (width - 1 + n) + t + j] * weight[c * width + j];
        }
      }
    }
  }
  guides::near(out, want, 1e-5, "ssm_conv");
}

void group_query() {
  constexpr int64_t kBatch = 2, n = 2, capacity = 20;
  const int32_t seqlens_k[kBatch] = {12, 18};
  const Floats q = guides::numbers(kBatch * n * kHeads * kDim, 5),
               k = guides::numbers(kBatch * kKvHeads * capacity * kDim, 6),
               v = guides::numbers(kBatch * kKvHeads * capacity * kDim, 7);
  for (const bool counts_own : {false, true}) {
    Floats out(q.size());
    std::vector<int32_t> lengths;
    const GroupQuery g = {kBatch, n, kHeads, kKvHeads, capacity, kDim, 0, 0, 5, counts_own, nullptr};
    good(run(group_query_attention(g, q.data(), k.data(), v.data(), out.data(), seqlens_k, &lengths)), "group query");
    for (int64_t b = 0; b < kBatch; ++b) {
      const int64_t length = seqlens_k[b] + 1, size = kKvHeads * capacity * kDim;
      const int64_t sees = counts_own ? 5 : 6;  // keys, its own among them
      const Floats want = guides::attention(part(q, b * n * kHeads * kDim, n * kHeads * kDim),
                                            by_token(part(k, b * size, size), kKvHeads, capacity, kDim),
                                            by_token(part(v, b * size, size), kKvHeads, capacity, kDim), kHeads,
                                            kKvHeads, kDim, [&](int64_t, int64_t i, int64_t j) {
                                              const int64_t at = length - n + i;
                                              return j <= at && j > at - sees ? 0.0 : -HUGE_VAL;
                                            });
      guides::near(part(out, b * n * kHeads * kDim, n * kHeads * kDim), want, 1e-5, "group query");
    }
  }
}

void paged() {
  constexpr int64_t kBlock = 16, kPages = 7, kColumns = 3;
  const int32_t table[2 * kColumns] = {4, 0, 6, 2, 5, 1}, starts[] = {0, 1, 4}, lengths[] = {33, 20};
  // Numbers that bf16 holds exactly.
  const auto halves = [](int64_t count, uint32_t seed) {
    std::vector<sa::bf16> x;
    for (const float f : guides::numbers(count, seed)) {
      const float coarse = std::round(f * 64) / 64;
      uint32_t bits = 0;
      std::memcpy(&bits, &coarse, 4);
      x.push_back({static_cast<uint16_t>(bits >> 16)});
    }
    return x;
  };
  const auto wide = [](const std::vector<sa::bf16>& x) {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const uint32_t bits = static_cast<uint32_t>(x[i].bits) << 16;
      std::memcpy(&y[i], &bits, 4);
    }
    return y;
  };
  const auto q = halves(4 * kHeads * kDim, 8), k = halves(kPages * kKvHeads * kBlock * kDim, 9),
             v = halves(kPages * kKvHeads * kBlock * kDim, 10);
  for (const int64_t window : {0, 7}) {
    std::vector<sa::bf16> out(q.size());
    good(run(paged_attention(q.data(), out.data(), k.data(), v.data(), kHeads, kKvHeads, kDim, kBlock, kPages, table,
                             kColumns, starts, lengths, 2, window)),
         "paged");
    for (int64_t s = 0; s < 2; ++s) {
      const auto gathered = [&](const Floats& pool) {
        Floats x(static_cast<size_t>(lengths[s] * kKvHeads * kDim));
        for (int64_t t = 0; t < lengths[s]; ++t) {
          for (int64_t h = 0; h < kKvHeads; ++h) {
            const int64_t page = table[s * kColumns + t / kBlock];
            std::copy_n(pool.begin() + ((page * kKvHeads + h) * kBlock + t % kBlock) * kDim, kDim,
                        x.begin() + (t * kKvHeads + h) * kDim);
          }
        }
        return x;
      };
      const int64_t row = kHeads * kDim, n = starts[s + 1] - starts[s];
      const Floats want =
          guides::attention(part(wide(q), starts[s] * row, n * row), gathered(wide(k)), gathered(wide(v)), kHeads,
                            kKvHeads, kDim, [&](int64_t, int64_t i, int64_t j) {
                              const int64_t at = lengths[s] - n + i;
                              return j <= at && (window == 0 || j > at - window) ? 0.0 : -HUGE_VAL;
                            });
      guides::near(part(wide(out), starts[s] * row, n * row), want, 4e-3, "paged");
    }
  }
}

void static_cache() {
  constexpr int64_t n = 2, capacity = 24, seen = 17;
  const int32_t padding[] = {0, 5};
  const Floats q = guides::numbers(2 * kHeads * n * kDim, 11), k = guides::numbers(2 * kKvHeads * capacity * kDim, 12),
               v = guides::numbers(2 * kKvHeads * capacity * kDim, 13);
  Floats out(q.size());
  good(run(static_cache_attention(q.data(), out.data(), k.data(), v.data(), 2, kHeads, kKvHeads, n, capacity, kDim,
                                  seen, padding)),
       "static cache");
  for (int64_t b = 0; b < 2; ++b) {
    const int64_t rows = kHeads * n * kDim, size = kKvHeads * capacity * kDim;
    const Floats want = guides::attention(
        by_token(part(q, b * rows, rows), kHeads, n, kDim), by_token(part(k, b * size, size), kKvHeads, capacity, kDim),
        by_token(part(v, b * size, size), kKvHeads, capacity, kDim), kHeads, kKvHeads, kDim,
        [&](int64_t, int64_t i, int64_t j) { return j <= seen - n + i && j >= padding[b] ? 0.0 : -HUGE_VAL; });
    guides::near(by_token(part(out, b * rows, rows), kHeads, n, kDim), want, 1e-5, "static cache");
  }
}

void llama2() {
  constexpr int64_t capacity = 30, pos = 21;
  const Floats q = guides::numbers(kHeads * kDim, 14), k = guides::numbers(capacity * kKvHeads * kDim, 15),
               v = guides::numbers(capacity * kKvHeads * kDim, 16);
  Floats xb(q.size());
  good(run(llama2_attention(q.data(), xb.data(), k.data(), v.data(), kHeads, kKvHeads, kDim, capacity, pos)),
       "llama2.c");
  const int64_t seen = (pos + 1) * kKvHeads * kDim;
  guides::near(xb, guides::attention(q, part(k, 0, seen), part(v, 0, seen), kHeads, kKvHeads, kDim), 1e-5, "llama2.c");
}

}  // namespace

int main() {
  ggml();
  for (const int64_t n : {5, 1}) ggml_states(n);
  group_query();
  paged();
  static_cache();
  llama2();
  return 0;
}
