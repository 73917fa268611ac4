// Every array of an attention problem.
#pragma once

#include <cstdint>
#include <string>

#include "simdattn/simdattn.h"

namespace simdattn::test {

/// When the numbers of an array are read. Lengths are there when a plan is made, because it divides by them.
enum class Read : uint8_t { kByRanges, kByPlans };

/// f(name, pointer, read) for every array of a problem, by the name that a refusal gives it. A member of a struct that
/// is not named here does not compile.
template <class F>
void for_each_array(AttentionProblem* a, const F& f) {
  [[maybe_unused]] auto& [size, q, k, v, out, lse, scoring, arithmetic, cu_q, cu_k, n_sequences, acc, max, sum, lists] =
      *a;
  [[maybe_unused]] auto& [scoring_size, scale, softcap, causal, offset, offsets, window_left, window_right, chunk,
                          prefix_end, kv_start, kv_length, bias, bias_scale, mask, packed_mask, alibi_slopes, sinks,
                          scoring_reserved] = scoring;
  [[maybe_unused]] auto& [bits, columns, mask_stride] = packed_mask;
  [[maybe_unused]] auto& [entries, list_heads, list_length, list_block_size, list_stride] = lists;
  const auto store = [&f](const std::string& name, ConstKv& kv) {
    [[maybe_unused]] auto& [kv_size, data, type, layout, batch, heads, capacity, length, dim, batch_stride, head_stride,
                            token_stride, scales, scale_batch_stride, scale_head_stride, scale_token_stride,
                            block_table, block_table_stride, page_size, n_pages, ring, reserved] = kv;
    f((name + ".data").c_str(), data, Read::kByRanges);
    f((name + ".scales").c_str(), scales, Read::kByRanges);
    f((name + ".block_table").c_str(), block_table, Read::kByRanges);
  };
  f("q", q.data, Read::kByRanges);
  store("k", k);
  store("v", v);
  f("out", out.data, Read::kByRanges);
  f("lse", lse.data, Read::kByRanges);
  f("acc", acc.data, Read::kByRanges);
  f("max", max.data, Read::kByRanges);
  f("sum", sum.data, Read::kByRanges);
  f("lists", entries, Read::kByRanges);
  f("scoring.bias", bias.data, Read::kByRanges);
  f("scoring.bias_scale", bias_scale, Read::kByRanges);
  f("scoring.mask", mask.data, Read::kByRanges);
  f("scoring.packed_mask", bits, Read::kByRanges);
  f("scoring.alibi_slopes", alibi_slopes, Read::kByRanges);
  f("scoring.sinks", sinks, Read::kByRanges);
  f("scoring.offsets", offsets, Read::kByPlans);
  f("scoring.prefix_end", prefix_end, Read::kByPlans);
  f("scoring.kv_start", kv_start, Read::kByPlans);
  f("scoring.kv_length", kv_length, Read::kByPlans);
  f("cu_q", cu_q, Read::kByPlans);
  f("cu_k", cu_k, Read::kByPlans);
}

}  // namespace simdattn::test
