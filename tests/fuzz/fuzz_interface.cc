// libFuzzer over the C functions, with what tests/support/problems.h never draws: every number of every struct may be
// broken, sizes of structs too. A call is accepted or refused alike on two targets; an accepted one gives the same
// bits, whatever its outputs and workspace held before; a refused one has written nothing and says why. Every array is
// a block of its own of exactly the bytes that the arguments describe, so a sanitizer sees one byte too many. No C++
// library beside the headers: MemorySanitizer would have to know it.
//
//   tools/fuzz            a run of every fuzzer, from the corpus in tests/data/fuzz.tar.gz
#include <cstdint>
#include <cstring>

#include "simdattn/simdattn_c.h"
#include "tests/fuzz/fuzz_interface.h"
#include "tests/support/problem_arrays.h"

namespace simdattn::fuzz {
namespace {

// ---- Keys and values ------------------------------------------------------------------------------------------------

template <class Kv>
void choose_kv(Call& c, Kv& kv, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, bool panels_too,
               bool ring_too) {
  Input& in = c.in;
  kv.type = static_cast<KvType>(in.below(12));
  const bool blocks = kv.type >= KvType::kQ8_0;
  if (blocks && dim % 32 != 0) kv.type = static_cast<KvType>(in.below(6));
  kv.batch = batch;
  kv.heads = heads;
  kv.capacity = tokens;
  kv.dim = dim;
  const bool panels = panels_too && kv.type <= KvType::kQ4_0 && in.one_in(2);
  if (panels) kv.layout = KvLayout::kPanels;
  int64_t held = tokens, entries = batch;
  const int64_t form = in.below(4);
  if (form == 2) {
    kv.page_size = panels ? 32 * (1 + in.below(2)) : 1 + in.below(40);
    kv.n_pages = batch * ((tokens + kv.page_size - 1) / kv.page_size) + in.below(2);
    held = kv.page_size;
    entries = kv.n_pages;
    if (in.one_in(3)) kv.block_table_stride = (tokens + kv.page_size - 1) / kv.page_size + in.below(3);
  } else if (form == 3 && ring_too) {
    kv.ring = panels ? 32 * (1 + in.below(2)) : 1 + in.below(70);
    held = kv.ring;
  }
  if (in.one_in(4)) kv.length = tokens == 0 ? 0 : in.below(tokens + 1);
  const int64_t unit = panels ? simdattn_panel_bytes(kv.type, dim) : simdattn_row_bytes(kv.type, dim);
  const int64_t units = panels ? (held + 31) / 32 : held;
  const int64_t element = kv.type == KvType::kF32 ? 4 : 2;
  kv.token_stride = unit + (in.one_in(4) ? element * in.below(4) : 0);
  kv.head_stride = kv.token_stride * units;
  kv.batch_stride = kv.head_stride * heads;
  if (!panels && in.one_in(4)) {
    kv.head_stride = unit;
    kv.token_stride = unit * heads;
    kv.batch_stride = kv.token_stride * held;
  }
  kv.scale_token_stride = in.one_in(4) && kv.type != KvType::kInt8 ? 0 : 4;
  kv.scale_head_stride = 4 * held;
  kv.scale_batch_stride = 4 * held * heads;
  static_cast<void>(entries);
  c.breakable(&kv.struct_size, kStructSize);
  c.breakable(&kv.type, kEnum);
  c.breakable(&kv.layout, kEnum);
  for (int64_t* n : {&kv.batch, &kv.heads, &kv.capacity, &kv.length, &kv.dim, &kv.batch_stride, &kv.head_stride,
                     &kv.token_stride, &kv.scale_batch_stride, &kv.scale_head_stride, &kv.scale_token_stride,
                     &kv.block_table_stride, &kv.page_size, &kv.n_pages, &kv.ring}) {
    c.breakable(n, kSize);
  }
  c.breakable(&kv.reserved[2], kSize);
}

template <class Kv>
void memory_of(Call& c, Kv& kv, bool changes, bool by_place = false) {
  Memory& m = c.memory;
  const auto bad = [](int64_t n) { return n < 0 || n > kMaxSize; };
  const bool refused = kv.struct_size != sizeof kv || bad(kv.dim) || bad(kv.batch) || bad(kv.heads) ||
                       bad(kv.capacity) || bad(kv.ring) || bad(kv.page_size) || bad(kv.n_pages) ||
                       (kv.layout != KvLayout::kRows && kv.layout != KvLayout::kPanels) ||
                       static_cast<uint32_t>(kv.type) > 11 || kv.block_table_stride < -1 ||
                       kv.block_table_stride > kMaxSize;
  if (refused) {
    kv.data = m.add(4, false, changes);
    return;
  }
  if (kv.dim > 4096 || kv.batch > 64 || kv.heads > 64 || kv.capacity > 2048 || kv.page_size > 4096 ||
      kv.n_pages > 4096 || kv.ring > 4096) {
    m.skip = true;
    return;
  }
  const bool panels = kv.layout == KvLayout::kPanels, paged = kv.page_size > 0;
  const int64_t held = paged ? kv.page_size : kv.ring > 0 && kv.ring < kv.capacity ? kv.ring : kv.capacity;
  const int64_t entries = paged ? kv.n_pages : kv.batch;
  const int64_t units = panels ? (held + 31) / 32 : held;
  const bool empty = units == 0 || entries == 0 || kv.heads == 0 || (kv.capacity == 0 && !by_place);
  Call::Extent extent, scales;
  bool skip = false;
  const int64_t unit = panels ? simdattn_panel_bytes(kv.type, kv.dim) : simdattn_row_bytes(kv.type, kv.dim);
  extent.add(units, kv.token_stride, 1, &skip);
  extent.add(kv.heads, kv.head_stride, 1, &skip);
  extent.add(entries, kv.batch_stride, 1, &skip);
  const bool has_scales = simdattn_has_scales(kv.type) && (kv.type == KvType::kInt8 || !c.in.one_in(3));
  if (has_scales) {
    scales.add(held, kv.scale_token_stride, 1, &skip);
    scales.add(kv.heads, kv.scale_head_stride, 1, &skip);
    scales.add(entries, kv.scale_batch_stride, 1, &skip);
  }
  if (empty) skip = false;
  const bool too_far = extent.refused || scales.refused;
  if (skip && !too_far) m.skip = true;
  if (m.skip) return;
  const int64_t bytes = empty ? 0 : too_far ? 4 : extent.high - extent.low + unit;
  unsigned char* const data = m.add(bytes, false, changes);
  if (m.skip) return;
  m.fill(data, bytes, kv.type == KvType::kF32 ? 4 : 2);
  kv.data = data - (too_far || empty ? 0 : extent.low);
  if (has_scales) {
    const int64_t scale_bytes = empty ? 0 : too_far ? 4 : scales.high - scales.low + 4;
    unsigned char* const data_scales = m.add(scale_bytes, false, changes);
    if (m.skip) return;
    m.fill(data_scales, scale_bytes, 4);
    kv.scales = reinterpret_cast<float*>(data_scales - (too_far || empty ? 0 : scales.low));
  }
  if (paged && !c.in.one_in(16)) {
    const int64_t per = (kv.capacity + kv.page_size - 1) / kv.page_size;
    const int64_t stride = kv.block_table_stride < 0 ? per : kv.block_table_stride;
    if (kv.batch > 0 && (kv.batch - 1) * stride + per > 4096) {
      m.skip = true;
      return;
    }
    const int64_t count = kv.batch == 0 ? 0 : (kv.batch - 1) * stride + per;
    int32_t* const table = reinterpret_cast<int32_t*>(m.add(4 * count, false, false));
    if (m.skip) return;
    const int64_t wrong = c.in.one_in(8) ? c.in.below(64) : -1;
    const bool shared = c.in.one_in(8);  // a page twice, as a common prefix
    for (int64_t i = 0; i < count; ++i) {
      table[i] = kv.n_pages == 0 ? 0 : static_cast<int32_t>((shared ? i / 2 : i) % kv.n_pages);
      if (i == wrong) table[i] = c.in.of({-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(kv.n_pages)});
    }
    kv.block_table = table;
  }
}

void kv_append(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), n = in.size(0, 40), tokens = in.size(0, 70),
                d = in.one_in(3) ? 32 : in.size(1, 40);
  const int64_t rows = in.size(1, 70), pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_const_view4 x;
  simdattn_kv kv;
  simdattn_const_view2 at;
  simdattn_append_options o;
  c.shape(x, c.element(), {batch, heads, n, d});
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  const bool with_positions = in.one_in(2), with_slots = in.one_in(5), rotate = in.one_in(2);
  const int64_t present = in.byte();
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  if (with_positions) c.shape(at, index, {batch, n});
  if (with_slots) c.shape(o.slots, index, {batch, n});
  if (rotate) {
    c.shape(o.rope.cos, DType::kF32, {rows, pairs});
    c.shape(o.rope.sin, DType::kF32, {rows, pairs});
    o.rope.options.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
    if (in.one_in(4)) o.rope.options.first_dim = d - 2 * pairs;
    c.breakable(&o.rope.options.pairing, kEnum);
    c.breakable(&o.rope.options.first_dim, kSize);
  }
  if (in.one_in(4)) o.rope.hadamard_block = in.of<int64_t>({1, 2, 4, 8, 32});
  if (in.one_in(2) && tokens > 0) o.start = in.below(tokens);
  for (size_t* size : {&o.struct_size, &o.rope.struct_size, &o.rope.options.struct_size})
    c.breakable(size, kStructSize);
  c.breakable(&o.rope.reserved[1], kSize);
  c.breakable(&o.rope.hadamard_block, kSize);
  c.breakable(&o.start, kSize);
  c.break_some();
  c.memory_of(x);
  memory_of(c, kv, true, with_slots);
  if (c.memory.skip) return;
  if (with_positions) c.positions(at, kv.capacity);
  if (with_slots) c.positions(o.slots, kv.n_pages * kv.page_size);
  if (rotate) {
    c.memory_of_all(o.rope.cos, o.rope.sin);
  }
  if (present & 1) o.starts = c.numbers(x.shape[0], 0, kv.capacity);
  if (present & 2) o.counts = c.numbers(x.shape[0], 0, n);
  c.compare([&](const simdattn_exec& exec) {
    return simdattn_kv_append(&x, with_positions ? &at : nullptr, &kv, &o, &exec);
  });
}

void kv_shift(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), tokens = in.size(0, 70),
                d = in.one_in(3) ? 32 : in.size(1, 40);
  const int64_t rows = in.size(1, 70), pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_kv kv;
  simdattn_key_rotation o;
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  int64_t first = in.below(tokens + 1), last = first + in.below(tokens - first + 1),
          delta = in.one_in(2) ? -in.below(first + 1) : in.below(tokens - last + 1);
  const bool rotate = in.one_in(2);
  if (rotate) {
    c.shape(o.cos, DType::kF32, {rows, pairs});
    c.shape(o.sin, DType::kF32, {rows, pairs});
    o.options.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
    c.breakable(&o.options.pairing, kEnum);
    c.breakable(&o.options.first_dim, kSize);
  }
  if (in.one_in(4)) o.hadamard_block = in.of<int64_t>({1, 2, 4, 8, 32});
  for (size_t* size : {&o.struct_size, &o.options.struct_size}) c.breakable(size, kStructSize);
  for (int64_t* x : {&first, &last, &delta, &o.hadamard_block}) c.breakable(x, kSize);
  c.break_some();
  memory_of(c, kv, true);
  if (c.memory.skip) return;
  if (rotate) {
    c.memory_of_all(o.cos, o.sin);
  }
  c.compare([&](const simdattn_exec& exec) { return simdattn_kv_shift(&kv, first, last, delta, &o, &exec); });
}

