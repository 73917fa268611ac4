#include <cmath>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"
#include "simdattn/extras.h"

// The scores before the dot product, of one query (decode) and of eight, all in the second-level cache. Additive scores
// are bound by the hyperbolic tangent: cycles per (query, key, dimension).

namespace bench {
namespace {

using simdattn::ConstView;
using simdattn::DType;
using simdattn::Exec;
using simdattn::Status;
using simdattn::Target;

constexpr int64_t kKeys = 512;
constexpr double kSumBound = 2 * (kRowDim / 16 + 7) * 0x1p-24;  // 2: either side has its own error

struct Data {
  Buffer q, k, m, w, out, workspace;
};
using Call = Status (*)(const Data&, int64_t rows, DType type, const Exec& exec);

ConstView<4> rows_of(const Buffer& b, DType type, int64_t rows) { return {b.data(), type, {1, 1, rows, kRowDim}}; }
simdattn::View<4> scores_of(const Data& d, int64_t rows) {
  return simdattn::view(d.out.as<float>(), {1, 1, rows, kKeys});
}

Prepared prepare(Call call, DType type, int64_t n_q, double absolute, double flops) {
  auto data = std::make_shared<Data>();
  data->q = random_buffer(type, static_cast<size_t>(n_q * kRowDim), 1);
  data->k = random_buffer(type, static_cast<size_t>(kKeys * kRowDim), 2);
  data->m = random_buffer(type, static_cast<size_t>(kRowDim * kRowDim), 3);
  data->w = random_buffer(DType::kF32, static_cast<size_t>(kRowDim), 4);
  data->out = Buffer(static_cast<size_t>(n_q * kKeys) * sizeof(float));
  data->workspace = Buffer(simdattn::bilinear_scores_workspace(kRowDim, kRowDim));
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    return call(*d, n_q, type, {.target = t, .workspace = d->workspace.data(), .workspace_bytes = d->workspace.size()});
  };
  p.out = data->out.data();
  p.out_elements = p.count = static_cast<size_t>(n_q * kKeys);
  p.absolute = absolute;
  p.flops = flops;
  if (flops > 0) p.streams = {data->k.bytes()};
  return p;
}

struct Function {
  const char* name;
  Call call;
  double absolute;         // |q|, |k|, |m|, |w| <= 1
  double flops;            // per query and key
  double flops_per_query;  // beside
};

const Function kFunctions[] = {
    {"gaussian_scores",
     [](const Data& d, int64_t rows, DType type, const Exec& exec) {
       return simdattn::gaussian_scores(rows_of(d.q, type, rows), rows_of(d.k, type, kKeys), scores_of(d, rows), {},
                                        exec);
     },
     2 * kSumBound* kRowDim, 3 * kRowDim, 0},
    {"bilinear_scores",
     [](const Data& d, int64_t rows, DType type, const Exec& exec) {
       return simdattn::bilinear_scores(rows_of(d.q, type, rows), ConstView<3>(d.m.data(), type, {1, kRowDim, kRowDim}),
                                        rows_of(d.k, type, kKeys), scores_of(d, rows), {}, exec);
     },
     2 * (kRowDim + kRowDim / 16 + 5) * 0x1p-24 * kRowDim* kRowDim, 2 * kRowDim, 2 * kRowDim* kRowDim},
    {"additive_scores",
     [](const Data& d, int64_t rows, DType type, const Exec& exec) {
       return simdattn::additive_scores(rows_of(d.q, type, rows), rows_of(d.k, type, kKeys),
                                        simdattn::view(d.w.as<const float>(), {1, kRowDim}), scores_of(d, rows), {}, {},
                                        exec);
     },
     kSumBound* kRowDim, 0, 0},
};

}  // namespace

void add_other_scores_cases(std::vector<Case>& cases) {
  for (const Function& f : kFunctions) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t n_q : {1, 8}) {
        Case c;
        c.kernel = f.name;
        c.shape = std::to_string(n_q) + "q_" + std::to_string(kKeys) + "x" + std::to_string(kRowDim);
        c.type = type_name(type);
        c.main = type == DType::kF32 && n_q == 1;
        const double queries = static_cast<double>(n_q);
        const double flops = queries * (f.flops * kKeys + f.flops_per_query);
        if (flops == 0) c.elements = queries * static_cast<double>(kKeys * kRowDim);
        c.prepare = [&f, type, n_q, flops] { return prepare(f.call, type, n_q, f.absolute, flops); };
        cases.push_back(std::move(c));
      }
    }
  }
}

}  // namespace bench
