#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

// What masks as data cost. They are those of engines that know no windows: one f16 bias for all heads. The companion is
// the same problem of which every key is visible; of the causal prompt, the same with `causal`.

namespace bench {
namespace {

using simdattn::AttentionProblem;
using simdattn::DType;
using simdattn::KvType;

constexpr int64_t kCells = 4096, kVisible = 512, kSequences = kCells / kVisible;

enum class Mask { kWindow, kInARow, kInTurns, kNone, kEighth, kCausal };
struct Variant {
  const char* name;
  Mask mask;
};
constexpr Variant kVariants[] = {{"window512", Mask::kWindow},
                                 {"8sequences_in_a_row", Mask::kInARow},
                                 {"8sequences_in_turns", Mask::kInTurns},
                                 {"nothing_hidden", Mask::kNone},
                                 {"an_eighth_hidden", Mask::kEighth}};

struct Setup {
  Mask mask;
  KvType type;
  int64_t n_q, n_kv;

  /// One query is of the fourth sequence, several are of one each.
  bool sees(int64_t row, int64_t key) const {
    const int64_t position = row + n_kv - n_q, sequence = n_q == 1 ? 3 : row % kSequences;
    switch (mask) {
      case Mask::kWindow: return key <= position && key > position - kVisible;
      case Mask::kInARow: return key / kVisible == sequence;
      case Mask::kInTurns: return key % kSequences == sequence;
      case Mask::kNone: return true;
      case Mask::kEighth: return (static_cast<uint32_t>(row * n_kv + key) * 2654435761u >> 29) != 0;
      default: return key <= position;
    }
  }
};

struct Data {
  Buffer q, k, v, out, bias, keep, workspace;
  AttentionProblem whole, part, companion;
  simdattn::Status run(const AttentionProblem& a, const simdattn::Target* t) {
    return simdattn::attention(a, {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  }
};

Work work_of(const Setup& s) {
  if (s.type != KvType::kF16 || s.n_q > kSequences) return {};
  return {.kind = Kind::kAttention,
          .type = DType::kF16,
          .heads = kLlama3.heads,
          .kv_heads = kLlama3.kv_heads,
          .n_q = s.n_q,
          .n = s.n_kv,
          .d = kLlama3.d_qk,
          .scale = 1 / std::sqrt(static_cast<float>(kLlama3.d_qk)),
          .masked = true};
}

/// Fills the bias and the mask. Returns how many keys the rows see together.
double fill_masks(const Setup& s, Data& d) {
  const size_t pairs = static_cast<size_t>(s.n_q * s.n_kv);
  d.bias = Buffer(pairs * 2);
  d.keep = Buffer(pairs);
  double visible = 0;
  for (int64_t i = 0; i < s.n_q; ++i) {
    for (int64_t j = 0; j < s.n_kv; ++j) {
      const bool sees = s.sees(i, j);
      d.bias.as<uint16_t>()[i * s.n_kv + j] = sees ? 0 : 0xFC00;
      d.keep.as<uint8_t>()[i * s.n_kv + j] = sees;
      visible += sees;
    }
  }
  return visible;
}

Prepared prepare(const Setup& s) {
  const Model& m = kLlama3;
  auto data = std::make_shared<Data>();
  Data& d = *data;
  const size_t queries = static_cast<size_t>(m.heads * s.n_q * m.d_qk);
  d.q = random_buffer(DType::kF16, queries, 1);
  d.out = Buffer(queries * sizeof(float));
  for (Buffer* b : {&d.k, &d.v}) {
    const int64_t bytes = simdattn::kv_bytes(s.type, simdattn::KvLayout::kRows, 1, m.kv_heads, s.n_kv, m.d_qk);
    *b = Buffer(static_cast<size_t>(bytes));
    const Buffer rows =
        random_buffer(DType::kF32, static_cast<size_t>(m.kv_heads * s.n_kv * m.d_qk), b == &d.k ? 2 : 3);
    (void)simdattn::kv_append(
        simdattn::ConstView<4>(rows.data(), DType::kF32, {1, m.kv_heads, s.n_kv, m.d_qk}), {},
        simdattn::contiguous_kv(b->as<char>(), s.type, simdattn::KvLayout::kRows, 1, m.kv_heads, s.n_kv, m.d_qk));
  }
  const double visible = fill_masks(s, d);
  const auto problem = [&](int64_t heads) {
    AttentionProblem a;
    a.q = simdattn::ConstView<4>(d.q.data(), DType::kF16, {1, heads, s.n_q, m.d_qk});
    a.out = simdattn::View<4>(d.out.data(), DType::kF16, {1, heads, s.n_q, m.d_qk});
    for (auto* kv : {&a.k, &a.v}) {
      *kv = simdattn::contiguous_kv((kv == &a.k ? d.k : d.v).as<const char>(), s.type, simdattn::KvLayout::kRows, 1,
                                    m.kv_heads, s.n_kv, m.d_qk);
      kv->heads = std::max<int64_t>(heads / m.group(), 1);
    }
    a.scoring.bias = simdattn::ConstView<4>(d.bias.data(), DType::kF16, {1, 1, s.n_q, s.n_kv});
    return a;
  };
  const int64_t part_heads = s.n_q > 1 ? 1 : m.group();
  d.whole = problem(m.heads);
  d.part = problem(part_heads);
  d.companion = d.whole;
  d.companion.scoring.bias = {};
  d.companion.scoring.causal = s.mask == Mask::kCausal;
  d.workspace = Buffer(most_workspace({&d.whole, &d.part, &d.companion}));

  Prepared p;
  p.keep = data;
  p.run = [&d](const simdattn::Target* t, bool is_part) { return d.run(is_part ? d.part : d.whole, t); };
  p.companion = [&d](const simdattn::Target* t) { return d.run(d.companion, t); };
  p.scalar_share = static_cast<double>(part_heads) / static_cast<double>(m.heads);
  p.out = d.out.data();
  p.out_dtype = DType::kF16;
  p.out_elements = queries;
  p.count = queries * static_cast<size_t>(part_heads) / static_cast<size_t>(m.heads);
  p.absolute = 1e-4;
  p.relative = 0x1p-10;
  p.flops = 4.0 * static_cast<double>(m.heads * m.d_qk) * visible;
  p.work = work_of(s);
  p.work.q = d.q.data();
  p.work.k = d.k.data();
  p.work.v = d.v.data();
  p.work.out = d.out.data();
  p.work.keep = d.keep.as<const uint8_t>();
  return p;
}

void add(std::vector<Case>& cases, std::string shape, const Setup& s, bool main) {
  Case c;
  c.kernel = "masks";
  c.shape = std::move(shape);
  c.type = s.type == KvType::kF16 ? "f16" : "q8_0";
  c.main = main;
  c.peers = s.n_q == 1;
  c.work = work_of(s);
  c.weight = 3;
  c.companion = s.mask == Mask::kCausal ? "causal" : "without a mask";
  c.prepare = [s] { return prepare(s); };
  cases.push_back(std::move(c));
}

}  // namespace

void add_mask_cases(std::vector<Case>& cases) {
  for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (const int64_t n_q : {int64_t{1}, kSequences}) {
      for (const Variant& v : kVariants) {
        add(cases, std::string(v.name) + "_" + std::to_string(n_q) + "of" + std::to_string(kCells),
            {v.mask, type, n_q, kCells}, type == KvType::kF16);
      }
    }
    add(cases, "causal_prefill_512", {Mask::kCausal, type, 512, 512}, type == KvType::kF16);
  }
}

}  // namespace bench
