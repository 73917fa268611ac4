#include <algorithm>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

namespace bench {
namespace {

// The definition computes about so many elements for the comparison.
constexpr int64_t kScalarElements = 1 << 17;

Work work_of(Matrix m) { return {.kind = Kind::kSoftmax, .n_q = m.rows, .n = m.columns}; }

Prepared prepare(Matrix m) {
  struct Data {
    Buffer x, out;
  };
  const size_t elements = static_cast<size_t>(m.rows * m.columns);
  auto data = std::make_shared<Data>();
  data->x = random_buffer(simdattn::DType::kF32, elements, 1, 8);
  data->out = Buffer(elements * sizeof(float));

  const int64_t part_rows = std::clamp<int64_t>(kScalarElements / m.columns, 1, m.rows);
  Prepared p;
  p.keep = data;
  float* x = data->x.as<float>();
  float* out = data->out.as<float>();
  p.run = [=](const simdattn::Target* t, bool part) {
    const int64_t rows = part ? part_rows : m.rows;
    return simdattn::softmax(simdattn::view(x, {rows, m.columns}), simdattn::view(out, {rows, m.columns}), {},
                             {.target = t});
  };
  p.scalar_share = static_cast<double>(part_rows) / static_cast<double>(m.rows);
  p.out = out;
  p.out_elements = elements;
  p.count = static_cast<size_t>(part_rows * m.columns);
  p.relative = 8 * 0x1p-23;  // 4 ulp on either side
  p.copy_bytes = elements * sizeof(float);
  p.work = work_of(m);
  p.work.q = x;
  p.work.out = out;
  return p;
}

}  // namespace

void add_softmax_cases(std::vector<Case>& cases) {
  for (const Matrix m : kSoftmaxShapes) {
    Case c;
    c.kernel = "softmax";
    c.shape = std::to_string(m.rows) + "x" + std::to_string(m.columns);
    c.type = "f32";
    c.main = c.peers = true;
    c.elements = static_cast<double>(m.rows * m.columns);
    c.bytes = 2 * sizeof(float) * c.elements;
    c.work = work_of(m);
    c.prepare = [m] { return prepare(m); };
    cases.push_back(std::move(c));
  }
}

}  // namespace bench
