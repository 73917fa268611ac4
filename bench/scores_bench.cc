#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

namespace bench {
namespace {

using simdattn::DType;

simdattn::ConstView<4> contiguous(const Buffer& b, DType type, int64_t rows) {
  return {b.data(), type, {1, 1, rows, kRowDim}};
}

Work work_of(DType type, int64_t n_q, int64_t n) {
  return {.kind = Kind::kScores,
          .type = type,
          .n_q = n_q,
          .n = n,
          .d = kRowDim,
          .scale = 1 / std::sqrt(static_cast<float>(kRowDim))};
}

Prepared prepare(DType type, int64_t n_q, int64_t n) {
  struct Data {
    Buffer q, k, q32, k32, out;
  };
  auto data = std::make_shared<Data>();
  const size_t q_elements = static_cast<size_t>(n_q * kRowDim);
  const size_t k_elements = static_cast<size_t>(n * kRowDim);
  data->q = random_buffer(type, q_elements, 1);
  data->k = random_buffer(type, k_elements, 2);
  data->out = Buffer(static_cast<size_t>(n_q * n) * sizeof(float));

  const float scale = work_of(type, n_q, n).scale;
  const int64_t part = n_q * n > 65536 ? 1 : n_q;  // queries that the definition computes
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const simdattn::Target* t, bool is_part) {
    const int64_t rows = is_part ? part : n_q;
    return simdattn::scores(contiguous(d->q, type, rows), contiguous(d->k, type, n),
                            simdattn::view(d->out.as<float>(), {1, 1, rows, n}), {.scale = scale}, {.target = t});
  };
  p.scalar_share = static_cast<double>(part) / static_cast<double>(n_q);
  p.out = data->out.data();
  p.out_elements = static_cast<size_t>(n_q * n);
  p.count = static_cast<size_t>(part * n);
  p.absolute = 2 * (std::ceil(static_cast<double>(kRowDim) / 16) + 5) * 0x1p-24 * static_cast<double>(scale * kRowDim);
  p.flops = 2 * static_cast<double>(n_q * n * kRowDim);
  p.streams = {data->k.bytes()};
  if (type != DType::kF32) {
    data->q32 = random_buffer(DType::kF32, q_elements, 3);
    data->k32 = random_buffer(DType::kF32, k_elements, 4);
    p.companion = [=, d = data.get()](const simdattn::Target* t) {
      return simdattn::scores(contiguous(d->q32, DType::kF32, n_q), contiguous(d->k32, DType::kF32, n),
                              simdattn::view(d->out.as<float>(), {1, 1, n_q, n}), {.scale = scale}, {.target = t});
    };
  }
  p.work = work_of(type, n_q, n);
  p.work.q = data->q.data();
  p.work.k = data->k.data();
  p.work.out = data->out.data();
  return p;
}

}  // namespace

void add_scores_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n_q : kQueryCounts) {
      for (const int64_t n : kRowCounts) {
        Case c;
        c.kernel = "scores";
        c.shape = std::to_string(n_q) + "q_" + std::to_string(n) + "x" + std::to_string(kRowDim);
        c.type = type_name(type);
        c.main = n > 32768 ? false : type == DType::kF32 ? n_q == 1 || n == 512 : n_q == 1 && n >= 4096;
        c.peers = n_q == 1 && (n == 512 || n == 4096 || n == 262144);
        c.work = work_of(type, n_q, n);
        if (type != DType::kF32) c.companion = "f32";
        c.prepare = [=] { return prepare(type, n_q, n); };
        cases.push_back(std::move(c));
      }
    }
  }
}

}  // namespace bench
