/* A user's program in C99: rotate and store keys, store values, attend with a plan, and compare with plain loops. The C++17
 * and C++20 programs beside it do the same and must print the same. */
#include <math.h>
#include <simdattn/simdattn_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, ROWS = 3, DIM = 8, TOKENS = 32, PAIRS = DIM / 2 };

static void check(simdattn_status status, const char* what) {
  if (status.code != SIMDATTN_OK) {
    printf("%s: %s\n", what, status.detail);
    exit(1);
  }
}

static void fill(float* x, int n, int seed) {
  int i;
  for (i = 0; i < n; ++i) x[i] = (float)((i * 37 + seed * 11) % 101 - 50) / 64.0f;
}

static simdattn_const_view4 input(const float* data, int64_t heads) {
  simdattn_const_view4 v = {NULL, SIMDATTN_DTYPE_F32, {1, 0, ROWS, DIM}, {0, ROWS * DIM, DIM, 1}};
  v.data = data;
  v.shape[1] = heads;
  return v;
}

static simdattn_view4 output(float* data, int64_t heads) {
  simdattn_view4 v = {NULL, SIMDATTN_DTYPE_F32, {1, 0, ROWS, DIM}, {0, ROWS * DIM, DIM, 1}};
  v.data = data;
  v.shape[1] = heads;
  return v;
}

static double rotated(const float* row, int d, int position) {
  const int i = d % PAIRS;
  const double angle = position * pow(10000, -(double)i / (double)PAIRS);
  return d < PAIRS ? row[i] * cos(angle) - row[i + PAIRS] * sin(angle)
                   : row[i] * sin(angle) + row[i + PAIRS] * cos(angle);
}

/* What attention should be, from the definition. */
static double expected(const float* q, const float* k, const float* v, int h, int i, int d) {
  const int kv_head = h / (HEADS / KV_HEADS);
  double sum = 0, out = 0;
  int j, e;
  for (j = 0; j <= i; ++j) {
    double score = 0, weight;
    for (e = 0; e < DIM; ++e)
      score += rotated(q + (h * ROWS + i) * DIM, e, i) * rotated(k + (kv_head * ROWS + j) * DIM, e, j);
    weight = exp(score / sqrt((double)DIM));
    sum += weight;
    out += weight * v[(kv_head * ROWS + j) * DIM + d];
  }
  return out / sum;
}

static float q[HEADS * ROWS * DIM], rotated_q[HEADS * ROWS * DIM], out[HEADS * ROWS * DIM];
static float k[KV_HEADS * ROWS * DIM], v[KV_HEADS * ROWS * DIM];
static float cosines[ROWS * PAIRS], sines[ROWS * PAIRS];

