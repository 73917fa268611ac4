#include <algorithm>
#include <array>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

// Attention over narrow storage. The companion is the same problem in f32 arithmetic, over bf16 storage; of a prefill
// in kInt8 over the same storage. Decode in kF32 also has a limit: the time to read keys and values, or that of the
// multiplications, one of which per number is that with its scale.

namespace bench {
namespace {

using simdattn::Arithmetic;
using simdattn::AttentionProblem;
using simdattn::DType;
using simdattn::KvLayout;
using simdattn::KvType;

// Beyond the caches: 151 MB of q4_0, 276 MB of int8. A third level of 32 MB still serves a fifth of the reads of 64 MB.
constexpr int64_t kStreamedKeys = 131072;

struct Setup {
  KvType type;
  Arithmetic arithmetic;
  bool panels;
  int64_t heads;  // of queries
  int64_t kv_heads;
  int64_t n_q;
  int64_t n_kv;
  int64_t dim = kRowDim;

  bool same_storage() const { return arithmetic == Arithmetic::kInt8 && n_q > 1; }
  const char* companion() const { return same_storage() ? "f32 arithmetic" : "bf16 storage"; }
};

/// Keys or values of one problem.
struct Cache {
  Buffer numbers, scales;
  simdattn::Kv kv;

  simdattn::Status fill(KvType type, KvLayout layout, const Setup& s, uint64_t seed) {
    numbers = Buffer(static_cast<size_t>(simdattn::kv_bytes(type, layout, 1, s.kv_heads, s.n_kv, s.dim)));
    kv = simdattn::contiguous_kv(numbers.as<char>(), type, layout, 1, s.kv_heads, s.n_kv, s.dim);
    if (simdattn::has_scales(type)) {
      scales = Buffer(static_cast<size_t>(s.kv_heads * s.n_kv) * sizeof(float));
      std::fill_n(scales.as<float>(), s.kv_heads * s.n_kv, 1 / 448.0f);
      kv = simdattn::contiguous_scales(kv, scales.as<float>());
    }
    // The same tokens again and again: as many as f32 rows have room for in the caches.
    constexpr int64_t kTokens = 512;
    const Buffer rows = random_buffer(DType::kF32, static_cast<size_t>(s.kv_heads * kTokens * s.dim), seed);
    for (int64_t t = 0; t < s.n_kv; t += kTokens) {
      simdattn::AppendOptions options;
      options.start = t;
      const int64_t n = std::min(kTokens, s.n_kv - t);
      const simdattn::Status status = simdattn::kv_append(
          simdattn::ConstView<4>(rows.data(), DType::kF32, {1, s.kv_heads, n, s.dim}), {}, kv, options);
      if (!status.ok()) return status;
    }
    return {};
  }
};

struct Data {
  Buffer q, out, workspace;
  Cache k, v, other_k, other_v;
  AttentionProblem whole, part, companion;
  simdattn::Status filled;

