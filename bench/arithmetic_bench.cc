#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "bench/harness.h"
#include "bench/peers.h"

// Attention in the other arithmetics. The companion is the same problem in f32 arithmetic on the same storage.

namespace bench {
namespace {

using simdattn::Arithmetic;
using simdattn::AttentionProblem;
using simdattn::DType;

struct Setup {
  Arithmetic arithmetic;
  DType type;
  bool panels;
  int64_t heads;  // of queries, for one head of keys
  int64_t n_q;
  int64_t n_kv;
  int64_t dim;
  bool causal = true;
};

struct Data {
  Buffer q, k, v, out, workspace;
  AttentionProblem whole, part, f32;

  simdattn::Status run(const AttentionProblem& a, const simdattn::Target* t) {
    return simdattn::attention(a, {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  }
};

// Multiply-adds that the definition does for the comparison, about.
constexpr int64_t kScalarWork = 4'000'000;

/// What other libraries are asked for beside a prompt: the same attention, each in its own arithmetic.
Work work_of(const Setup& s) {
  if (s.n_q == 1 || s.panels || s.type != DType::kBF16) return {};
  return {.kind = Kind::kAttention,
          .type = s.type,
          .heads = s.heads,
          .kv_heads = 1,
          .n_q = s.n_q,
          .n = s.n_kv,
          .d = s.dim,
          .scale = 1 / std::sqrt(static_cast<float>(s.dim)),
          .causal = s.causal};
}

/// Pairs of a row and a key that rows from `first` on see.
int64_t pairs(const Setup& s, int64_t first) {
  if (!s.causal) return (s.n_q - first) * s.n_kv;
  const int64_t shorter = s.n_kv - s.n_q;
  return (s.n_q - first) * shorter + (s.n_q * (s.n_q + 1) - first * (first + 1)) / 2;
}

Prepared prepare(const Setup& s) {
  auto data = std::make_shared<Data>();
  Data& d = *data;
  const auto count = [](auto... factors) { return static_cast<size_t>((int64_t{1} * ... * factors)); };
  const int64_t padded = (s.n_kv + simdattn::kPanelWidth - 1) / simdattn::kPanelWidth * simdattn::kPanelWidth;
  d.q = random_buffer(s.type, count(s.heads, s.n_q, s.dim), 1);
  d.k = random_buffer(s.type, count(padded, s.dim), 2);
  d.v = random_buffer(s.type, count(s.n_kv, s.dim), 3);
  d.out = Buffer(count(s.heads, s.n_q, s.dim) * sizeof(float));

  // The whole problem, and the last rows or the first head of it.
  const auto problem = [&](Arithmetic arithmetic, int64_t heads, int64_t first_row) {
    const size_t at = count(first_row, s.dim) * element_size(s.type);
    AttentionProblem a;
    a.arithmetic = arithmetic;
    a.out = {d.out.as<std::byte>() + at,
             s.type,
             {1, heads, s.n_q - first_row, s.dim},
             {s.heads * s.n_q * s.dim, s.n_q * s.dim, s.dim, 1}};
    a.q = a.out;
    a.q.data = d.q.as<std::byte>() + at;
    a.k = s.panels ? simdattn::contiguous_kv(d.k.as<const char>(), simdattn::kv_type_of(s.type),
                                             simdattn::KvLayout::kPanels, 1, 1, s.n_kv, s.dim)
                   : simdattn::ConstKv(simdattn::ConstView<4>(d.k.data(), s.type, {1, 1, s.n_kv, s.dim}));
    a.v = simdattn::ConstView<4>(d.v.data(), s.type, {1, 1, s.n_kv, s.dim});
    a.scoring.causal = s.causal;
    return a;
  };
  const int64_t per_row = 2 * s.n_kv * s.dim;
  const int64_t part_heads = s.n_q > 1 ? s.heads : std::clamp<int64_t>(kScalarWork / per_row, 1, s.heads);
  const int64_t first_row = s.n_q > 1 ? s.n_q - std::clamp<int64_t>(kScalarWork / per_row, 1, s.n_q) : 0;
  d.whole = problem(s.arithmetic, s.heads, 0);
  d.part = problem(s.arithmetic, part_heads, first_row);
  d.f32 = problem(Arithmetic::kF32, s.heads, 0);
  d.workspace = Buffer(most_workspace({&d.whole, &d.part, &d.f32}));

  Prepared p;
  p.keep = data;
  p.work = work_of(s);
  p.work.q = d.q.data();
  p.work.k = d.k.data();
  p.work.v = d.v.data();
  p.work.out = d.out.data();
  p.run = [&d](const simdattn::Target* t, bool is_part) { return d.run(is_part ? d.part : d.whole, t); };
  p.companion = [&d](const simdattn::Target* t) { return d.run(d.f32, t); };
  p.scalar_share = static_cast<double>(part_heads * pairs(s, first_row)) / static_cast<double>(s.heads * pairs(s, 0));
  p.out = d.out.data();
  p.out_dtype = s.type;
  p.out_elements = count(s.heads, s.n_q, s.dim);
  p.first = count(first_row, s.dim);
  p.count = first_row > 0 ? count(s.n_q - first_row, s.dim) : count(part_heads, s.n_q, s.dim);
  p.absolute = 0x1p-6;  // a weight that is rounded the other way
  p.relative = s.type == DType::kF32 ? 0 : 0x1p-7;
  p.flops = 4.0 * static_cast<double>(s.heads * pairs(s, 0) * s.dim);
  p.streams = {d.k.bytes().first(count(s.n_kv, s.dim) * element_size(s.type) / 64 * 64), d.v.bytes()};
  return p;
}

void add(std::vector<Case>& cases, const char* shape, const Setup& s, bool main) {
  Case c;
  c.kernel = s.arithmetic == Arithmetic::kBF16 ? "arithmetic_bf16" : "arithmetic_int8";
  c.shape = std::string(shape) + (s.panels ? "_panels" : "_rows");
  c.type = type_name(s.type);
  c.main = main;
  c.weight = 3;
  c.companion = "f32 arithmetic";
  c.work = work_of(s);
  c.peers = c.work.n > 0;
  c.prepare = [s] { return prepare(s); };
  cases.push_back(std::move(c));
}

}  // namespace

void add_arithmetic_cases(std::vector<Case>& cases) {
  for (const Arithmetic arithmetic : {Arithmetic::kBF16, Arithmetic::kInt8}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      for (const bool panels : {true, false}) {
        for (const int64_t dim : {64, 128}) {
          for (const int64_t n : {128, 256, 512, 2048, 4096}) {
            const std::string shape = "prefill_" + std::to_string(n) + "x" + std::to_string(dim);
            add(cases, shape.c_str(), {arithmetic, type, panels, 1, n, n, dim},
                n == 2048 && panels && type == DType::kBF16);
          }
        }
        // Rows that see all keys, as in an encoder.
        for (const int64_t n : {128, 512, 2048}) {
          if (panels || type != DType::kBF16) break;
          for (const int64_t dim : {64, 128}) {
            const std::string shape = "encode_" + std::to_string(n) + "x" + std::to_string(dim);
            add(cases, shape.c_str(), {arithmetic, type, panels, 1, n, n, dim, false}, false);
          }
        }
        // Keys and values of bf16: 256 KiB, 4 MiB, 64 MiB.
        for (const int64_t heads : {1, 4, 8}) {
          for (const int64_t n : {512, 8192, 131072}) {
            const std::string shape = "decode" + std::to_string(heads) + "_" + std::to_string(n) + "x128";
            add(cases, shape.c_str(), {arithmetic, type, panels, heads, 1, n, 128},
                heads == 4 && n == 8192 && panels && type == DType::kBF16);
          }
        }
      }
    }
  }
}

}  // namespace bench
