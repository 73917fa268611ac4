#include <cstring>
#include <memory>

#include "bench/harness.h"
#include "bench/shapes.h"

// Writing keys and values: append, which converts, rotates and lays out, and the shift of what is stored. Both are
// compared with memcpy() of as many bytes as they read and write.

namespace bench {
namespace {

using simdattn::DType;
using simdattn::KvLayout;
using simdattn::Target;

constexpr int64_t kHalf = kRowDim / 2;
constexpr int64_t kHeads = kLlama3.kv_heads;

/// What targets without fused multiply-add may differ by in results up to 2.
double unit(DType type) { return type == DType::kBF16 ? 0x1p-7 : type == DType::kF16 ? 0x1p-10 : 0; }

/// Keys as a projection leaves them, f32 [n][heads][d], into a store of n tokens; a single one into one of 512.
Prepared prepare_append(DType type, KvLayout layout, bool rope, int64_t n) {
  struct Data {
    Buffer rows, store, original, cos, sin;
  };
  auto data = std::make_shared<Data>();
  const int64_t tokens = n == 1 ? 512 : n;
  const int64_t start = tokens - n;
  const size_t elements = static_cast<size_t>(kHeads * tokens * kRowDim);
  data->rows = random_buffer(DType::kF32, static_cast<size_t>(n * kHeads * kRowDim), 1);
  data->store = random_buffer(type, elements, 2);
  data->original = random_buffer(type, elements, 2);
  data->cos = Buffer(static_cast<size_t>(tokens * kHalf) * sizeof(float));
  data->sin = Buffer(data->cos.size());
  const std::array<int64_t, 2> table{tokens, kHalf};
  (void)simdattn::rope_table({data->cos.data(), DType::kF32, table}, {data->sin.data(), DType::kF32, table});
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    const simdattn::Kv kv =
        simdattn::contiguous_kv(d->store.as<char>(), simdattn::kv_type_of(type), layout, 1, kHeads, tokens, kRowDim);
    simdattn::AppendOptions options;
    options.start = start;
    if (rope) {
      options.rope.cos = {d->cos.data(), DType::kF32, table};
      options.rope.sin = {d->sin.data(), DType::kF32, table};
    }
    return simdattn::kv_append(
        {d->rows.data(), DType::kF32, {1, kHeads, n, kRowDim}, {0, kRowDim, kHeads * kRowDim, 1}}, {}, kv, options,
        {.target = t});
  };
  p.reset = [d = data.get()] { std::memcpy(d->store.data(), d->original.data(), d->store.size()); };
  p.out = data->store.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.absolute = 4 * 0x1p-24;
  p.relative = unit(type);
  // The columns of one token are scattered over more lines than it has bytes of: a copy says nothing.
  if (n > 1) p.copy_bytes = (data->rows.size() + data->store.size()) / 2;
  return p;
}

/// Context shift of a full store: its second half moves into the first.
Prepared prepare_shift(DType type, KvLayout layout, bool rope, int64_t n) {
  struct Data {
    Buffer store, original, cos, sin;
  };
  auto data = std::make_shared<Data>();
  const size_t elements = static_cast<size_t>(kHeads * n * kRowDim);
  data->original = random_buffer(type, elements, 1);
  data->store = random_buffer(type, elements, 1);
  data->cos = Buffer(kHalf * sizeof(float));
  data->sin = Buffer(kHalf * sizeof(float));
  (void)simdattn::rope_table(simdattn::view(data->cos.as<float>(), {1, kHalf}),
                             simdattn::view(data->sin.as<float>(), {1, kHalf}), {}, {}, n / 2);
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const Target* t, bool) {
    const simdattn::Kv kv =
        simdattn::contiguous_kv(d->store.as<char>(), simdattn::kv_type_of(type), layout, 1, kHeads, n, kRowDim);
    simdattn::KeyRotation rotation;
    if (rope) {
      rotation.cos = {d->cos.data(), DType::kF32, {n / 2 + 1, kHalf}, {0, 1}};
      rotation.sin = {d->sin.data(), DType::kF32, {n / 2 + 1, kHalf}, {0, 1}};
    }
    return simdattn::kv_shift(kv, n / 2, n, -n / 2, rotation, {.target = t});
  };
  p.reset = [d = data.get()] { std::memcpy(d->store.data(), d->original.data(), d->store.size()); };
  p.out = data->store.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.absolute = 4 * 0x1p-24;
  p.relative = unit(type);
  p.copy_bytes = data->store.size() / 2;
  return p;
}

}  // namespace

void add_kv_cases(std::vector<Case>& cases) {
  const auto add = [&](const char* kernel, const std::string& shape, DType type, double bytes, bool main,
                       std::function<Prepared()> prepare) -> Case& {
    Case c;
    c.kernel = kernel;
    c.shape = shape;
    c.type = type_name(type);
    c.main = main;
    c.bytes = bytes;
    c.prepare = std::move(prepare);
    return cases.emplace_back(std::move(c));
  };
  constexpr double kRow = kHeads * kRowDim;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const double size = static_cast<double>(element_size(type));
    for (const KvLayout layout : {KvLayout::kPanels, KvLayout::kRows}) {
      const bool panels = layout == KvLayout::kPanels;
      for (const bool rope : {true, false}) {
        const std::string form = std::string(panels ? "panels" : "rows") + (rope ? "_rope" : "");
        const bool main = panels && type == DType::kBF16;
        for (const int64_t n : {512, 1}) {
          Case& c =
              add("kv_append", form + "_8heads_" + std::to_string(n), type, static_cast<double>(n) * kRow * (4 + size),
                  main && (rope || n > 1), [=] { return prepare_append(type, layout, rope, n); });
          c.fixed_cost = n == 1;
        }
        // The name that it had before there were other forms.
        const std::string shift = panels && rope ? "8heads_1024" : form + "_8heads_1024";
        add("kv_shift", shift, type, 512 * kRow * size, panels && rope && type != DType::kF16,
            [=] { return prepare_shift(type, layout, rope, 1024); });
      }
    }
  }
}

}  // namespace bench
