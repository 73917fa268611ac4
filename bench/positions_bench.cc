#include <cmath>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"
#include "simdattn/extras.h"

// Positions besides rope(): tables, angles on the way, and positions that are added.

namespace bench {
namespace {

using simdattn::Code;
using simdattn::DType;
using simdattn::Exec;
using simdattn::Status;
using simdattn::Target;

constexpr int64_t kHalf = kRowDim / 2;
constexpr int64_t kHeads = kLlama3.kv_heads;

Case named(const char* kernel, const std::string& shape, DType type, bool main) {
  Case c;
  c.kernel = kernel;
  c.shape = shape;
  c.type = type_name(type);
  c.main = main;
  return c;
}

/// One unit in the last place of results up to 2, for targets without fused multiply-add.
double unit(DType type) { return type == DType::kBF16 ? 0x1p-7 : type == DType::kF16 ? 0x1p-10 : 0; }

// Tables are computed by one code for all targets, so they are compared with the C library's functions in f64.
Status far_from_exact(const float* got, int64_t n, const std::function<double(int64_t)>& exact) {
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(static_cast<double>(got[i]) - exact(i)) > 0x1p-24) {
      return {Code::kRange, "the table is more than 2^-24 away from the C library's cosine or sine"};
    }
  }
  return {};
}

double frequency(int64_t column) {
  return std::pow(10000.0, -2.0 * static_cast<double>(column) / static_cast<double>(kRowDim));
}

Prepared prepare_rope_table(int64_t n) {
  struct Data {
    Buffer cos, sin;
  };
  auto data = std::make_shared<Data>();
  const int64_t elements = n * kHalf;
  data->cos = Buffer(static_cast<size_t>(elements) * sizeof(float));
  data->sin = Buffer(data->cos.size());
  const auto fill = [=, d = data.get()] {
    return simdattn::rope_table(simdattn::view(d->cos.as<float>(), {n, kHalf}),
                                simdattn::view(d->sin.as<float>(), {n, kHalf}));
  };
  const auto angle = [](int64_t i) { return static_cast<double>(i / kHalf) * frequency(i % kHalf); };
  Status checked = fill();
  if (checked.ok()) {
    checked = far_from_exact(data->cos.as<float>(), elements, [&](int64_t i) { return std::cos(angle(i)); });
  }
  if (checked.ok()) {
    checked = far_from_exact(data->sin.as<float>(), elements, [&](int64_t i) { return std::sin(angle(i)); });
  }
  Prepared p;
  p.keep = data;
  p.run = [=](const Target*, bool) { return checked.ok() ? fill() : checked; };
  p.out = data->cos.data();
  p.out_elements = p.count = static_cast<size_t>(elements);
  return p;
}

Prepared prepare_sinusoidal(int64_t n) {
  auto data = std::make_shared<Buffer>(static_cast<size_t>(n * kRowDim) * sizeof(float));
  const auto fill = [=, out = data->as<float>()] {
    return simdattn::sinusoidal_table(simdattn::view(out, {n, kRowDim}));
  };
  Status checked = fill();
  if (checked.ok()) {
    checked = far_from_exact(data->as<float>(), n * kRowDim, [](int64_t i) {
      const double angle = static_cast<double>(i / kRowDim) * frequency(i % kRowDim / 2);
      return i % 2 == 0 ? std::sin(angle) : std::cos(angle);
    });
  }
  Prepared p;
  p.keep = data;
  p.run = [=](const Target*, bool) { return checked.ok() ? fill() : checked; };
  p.out = data->data();
  p.out_elements = p.count = static_cast<size_t>(n * kRowDim);
  return p;
}

Prepared prepare_rope_direct(DType type, int64_t n) {
  struct Data {
    Buffer x, out, workspace;
  };
  auto data = std::make_shared<Data>();
  const size_t elements = static_cast<size_t>(kHeads * n * kRowDim);
  data->x = random_buffer(type, elements, 1);
  data->out = Buffer(data->x.size());
  data->workspace = Buffer(simdattn::rope_direct_workspace(kHalf));
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    const std::array<int64_t, 4> shape{1, kHeads, n, kRowDim}, stride{0, kRowDim, kHeads * kRowDim, 1};
    return simdattn::rope_direct(
        {d->x.data(), type, shape, stride}, kHalf, {}, {}, {d->out.data(), type, shape, stride}, {},
        {.target = t, .workspace = d->workspace.data(), .workspace_bytes = d->workspace.size()});
  };
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.absolute = 4 * 0x1p-24;
  p.relative = unit(type);
  p.copy_bytes = data->out.size();
  return p;
}

/// Learned positions: every sequence of the batch gets the same rows.
Prepared prepare_add_rows(DType type, int64_t n) {
  struct Data {
    Buffer x, table, out;
  };
  constexpr int64_t kBatch = 4, kWidth = 768;
  auto data = std::make_shared<Data>();
  const size_t elements = static_cast<size_t>(kBatch * n * kWidth);
  data->x = random_buffer(type, elements, 1);
  data->table = random_buffer(DType::kF32, static_cast<size_t>(n * kWidth), 2);
  data->out = Buffer(data->x.size());
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    const std::array<int64_t, 4> shape{kBatch, 1, n, kWidth};
    return simdattn::add_rows({d->x.data(), type, shape},
                              {d->table.data(), DType::kF32, shape, {0, n * kWidth, kWidth, 1}},
                              {d->out.data(), type, shape}, {.target = t});
  };
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.copy_bytes = data->out.size();
  return p;
}

Prepared prepare_hadamard(DType type, int64_t n) {
  struct Data {
    Buffer x, out;
  };
  auto data = std::make_shared<Data>();
  const size_t elements = static_cast<size_t>(n * kHeads * kRowDim);
  data->x = random_buffer(type, elements, 1);
  data->out = Buffer(data->x.size());
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    const std::array<int64_t, 4> shape{1, kHeads, n, kRowDim};
    return simdattn::hadamard({d->x.data(), type, shape}, {d->out.data(), type, shape}, 0, {.target = t});
  };
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.copy_bytes = data->out.size();
  return p;
}

}  // namespace

void add_position_cases(std::vector<Case>& cases) {
  for (const int64_t n : {1, 512}) {
    Case table = named("rope_table", std::to_string(n) + "x" + std::to_string(kHalf), DType::kF32, n > 1);
    table.elements = static_cast<double>(2 * n * kHalf);
    table.prepare = [n] { return prepare_rope_table(n); };
    cases.push_back(std::move(table));
  }
  Case sinusoidal = named("sinusoidal_table", "512x" + std::to_string(kRowDim), DType::kF32, false);
  sinusoidal.elements = static_cast<double>(512 * kRowDim);
  sinusoidal.prepare = [] { return prepare_sinusoidal(512); };
  cases.push_back(std::move(sinusoidal));
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto add = [&](const char* kernel, const std::string& shape, double elements,
                         std::function<Prepared()> prepare) {
      Case c = named(kernel, shape, type, type == DType::kF32);
      c.bytes = elements * static_cast<double>(element_size(type));
      c.prepare = std::move(prepare);
      cases.push_back(std::move(c));
    };
    add("rope_direct", "8heads_512", static_cast<double>(512 * kHeads * kRowDim),
        [type] { return prepare_rope_direct(type, 512); });
    add("hadamard", "8heads_512", static_cast<double>(512 * kHeads * kRowDim),
        [type] { return prepare_hadamard(type, 512); });
    add("add_rows", "4x64x768", 4 * 64 * 768, [type] { return prepare_add_rows(type, 64); });
  }
}

}  // namespace bench
