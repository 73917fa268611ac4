// No call touches the heap.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "simdattn/extras.h"
#include "tests/support/pages.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

// ---------------------------------------------------------------------------------------------------------------------
// Every allocation of the process is counted. Sanitizers bring a malloc of their own; there only operator new is ours.

namespace {
std::atomic<int64_t> allocations{0};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIMDATTN_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SIMDATTN_OWN_MALLOC 0
#endif
#endif
#ifndef SIMDATTN_OWN_MALLOC
#ifdef __GLIBC__
#define SIMDATTN_OWN_MALLOC 1
#else
#define SIMDATTN_OWN_MALLOC 0
#endif
#endif

#if SIMDATTN_OWN_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t n) {
  ++allocations;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  ++allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  ++allocations;
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  ++allocations;
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, size_t alignment, size_t n) {
  ++allocations;
  *p = __libc_memalign(alignment, n);
  return *p == nullptr ? 12 : 0;
}
}
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // this pair belongs together
#endif
void* operator new(size_t n) {
  ++allocations;
  void* p = std::malloc(n == 0 ? 1 : n);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace simdattn::test {
namespace {

class Heap : public TargetTest {};

TEST_P(Heap, NoAllocation) {
  // The counter counts.
  int64_t start = allocations;
  int* volatile number = new int;  // volatile, or the compiler leaves the pair out
  delete number;
  ASSERT_GT(allocations, start);

  Random random(seed() * 4000 + 1);
  for (int64_t i = 0; i < cases(60); ++i) {
    AttentionLimits limits;
    if (random.one_in(5)) limits.max_kv = 2500, limits.max_q = 4, limits.max_dim = 12;
    const AttentionCase c = random_attention(random, limits);
    Plan plan;
    ASSERT_TRUE(attention_plan(c.problem, &plan, exec()).ok());
    const Guarded workspace(plan.workspace_bytes, Guard::kAfter), partial(plan.partial_bytes, Guard::kAfter);
    const Exec e = {.target = &target(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    Status s[5];
    start = allocations;
    s[0] = attention_plan(c.problem, &plan, e);
    s[1] = attention(c.problem, e);
    s[2] = attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), e);
    s[4] = attention_bind(c.problem, &plan);
    s[3] = attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), e);
    ASSERT_EQ(allocations - start, 0) << describe(c.problem);
    for (const Status& status : s) ASSERT_TRUE(status.ok()) << status.detail;
  }
  const Array<4> x(random, DType::kBF16, {2, 4, 5, 36}), y = x.like(random), p(random, DType::kF32, {2, 4, 5, 7}),
                                                         v(random, DType::kF16, {2, 2, 7, 36}),
                                                         k(random, DType::kF32, {2, 2, 7, 36});
  for (const Array<4>* a : {&x, &p, &v, &k}) a->fill(random, Values::kOrdinary);
  const Array<2> cosine(random, DType::kF32, {60, 18}), sine = cosine.like(random),
                                                        rows(random, DType::kF32, {20, 200}, Values::kOrdinary),
                                                        positions(random, DType::kI32, {2, 7});
  for (int64_t t = 0; t < 14; ++t) set_element_bits(positions.view.data, DType::kI32, t, static_cast<uint64_t>(t % 7));
  const Array<1> lse(random, DType::kF32, {20});
  const Array<3> row_lse(random, DType::kF32, {2, 4, 5});
  const Array<5> parts(random, DType::kF32, {3, 2, 4, 5, 36}, Values::kOrdinary);
  const Array<4> part_lse(random, DType::kF32, {3, 2, 4, 5}, Values::kOrdinary);
  const KvStorage cache = make_kv(random, DType::kBF16, KvForm::kPagedPanels, 2, 2, 70, 36),
                  integers = make_kv(random, KvType::kInt8, KvForm::kPanels, 2, 2, 70, 36);
  const Array<4> numbers(random, DType::kF32, {2, 2, 9, 36});
  const KvStorage plain = make_kv(random, DType::kF16, KvForm::kRows, 2, 2, 70, 36),
                  shifted = store_kv(random, v, KvForm::kPanels);
  const Array<2> page_slots(random, DType::kI64, {2, 7});
  for (int64_t t = 0; t < 14; ++t)
    set_element_bits(page_slots.view.data, DType::kI64, t, static_cast<uint64_t>(t % 5 == 4 ? -1 : t));
  const int32_t starts[2] = {3, 50}, counts[2] = {7, 2};
  const Array<3> m(random, DType::kBF16, {4, 36, 36}), projection(random, DType::kF32, {4, 24, 36});
  const Array<2> w(random, DType::kF32, {4, 24}, Values::kOrdinary);
  const Array<4> projected(random, DType::kF32, {2, 2, 7, 24}, Values::kOrdinary);
  for (const Array<3>* a : {&m, &projection}) a->fill(random, Values::kOrdinary);
  const Guarded memory(size_t{1} << 20, Guard::kAfter);
  const Exec with_memory = {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()};
  double frequencies[18], factor = 0;
  RopeTableOptions yarn;
  yarn.rope_type = RopeType::kYarn;
  yarn.factor = 4;
  yarn.original_max_position_embeddings = 64;
  float slopes[12];
  const Array<4> lists(random, DType::kI32, {2, 4, 5, 3}), indexed(random, DType::kF32, {2, 1, 5, 7});
  ConstKv one_key_head = k.view;
  one_key_head.heads = 1;
  const Array<4> state(random, DType::kF32, {2, 4, 36, 36}, Values::kOrdinary),
      beta(random, DType::kF32, {2, 4, 5, 1}, Values::kOrdinary);
  LinearAttentionProblem linear;
  linear.q = linear.k = linear.v = linear.decay = x.view, linear.beta = beta.view, linear.state = state.view,
  linear.out = y.view;
  ASSERT_LE(linear_attention_workspace(linear), memory.size());
  const Array<3> inputs(random, DType::kF32, {2, 4, 3}, Values::kOrdinary);
  const Array<2> taps(random, DType::kF32, {4, 4}, Values::kOrdinary);
  CausalConvProblem conv;
  conv.out = row_lse.view, conv.x = row_lse.view, conv.weight = taps.view, conv.state = inputs.view;
  const Target* found = nullptr;
  const KeyRotation rotation = {.cos = cosine.view, .sin = sine.view};
  const Scoring scoring = {.causal = true, .alibi_slopes = slopes};
  start = allocations;
  const Status s[] = {alibi_slopes(12, slopes),
                      scores(x.view, k.view, p.view, {}, exec()),
                      softmax(rows.view, rows.view, lse.view, exec()),
                      masked_softmax(p.view, p.view, scoring, row_lse.view, exec()),
                      weighted_values(p.view, v.view, y.view, {}, exec()),
                      scores(x.view, k.view, p.view, {.arithmetic = Arithmetic::kBF16}, with_memory),
                      scores(x.view, k.view, p.view, {.arithmetic = Arithmetic::kInt8}, with_memory),
                      weighted_values(p.view, v.view, y.view, {.arithmetic = Arithmetic::kBF16}, with_memory),
                      weighted_values(p.view, v.view, y.view, {.arithmetic = Arithmetic::kInt8}, with_memory),
                      rope_table(cosine.view, sine.view),
                      rope(x.view, cosine.view, sine.view, {}, x.view, {}, exec()),
                      gaussian_scores(x.view, k.view, p.view, {}, exec()),
                      bilinear_scores(x.view, m.view, k.view, p.view, {}, with_memory),
                      additive_scores(x.view, projected.view, w.view, p.view, projection.view, {}, with_memory),
                      hadamard(x.view, y.view, 0, exec()),
                      add_rows(y.view, x.view, y.view, exec()),
                      top_k(p.view, 3, lists.view, {}, with_memory),
                      index_scores(x.view, one_key_head, {}, indexed.view, {.relu = true}, with_memory),
                      rope_frequencies(frequencies, 18, &factor, yarn),
                      rope_table(cosine.view, sine.view, yarn),
                      rope_direct(x.view, 18, yarn, 1000, x.view, {}, with_memory),
                      sinusoidal_table(rows.view),
                      kv_append(v.view, positions.view, cache.kv, {.rope = rotation}, exec()),
                      kv_append(v.view, {}, cache.kv, {.start = 9}, exec()),
                      kv_append(v.view, {}, plain.kv, {.rope = rotation, .starts = starts, .counts = counts}, exec()),
                      kv_append(v.view, positions.view, cache.kv, {.rope = rotation, .slots = page_slots.view}, exec()),
                      kv_shift(shifted.kv, 3, 6, -2, rotation, exec()),
                      kv_append(v.view, {}, integers.kv, {}, exec()),
                      kv_shift(integers.kv, 3, 6, -2, rotation, exec()),
                      kv_read(integers.kv, 0, numbers.view, exec()),
                      attention_merge(parts.view, part_lse.view, y.view, row_lse.view, slopes, exec()),
                      linear_attention(linear, with_memory),
                      linear_attention_range(linear, 0, linear_attention_tasks(linear), with_memory),
                      causal_conv(conv, exec()),
                      find_target("scalar", &found),
                      find_target("no such target", &found),
                      default_target(&found),
                      request_amx()};
  const Kv made = contiguous_kv(memory.data(), KvType::kBF16, KvLayout::kPanels, 1, 1, 32, 8);
  const bool any =
      targets().size() > 0 && target_name(target()) != nullptr && version() != nullptr && target_runnable(target()) &&
      target_missing(target()) != nullptr && target_exact(target()) == is_exact() &&
      target_native(target(), Arithmetic::kF32) &&
      arithmetic_for(DType::kF32, KvType::kF32, KvType::kF32, {.target = &target()}) == Arithmetic::kF32 &&
      made.batch == 1 && dtype_bytes(DType::kF32) == 4 && row_bytes(made.type, 8) == 16 &&
      panel_bytes(made.type, 8) == 512 && kv_bytes(made.type, made.layout, 1, 1, 32, 8) == 512 &&
      !has_scales(made.type) && contiguous_scales(made, slopes).scales == slopes &&
      scores_workspace(Arithmetic::kBF16, 36) <= memory.size() &&
      weighted_values_workspace(Arithmetic::kInt8, 36) <= memory.size() &&
      bilinear_scores_workspace(36, 36) <= memory.size() && additive_scores_workspace(36, 0, 24) <= memory.size() &&
      rope_direct_workspace(18) <= memory.size() && index_scores_workspace(Arithmetic::kF32, 4, 36) <= memory.size() &&
      top_k_workspace(3) <= memory.size() && attention_workspace({}) == 0 && *code_name(Code::kShape) == 'S';
  ASSERT_EQ(allocations - start, 0);
  ASSERT_TRUE(any);
  for (const Status& status : s) {
    if (status.code != Code::kTarget) {
      ASSERT_TRUE(status.ok()) << status.detail;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Heap);

}  // namespace
}  // namespace simdattn::test
