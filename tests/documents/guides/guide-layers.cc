// docs/guide-layers.md: both models against attention over copies of the listed keys.
#include <algorithm>

#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;

/// Numbers that bf16 holds, so that the caches have them as they are.
Floats short_numbers(int64_t n, uint32_t seed) {
  Floats x = guides::numbers(n, seed);
  for (float& f : x) f = static_cast<float>(static_cast<int>(f * 64)) / 64;
  return x;
}

void check_model(Selecting m, int64_t tokens) {
  SelectingLayer layer(m);
  const Floats k = short_numbers(m.kv_heads * tokens * m.d_qk, 1), v = short_numbers(m.kv_heads * tokens * m.d_v, 2),
               index_k = short_numbers(tokens * m.index_dim, 3);
  layer.append(tokens, k.data(), v.data(), index_k.data());
  const int64_t n = 2;
  const Floats q = guides::numbers(m.heads * n * m.d_qk, 4),
               index_q = guides::numbers(m.index_heads * n * m.index_dim, 5),
               weights = guides::numbers(n * m.index_heads, 6);
  Floats out(static_cast<size_t>(m.heads * n * m.d_v));
  const bool sums = m.index.combine == sa::IndexCombine::kSum;
  layer.attend(n, index_q.data(), sums ? weights.data() : nullptr, q.data(), out.data());

  const int64_t list_heads = sums ? 1 : m.index_heads, group = m.heads / m.kv_heads;
  for (int64_t h = 0; h < m.heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = tokens - n + i, kv = h / group;
      const int32_t* list = layer.lists().data() + ((list_heads > 1 ? kv : 0) * n + i) * m.selected;
      Floats own_k, own_v;
      int64_t keys = 0;
      for (int64_t e = 0; e < m.selected && list[e] >= 0; ++e) {
        if (e > 0 && list[e] <= list[e - 1]) guides::refused({}, "an ascending list");
        for (int64_t j = list[e] * m.block_size; j < std::min((list[e] + 1) * m.block_size, position + 1);
             ++j, ++keys) {
          const float* key = k.data() + (kv * tokens + j) * m.d_qk;
          const float* value = m.values_in_keys ? key : v.data() + (kv * tokens + j) * m.d_v;
          own_k.insert(own_k.end(), key, key + m.d_qk);
          own_v.insert(own_v.end(), value, value + m.d_v);
        }
      }
      if (keys < std::min(m.selected * m.block_size, tokens) / 2) guides::refused({}, "a full list");
      Floats want(static_cast<size_t>(m.d_v));
      sa::AttentionProblem a;
      a.q = sa::view(q.data() + (h * n + i) * m.d_qk, {1, 1, 1, m.d_qk});
      a.k = sa::view(static_cast<const float*>(own_k.data()), {1, 1, keys, m.d_qk});
      a.v = sa::view(static_cast<const float*>(own_v.data()), {1, 1, keys, m.d_v});
      a.out = sa::view(want.data(), {1, 1, 1, m.d_v});
      sa::Plan plan;
      guides::good(sa::attention_plan(a, &plan), "attention_plan");
      std::vector<char> memory(plan.workspace_bytes);
      guides::good(sa::attention(a, {.workspace = memory.data(), .workspace_bytes = memory.size()}), "attention");
      const float* row = out.data() + (h * n + i) * m.d_v;
      guides::same_bits(want, Floats(row, row + m.d_v), "guide-layers.md");
    }
  }
}

}  // namespace

int main() {
  Selecting dsa = deepseek(700);
  dsa.selected = 300;
  check_model(dsa, 650);
  Selecting msa = minimax(3000);
  msa.selected = 4;
  check_model(msa, 1500);
  return 0;
}
