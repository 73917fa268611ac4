// A fixed small set of calls, for callgrind to count the instructions of (instructions_test.py). Each is a function
// that callgrind sees by its name, count_CASE__TARGET; what they work on is made outside of them.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "simdattn/simdattn.h"

namespace {

using simdattn::ConstView;
using simdattn::DType;
using simdattn::Exec;
using simdattn::Target;
using simdattn::View;

struct Numbers {
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  Numbers(size_t count, uint32_t seed) : f32(count), bf16(count) {
    for (size_t i = 0; i < count; ++i) {
      seed = seed * 1664525u + 1013904223u;
      f32[i] = static_cast<float>(static_cast<int32_t>(seed >> 8) - (1 << 23)) * 0x1p-23f;
      uint32_t bits;
      std::memcpy(&bits, &f32[i], sizeof bits);
      bf16[i] = static_cast<uint16_t>(bits >> 16);
    }
  }
  ConstView<4> view(DType type, int64_t heads, int64_t rows, int64_t n) const {
    const void* data = type == DType::kF32 ? static_cast<const void*>(f32.data()) : bf16.data();
    return {data, type, {1, heads, rows, n}};
  }
};

constexpr int64_t kKeys = 256, kDim = 128, kGroup = 4, kRows = 64;
const Numbers q(kRows* kDim, 1), k(kKeys* kDim, 2), v(kKeys* kDim, 3), x(8 * kKeys, 4), table(kRows* kDim, 5);
std::vector<float> out(kRows* kKeys);
std::vector<char> store(2 * kKeys * kDim * sizeof(float)), workspace(size_t{1} << 20);
std::vector<int32_t> positions(kKeys);
bool failed = false;

void check(const simdattn::Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.detail);
  failed = true;
}

View<4> result(int64_t heads, int64_t rows, int64_t n, DType type = DType::kF32) {
  return {out.data(), type, {1, heads, rows, n}};
}

void attend(const Target* t, DType type, int64_t heads, int64_t rows, int64_t keys, bool panels) {
  simdattn::AttentionProblem a;
  a.q = q.view(type, heads, rows, kDim);
  if (panels) {
    a.k = simdattn::contiguous_kv(static_cast<const char*>(store.data()), simdattn::kv_type_of(type),
                                  simdattn::KvLayout::kPanels, 1, 1, keys, kDim);
  } else {
    a.k = k.view(type, 1, keys, kDim);
  }
  a.v = v.view(type, 1, keys, kDim);
  a.out = result(heads, rows, kDim);
  a.scoring.causal = true;
  check(simdattn::attention(a, {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()}));
}

void append(const Target* t, DType from, DType to) {
  check(simdattn::kv_append(
      k.view(from, 1, kKeys, kDim), simdattn::view(positions.data(), {1, kKeys}),
      simdattn::contiguous_kv(store.data(), simdattn::kv_type_of(to), simdattn::KvLayout::kPanels, 1, 1, kKeys, kDim),
      {}, {.target = t}));
}

void rotate(const Target* t, simdattn::RopePairing pairing) {
  const auto angles = simdattn::view(table.f32.data(), {kRows, kDim / 2});
  check(simdattn::rope(q.view(DType::kF32, 1, kRows, kDim), angles, angles, {}, result(1, kRows, kDim),
                       {.pairing = pairing}, {.target = t}));
}

/// One row and one key in each of many sequences.
constexpr int64_t kSequences = 10000;
const std::vector<int32_t> one_each(kSequences, 1);
simdattn::Plan many;

void plan_many(const Target* t) {
  simdattn::AttentionProblem a;
  a.q = ConstView<4>(q.f32.data(), DType::kF32, {kSequences, 1, 1, 16}, {0, 0, 0, 1});
  a.k = a.v = ConstView<4>(k.f32.data(), DType::kF32, {kSequences, 1, 2, 16}, {0, 0, 16, 1});
  a.lse = simdattn::view(out.data(), {kSequences, 1, 1});
  a.scoring.kv_length = one_each.data();
  check(simdattn::attention_plan(a, &many, {.target = t}));
}

