/* Plans that a program in C makes, binds and runs: random problems, of which every array is null or not when the plan is
 * made, apart or inside another one. What was bound has the bits of simdattn_attention(), or is refused by a name.
 *
 *   plans_in_c [PROBLEMS [SEED]] */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <simdattn/simdattn_c.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void fail(const char* what, const char* detail) {
  printf("FAILED: %s: %s\n", what, detail);
  exit(1);
}

/* ---- Random numbers, and memory that ends at a page without access ---------------------------------------------- */

static uint64_t state = 1;
static int64_t below(int64_t n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (int64_t)(state >> 33) % n;
}
static int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
static bool one_in(int64_t n) { return below(n) == 0; }

typedef struct {
  char *pages, *data;
  size_t all, bytes;
} memory;

static memory make_memory(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
  memory m = {NULL, NULL, whole + page, bytes};
  m.pages = mmap(NULL, m.all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m.pages == MAP_FAILED || mprotect(m.pages + whole, page, PROT_NONE) != 0) fail("mmap", "no memory");
  m.data = m.pages + whole - bytes;
  memset(m.pages, 0xA5, whole);
  return m;
}
static void end_memory(const memory* m) {
  const char* byte;
  for (byte = m->pages; byte < m->data; ++byte) {
    if (*byte != (char)0xA5) fail("guard", "bytes before an array were written");
  }
  munmap(m->pages, m->all);
}

/* ---- A problem -------------------------------------------------------------------------------------------------- */

enum { MOST_ARRAYS = 32 };
typedef struct {
  simdattn_attention_problem problem;
  memory arrays[MOST_ARRAYS];
  int count;
} random_case;

static void* add(random_case* c, int64_t bytes) {
  c->arrays[c->count] = make_memory((size_t)bytes);
  return c->arrays[c->count++].data;
}
static const float* floats(random_case* c, int64_t n) {
  float* x = add(c, n * 4);
  int64_t i;
  for (i = 0; i < n; ++i) x[i] = (float)between(-1000, 1000) / 512.0f;
  return x;
}
/* Numbers of any type below 2: every second bit of an exponent's upper end is 0. */
static void* numbers(random_case* c, int64_t n, int64_t size) {
  char* x = add(c, n * size);
  int64_t i;
  if (size == 4) {
    for (i = 0; i < n; ++i) ((float*)(void*)x)[i] = (float)between(-1000, 1000) / 512.0f;
  } else {
    for (i = 0; i < n * size; ++i) x[i] = (char)below(256);
    for (i = 1; i < n * size && size == 2; i += 2) x[i] = (char)(x[i] & 0xBF);
  }
  return x;
}
static const int32_t* integers(random_case* c, int64_t n, int64_t first, int64_t last) {
  int32_t* x = add(c, n * 4);
  int64_t i;
  for (i = 0; i < n; ++i) x[i] = (int32_t)between(first, last);
  return x;
}

static const int64_t kSizes[] = {4, 2, 2, 1, 1, 1}; /* of f32, bf16, f16, int8 and fp8 */

/* A tensor or pages, with a stride of `dim` numbers. */
static void make_store(random_case* c, simdattn_const_kv* kv, int64_t batch, int64_t heads, int64_t keys, int64_t dim,
                       bool paged) {
  const int64_t type = below(5), size = kSizes[type], page = 16, pages = (keys + page - 1) / page;
  const int64_t tokens = paged ? page : keys, parts = paged ? pages * batch : batch;
  int32_t* table;
  int64_t i;
  kv->type = (simdattn_kv_type)type;
  kv->batch = batch, kv->heads = heads, kv->capacity = keys, kv->dim = dim;
  kv->token_stride = dim * size, kv->head_stride = tokens * kv->token_stride, kv->batch_stride = heads * kv->head_stride;
  kv->data = numbers(c, parts * heads * tokens * dim, size);
  if (size == 1) {
    kv->scales = floats(c, parts * heads * tokens);
    kv->scale_token_stride = 4, kv->scale_head_stride = tokens * 4, kv->scale_batch_stride = heads * tokens * 4;
  }
  if (!paged) return;
  kv->page_size = page, kv->n_pages = parts, kv->block_table_stride = pages;
  kv->block_table = table = add(c, parts * 4);
  for (i = 0; i < parts; ++i) table[i] = (int32_t)(parts - 1 - i);
}

