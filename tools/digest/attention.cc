// Lines of caches and of attention over them.
#include "tools/digest/run.h"

#include <tuple>

namespace simdattn::digest {
namespace {

enum class Form : uint8_t { kRows, kPanels, kPagedRows, kPagedPanels, kRingRows, kRingPanels };
constexpr std::pair<Form, const char*> kForms[] = {
    {Form::kRows, "rows"},
    {Form::kPanels, "panels"},
    {Form::kPagedRows, "paged rows"},
    {Form::kPagedPanels, "paged panels"},
    {Form::kRingRows, "ring of rows"},
    {Form::kRingPanels, "ring of panels"},
};

struct Cache {
  Buffer memory;
  std::vector<int32_t> table;
  Kv kv;
};

Cache make_cache(Random& random, DType type, Form form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  Cache c;
  Kv& kv = c.kv;
  const bool panels = form == Form::kPanels || form == Form::kPagedPanels || form == Form::kRingPanels;
  kv.type = kv_type_of(type);
  kv.layout = panels ? KvLayout::kPanels : KvLayout::kRows;
  kv.batch = batch;
  kv.heads = heads;
  kv.capacity = tokens;
  kv.dim = dim;
  int64_t entries = batch, held = tokens;
  if (form == Form::kRingRows || form == Form::kRingPanels) {
    kv.ring = panels ? kPanelWidth * random.integer(1, 2) : random.integer(1, 50);
    held = kv.ring;
  } else if (form == Form::kPagedRows || form == Form::kPagedPanels) {
    kv.page_size = panels ? kPanelWidth * random.integer(1, 2) : random.of<int64_t>({1, 16, 17, 64});
    held = kv.page_size;
    kv.block_table_stride = (tokens + kv.page_size - 1) / kv.page_size;
    entries = kv.n_pages = batch * kv.block_table_stride + 1;
    for (int32_t i = 0; i < kv.n_pages; ++i) c.table.push_back(i);
    for (size_t i = c.table.size(); i > 1; --i)
      std::swap(c.table[i - 1], c.table[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    kv.block_table = c.table.data();
  }
  kv.token_stride = panels ? panel_bytes(kv.type, dim) : row_bytes(kv.type, dim);
  kv.head_stride = (panels ? (held + kPanelWidth - 1) / kPanelWidth : held) * kv.token_stride;
  kv.batch_stride = heads * kv.head_stride;
  c.memory = Buffer(type, entries * kv.batch_stride / size_of(type));
  kv.data = c.memory.data();
  return c;
}

/// Stores tokens first .. first + n - 1 of every sequence.
bool append(Run& run, const Array<4>& rows, int64_t first, const Kv& kv, const KeyRotation& rotation = {}) {
  const int64_t batch = rows.view.shape[0], n = rows.view.shape[2];
  Array<2> positions(DType::kI32, {batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, first + i % n);
  return run.ok(kv_append(rows.view, positions.view, kv, {.rope = rotation}, run.exec()));
}

/// No rotation, or one by a table that `cos` and `sin` hold.
KeyRotation random_rotation(Run& run, Array<2>& cos, Array<2>& sin, int64_t tokens, int64_t half) {
  KeyRotation rotation;
  if (!run.random.one_in(2)) return rotation;
  random_table(run, cos, sin, tokens, half);
  rotation.cos = cos.view;
  rotation.sin = sin.view;
  rotation.options.pairing = run.random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  return rotation;
}

bool run_append(Run& run, DType type, Form form) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(1, 6);
  const int64_t half = run.size(1, 40), dim = 2 * half + random.integer(0, 5), tokens = run.size(n, 150);
  const DType rows_type = random.storage();
  const Array<4> rows = input(random, rows_type, {batch, heads, n, dim}, run.values());
  const Cache cache = make_cache(random, type, form, batch, heads, tokens, dim);
  Array<2> cos, sin;
  const KeyRotation rotation = random_rotation(run, cos, sin, tokens, half);
  // A ring smaller than n would keep the last of the tokens that share a place.
  const int64_t shown = cache.kv.ring > 0 ? std::min(n, cache.kv.ring) : n;
  Array<4> part = rows;
  part.view.data = part.buffer.data();
  part.view.shape[2] = shown;
  if (!append(run, part, random.integer(0, tokens - shown), cache.kv, rotation)) return false;
  run.add(cache.memory);
  return true;
}

bool run_shift(Run& run, DType type, Form form) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 2), half = run.size(1, 40);
  const int64_t dim = 2 * half + random.integer(0, 5), tokens = run.size(2, 120);
  const Array<4> rows = input(random, type, {batch, heads, tokens, dim}, run.values());
  const Cache cache = make_cache(random, type, form, batch, heads, tokens, dim);
  if (!append(run, rows, 0, cache.kv)) return false;
  const int64_t first = random.integer(1, tokens - 1), last = random.integer(first, tokens);
  const int64_t delta = -random.integer(0, first);
  Array<2> cos, sin;
  const KeyRotation rotation = random_rotation(run, cos, sin, tokens, half);
  if (!run.ok(kv_shift(cache.kv, first, last, delta, rotation, run.exec()))) return false;
  run.add(cache.memory);
  return true;
}

/// The whole problem at once, or its tasks in a random order and the reduction.
bool run_problem(Run& run, AttentionProblem a) {
  a.arithmetic = run.arithmetic;
  Plan plan;
  Exec exec = run.exec();
  if (!run.ok(attention_plan(a, &plan, exec))) return false;
  std::vector<unsigned char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  if (run.random.one_in(2)) return run.ok(attention(a, exec));
  for (int64_t i = plan.tasks; i-- > 0;) {
    if (!run.ok(attention_range(plan, i, i + 1, partial.data(), partial.size(), exec))) return false;
  }
  return plan.reduce_tasks == 0 ||
         run.ok(attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec));
}

struct AttentionSizes {
  int64_t max_q = 12;
  int64_t max_kv = 100;
  int64_t max_dim = 80;
  bool fixed = false;  // exactly these
};

bool run_attention(Run& run, DType k_type, DType v_type, Form form, const AttentionSizes& sizes) {
  Random& random = run.random;
  const int64_t batch = sizes.fixed ? 1 : random.integer(1, 2), kv_heads = sizes.fixed ? 1 : random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 5);
  const int64_t n_q = sizes.fixed ? sizes.max_q : random.integer(1, sizes.max_q);
  const int64_t n_kv = sizes.fixed ? sizes.max_kv : run.size(1, sizes.max_kv);
  const int64_t dim = sizes.fixed ? sizes.max_dim : run.size(1, sizes.max_dim);
  const int64_t dim_v = random.one_in(2) ? dim : run.size(1, sizes.max_dim);
  const Values values = run.values();
  const DType out_type = random.storage();
  const Array<4> q = input(random, random.storage(), {batch, heads, n_q, dim}, values);
  const Array<4> k = input(random, k_type, {batch, kv_heads, n_kv, dim}, values);
  const Array<4> v = input(random, v_type, {batch, kv_heads, n_kv, dim_v}, values);
  Options options;
  AttentionProblem a;
  a.scoring = random_scoring(run, options, batch, heads, n_q, n_kv);
  a.q = q.view;
  Cache keys = make_cache(random, k_type, form, batch, kv_heads, n_kv, dim);
  const bool ring = form == Form::kRingRows || form == Form::kRingPanels;
  const Form value_form = ring                         ? Form::kRingRows
                          : form == Form::kPagedRows   ? Form::kPagedRows
                          : form == Form::kPagedPanels ? Form::kPagedRows
                                                       : Form::kRows;
  Cache cached_values = make_cache(random, v_type, value_form, batch, kv_heads, n_kv, dim_v);
  if (ring) {  // only what the smaller ring holds can be attended to
    const int64_t held = std::min({keys.kv.ring, cached_values.kv.ring, n_kv});
    options.kv_start.assign(static_cast<size_t>(batch), static_cast<int32_t>(n_kv - held));
    a.scoring.kv_start = options.kv_start.data();
  }
  // Token by token, as in decoding.
  for (int64_t t = 0; t < n_kv; ++t) {
    const auto token = [&](const Array<4>& rows) {
      Array<4> one;
      one.view = rows.view;
      one.view.shape[2] = 1;
      one.view.data = static_cast<unsigned char*>(rows.view.data) + t * rows.view.stride[2] * size_of(rows.view.dtype);
      return one;
    };
    if (!append(run, token(k), t, keys.kv) || !append(run, token(v), t, cached_values.kv)) return false;
  }
  a.k = keys.kv;
  a.v = cached_values.kv;
  Array<4> out(out_type, {batch, heads, n_q, dim_v});
  Array<3> lse(DType::kF32, {batch, heads, n_q});
  a.out = out.view;
  a.lse = lse.view;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// Narrow storage: its bytes as kv_append writes them, its numbers, and attention over it. Types that others write: any
/// bytes.
bool run_narrow(Run& run, KvType type, bool panels, bool writes) {
  Random& random = run.random;
  const int64_t block = writes && has_scales(type) ? 1 : 32;
  const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5), n_q = random.integer(1, 3);
  const int64_t n_kv = run.size(1, 300);
  const int64_t dim = (run.size(1, 140) + block - 1) / block * block;
  const Values values = run.values();
  const Array<4> q = input(random, DType::kF32, {1, heads, n_q, dim}, values);
  Buffer memory[2], scales[2];
  Kv kv[2];
  for (int i = 0; i < 2; ++i) {
    const KvLayout layout = panels && i == 0 ? KvLayout::kPanels : KvLayout::kRows;
    const int64_t bytes = kv_bytes(type, layout, 1, kv_heads, n_kv, dim);
    memory[i] = Buffer(DType::kU8, bytes);
    kv[i] = contiguous_kv(memory[i].bytes.data(), type, layout, 1, kv_heads, n_kv, dim);
    if (has_scales(type)) {
      scales[i] = Buffer(DType::kF32, kv_heads * n_kv);
      for (int64_t j = 0; j < scales[i].count(); ++j)
        scales[i].set(j, number(random, DType::kF32, Values::kOrdinary) & 0x7FFFFFFF);
      kv[i] = contiguous_scales(kv[i], reinterpret_cast<float*>(scales[i].bytes.data()));
    }
    const Array<4> rows = input(random, random.storage(), {1, kv_heads, n_kv, dim}, values);
    if (writes) {
      if (!run.ok(kv_append(rows.view, {}, kv[i], {}, run.exec()))) return false;
    } else {
      for (int64_t j = 0; j < bytes; ++j) memory[i].set(j, static_cast<int64_t>(random.bits() & 0xFF));
    }
    run.add(memory[i]);
    run.add(scales[i]);
    Array<4> numbers(DType::kF32, {1, kv_heads, n_kv, dim});
    if (!run.ok(kv_read(kv[i], 0, numbers.view, run.exec()))) return false;
    run.add(numbers.buffer);
  }
  Options options;
  AttentionProblem a;
  a.scoring = random_scoring(run, options, 1, heads, n_q, n_kv);
  a.q = q.view;
  a.k = kv[0];
  a.v = kv[1];
  Array<4> out(DType::kF32, {1, heads, n_q, dim});
  Array<3> lse(DType::kF32, {1, heads, n_q});
  a.out = out.view;
  a.lse = lse.view;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// Sequences of different lengths behind each other.
bool run_packed(Run& run, DType type) {
  Random& random = run.random;
  const int64_t sequences = random.integer(1, 4), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 4), dim = run.size(1, 70);
  std::vector<int32_t> cu_q = {0}, cu_k = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.integer(0, 9)));
    cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.integer(0, 60)));
  }
  const Values values = run.values();
  const Array<4> q = input(random, type, {1, heads, cu_q.back(), dim}, values);
  const Array<4> k = input(random, type, {1, kv_heads, cu_k.back(), dim}, values);
  const Array<4> v = input(random, type, {1, kv_heads, cu_k.back(), dim}, values);
  Array<4> out(type, {1, heads, cu_q.back(), dim});
  Array<3> lse(DType::kF32, {1, heads, cu_q.back()});
  AttentionProblem a;
  a.q = q.view;
  a.k = ConstView<4>(k.view);
  a.v = ConstView<4>(v.view);
  a.out = out.view;
  a.lse = lse.view;
  a.scoring.causal = random.one_in(2);
  a.cu_q = cu_q.data();
  a.cu_k = cu_k.data();
  a.n_sequences = sequences;
  if (!run_problem(run, a)) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// The raw state: accumulator, maximum, sum.