  simdattn::Status run(const AttentionProblem& a, const simdattn::Target* t) {
    if (!filled.ok()) return filled;
    return simdattn::attention(a, {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  }
};

// Multiply-adds that the definition does for the comparison, about.
constexpr int64_t kScalarWork = 4'000'000;

Prepared prepare(const Setup& s) {
  auto data = std::make_shared<Data>();
  Data& d = *data;
  const KvLayout keys = s.panels ? KvLayout::kPanels : KvLayout::kRows;
  const KvType other = s.same_storage() ? s.type : KvType::kBF16;
  d.q = random_buffer(DType::kF32, static_cast<size_t>(s.heads * s.n_q * s.dim), 1);
  d.out = Buffer(static_cast<size_t>(s.heads * s.n_q * s.dim) * sizeof(float));
  for (const auto& [cache, type, layout] : {std::tuple{&d.k, s.type, keys},
                                            {&d.v, s.type, KvLayout::kRows},
                                            {&d.other_k, other, keys},
                                            {&d.other_v, other, KvLayout::kRows}}) {
    const simdattn::Status status = cache->fill(type, layout, s, cache == &d.k || cache == &d.other_k ? 2 : 3);
    if (!status.ok()) d.filled = status;
  }
  const auto problem = [&](Arithmetic arithmetic, const Cache& k, const Cache& v, int64_t heads, int64_t first_row) {
    AttentionProblem a;
    a.arithmetic = arithmetic;
    const std::array<int64_t, 4> shape = {1, heads, s.n_q - first_row, s.dim};
    const std::array<int64_t, 4> stride = {s.heads * s.n_q * s.dim, s.n_q * s.dim, s.dim, 1};
    a.q = simdattn::ConstView<4>(d.q.as<float>() + first_row * s.dim, DType::kF32, shape, stride);
    a.out = simdattn::View<4>(d.out.as<float>() + first_row * s.dim, DType::kF32, shape, stride);
    a.k = k.kv, a.v = v.kv;
    a.k.heads = a.v.heads = std::max<int64_t>(heads * s.kv_heads / s.heads, 1);
    a.scoring.causal = true;
    return a;
  };
  const int64_t pairs = s.n_q * (s.n_kv - s.n_q) + s.n_q * (s.n_q + 1) / 2;
  const int64_t per_row = 2 * s.n_kv * s.dim;
  const int64_t first_row = s.n_q > 1 ? s.n_q - std::clamp<int64_t>(kScalarWork / per_row, 1, s.n_q) : 0;
  const int64_t part_pairs = (s.n_q - first_row) * s.n_kv - (s.n_q - first_row) * (s.n_q - first_row - 1) / 2;
  d.whole = problem(s.arithmetic, d.k, d.v, s.heads, 0);
  d.part = problem(s.arithmetic, d.k, d.v, 1, first_row);
  d.companion = problem(Arithmetic::kF32, d.other_k, d.other_v, s.heads, 0);
  d.workspace = Buffer(most_workspace({&d.whole, &d.part, &d.companion}));

  Prepared p;
  p.keep = data;
  p.run = [&d](const simdattn::Target* t, bool is_part) { return d.run(is_part ? d.part : d.whole, t); };
  p.companion = [&d](const simdattn::Target* t) { return d.run(d.companion, t); };
  p.scalar_share = static_cast<double>(part_pairs) / static_cast<double>(s.heads * pairs);
  p.out = d.out.data();
  p.out_dtype = DType::kF32;
  p.out_elements = static_cast<size_t>(s.heads * s.n_q * s.dim);
  p.first = static_cast<size_t>(first_row * s.dim);
  p.count = static_cast<size_t>((s.n_q - first_row) * s.dim);
  p.absolute = s.arithmetic == Arithmetic::kF32 ? 1e-4 : 0x1p-6;
  if (s.arithmetic == Arithmetic::kF32) {
    const double per_number = static_cast<double>(s.heads / s.kv_heads) + (s.n_q == 1 ? 1 : 0);
    p.flops = 4.0 * static_cast<double>(s.kv_heads * pairs * s.dim) * per_number;
  }
  for (const Cache* c : {&d.k, &d.v}) {
    for (const Buffer* b : {&c->numbers, &c->scales}) {
      if (b->size() >= 64) p.streams.push_back(b->bytes().first(b->size() / 64 * 64));
    }
  }
  return p;
}

struct Named {
  KvType type;
  const char* name;
};
constexpr Named kTypes[] = {{KvType::kInt8, "int8"},
                            {KvType::kFp8E4M3, "e4m3"},
                            {KvType::kFp8E5M2, "e5m2"},
                            {KvType::kQ8_0, "q8_0"},
                            {KvType::kQ4_0, "q4_0"}};

void add(std::vector<Case>& cases, std::string shape, const Named& type, const Setup& s, bool main) {
  Case c;
  c.kernel = s.arithmetic == Arithmetic::kInt8 ? "narrow_int8" : "narrow";
  c.shape = std::move(shape) + (s.panels ? "_panels" : "_rows");
  c.type = type.name;
  c.main = main;
  c.weight = 3;
  c.companion = s.companion();
  c.prepare = [s] { return prepare(s); };
  cases.push_back(std::move(c));
}

}  // namespace

void add_narrow_cases(std::vector<Case>& cases) {
  for (const Named& type : kTypes) {
    for (const bool panels : {true, false}) {
      for (const int64_t group : {1, 4}) {
        const std::string name = "decode_" + std::to_string(8 * group) + "of8_" + std::to_string(kStreamedKeys);
        add(cases, name, type, {type.type, Arithmetic::kF32, panels, 8 * group, 8, 1, kStreamedKeys},
            panels && group == 1);
        if (type.type == KvType::kInt8) {
          add(cases, name, type, {type.type, Arithmetic::kInt8, panels, 8 * group, 8, 1, kStreamedKeys}, panels);
        }
      }
      add(cases, "prefill_512of2048", type, {type.type, Arithmetic::kF32, panels, 1, 1, 512, 2048}, panels);
      if (type.type != KvType::kInt8) continue;
      for (const int64_t dim : {64, 128}) {
        for (const int64_t n : {512, 2048, 4096}) {
          const std::string name = "prefill_" + std::to_string(n) + "x" + std::to_string(dim);
          add(cases, name, type, {type.type, Arithmetic::kInt8, panels, 1, 1, n, n, dim}, panels && n == 2048);
        }
      }
    }
  }
}

}  // namespace bench
