// docs/guide-caches.md: one sequence against the formula, every other form against the bits of one sequence.
#include <algorithm>

#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;
using guides::good;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kLength = 150;
constexpr int64_t kQRow = kHeads * kDim, kKvRow = kKvHeads * kDim;
constexpr auto kType = sa::KvType::kBF16;

Floats part(const Floats& x, int64_t from, int64_t n) { return Floats(x.begin() + from, x.begin() + from + n); }

struct Table {
  Floats cos = Floats(256 * kDim / 2), sin = Floats(256 * kDim / 2);
  sa::KeyRotation rope;

  Table() {
    const auto c = sa::view(cos.data(), {256, kDim / 2}), s = sa::view(sin.data(), {256, kDim / 2});
    good(sa::rope_table(c, s), "rope_table");
    rope.cos = c;
    rope.sin = s;
  }
};

/// Queries as attention() wants them, and all tokens of one sequence.
struct Sequence {
  Floats q, k, v;  // [kLength, heads, kDim], not rotated

  explicit Sequence(uint32_t s)
      : q(guides::numbers(kLength * kQRow, s)),
        k(guides::numbers(kLength * kKvRow, s + 1)),
        v(guides::numbers(kLength * kKvRow, s + 2)) {}
};

Floats run(const sa::AttentionProblem& problem, Floats& out) {
  sa::Plan plan;
  good(sa::attention_plan(problem, &plan), "attention_plan");
  std::vector<std::byte> workspace(plan.workspace_bytes);
  good(sa::attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}), "attention");
  return out;
}

/// The queries of rows [from, from + n) of a sequence, rotated.
Floats rotated_queries(const Sequence& s, const Table& t, int64_t from, int64_t n) {
  Floats q = part(s.q, from * kQRow, n * kQRow);
  const auto rows = rows_of(q.data(), kHeads, n, kDim);
  good(sa::rope(rows, t.rope.cos, t.rope.sin, from, rows), "rope");
  return q;
}

}  // namespace