static simdattn_view4 rows_of(random_case* c, simdattn_dtype type, int64_t b, int64_t h, int64_t n, int64_t d) {
  simdattn_view4 v = {NULL, SIMDATTN_DTYPE_F32, {0}, {0, 0, 0, 1}};
  v.dtype = type;
  v.data = numbers(c, b * h * n * d, type == SIMDATTN_DTYPE_F32 ? 4 : 2);
  v.shape[0] = b, v.shape[1] = h, v.shape[2] = n, v.shape[3] = d;
  v.stride[0] = h * n * d, v.stride[1] = n * d, v.stride[2] = d;
  return v;
}
static simdattn_view3 row_numbers(random_case* c, int64_t b, int64_t h, int64_t n) {
  simdattn_view3 v = {NULL, SIMDATTN_DTYPE_F32, {0}, {0, 0, 1}};
  v.data = add(c, b * h * n * 4);
  v.shape[0] = b, v.shape[1] = h, v.shape[2] = n;
  v.stride[0] = h * n, v.stride[1] = n;
  return v;
}

static void make_scoring(random_case* c, int64_t b, int64_t h, int64_t n, int64_t keys) {
  simdattn_scoring* s = &c->problem.scoring;
  simdattn_view4 v;
  int64_t i;
  s->causal = one_in(2);
  if (one_in(3)) s->kv_length = integers(c, b, (keys + 1) / 2, keys);
  if (one_in(4)) s->kv_start = integers(c, b, 0, 3);
  if (one_in(4)) s->prefix_end = integers(c, b, 0, keys);
  if (one_in(4)) s->offsets = integers(c, b, 0, keys);
  if (one_in(3)) s->alibi_slopes = floats(c, h);
  if (one_in(3)) s->sinks = floats(c, h);
  if (one_in(3)) {
    v = rows_of(c, (simdattn_dtype)below(3), 1, h, n, keys);
    memcpy(&s->bias, &v, sizeof v);
    s->bias.stride[0] = 0, s->bias.shape[0] = 1;
    if (one_in(2)) s->bias_scale = floats(c, h);
  }
  if (one_in(3)) {
    uint8_t* mask = add(c, n * keys);
    for (i = 0; i < n * keys; ++i) mask[i] = (uint8_t)below(3);
    s->mask.data = mask, s->mask.dtype = SIMDATTN_DTYPE_U8;
    s->mask.shape[0] = s->mask.shape[1] = 1, s->mask.shape[2] = n, s->mask.shape[3] = keys;
    s->mask.stride[2] = keys, s->mask.stride[3] = 1;
  } else if (one_in(3) && s->kv_length == NULL) {
    uint8_t* bits = add(c, n * ((keys + 7) / 8));
    for (i = 0; i < n * ((keys + 7) / 8); ++i) bits[i] = (uint8_t)below(256);
    s->packed_mask.data = bits, s->packed_mask.columns = keys, s->packed_mask.stride[2] = (keys + 7) / 8;
  }
}

static void make_case(random_case* c) {
  const simdattn_attention_problem initial = SIMDATTN_ATTENTION_PROBLEM_INIT;
  const int64_t b = between(1, 3), kv_heads = between(1, 2), h = kv_heads * between(1, 3);
  const int64_t n = between(1, 20), keys = one_in(4) ? between(1025, 2500) : between(1, 300), d = between(1, 40);
  const int64_t values = between(1, d);
  simdattn_attention_problem* a = &c->problem;
  simdattn_view4 q;
  c->count = 0;
  *a = initial;
  a->arithmetic = (simdattn_arithmetic)below(3);
  q = rows_of(c, (simdattn_dtype)below(3), b, h, n, d);
  memcpy(&a->q, &q, sizeof q);
  make_store(c, &a->k, b, kv_heads, keys, d, one_in(2));
  if (one_in(2)) { /* as in latent attention: values are the beginnings of keys */
    a->v = a->k;
    a->v.dim = values;
  } else {
    make_store(c, &a->v, b, kv_heads, keys, values, one_in(2));
  }
  if (!one_in(8)) a->out = rows_of(c, (simdattn_dtype)below(3), b, h, n, values);
  if (a->out.data == NULL || one_in(3)) a->lse = row_numbers(c, b, h, n);
  if (one_in(4)) {
    a->acc = rows_of(c, SIMDATTN_DTYPE_F32, b, h, n, values);
    a->max = row_numbers(c, b, h, n);
    a->sum = row_numbers(c, b, h, n);
  }
  make_scoring(c, b, h, n, keys);
  if (one_in(3)) {
    int32_t* list = add(c, keys * 4);
    int64_t i;
    for (i = 0; i < keys; ++i) list[i] = (int32_t)(one_in(8) ? -1 : keys - 1 - i);
    a->lists.data = list, a->lists.heads = 1, a->lists.length = keys;
  }
}

static void end_case(const random_case* c) {
  int i;
  for (i = 0; i < c->count; ++i) end_memory(&c->arrays[i]);
}