void kv_read(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), tokens = in.size(0, 70),
                d = in.one_in(3) ? 64 : in.size(1, 40);
  simdattn_const_kv kv{};
  simdattn_view4 out;
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  int64_t first = in.below(tokens + 1);
  c.shape(out, DType::kF32, {batch, heads, in.below(tokens - first + 1), d});
  c.breakable(&first, kSize);
  c.break_some();
  memory_of(c, kv, false);
  c.memory_of(out);
  c.compare([&](const simdattn_exec& exec) { return simdattn_kv_read(&kv, first, &out, &exec); });
}

// ---- Fused attention ------------------------------------------------------------------------------------------------

void attention(Call& c) {
  Input& in = c.in;
  const Heads h = heads(in);
  const bool many = in.one_in(16);  // several blocks of keys, and splits
  const int64_t n_kv = many ? in.size(200, 1040) : in.size(0, 70), n_q = many ? in.below(3) : in.size(0, 6);
  const int64_t d = many           ? 1 + in.below(4)
                    : in.one_in(3) ? 32
                                   : in.size(1, 40),
                d_v = many           ? 1 + in.below(4)
                      : in.one_in(2) ? in.size(1, 40)
                                     : d;
  simdattn_attention_problem a;
  const bool varlen = in.one_in(4), varlen_k = varlen && in.one_in(2);
  c.shape(a.q, c.element(), {varlen ? 1 : h.batch, h.all, n_q, d});
  choose_kv(c, a.k, varlen_k ? 1 : h.batch, h.kv, n_kv, d, !varlen_k, false);
  choose_kv(c, a.v, varlen_k ? 1 : h.batch, h.kv, n_kv, d_v, false, false);
  a.v.length = a.k.length;
  c.shape(a.out, c.element(), {varlen ? 1 : h.batch, h.all, n_q, d_v});
  const bool with_lse = in.one_in(2), with_raw = in.one_in(6), without_out = in.one_in(8);
  if (with_lse) c.shape(a.lse, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
  if (with_raw) {
    c.shape(a.acc, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q, d_v});
    c.shape(a.max, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
    c.shape(a.sum, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
  }
  Scoring scoring;
  scoring.choose(c, varlen ? 1 : h.batch, h.all, n_q, n_kv);
  a.arithmetic = in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  if (varlen) a.n_sequences = h.batch;
  c.breakable(&a.struct_size, kStructSize);
  c.breakable(&a.arithmetic, kEnum);
  c.breakable(&a.n_sequences, kSize);
  const int64_t how = in.below(3);
  int64_t cut = in.byte(), first = 0, extra = 0;
  c.breakable(&first, kSize);
  c.breakable(&extra, kSize);
  const bool with_lists = in.one_in(4);
  if (with_lists) {
    a.lists.heads = in.of<int64_t>({1, h.kv});
    a.lists.length = in.below(13);
    a.lists.block_size = 1 + in.below(5);
    for (int64_t* size : {&a.lists.heads, &a.lists.length, &a.lists.block_size}) c.breakable(size, kSize);
  }
  // The parts of scoring are broken with the rest, so they are looked at where they are.
  c.break_some();
  c.memory_of(a.q);
  memory_of(c, a.k, false);
  memory_of(c, a.v, false);
  if (c.memory.skip) return;
  if (!without_out) c.memory_of(a.out);
  if (with_lse) c.memory_of(a.lse);
  if (with_raw) {
    c.memory_of_all(a.acc, a.max, a.sum);
  }
  const int64_t sequences = varlen ? a.n_sequences : a.q.shape[0];
  scoring.give_memory(c, sequences, a.q.shape[0], a.q.shape[1], a.q.shape[2],
                      a.k.length < 0 ? a.k.capacity : a.k.length);
  a.scoring = scoring.s;
  if (varlen) {
    a.cu_q = c.offsets(sequences, a.q.shape[2]);
    if (varlen_k) a.cu_k = c.offsets(sequences, a.k.length < 0 ? a.k.capacity : a.k.length);
  }
  if (with_lists) {
    const int64_t rows = a.q.shape[0] * a.q.shape[2];
    const int64_t count = a.lists.heads * a.lists.length;
    if (rows < 0 || rows > 64 || a.lists.heads < 0 || a.lists.heads > 64 || a.lists.length < 0 || a.lists.length > 64) {
      c.memory.skip = true;
    } else {
      a.lists.stride = {count * a.q.shape[2], a.q.shape[2] * a.lists.length, a.lists.length};
      int32_t* const entries = reinterpret_cast<int32_t*>(c.memory.add(4 * count * rows + 4, false, false));
      for (int64_t i = 0; !c.memory.skip && i < count * rows; ++i) entries[i] = static_cast<int32_t>(in.below(72)) - 1;
      a.lists.data = entries;
    }
  }
  if (c.memory.skip) return;

  // Sizes, which also need no data.
  simdattn_plan plan;
  c.exec.target = c.target[0];
  const bool good = simdattn_attention_plan(&a, &plan, &c.exec).code == simdattn::Code::kOk;
  if (good) {
    require(plan.tasks >= 0 && plan.reduce_tasks >= 0 && plan.tasks < 1 << 23, "a plan of odd size");
    simdattn_plan other;
    c.exec.target = c.target[1];  // operands have the target's layout
    require(simdattn_attention_plan(&a, &other, &c.exec).code == simdattn::Code::kOk,
            "two targets disagree about a problem");
    if (other.workspace_bytes != plan.workspace_bytes) {
      c.workspace_less = -1;  // not too little for one of them alone
      if (other.workspace_bytes > plan.workspace_bytes) plan.workspace_bytes = other.workspace_bytes;
    }
    if (plan.workspace_bytes > static_cast<size_t>(64 * kMostBytes) ||
        plan.partial_bytes > static_cast<size_t>(64 * kMostBytes))
      return;
  }
  c.workspace(good ? plan.workspace_bytes : 64);
  if (how == 0) {
    c.compare([&](const simdattn_exec& exec) { return simdattn_attention(&a, &exec); });
    return;
  }
  // In ranges, through a plan that may have been made without data.
  const uint64_t left_out = in.one_in(2) ? ~uint64_t{0} : static_cast<uint64_t>(in.below(256)) * 0x9E3779B97F4A7C15u;
  unsigned char* const partial = kept_partial.take(good ? plan.partial_bytes : 0);
  c.compare([&](const simdattn_exec& exec) -> simdattn_status {
    simdattn_plan p;
    if (how == 2) {
      int bit = 0;
      simdattn_attention_problem later = a;
      simdattn::test::for_each_array(&later, [&](const char*, auto& pointer, simdattn::test::Read read) {
        const bool gone = left_out >> bit++ % 64 & 1;
        if (gone && read == simdattn::test::Read::kByRanges) pointer = nullptr;
      });
      simdattn_status s = simdattn_attention_plan(&later, &p, &exec);
      if (s.code != simdattn::Code::kOk) return s;
      s = simdattn_attention_bind(&a, &p);
      if (s.code != simdattn::Code::kOk) return s;
    } else {
      const simdattn_status s = simdattn_attention_plan(&a, &p, &exec);
      if (s.code != simdattn::Code::kOk) return s;
    }
    require(good || how == 2, "a plan is made or not by chance");
    if (!good) return {};  // without data there was less to refuse
    require(p.workspace_bytes <= plan.workspace_bytes && p.partial_bytes == plan.partial_bytes && p.tasks == plan.tasks,
            "two plans of one problem");
    if (p.partial_bytes > 0) {
      std::memset(partial, 0xFF, p.partial_bytes);
      SIMDATTN_UNINITIALISED(partial, p.partial_bytes);
    }
    for (const bool reduce : {false, true}) {
      const int64_t tasks = reduce ? p.reduce_tasks : p.tasks, middle = tasks == 0 ? 0 : cut % (tasks + 1);
      // The later half first; nothing is written by a range that does not exist.
      const int64_t ranges[3][2] = {
          {middle, tasks}, {first, first == 0 ? middle : first - 1}, {0, extra == 0 ? 0 : tasks + 1}};
      for (const auto& range : ranges) {
        const simdattn_status s =
            reduce ? simdattn_attention_reduce(&p, range[0], range[1], partial, p.partial_bytes, &exec)
                   : simdattn_attention_range(&p, range[0], range[1], partial, p.partial_bytes, &exec);
        // Each looks at the pages that it reads itself: a later one may be refused alone.
        if (s.code != simdattn::Code::kOk) {
          if (&range == &ranges[0] && !reduce) return s;
          return {};
        }
      }
    }
    return {};
  });
}

// ---- Which ----------------------------------------------------------------------------------------------------------

void one_input(const uint8_t* data, size_t size) {
  static const simdattn_target* exact[64];
  static int64_t targets = 0;
  if (targets == 0) {
    size_t count = 0;
    const simdattn_target* const* const all = simdattn_targets(&count);
    for (size_t i = 0; i < count && targets < 64; ++i) {
      if (simdattn_target_runnable(all[i]) && simdattn_target_exact(all[i])) exact[targets++] = all[i];
    }
  }
  Call c(Input{data, size});
  const int64_t function = c.in.below(20);
  c.target[0] = exact[targets - 1];  // the definition
  // Another one, where there is one: the definition beside itself says least and takes longest.
  const int64_t other = c.in.byte();
  c.target[1] = exact[targets == 1 || other % 16 == 15 ? targets - 1 : other % (targets - 1)];
  c.memory.values = c.in.below(3);
  c.memory.state = static_cast<uint64_t>(c.in.byte()) * 0x9E3779B97F4A7C15u | 1;
  c.breakable(&c.exec.struct_size, kStructSize);
  switch (function) {
    case 0: scores(c, Score::kProducts); break;
    case 1: scores(c, Score::kGaussian); break;
    case 2: scores(c, Score::kBilinear); break;
    case 3: scores(c, Score::kAdditive); break;
    case 4: softmax(c); break;
    case 5: masked_softmax(c); break;
    case 6: weighted_values(c); break;
    case 7: elementwise(c); break;
    case 8: merge(c); break;
    case 9: rope(c, false); break;
    case 10: rope(c, true); break;
    case 11: tables(c); break;
    case 12: kv_append(c); break;
    case 13: kv_append(c); break;
    case 14: kv_shift(c); break;
    case 15: kv_read(c); break;
    case 18: linear_attention(c); break;
    case 19: causal_conv(c); break;
    default: attention(c); break;
  }
}

}  // namespace
}  // namespace simdattn::fuzz

/// Variables stand on the stack, not in memory of their own, so that fill_stack() reaches them. What an input has freed
/// is soon used again: 256 MB of fresh memory took a tenth of the time, and the library neither frees memory nor keeps
/// a pointer.
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0:quarantine_size_mb=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  simdattn::fuzz::one_input(data, size);
  return 0;
}
