#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "bench/harness.h"
#include "bench/peers.h"
#include "bench/shapes.h"

// In place, all heads of a position beside each other as a projection leaves them. The limit is memcpy of the same size.

namespace bench {
namespace {

using simdattn::DType;
using simdattn::RopePairing;

Prepared prepare(DType type, RopePairing pairing, int64_t heads, int64_t n) {
  struct Data {
    Buffer x, original, cos, sin;
  };
  auto data = std::make_shared<Data>();
  constexpr int64_t kHalf = kRowDim / 2;
  const size_t elements = static_cast<size_t>(heads * n * kRowDim);
  data->original = random_buffer(type, elements, 1);
  data->x = Buffer(elements * element_size(type));
  std::memcpy(data->x.data(), data->original.data(), data->x.size());
  data->cos = Buffer(static_cast<size_t>(n * kHalf) * sizeof(float));
  data->sin = Buffer(data->cos.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t e = 0; e < kHalf; ++e) {
      const double angle =
          static_cast<double>(i + 1000) * std::exp2(-13.287712379549449 * static_cast<double>(e) / kHalf);
      data->cos.as<float>()[i * kHalf + e] = static_cast<float>(std::cos(angle));
      data->sin.as<float>()[i * kHalf + e] = static_cast<float>(std::sin(angle));
    }
  }

  const int64_t part = std::clamp<int64_t>((1 << 20) / (heads * kRowDim), 1, n);  // positions
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const simdattn::Target* t, bool is_part) {
    const int64_t rows = is_part ? part : n;
    const simdattn::View<4> x(d->x.data(), type, {1, heads, rows, kRowDim},
                              {n * heads * kRowDim, kRowDim, heads * kRowDim, 1});
    return simdattn::rope(x, simdattn::view(d->cos.as<const float>(), {n, kHalf}),
                          simdattn::view(d->sin.as<const float>(), {n, kHalf}), {}, x, {.pairing = pairing},
                          {.target = t});
  };
  p.reset = [d = data.get()] { std::memcpy(d->x.data(), d->original.data(), d->x.size()); };
  p.scalar_share = static_cast<double>(part) / static_cast<double>(n);
  p.out = data->x.data();
  p.out_dtype = type;
  p.out_elements = elements;
  p.count = static_cast<size_t>(part * heads * kRowDim);
  p.absolute = 4 * 0x1p-24;
  p.relative = type == DType::kBF16 ? 0x1p-7 : type == DType::kF16 ? 0x1p-10 : 0;  // one unit in the last place
  p.copy_bytes = data->x.size();
  p.in_place = true;
  if (type == DType::kF32) {
    add_loops(p, [&](const Loops& loops) {
      const auto f = pairing == RopePairing::kHalfSplit ? loops.rope_half : loops.rope_interleaved;
      return [=, d = data.get()] {
        f(d->x.as<float>(), d->cos.as<float>(), d->sin.as<float>(), static_cast<size_t>(n), static_cast<size_t>(heads),
          static_cast<size_t>(kRowDim));
      };
    });
  }
  return p;
}

}  // namespace

void add_rope_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
      for (const int64_t heads : {kLlama3.heads, kLlama3.kv_heads}) {
        for (const int64_t n : {1, 512, 4096}) {
          Case c;
          c.kernel = "rope";
          c.shape = std::string(pairing == RopePairing::kHalfSplit ? "half" : "interleaved") + "_" +
                    std::to_string(heads) + "heads_" + std::to_string(n);
          c.type = type_name(type);
          c.main = heads == kLlama3.heads && (type == DType::kF32 ? n <= 512 : type == DType::kBF16 && n == 512);
          c.bytes = static_cast<double>(heads * n * kRowDim) * static_cast<double>(element_size(type));
          c.has_loop = type == DType::kF32;
          c.prepare = [=] { return prepare(type, pairing, heads, n); };
          cases.push_back(std::move(c));
        }
      }
    }
  }
}

}  // namespace bench