/* ---- Its arrays ------------------------------------------------------------------------------------------------- */

typedef struct {
  const char* name; /* as a refusal gives it */
  size_t at;
  bool length; /* read when a plan is made */
} array;
#define ARRAY(name, member, length) {name, offsetof(simdattn_attention_problem, member), length}
static const array kArrays[] = {
    ARRAY("q", q.data, false),
    ARRAY("k.data", k.data, false),
    ARRAY("k.scales", k.scales, false),
    ARRAY("k.block_table", k.block_table, false),
    ARRAY("v.data", v.data, false),
    ARRAY("v.scales", v.scales, false),
    ARRAY("v.block_table", v.block_table, false),
    ARRAY("out", out.data, false),
    ARRAY("lse", lse.data, false),
    ARRAY("acc", acc.data, false),
    ARRAY("max", max.data, false),
    ARRAY("sum", sum.data, false),
    ARRAY("lists", lists.data, false),
    ARRAY("scoring.bias", scoring.bias.data, false),
    ARRAY("scoring.bias_scale", scoring.bias_scale, false),
    ARRAY("scoring.mask", scoring.mask.data, false),
    ARRAY("scoring.packed_mask", scoring.packed_mask.data, false),
    ARRAY("scoring.alibi_slopes", scoring.alibi_slopes, false),
    ARRAY("scoring.sinks", scoring.sinks, false),
    ARRAY("scoring.offsets", scoring.offsets, true),
    ARRAY("scoring.prefix_end", scoring.prefix_end, true),
    ARRAY("scoring.kv_start", scoring.kv_start, true),
    ARRAY("scoring.kv_length", scoring.kv_length, true),
    ARRAY("cu_q", cu_q, true),
    ARRAY("cu_k", cu_k, true),
};
enum { ARRAYS = sizeof kArrays / sizeof kArrays[0] };
/* A new version of the struct, at whose end new members stand, does not compile: see whether it has an array. */
typedef char lists_end_the_problem[sizeof(simdattn_attention_problem) ==
                                           offsetof(simdattn_attention_problem, lists) + sizeof(simdattn_key_lists)
                                       ? 1
                                       : -1];

static const void* get(const simdattn_attention_problem* a, int i) {
  const void* data;
  memcpy(&data, (const char*)a + kArrays[i].at, sizeof data);
  return data;
}
static void take_away(simdattn_attention_problem* a, int i) {
  const void* none = NULL;
  memcpy((char*)a + kArrays[i].at, &none, sizeof none);
}

/* ---- What comes out --------------------------------------------------------------------------------------------- */

enum { OUTPUTS = 5 };
typedef struct {
  char* bytes[OUTPUTS];
} results;

static size_t output(const simdattn_attention_problem* a, int i, char** data) {
  const simdattn_view4* wide = i == 0 ? &a->out : &a->acc;
  const simdattn_view3* narrow = i == 2 ? &a->lse : i == 3 ? &a->max : &a->sum;
  const int64_t* shape = i < 2 ? wide->shape : narrow->shape;
  const size_t rows = (size_t)(shape[0] * shape[1] * shape[2]);
  *data = i < 2 ? wide->data : narrow->data;
  if (*data == NULL) return 0;
  return i < 2 ? rows * (size_t)(shape[3] * (wide->dtype == SIMDATTN_DTYPE_F32 ? 4 : 2)) : rows * 4;
}
static void clear(const simdattn_attention_problem* a) {
  char* data;
  int i;
  for (i = 0; i < OUTPUTS; ++i) {
    const size_t bytes = output(a, i, &data);
    if (bytes != 0) memset(data, 0x3C, bytes);
  }
}
static results take(const simdattn_attention_problem* a) {
  results r;
  char* data;
  int i;
  for (i = 0; i < OUTPUTS; ++i) {
    const size_t bytes = output(a, i, &data);
    r.bytes[i] = malloc(bytes + 1);
    if (bytes != 0) memcpy(r.bytes[i], data, bytes);
  }
  return r;
}
/* Ends `want`. */
static void compare(const simdattn_attention_problem* a, results want, const char* what, const char* name) {
  char* data;
  int i;
  for (i = 0; i < OUTPUTS; ++i) {
    const size_t bytes = output(a, i, &data);
    if (bytes != 0 && memcmp(data, want.bytes[i], bytes) != 0) fail(what, name);
    free(want.bytes[i]);
  }
}

static void must(simdattn_status s, const char* what) {
  if (s.code != SIMDATTN_OK) fail(what, s.detail);
}

