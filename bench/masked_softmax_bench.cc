#include <algorithm>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

// The measure is the time over plain softmax of as many elements as the mask leaves visible.

namespace bench {
namespace {

enum class Mask { kCausal, kBias, kKeep, kWindow, kSoftcap };
struct Variant {
  const char* name;
  Mask mask;
};
constexpr Variant kVariants[] = {{"causal", Mask::kCausal},
                                 {"bias", Mask::kBias},
                                 {"boolean", Mask::kKeep},
                                 {"window256", Mask::kWindow},
                                 {"softcap", Mask::kSoftcap}};
constexpr int64_t kWindow = 256;

int64_t visible(Mask mask, Matrix m) {
  if (mask == Mask::kKeep) return m.rows * m.columns / 8 * 7;
  if (mask != Mask::kCausal && mask != Mask::kWindow) return m.rows * m.columns;
  int64_t count = 0;
  for (int64_t i = 0; i < m.rows; ++i) {
    const int64_t end = i + m.columns - m.rows + 1;
    count += mask == Mask::kWindow ? std::min(end, kWindow) : end;
  }
  return count;
}

struct Data {
  Buffer x, out, bias, keep;
};

simdattn::Scoring scoring_of(Mask mask, Matrix m, Data& data) {
  const size_t elements = static_cast<size_t>(m.rows * m.columns);
  simdattn::Scoring scoring;
  if (mask == Mask::kCausal || mask == Mask::kWindow) scoring.causal = true;
  if (mask == Mask::kWindow) scoring.window_left = kWindow - 1;
  if (mask == Mask::kSoftcap) scoring.softcap = 50;
  if (mask == Mask::kBias) {
    data.bias = random_buffer(simdattn::DType::kF32, elements, 2);
    scoring.bias = simdattn::view(data.bias.as<const float>(), {1, 1, m.rows, m.columns});
  }
  if (mask == Mask::kKeep) {
    // An eighth is masked, scattered: the worst for anything that looks for runs.
    data.keep = Buffer(elements);
    uint8_t* keep = data.keep.as<uint8_t>();
    uint32_t state = 1;
    for (size_t i = 0; i < elements; ++i) {
      state = state * 1664525u + 1013904223u;
      keep[i] = (state >> 29) != 0;
    }
    scoring.mask = simdattn::view(static_cast<const uint8_t*>(keep), {1, 1, m.rows, m.columns});
  }
  return scoring;
}

Prepared prepare(Mask mask, Matrix m) {
  const size_t elements = static_cast<size_t>(m.rows * m.columns);
  auto data = std::make_shared<Data>();
  data->x = random_buffer(simdattn::DType::kF32, elements, 1, 8);
  data->out = Buffer(elements * sizeof(float));
  const simdattn::Scoring scoring = scoring_of(mask, m, *data);

  const int64_t part_rows = std::clamp<int64_t>((1 << 17) / m.columns, 1, m.rows);
  const int64_t first_row = m.rows - part_rows;  // the last rows see the most
  const int64_t plain_columns = std::max<int64_t>(visible(mask, m) / m.rows, 1);
  Prepared p;
  p.keep = data;
  float* x = data->x.as<float>();
  float* out = data->out.as<float>();
  const auto tail = [=](simdattn::ConstView<4> v) {
    if (v.data == nullptr) return v;
    const size_t size = v.dtype == simdattn::DType::kU8 ? 1 : 4;
    v.data = static_cast<const std::byte*>(v.data) + static_cast<size_t>(first_row * m.columns) * size;
    v.shape[2] = part_rows;
    return v;
  };
  simdattn::Scoring part_scoring = scoring;
  part_scoring.bias = tail(scoring.bias);
  part_scoring.mask = tail(scoring.mask);
  p.run = [=](const simdattn::Target* t, bool part) {
    const int64_t first = part ? first_row : 0;
    return simdattn::masked_softmax(simdattn::view(x + first * m.columns, {1, 1, m.rows - first, m.columns}),
                                    simdattn::view(out + first * m.columns, {1, 1, m.rows - first, m.columns}),
                                    part ? part_scoring : scoring, {}, {.target = t});
  };
  const Matrix part{part_rows, m.columns};
  p.scalar_share = static_cast<double>(visible(mask, part)) / static_cast<double>(visible(mask, m));
  p.out = out;
  p.out_elements = elements;
  p.first = static_cast<size_t>(first_row * m.columns);
  p.count = static_cast<size_t>(part_rows * m.columns);
  p.relative = 64 * 0x1p-23;  // the rounding of a score of size 8 to 50 comes before the exponential
  p.copy_bytes = static_cast<size_t>(visible(mask, m)) * sizeof(float);
  p.companion = [=](const simdattn::Target* t) {
    return simdattn::softmax(simdattn::view(x, {m.rows, plain_columns}), simdattn::view(out, {m.rows, plain_columns}),
                             {}, {.target = t});
  };
  return p;
}

}  // namespace

void add_masked_softmax_cases(std::vector<Case>& cases) {
  for (const Variant& v : kVariants) {
    // The first one's scores, masks and probabilities fit into a second-level cache, the others' may not.
    for (const Matrix m : {Matrix{64, 1024}, Matrix{512, 512}, Matrix{1024, 1024}, Matrix{32, 4096}}) {
      Case c;
      c.kernel = "masked_softmax";
      c.shape = std::string(v.name) + "_" + std::to_string(m.rows) + "x" + std::to_string(m.columns);
      c.type = "f32";
      c.main = m.rows == 1024 || (m.rows == 64 && v.mask != Mask::kWindow);
      c.elements = static_cast<double>(visible(v.mask, m));
      c.bytes = 2 * sizeof(float) * c.elements;
      c.companion = "plain softmax";
      c.prepare = [mask = v.mask, m] { return prepare(mask, m); };
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace bench
