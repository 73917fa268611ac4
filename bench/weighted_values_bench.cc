#include <algorithm>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

namespace bench {
namespace {

using simdattn::DType;

Work work_of(DType type, int64_t n_q, int64_t n) {
  return {.kind = Kind::kWeightedValues, .type = type, .n_q = n_q, .n = n, .d = kRowDim};
}

Prepared prepare(DType type, int64_t n_q, int64_t n) {
  struct Data {
    Buffer p, v, v32, out;
  };
  auto data = std::make_shared<Data>();
  const size_t v_elements = static_cast<size_t>(n * kRowDim);
  data->p = random_buffer(DType::kF32, static_cast<size_t>(n_q * n), 1, 1 / static_cast<float>(n));
  data->v = random_buffer(type, v_elements, 2);
  data->out = Buffer(static_cast<size_t>(n_q * kRowDim) * sizeof(float));

  const int64_t part = n_q * n > 65536 ? 1 : n_q;
  Prepared p;
  p.keep = data;
  const auto call = [=, d = data.get()](const Buffer& v, DType v_type, int64_t rows, const simdattn::Target* t) {
    return simdattn::weighted_values(simdattn::view(d->p.as<const float>(), {1, 1, rows, n}),
                                     simdattn::ConstView<4>(v.data(), v_type, {1, 1, n, kRowDim}),
                                     simdattn::View<4>(d->out.data(), v_type, {1, 1, rows, kRowDim}), {},
                                     {.target = t});
  };
  p.run = [=, d = data.get()](const simdattn::Target* t, bool is_part) {
    return call(d->v, type, is_part ? part : n_q, t);
  };
  p.scalar_share = static_cast<double>(part) / static_cast<double>(n_q);
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = static_cast<size_t>(n_q * kRowDim);
  p.count = static_cast<size_t>(part * kRowDim);
  p.absolute = 2 * static_cast<double>(n) * 0x1p-24;
  p.relative = type == DType::kBF16 ? 0x1p-7 : type == DType::kF16 ? 0x1p-10 : 0;  // one unit in the last place
  p.flops = 2 * static_cast<double>(n_q * n * kRowDim);
  p.streams = {data->v.bytes()};
  if (type != DType::kF32) {
    data->v32 = random_buffer(DType::kF32, v_elements, 3);
    p.companion = [=, d = data.get()](const simdattn::Target* t) { return call(d->v32, DType::kF32, n_q, t); };
  }
  p.work = work_of(type, n_q, n);
  p.work.q = data->p.data();
  p.work.v = data->v.data();
  p.work.out = data->out.data();
  return p;
}

}  // namespace

void add_weighted_values_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n_q : kQueryCounts) {
      for (const int64_t n : kRowCounts) {
        Case c;
        c.kernel = "weighted_values";
        c.shape = std::to_string(n_q) + "q_" + std::to_string(n) + "x" + std::to_string(kRowDim);
        c.type = type_name(type);
        c.main = n > 32768 ? false : type == DType::kF32 ? n_q == 1 || (n_q == 8 && n == 512) : n_q == 1 && n >= 4096;
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