bool run_raw(Run& run) {
  Random& random = run.random;
  const int64_t heads = random.integer(1, 4), n_q = random.integer(1, 6), n_kv = run.size(1, 400);
  const int64_t dim = run.size(1, 70);
  const Values values = run.values();
  const Array<4> q = input(random, DType::kF32, {1, heads, n_q, dim}, values);
  const Array<4> k = input(random, DType::kF32, {1, 1, n_kv, dim}, values);
  const Array<4> v = input(random, DType::kF32, {1, 1, n_kv, dim}, values);
  Array<4> acc(DType::kF32, {1, heads, n_q, dim});
  Array<3> max(DType::kF32, {1, heads, n_q}), sum(DType::kF32, {1, heads, n_q});
  AttentionProblem a;
  a.q = q.view;
  a.k = ConstView<4>(k.view);
  a.v = ConstView<4>(v.view);
  a.acc = acc.view;
  a.max = max.view;
  a.sum = sum.view;
  a.scoring.causal = random.one_in(2);
  if (!run_problem(run, a)) return false;
  for (const Buffer* b : {&acc.buffer, &max.buffer, &sum.buffer}) run.add(*b);
  return true;
}

bool run_merge(Run& run, DType type) {
  Random& random = run.random;
  const int64_t parts = random.integer(1, 6), batch = random.integer(1, 2), heads = random.integer(1, 4);
  const int64_t n = random.integer(1, 5), dim = run.size(1, 140);
  Array<5> part(type, {parts, batch, heads, n, dim});
  Array<4> part_lse(DType::kF32, {parts, batch, heads, n});
  part.buffer.fill(random, run.values());
  part_lse.buffer.fill(random, Values::kOrdinary);
  for (int64_t i = 0; i < part_lse.buffer.count(); ++i) {
    if (random.one_in(6)) part_lse.buffer.set(i, 0xFF800000u);
  }
  std::vector<float> sinks(static_cast<size_t>(heads));
  for (float& x : sinks) x = ordinary(random, 1);
  Array<4> out(type, {batch, heads, n, dim});
  Array<3> lse(DType::kF32, {batch, heads, n});
  const float* given = random.one_in(2) ? sinks.data() : nullptr;
  if (!run.ok(attention_merge(part.view, part_lse.view, out.view, lse.view, given, run.exec()))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// attention() over lists.
bool run_lists(Run& run, DType type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
  const int64_t n = random.integer(1, 5), rows = run.size(1, 200), dim = run.size(1, 100);
  const Values values = run.values();
  const Array<4> q = input(random, type, {batch, heads, n, dim}, values);
  const Array<4> k = input(random, type, {batch, kv_heads, rows, dim}, values);
  const Array<4> v = input(random, type, {batch, kv_heads, rows, dim}, values);
  Array<4> out(DType::kF32, {batch, heads, n, dim});
  Array<3> lse(DType::kF32, {batch, heads, n});
  AttentionProblem a;
  a.arithmetic = run.arithmetic;
  a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
  a.scoring.causal = random.one_in(2);
  const int64_t block = random.of({int64_t{1}, int64_t{4}, int64_t{32}}), length = random.integer(0, 400) / block;
  std::vector<int32_t> entries(static_cast<size_t>(kv_heads * n * length), -1);
  int64_t last = -1;
  for (int32_t& e : entries) {
    const int64_t next = random.integer(0, (rows + block - 1) / block - 1);
    if (next != last) e = static_cast<int32_t>(last = next);
  }
  a.lists = {entries.data(), kv_heads, length, block, {0, n * length, length}};
  Plan plan;
  if (!run.ok(attention_plan(a, &plan, run.exec()))) return false;
  if (!run.ok(attention(a, run.exec_with(plan.workspace_bytes)))) return false;
  run.add(out.buffer);
  run.add(lse.buffer);
  return true;
}

/// Caches and attention in every form of storage.
void add_form_lines(Lines* lines, DType type, Form form, const std::string& name) {
  const auto add = [&](const char* function, int problems, std::function<bool(Run&)> run) {
    lines->push_back({function + (" " + name), problems, std::move(run)});
  };
  add("kv_append", 12, [=](Run& r) { return run_append(r, type, form); });
  if (form != Form::kRingRows && form != Form::kRingPanels) {
    add("kv_shift", 6, [=](Run& r) { return run_shift(r, type, form); });
  }
}

/// Key splits, row blocks, the head dimensions of models.
constexpr std::pair<AttentionSizes, const char*> kSizes[] = {
    {{.max_q = 2, .max_kv = 2500, .max_dim = 64, .fixed = true}, "2 rows, 2500 keys of 64"},
    {{.max_q = 1, .max_kv = 1100, .max_dim = 128, .fixed = true}, "1 row, 1100 keys of 128"},
    {{.max_q = 150, .max_kv = 300, .max_dim = 64, .fixed = true}, "150 rows, 300 keys of 64"},
    {{.max_q = 40, .max_kv = 270, .max_dim = 256, .fixed = true}, "40 rows, 270 keys of 256"},
    {{.max_q = 5, .max_kv = 60, .max_dim = 576, .fixed = true}, "5 rows, 60 keys of 576"},
};

/// kF32: also keys and values of different types, and the sizes for each type.
void add_lines_in_f32(Lines* lines) {
  const auto add = [&](const std::string& name, int problems, std::function<bool(Run&)> run) {
    lines->push_back({name, problems, std::move(run)});
  };
  for (const DType type : kTypes) {
    const std::string name = type_name(type);
    for (const auto& [f, form_name] : kForms) {
      const Form form = f;
      add_form_lines(lines, type, form, name + " " + form_name);
      for (const DType v : {type, type == DType::kF32 ? DType::kF16 : DType::kF32}) {
        add("attention " + name + " " + type_name(v) + " " + form_name, 12,
            [=](Run& r) { return run_attention(r, type, v, form, {}); });
      }
    }
    for (const auto& [sizes, text] : kSizes) {
      add("attention " + name + " " + text, 2,
          [type, s = sizes](Run& r) { return run_attention(r, type, type, Form::kPanels, s); });
    }
    add("attention packed " + name, 10, [=](Run& r) { return run_packed(r, type); });
    add("attention_merge " + name, 10, [=](Run& r) { return run_merge(r, type); });
  }
  add("attention raw state", 10, run_raw);
}

void add_lines_in(Lines* lines, Arithmetic arithmetic, const char* in) {
  const auto add = [&](const std::string& name, int problems, const auto& run) {
    add_in(lines, arithmetic, name, in, problems, run);
  };
  for (const DType type : kTypes) {
    const std::string name = type_name(type);
    for (const auto& [form, form_name] : kForms) {
      add("attention " + name + " " + form_name, 6,
          [type, f = form](Run& r) { return run_attention(r, type, type, f, {}); });
    }
    add("attention packed " + name, 10, [=](Run& r) { return run_packed(r, type); });
  }
  for (const auto& [sizes, text] : kSizes) {
    add(std::string("attention ") + text, 2, [s = sizes](Run& r) {
      const DType type = r.random.storage();
      return run_attention(r, type, r.random.storage(), Form::kPanels, s);
    });
  }
  add("attention raw state", 10, run_raw);
}

constexpr std::tuple<KvType, const char*, bool> kNarrow[] = {
    {KvType::kInt8, "int8", true},  {KvType::kFp8E4M3, "e4m3", true}, {KvType::kFp8E5M2, "e5m2", true},
    {KvType::kQ8_0, "q8_0", true},  {KvType::kQ4_0, "q4_0", true},    {KvType::kQ4_1, "q4_1", false},
    {KvType::kQ5_0, "q5_0", false}, {KvType::kQ5_1, "q5_1", false},   {KvType::kIq4Nl, "iq4_nl", false}};

}  // namespace

void add_attention_lines(Lines* lines) {
  add_lines_in_f32(lines);
  for (const auto& [arithmetic, in] : kArithmetics) {
    if (arithmetic != Arithmetic::kF32) add_lines_in(lines, arithmetic, in);
    for (const DType type : kTypes) {
      add_in(lines, arithmetic, std::string("lists ") + type_name(type), in, 12,
             [=](Run& r) { return run_lists(r, type); });
    }
    for (const auto& [type, name, writes] : kNarrow) {
      for (const bool panels : {false, true}) {
        if (panels && !writes) continue;
        add_in(lines, arithmetic, std::string("narrow ") + name + (panels ? " panels" : " rows"), in, 8,
               [panels, t = type, w = writes](Run& r) { return run_narrow(r, t, panels, w); });
      }
    }
  }
}

}  // namespace simdattn::digest