void last_of_a_group(const Target* t) {
  const int64_t task = (kSequences + 23) / 24 * 3 - 1;  // 24 groups of sequences
  check(simdattn::attention_range(many, task, task + 1, nullptr, 0,
                                  {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()}));
}

#define COUNTED(name, id, body)                                                           \
  extern "C" __attribute__((noinline, used)) void count_##name##__##id(const Target* t) { \
    body;                                                                                 \
    asm volatile("" : : : "memory");                                                      \
  }
// clang-format off
#define CASES(f, id)                                                                                                \
  f(softmax_8x256, id, check(simdattn::softmax(simdattn::view(x.f32.data(), {8, kKeys}), simdattn::view(out.data(), {8, kKeys}), \
      {}, {.target = t}))) \
  f(masked_softmax_8x256_causal, id, check(simdattn::masked_softmax(x.view(DType::kF32, 1, 8, kKeys), result(1, 8, kKeys), \
      {.causal = true}, {}, {.target = t}))) \
  f(scores_f32_1x256x128, id, check(simdattn::scores(q.view(DType::kF32, 1, 1, kDim), k.view(DType::kF32, 1, kKeys, kDim), \
      result(1, 1, kKeys), {.scale = 0.1f}, {.target = t}))) \
  f(scores_bf16_1x256x128, id, check(simdattn::scores(q.view(DType::kBF16, 1, 1, kDim), k.view(DType::kBF16, 1, kKeys, kDim), \
      result(1, 1, kKeys), {.scale = 0.1f}, {.target = t}))) \
  f(weighted_values_f32_1x256x128, id, check(simdattn::weighted_values(x.view(DType::kF32, 1, 1, kKeys), v.view(DType::kF32, 1, \
      kKeys, kDim), result(1, 1, kDim), {}, {.target = t}))) \
  f(rope_half_64x128, id, rotate(t, simdattn::RopePairing::kHalfSplit))                                              \
  f(rope_interleaved_64x128, id, rotate(t, simdattn::RopePairing::kInterleaved))                                     \
  f(kv_append_f32_to_bf16_256x128, id, append(t, DType::kF32, DType::kBF16))                                         \
  f(decode_bf16_panels_4x256x128, id, attend(t, DType::kBF16, kGroup, 1, kKeys, true))                               \
  f(kv_append_f32_256x128, id, append(t, DType::kF32, DType::kF32))                                                  \
  f(decode_f32_panels_4x256x128, id, attend(t, DType::kF32, kGroup, 1, kKeys, true))                                 \
  f(decode_f32_rows_4x256x128, id, attend(t, DType::kF32, kGroup, 1, kKeys, false))                                  \
  f(prefill_f32_rows_64x64x128, id, attend(t, DType::kF32, 1, kRows, kRows, false))                                  \
  f(range_of_one_task_in_10000, id, last_of_a_group(t)) \
  f(call_of_one_key, id, attend(t, DType::kF32, 1, 1, 1, false))
// clang-format on

#define EVERY_TARGET(f) f(highway_avx2, "highway/avx2") f(xsimd_avx2, "xsimd/avx2") f(scalar, "scalar")

#define DEFINE(id, name) CASES(COUNTED, id)
EVERY_TARGET(DEFINE)

}  // namespace

int main() {
  std::iota(positions.begin(), positions.end(), 0);
#define CALL(name, id, body) count_##name##__##id(t);
#define RUN(id, its_name)                                                                                     \
  if (const Target* t = nullptr; simdattn::find_target(its_name, &t).ok() && simdattn::target_runnable(*t)) { \
    plan_many(t);                                                                                             \
    CASES(CALL, id)                                                                                           \
  }
  EVERY_TARGET(RUN)
  return failed ? 1 : 0;
}
