#include "bench/harness.h"

#include <algorithm>
#include <array>

#include "lib/contract/dtypes.h"

namespace bench {

using simdattn::Target;

size_t element_size(simdattn::DType dtype) { return static_cast<size_t>(simdattn::size_of(dtype)); }

const char* type_name(simdattn::DType dtype) {
  switch (dtype) {
    case simdattn::DType::kBF16: return "bf16";
    case simdattn::DType::kF16: return "f16";
    default: return "f32";
  }
}

void fill(void* data, simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude) {
  uint64_t x = 0x9E3779B97F4A7C15u * (seed + 1);
  const auto next = [&] {  // xorshift64
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  };
  simdattn::with_storage(dtype, [&]<class T>(T) {
    // Elements are drawn from 4096 numbers: conversion and generation of hundreds of megabytes would take longer than
    // what is measured on them.
    std::array<T, 4096> numbers;
    for (T& n : numbers) {
      const float unit = static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23f;
      n = simdattn::from_f32<T>(unit * amplitude);
    }
    T* out = static_cast<T*>(data);
    size_t i = 0;
    for (; i + 5 <= elements; i += 5) {
      const uint64_t r = next();
      out[i] = numbers[r & 4095];
      out[i + 1] = numbers[r >> 12 & 4095];
      out[i + 2] = numbers[r >> 24 & 4095];
      out[i + 3] = numbers[r >> 36 & 4095];
      out[i + 4] = numbers[r >> 48 & 4095];
    }
    for (; i < elements; ++i) out[i] = numbers[next() & 4095];
  });
}

Buffer random_buffer(simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude) {
  Buffer b(elements * element_size(dtype));
  fill(b.data(), dtype, elements, seed, amplitude);
  return b;
}

size_t most_workspace(std::initializer_list<const simdattn::AttentionProblem*> problems) {
  size_t bytes = 0;
  for (const Target* t : simdattn::targets()) {
    if (!simdattn::target_runnable(*t)) continue;
    for (const simdattn::AttentionProblem* a : problems) {
      simdattn::Plan plan;
      if (a->q.data == nullptr || !simdattn::attention_plan(*a, &plan, {.target = t}).ok()) continue;
      bytes = std::max(bytes, plan.workspace_bytes);
    }
  }
  return bytes;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_softmax_cases(cases);
  add_masked_softmax_cases(cases);
  add_scores_cases(cases);
  add_weighted_values_cases(cases);
  add_rope_cases(cases);
  add_position_cases(cases);
  add_kv_cases(cases);
  add_other_scores_cases(cases);
  add_attention_cases(cases);
  add_mask_cases(cases);
  add_arithmetic_cases(cases);
  add_narrow_cases(cases);
  add_plan_cases(cases);
  add_state_cases(cases);
  add_call_cost_cases(cases);
  add_selection_cases(cases);
  return cases;
}

}  // namespace bench
