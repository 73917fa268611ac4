#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

// All heads of a position beside each other as a projection leaves them, in place and into another array. The limit is
// memcpy of the same size.

namespace bench {
namespace {

using simdattn::DType;
using simdattn::RopePairing;

constexpr int64_t kFirstPosition = 1000;

Work work_of(DType type, RopePairing pairing, int64_t heads, int64_t n, bool in_place) {
  return {.kind = Kind::kRope,
          .type = type,
          .heads = heads,
          .kv_heads = heads,
          .n_q = n,
          .d = kRowDim,
          .interleaved = pairing == RopePairing::kInterleaved,
          .in_place = in_place,
          .position = kFirstPosition};
}

Prepared prepare(DType type, RopePairing pairing, int64_t heads, int64_t n, bool in_place) {
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
          static_cast<double>(i + kFirstPosition) * std::exp2(-13.287712379549449 * static_cast<double>(e) / kHalf);
      data->cos.as<float>()[i * kHalf + e] = static_cast<float>(std::cos(angle));
      data->sin.as<float>()[i * kHalf + e] = static_cast<float>(std::sin(angle));
    }
  }

  const int64_t part = std::clamp<int64_t>((1 << 20) / (heads * kRowDim), 1, n);  // positions
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const simdattn::Target* t, bool is_part) {
    const int64_t rows = is_part ? part : n;
    const auto array = [&](const Buffer& b) {
      return simdattn::View<4>(b.data(), type, {1, heads, rows, kRowDim},
                               {n * heads * kRowDim, kRowDim, heads * kRowDim, 1});
    };
    const simdattn::View<4> x = array(d->x);
    return simdattn::rope(in_place ? x : array(d->original), simdattn::view(d->cos.as<const float>(), {n, kHalf}),
                          simdattn::view(d->sin.as<const float>(), {n, kHalf}), {}, x, {.pairing = pairing},
                          {.target = t});
  };
  if (in_place) p.reset = [d = data.get()] { std::memcpy(d->x.data(), d->original.data(), d->x.size()); };
  p.scalar_share = static_cast<double>(part) / static_cast<double>(n);
  p.out = data->x.data();
  p.out_dtype = type;
  p.out_elements = elements;
  p.count = static_cast<size_t>(part * heads * kRowDim);
  p.absolute = 4 * 0x1p-24;
  p.relative = type == DType::kBF16 ? 0x1p-7 : type == DType::kF16 ? 0x1p-10 : 0;  // one unit in the last place
  p.copy_bytes = data->x.size();
  p.in_place = in_place;
  p.work = work_of(type, pairing, heads, n, in_place);
  p.work.q = in_place ? data->x.data() : data->original.data();
  p.work.original = in_place ? data->original.data() : nullptr;
  p.work.cos = data->cos.as<const float>();
  p.work.sin = data->sin.as<const float>();
  p.work.out = data->x.data();
  return p;
}

}  // namespace

void add_rope_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
      for (const int64_t heads : {kLlama3.heads, kLlama3.kv_heads}) {
        for (const int64_t n : {1, 512, 4096}) {
          for (const bool in_place : {true, false}) {
            Case c;
            c.kernel = "rope";
            c.shape = std::string(pairing == RopePairing::kHalfSplit ? "half" : "interleaved") + "_" +
                      std::to_string(heads) + "heads_" + std::to_string(n) + (in_place ? "" : "_out");
            c.type = type_name(type);
            c.main = in_place && heads == kLlama3.heads &&
                     (type == DType::kF32 ? n <= 512 : type == DType::kBF16 && n == 512);
            c.peers = type == DType::kF32 && heads == kLlama3.heads && n == 4096;
            c.bytes = static_cast<double>(heads * n * kRowDim) * static_cast<double>(element_size(type));
            c.work = work_of(type, pairing, heads, n, in_place);
            c.prepare = [=] { return prepare(type, pairing, heads, n, in_place); };
            cases.push_back(std::move(c));
          }
        }
      }
    }
  }
}

}  // namespace bench