static simdattn_status whole(const simdattn_attention_problem* a) {
  simdattn_exec exec = SIMDATTN_EXEC_INIT;
  const memory workspace = make_memory(simdattn_attention_workspace(a, NULL));
  simdattn_status s;
  exec.workspace = workspace.data, exec.workspace_bytes = workspace.bytes;
  clear(a);
  s = simdattn_attention(a, &exec);
  end_memory(&workspace);
  return s;
}

static void run(const simdattn_attention_problem* a, const simdattn_plan* plan) {
  simdattn_exec exec = SIMDATTN_EXEC_INIT;
  const memory workspace = make_memory(plan->workspace_bytes), partial = make_memory(plan->partial_bytes);
  int64_t task;
  exec.workspace = workspace.data, exec.workspace_bytes = workspace.bytes;
  clear(a);
  for (task = plan->tasks; task-- > 0;)
    must(simdattn_attention_range(plan, task, task + 1, partial.data, partial.bytes, &exec), "attention_range");
  must(simdattn_attention_reduce(plan, 0, plan->reduce_tasks, partial.data, partial.bytes, &exec), "attention_reduce");
  end_memory(&workspace);
  end_memory(&partial);
}

/* ---- The property ----------------------------------------------------------------------------------------------- */

/* Arrays come with the binding, or lie elsewhere. */
static void arrays_come_later(const simdattn_attention_problem* a, const simdattn_plan* made_with_all) {
  simdattn_attention_problem shapes = *a;
  simdattn_plan plan = SIMDATTN_PLAN_INIT;
  simdattn_exec exec = SIMDATTN_EXEC_INIT;
  const int64_t often = between(1, 3);
  int i;
  if (one_in(2)) shapes.v.data = one_in(2) ? a->k.data : (const void*)((uintptr_t)a->v.data ^ (uintptr_t)1 << 44);
  if (a->v.scales != NULL && a->k.scales != NULL && one_in(2)) shapes.v.scales = a->k.scales;
  for (i = 0; i < ARRAYS; ++i) {
    if (!kArrays[i].length && one_in(often)) take_away(&shapes, i);
  }
  if (a->out.data == NULL) memset(&shapes.out, 0, sizeof shapes.out);
  if (shapes.acc.data == NULL || shapes.max.data == NULL || shapes.sum.data == NULL)
    shapes.acc.data = shapes.max.data = shapes.sum.data = NULL;
  exec.threads = between(0, 9);
  must(simdattn_attention_plan(&shapes, &plan, &exec), "attention_plan of shapes");
  if (plan.workspace_bytes != made_with_all->workspace_bytes) fail("workspace_bytes", "depend on arrays");
  must(simdattn_attention_bind(a, &plan), "attention_bind");
  run(a, &plan);
}

/* Array i was there when the plan was made, and is not bound. */
static void array_goes(const simdattn_attention_problem* a, simdattn_plan plan, int i) {
  simdattn_attention_problem without = *a;
  const char* name = kArrays[i].name;
  results got;
  simdattn_status s;
  take_away(&without, i);
  s = simdattn_attention_bind(&without, &plan);
  if (s.code != SIMDATTN_OK) {
    const bool raw_state = i >= 9 && i <= 11; /* acc, max, sum: all of them or none */
    if (strstr(s.detail, name) == NULL && !(raw_state && strstr(s.detail, "raw state") != NULL)) fail(name, s.detail);
    return;
  }
  if (kArrays[i].length) fail(name, "a plan was bound without it");
  run(&without, &plan);
  got = take(&without);
  must(whole(&without), "attention without an array");
  compare(&without, got, "other bits without an array", name);
}

int main(int argc, char** argv) {
  const long problems = argc > 1 ? atol(argv[1]) : 100;
  long tried = 0, bound = 0;
  state = (argc > 2 ? (uint64_t)atoll(argv[2]) : 1) * 0x9E3779B97F4A7C15u + 1;
  for (; tried < problems; ++tried) {
    random_case c;
    make_case(&c);
    if (whole(&c.problem).code == SIMDATTN_OK) {
      simdattn_plan plan = SIMDATTN_PLAN_INIT;
      const results want = take(&c.problem);
      int i;
      must(simdattn_attention_plan(&c.problem, &plan, NULL), "attention_plan");
      arrays_come_later(&c.problem, &plan);
      compare(&c.problem, want, "a bound plan", "other bits");
      for (i = 0; i < ARRAYS; ++i) {
        if (get(&c.problem, i) != NULL && one_in(4)) array_goes(&c.problem, plan, i);
      }
      ++bound;
    }
    end_case(&c);
  }
  printf("%ld problems, %ld of them good\n", tried, bound);
  if (bound * 4 < tried * 3) fail("problems", "most of them should be good");
  return 0;
}