int main(void) {
  simdattn_exec exec = SIMDATTN_EXEC_INIT;
  simdattn_rope_options rope = SIMDATTN_ROPE_OPTIONS_INIT;
  simdattn_positions from = {.start = 0};
  simdattn_append_options append = SIMDATTN_APPEND_OPTIONS_INIT;
  simdattn_attention_problem problem = SIMDATTN_ATTENTION_PROBLEM_INIT;
  static simdattn_plan plan = SIMDATTN_PLAN_INIT;
  const simdattn_view2 cos_out = {cosines, SIMDATTN_DTYPE_F32, {ROWS, PAIRS}, {PAIRS, 1}};
  const simdattn_view2 sin_out = {sines, SIMDATTN_DTYPE_F32, {ROWS, PAIRS}, {PAIRS, 1}};
  const simdattn_const_view2 cos_in = {cosines, SIMDATTN_DTYPE_F32, {ROWS, PAIRS}, {PAIRS, 1}};
  const simdattn_const_view2 sin_in = {sines, SIMDATTN_DTYPE_F32, {ROWS, PAIRS}, {PAIRS, 1}};
  const int32_t order[ROWS] = {0, 1, 2};
  const simdattn_const_view2 positions = {order, SIMDATTN_DTYPE_I32, {1, ROWS}, {ROWS, 1}};
  simdattn_const_view4 q_in = input(q, HEADS), k_in = input(k, KV_HEADS), v_in = input(v, KV_HEADS);
  simdattn_view4 q_out = output(rotated_q, HEADS);
  simdattn_kv keys, values;
  const simdattn_target* const* targets;
  size_t count = 0, i;
  float row[4] = {1, 2, 3, 4}, lse = 0;
  const simdattn_const_view2 row_in = {row, SIMDATTN_DTYPE_F32, {1, 4}, {4, 1}};
  const simdattn_view2 row_out = {row, SIMDATTN_DTYPE_F32, {1, 4}, {4, 1}};
  const simdattn_view1 lse_out = {&lse, SIMDATTN_DTYPE_F32, {1}, {1}};
  void *partial, *key_memory, *value_memory;
  int64_t task;
  double sum = 0, error = 0;
  int h, r, d;

  fill(q, HEADS * ROWS * DIM, 1);
  fill(k, KV_HEADS * ROWS * DIM, 2);
  fill(v, KV_HEADS * ROWS * DIM, 3);

  targets = simdattn_targets(&count);
  printf("version %s, last target %s\n", simdattn_version(), simdattn_target_name(targets[count - 1]));
  check(simdattn_default_target(&exec.target), "default_target");

  check(simdattn_softmax(&row_in, &row_out, &lse_out, &exec), "softmax");
  printf("softmax %.5f %.5f %.5f %.5f, lse %.5f\n", (double)row[0], (double)row[1], (double)row[2], (double)row[3],
         (double)lse);

  check(simdattn_rope_table(&cos_out, &sin_out, NULL, NULL, 0), "rope_table");
  check(simdattn_rope(&q_in, &cos_in, &sin_in, &from, &q_out, &rope, &exec), "rope");

  key_memory = malloc((size_t)simdattn_kv_bytes(SIMDATTN_KV_TYPE_F32, SIMDATTN_KV_LAYOUT_PANELS, 1, KV_HEADS, TOKENS, DIM));
  value_memory = malloc((size_t)simdattn_kv_bytes(SIMDATTN_KV_TYPE_F16, SIMDATTN_KV_LAYOUT_ROWS, 1, KV_HEADS, TOKENS, DIM));
  keys = simdattn_contiguous_kv(key_memory, SIMDATTN_KV_TYPE_F32, SIMDATTN_KV_LAYOUT_PANELS, 1, KV_HEADS, TOKENS, DIM);
  values = simdattn_contiguous_kv(value_memory, SIMDATTN_KV_TYPE_F16, SIMDATTN_KV_LAYOUT_ROWS, 1, KV_HEADS, TOKENS, DIM);
  append.rope.cos = cos_in;
  append.rope.sin = sin_in;
  check(simdattn_kv_append(&k_in, &positions, &keys, &append, &exec), "kv_append of keys");
  check(simdattn_kv_append(&v_in, &positions, &values, NULL, &exec), "kv_append of values");
  keys.length = values.length = ROWS;

  problem.q = input(rotated_q, HEADS);
  memcpy(&problem.k, &keys, sizeof keys);
  memcpy(&problem.v, &values, sizeof values);
  problem.out = output(out, HEADS);
  problem.scoring.causal = true;
  check(simdattn_attention_plan(&problem, &plan, &exec), "attention_plan");
  exec.workspace_bytes = plan.workspace_bytes;
  exec.workspace = malloc(plan.workspace_bytes);
  partial = malloc(plan.partial_bytes + 1);
  for (task = 0; task < plan.tasks; ++task)
    check(simdattn_attention_range(&plan, task, task + 1, partial, plan.partial_bytes, &exec), "attention_range");
  check(simdattn_attention_reduce(&plan, 0, plan.reduce_tasks, partial, plan.partial_bytes, &exec), "attention_reduce");
  for (i = 0; i < HEADS * ROWS * DIM; ++i) sum += (double)out[i] * (double)(i + 1);
  printf("attention %.3f\n", sum);
  for (h = 0; h < HEADS; ++h) {
    for (r = 0; r < ROWS; ++r) {
      for (d = 0; d < DIM; ++d)
        error = fmax(error, fabs(expected(q, k, v, h, r, d) - (double)out[(h * ROWS + r) * DIM + d]));
    }
  }
  if (!(error < 1e-3)) { /* values are stored in f16 */
    printf("attention differs from its definition by %g\n", error);
    return 1;
  }

  /* The same with 8-bit products: near what it was, and within 1 % of the largest value. */
  problem.arithmetic = SIMDATTN_ARITHMETIC_INT8;
  check(simdattn_attention_plan(&problem, &plan, &exec), "attention_plan in int8");
  free(exec.workspace);
  exec.workspace_bytes = plan.workspace_bytes;
  exec.workspace = malloc(plan.workspace_bytes);
  check(simdattn_attention(&problem, &exec), "attention in int8");
  sum = error = 0;
  for (i = 0; i < HEADS * ROWS * DIM; ++i) sum += (double)out[i] * (double)(i + 1);
  printf("attention in int8 %.3f\n", sum);
  for (h = 0; h < HEADS; ++h) {
    for (r = 0; r < ROWS; ++r) {
      for (d = 0; d < DIM; ++d)
        error = fmax(error, fabs(expected(q, k, v, h, r, d) - (double)out[(h * ROWS + r) * DIM + d]));
    }
  }
  if (!(error < 1e-2)) {
    printf("attention in int8 differs from its definition by %g\n", error);
    return 1;
  }

  problem.q.data = NULL;
  problem.out.data = NULL;
  printf("without data: code %d\n", (int)simdattn_attention(&problem, &exec).code);
  free(partial);
  free(exec.workspace);
  free(key_memory);
  free(value_memory);
  return 0;
}