int main() {
  const Table table;
  const Sequence s(1), other(10);
  std::vector<std::byte> workspace;

  // One sequence: a prompt of 100, a chunk of 49, one token.
  Cache cache(kType, kKvHeads, 180, kDim), exact(sa::KvType::kF32, kKvHeads, 180, kDim);
  Floats expected;  // [kLength, heads, kDim]
  Floats expected_exact;
  for (const auto& [from, n] : {std::pair<int64_t, int64_t>{0, 100}, {100, 49}, {149, 1}}) {
    for (Cache* c : {&cache, &exact}) {
      Floats q = part(s.q, from * kQRow, n * kQRow), out(q.size());
      good(append(*c, s.k.data() + from * kKvRow, s.v.data() + from * kKvRow, n, from, table.rope), "append");
      good(attend(*c, q.data(), out.data(), kHeads, n, from + n, table.rope, workspace), "attend");
      Floats& all = c == &cache ? expected : expected_exact;
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  const Floats formula =
      guides::attention(guides::rotated(s.q, kLength, kHeads, kDim, 0),
                        guides::rotated(s.k, kLength, kKvHeads, kDim, 0), s.v, kHeads, kKvHeads, kDim);
  guides::near(expected_exact, formula, 2e-6, "attend, f32");
  guides::near(expected, formula, 2e-2, "attend, bf16");
  const Floats last = part(expected, 149 * kQRow, kQRow);

  // The same tokens as integers, and as blocks that another system wrote: row by row what attention sees is within half
  // a step.
  {
    Int8Cache integers(kKvHeads, 180, kDim);
    good(sa::kv_append(rows_of(s.k.data(), kKvHeads, kLength, kDim), {}, integers.keys, {.rope = table.rope}),
         "Int8Cache");
    good(sa::kv_append(rows_of(s.v.data(), kKvHeads, kLength, kDim), {}, integers.values), "Int8Cache");
    const Floats queries = rotated_queries(s, table, 149, 1);
    Floats out(static_cast<size_t>(kQRow)), numbers(static_cast<size_t>(kLength * kKvRow));
    sa::AttentionProblem problem{.q = rows_of(queries.data(), kHeads, 1, kDim),
                                 .k = integers.keys,
                                 .v = integers.values,
                                 .out = rows_of(out.data(), kHeads, 1, kDim),
                                 .scoring = {.causal = true}};
    problem.k.length = problem.v.length = kLength;
    run(problem, out);
    guides::near(out, part(formula, 149 * kQRow, kQRow), 5e-2, "Int8Cache");

    std::vector<std::byte> blocks(
        static_cast<size_t>(sa::kv_bytes(sa::KvType::kQ8_0, sa::KvLayout::kRows, 1, 1, kLength, kKvRow)));
    const sa::ConstKv described = ggml_rows(blocks.data(), kLength, 1, kKvRow);
    sa::Kv written = sa::contiguous_kv(blocks.data(), described.type, described.layout, 1, 1, kLength, kKvRow);
    written.head_stride = described.head_stride, written.token_stride = described.token_stride;
    good(sa::kv_append(rows_of(s.k.data(), 1, kLength, kKvRow), {}, written), "ggml_rows");
    good(sa::kv_read(described, 0, rows_of(numbers.data(), 1, kLength, kKvRow)), "ggml_rows");
    guides::near(numbers, s.k, 2e-2, "ggml_rows");
  }

  Cache other_cache(kType, kKvHeads, 180, kDim);
  Floats other_q = other.q, other_out(other_q.size());
  good(append(other_cache, other.k.data(), other.v.data(), kLength, 0, table.rope), "append");
  good(attend(other_cache, other_q.data(), other_out.data(), kHeads, kLength, kLength, table.rope, workspace),
       "attend");

  // Two sequences in pages of 64 keys and of 5 values. Sequence 0 has 150 tokens, 1 has 70.
  constexpr int64_t kPage = 64, kPages = 7, kRowPage = 5, kRowPages = 70;
  const int32_t key_table[2][3] = {{5, 0, 3}, {1, 6, -1}};
  int32_t value_table[2][36];
  for (int32_t i = 0; i < 36; ++i) {
    value_table[0][i] = (i * 8 + 3) % 35;
    value_table[1][i] = i < 14 ? 35 + (i * 11) % 35 : -1;
  }
  std::vector<sa::bf16> key_pool(kPages * kKvHeads * kPage * kDim, sa::bf16{0x7FC0});
  std::vector<sa::bf16> value_pool(kRowPages * kRowPage * kKvHeads * kDim, sa::bf16{0x7FC0});
  sa::Kv keys = paged_keys(key_pool.data(), kPages, kPage, key_table[0], 2, 3, kKvHeads, kDim);
  sa::Kv values = paged_rows(value_pool.data(), kRowPages, kRowPage, value_table[0], 2, 36, kKvHeads, kDim);
  keys.capacity = values.capacity = 180;
  // Chunks of 90 rows, padded on the right: pasts of 0 and 0, then 60 and 40.
  const auto chunks = [&](const int32_t(&pasts)[2], const int32_t(&counts)[2]) {
    Floats k(2 * 90 * kKvRow, NAN), v = k, q(2 * 90 * kQRow, 0.0f), out(q.size());
    int32_t lengths[2];
    for (const int64_t b : {0, 1}) {
      const Sequence& from = b == 0 ? s : other;
      lengths[b] = pasts[b] + counts[b];
      std::copy_n(from.k.data() + pasts[b] * kKvRow, counts[b] * kKvRow, k.data() + b * 90 * kKvRow);
      std::copy_n(from.v.data() + pasts[b] * kKvRow, counts[b] * kKvRow, v.data() + b * 90 * kKvRow);
      const Floats rows = rotated_queries(from, table, pasts[b], counts[b]);
      std::copy(rows.begin(), rows.end(), q.data() + b * 90 * kQRow);
    }
    good(append_chunks(k.data(), v.data(), keys, values, 90, pasts, counts, table.rope), "append_chunks");
    run(padded_chunks(q.data(), out.data(), keys, values, kHeads, 90, pasts, lengths), out);
    for (const int64_t b : {0, 1}) {
      guides::same_bits(part(out, b * 90 * kQRow, counts[b] * kQRow),
                        part(b == 0 ? expected : other_out, pasts[b] * kQRow, counts[b] * kQRow), "padded_chunks");
    }
  };
  chunks({0, 0}, {60, 40});
  chunks({60, 40}, {90, 30});

  // One decode step of both, and a mixed batch of 3 rows, none and 1.
  const int32_t lengths[2] = {150, 70};
  Floats q = rotated_queries(s, table, 149, 1), out(2 * kQRow);
  const Floats q1 = rotated_queries(other, table, 69, 1), last1 = part(other_out, 69 * kQRow, kQRow);
  q.insert(q.end(), q1.begin(), q1.end());
  Floats both = last;
  both.insert(both.end(), last1.begin(), last1.end());
  guides::same_bits(run(decode_batch(q.data(), out.data(), keys, values, kHeads, kDim, lengths), out), both,
                    "decode_batch");
  {
    const int32_t cu_q[3] = {0, 3, 4};
    Floats mixed = rotated_queries(s, table, 147, 3), mixed_out(4 * kQRow),
           wanted = part(expected, 147 * kQRow, 3 * kQRow);
    mixed.insert(mixed.end(), q1.begin(), q1.end());
    wanted.insert(wanted.end(), last1.begin(), last1.end());
    run(mixed_batch(mixed.data(), mixed_out.data(), keys, values, kHeads, kDim, cu_q, 2, lengths), mixed_out);
    guides::same_bits(mixed_out, wanted, "mixed_batch");
  }

  // The same tokens by slot, into another pool; every other token of sequence 0 first.
  {
    std::vector<sa::bf16> pool(key_pool.size(), sa::bf16{0x7FC0});
    sa::Kv by_place = keys;
    by_place.data = pool.data();
    for (const int64_t parity : {0, 1}) {
      std::vector<int64_t> slots(kLength), positions(kLength);
      for (int64_t t = 0; t < kLength; ++t) {
        const size_t i = static_cast<size_t>(t);
        positions[i] = t;
        slots[i] = t % 2 == parity ? key_table[0][t / kPage] * kPage + t % kPage : -1;
      }
      good(append_slots(s.k.data(), kLength, by_place, slots.data(), positions.data(), table.rope), "append_slots");
    }
    by_place.batch = 1;
    sa::Kv one = values;
    one.batch = 1;
    Floats slot_out(kQRow);
    run(decode_batch(q.data(), slot_out.data(), by_place, one, kHeads, kDim, lengths), slot_out);
    guides::same_bits(slot_out, last, "append_slots");
  }

  // Key blocks [d][block] of vLLM, of every size, against panels that kv_append wrote.
  for (const int64_t block : {16, 32, 64, 128}) {
    std::vector<sa::bf16> panels(256 * kDim), wanted(panels.size());
    std::vector<sa::f16> panels16(256 * kDim), wanted16(panels.size());
    const Floats x = guides::numbers(256 * kDim, 77);
    good(sa::kv_append(sa::view(x.data(), {1, 1, 256, kDim}), {}, sa::key_panels(wanted.data(), 1, 1, 256, kDim)),
         "append");
    good(sa::kv_append(sa::view(x.data(), {1, 1, 256, kDim}), {}, sa::key_panels(wanted16.data(), 1, 1, 256, kDim)),
         "append");
    for (int64_t first = 0; first < 256; first += block) {
      std::vector<sa::bf16> theirs(static_cast<size_t>(kDim * block));
      std::vector<sa::f16> theirs16(theirs.size());
      for (int64_t t = 0; t < block; ++t) {
        // A key of 16-bit numbers, taken back from the rows of a cache.
        sa::bf16 row[kDim];
        sa::f16 row16[kDim];
        const auto in = sa::view(x.data() + (first + t) * kDim, {1, 1, 1, kDim});
        good(sa::kv_append(in, {}, sa::view(row, {1, 1, 1, kDim})), "rows");
        good(sa::kv_append(in, {}, sa::view(row16, {1, 1, 1, kDim})), "rows");
        for (int64_t e = 0; e < kDim; ++e) {
          theirs[static_cast<size_t>(e * block + t)] = row[e];
          theirs16[static_cast<size_t>(e * block + t)] = row16[e];
        }
      }
      block_to_panels(theirs.data(), block, kDim, panels.data(), first);
      block_to_panels(theirs16.data(), block, kDim, panels16.data(), first);
      if (block == 32 && std::memcmp(theirs16.data(), wanted16.data() + first * kDim, theirs16.size() * 2) != 0) {
        std::puts("FAIL a block of 32 in f16 is not a panel");
        return 1;
      }
    }
    if (std::memcmp(panels.data(), wanted.data(), panels.size() * 2) != 0 ||
        std::memcmp(panels16.data(), wanted16.data(), panels16.size() * 2) != 0) {
      std::printf("FAIL block_to_panels of %d\n", static_cast<int>(block));
      return 1;
    }
  }

  // A ring for a window of 40 and chunks of 15, against the whole cache.
  {
    std::vector<sa::bf16> memory(static_cast<size_t>(64 * kKvRow));
    const sa::Kv ring = ring_keys(memory.data(), 40, 15, kKvHeads, kDim);
    for (int64_t from = 0; from < kLength; from += 15) {
      good(sa::kv_append(rows_of(s.k.data() + from * kKvRow, kKvHeads, 15, kDim), {}, ring,
                         {.rope = table.rope, .start = from}),
           "ring");
      Floats q15 = rotated_queries(s, table, from, 15), ring_out(q15.size()), whole_out(q15.size());
      for (const bool whole : {false, true}) {
        Floats& to = whole ? whole_out : ring_out;
        sa::AttentionProblem p{.q = rows_of(q15.data(), kHeads, 15, kDim),
                               .k = whole ? cache.keys : ring,
                               .v = cache.values,
                               .out = rows_of(to.data(), kHeads, 15, kDim),
                               .scoring = {.causal = true, .window_left = 39}};
        p.k.length = p.v.length = from + 15;
        run(p, to);
      }
      guides::same_bits(ring_out, whole_out, "ring_keys");
    }
  }

  // A plan without data, for the longest step; then for this one.
  {
    sa::Plan longest, plan;
    sa::AttentionProblem problem;
    good(plan_ahead(kType, kHeads, kKvHeads, 180, kDim, &longest, &problem), "plan_ahead");
    problem.k.length = problem.v.length = kLength;
    good(sa::attention_plan(problem, &plan), "plan");
    if (plan.workspace_bytes > longest.workspace_bytes || plan.partial_bytes > longest.partial_bytes) return 1;
    std::vector<std::byte> memory(longest.workspace_bytes), partial(longest.partial_bytes);
    const sa::Exec exec{.workspace = memory.data(), .workspace_bytes = memory.size()};
    guides::refused(sa::attention_range(plan, 0, 1, partial.data(), partial.size(), exec), "plan: made without data");
    Floats layer_out(kQRow);
    good(run_layer(&plan, problem, q.data(), cache, layer_out.data(), memory.data(), partial.data()), "run_layer");
    guides::same_bits(layer_out, last, "run_layer");
    problem.k.length = problem.v.length = 180;
    guides::refused(run_layer(&plan, problem, q.data(), cache, layer_out.data(), memory.data(), partial.data()), "k: ");
  }

  // What may change under a plan, and the sentences of the last table.
  {
    int32_t changing[2] = {150, 70};
    Floats to(2 * kQRow);
    const sa::AttentionProblem problem = decode_batch(q.data(), to.data(), keys, values, kHeads, kDim, changing);
    sa::Plan plan;
    good(sa::attention_plan(problem, &plan), "plan");
    std::vector<std::byte> memory(plan.workspace_bytes);
    const sa::Exec exec{.workspace = memory.data(), .workspace_bytes = memory.size()};
    changing[1] = 71;
    guides::refused(sa::attention_range(plan, 0, plan.tasks, nullptr, 0, exec), "plan: cu_q, cu_k, kv_length, ");
    changing[1] = 70;
    guides::refused(sa::attention(problem, {}), "exec.workspace: null; see Plan::workspace_bytes");
    changing[1] = 1000;
    guides::refused(sa::attention(problem, exec), "scoring.kv_length: must be in 0 .. n_kv");
    sa::AttentionProblem wrong = problem;
    wrong.k.batch = kPages;
    guides::refused(sa::attention(wrong, exec), "k.batch: must be the number of sequences");
    wrong = problem;
    wrong.k.length = 9;
    guides::refused(sa::attention(wrong, exec), "v.capacity: not as many as k has");
    wrong = problem;
    wrong.k.page_size = 48;
    guides::refused(sa::attention(wrong, exec), "k.page_size, n_pages: ");
  }
  if (2 * 32 * sa::kv_bytes(sa::KvType::kF16, sa::KvLayout::kPanels, 1, 8, 8192, 128) != int64_t{1} << 30) return 1;
}
