#include "tests/support/problems.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace simdattn::test {

std::string hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "%08llx", static_cast<unsigned long long>(bits));
  return text;
}
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
}

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Scoring

ScoringCase random_scoring(Random& random, const ScoringShapes& shapes, const ScoringLimits& limits) {
  ScoringCase c;
  Scoring& s = c.scoring;
  const size_t sequences = shapes.n_q.size();
  const int64_t n_kv = shapes.mask_columns;
  int64_t longest_q = 0;
  for (const int64_t n : shapes.n_q) longest_q = std::max(longest_q, n);
  const int64_t reach = std::max(n_kv, longest_q) + 3;

  if (random.one_in(3)) s.scale = random.one_in(12) ? 0.0f : 2 * random.uniform();
  if (random.one_in(4)) s.softcap = random.of({0.5f, 3.0f, 30.0f, 50.0f});
  s.causal = random.coin();
  if (random.one_in(3)) s.offset = random.integer(-reach, reach);
  if (limits.extreme && random.one_in(20)) s.offset = random.of({(int64_t{1} << 30) - 1, -((int64_t{1} << 30) - 1)});
  if (random.one_in(4)) s.window_left = random.of({random.integer(0, 5), random.integer(0, reach), int64_t{1} << 40});
  if (random.one_in(5)) s.window_right = random.of({random.integer(0, 5), random.integer(0, reach), int64_t{1} << 40});
  if (random.one_in(6)) s.chunk = random.of({random.integer(1, 6), random.integer(1, reach), int64_t{1} << 40});

  std::vector<int32_t> lengths;
  if (limits.per_sequence) {
    if (random.one_in(6)) {
      std::vector<int32_t> offsets(sequences);
      for (int32_t& p : offsets)
        p = limits.extreme && random.one_in(20) ? random.of({1 << 30, -(1 << 30)})
                                                : static_cast<int32_t>(random.integer(-reach, reach));
      c.offsets = Numbers<int32_t>(random, offsets);
      s.offsets = c.offsets.data();
    }
    for (const int64_t n : shapes.n_kv)
      lengths.push_back(static_cast<int32_t>(random.coin() ? n : random.integer(0, n)));
    if (random.one_in(3)) {
      c.kv_length = Numbers<int32_t>(random, lengths);
      s.kv_length = c.kv_length.data();
    }
    std::vector<int32_t> numbers(sequences);
    if (random.one_in(6)) {
      for (int32_t& n : numbers) n = static_cast<int32_t>(random.integer(0, random.coin() ? 3 : reach));
      c.kv_start = Numbers<int32_t>(random, numbers);
      s.kv_start = c.kv_start.data();
    }
    if (random.one_in(8)) {
      for (int32_t& n : numbers) n = static_cast<int32_t>(random.integer(0, reach));
      c.prefix_end = Numbers<int32_t>(random, numbers);
      s.prefix_end = c.prefix_end.data();
    }
  }
  // Any size may be 1 instead: that broadcasts.
  const auto mask_shape = [&] {
    std::array<int64_t, 4> shape = {shapes.mask_batch, shapes.heads, shapes.mask_rows, n_kv};
    if (random.one_in(3)) {
      for (int64_t& n : shape)
        if (random.one_in(3)) n = 1;
    }
    return shape;
  };
  if (random.one_in(3)) {
    c.bias = Array<4>(random, random.storage(), mask_shape(), Strides::kInput);
    for_each_element(c.bias.view, [&](int64_t at) {
      float x = 4 * random.uniform();
      if (random.one_in(6)) x = -kInf;
      if (limits.extreme && random.one_in(30)) x = random.of({-1e9f, -std::numeric_limits<float>::max(), 1e9f});
      if (limits.extreme && random.one_in(4000)) x = std::nanf("9");
      put(c.bias.view.data, c.bias.view.dtype, at, x);
    });
    s.bias = c.bias.view;
    c.largest_bias = 4;
    if (random.one_in(3)) {
      std::vector<float> factors(static_cast<size_t>(shapes.heads));
      for (float& x : factors)
        x = limits.extreme && random.one_in(20) ? 1e30f : random.one_in(6) ? 0.0f : 2 * random.uniform();
      c.bias_scale = Numbers<float>(random, factors);
      s.bias_scale = c.bias_scale.data();
      float largest = 0;
      for (const float x : factors) largest = std::max(largest, std::fabs(x));
      c.largest_bias *= largest;
    }
  }
  if (random.one_in(4)) {
    c.mask = Array<4>(random, DType::kU8, mask_shape(), Strides::kInput);
    const int64_t rarity = random.integer(1, 6);
    for_each_element(c.mask.view, [&](int64_t at) {
      set_element_bits(c.mask.view.data, DType::kU8, at,
                       random.one_in(rarity) ? 0u : static_cast<uint64_t>(random.integer(1, 255)));
    });
    s.mask = c.mask.view;
  }
  if (random.one_in(4)) {
    int64_t most = n_kv;
    for (size_t b = 0; b < sequences; ++b)
      most = std::min<int64_t>(most, s.kv_length != nullptr ? lengths[b] : shapes.n_kv[b]);
    s.packed_mask.columns = random.coin() ? most : random.integer(0, most);
    const int64_t row_bytes = (s.packed_mask.columns + 7) / 8 + random.integer(0, 2);
    s.packed_mask.stride[2] = random.one_in(5) ? 0 : row_bytes;
    s.packed_mask.stride[1] = random.coin() ? 0 : row_bytes * shapes.mask_rows;
    s.packed_mask.stride[0] = random.coin() ? 0 : row_bytes * shapes.mask_rows * shapes.heads;
    int64_t bytes = (s.packed_mask.columns + 7) / 8;
    bytes += s.packed_mask.stride[2] * std::max<int64_t>(shapes.mask_rows - 1, 0) +
             s.packed_mask.stride[1] * (shapes.heads - 1) + s.packed_mask.stride[0] * (shapes.mask_batch - 1);
    c.packed_mask = Guarded(static_cast<size_t>(bytes), random.guard());
    const bool dense = random.coin();
    for (size_t i = 0; i < c.packed_mask.size(); ++i)
      c.packed_mask.data()[i] = static_cast<uint8_t>(random.bits() | (dense ? random.bits() : 0));
    s.packed_mask.data = c.packed_mask.data();
  }
  if (random.one_in(4)) {
    std::vector<float> slopes(static_cast<size_t>(shapes.heads));
    for (float& x : slopes)
      x = limits.extreme && random.one_in(9) ? 1e5f : random.one_in(6) ? 0.0f : 0.5f * random.uniform();
    if (random.coin()) (void)alibi_slopes(shapes.heads, slopes.data());
    c.slopes = Numbers<float>(random, slopes);
    s.alibi_slopes = c.slopes.data();
    for (const float x : slopes)
      c.largest_shift = std::max(c.largest_shift, std::fabs(x) * static_cast<float>(2 * reach));
  }
  if (random.one_in(4)) {
    std::vector<float> sinks(static_cast<size_t>(shapes.heads));
    for (float& x : sinks) x = random.one_in(8) ? -kInf : 5 * random.uniform();
    c.sinks = Numbers<float>(random, sinks);
    s.sinks = c.sinks.data();
  }
  return c;
}

std::string describe(const Scoring& s) {
  std::string text;
  if (s.scale) text += ", scale " + std::to_string(*s.scale);
  if (s.softcap > 0) text += ", softcap " + std::to_string(s.softcap);
  if (s.causal) text += ", causal";
  if (s.offset != kBottomRight) text += ", offset " + std::to_string(s.offset);
  if (s.offsets != nullptr) text += ", offsets " + std::to_string(s.offsets[0]) + "...";
  if (s.window_left >= 0) text += ", window_left " + std::to_string(s.window_left);
  if (s.window_right >= 0) text += ", window_right " + std::to_string(s.window_right);
  if (s.chunk > 0) text += ", chunk " + std::to_string(s.chunk);
  if (s.prefix_end != nullptr) text += ", prefix_end " + std::to_string(s.prefix_end[0]) + "...";
  if (s.kv_start != nullptr) text += ", kv_start " + std::to_string(s.kv_start[0]) + "...";
  if (s.kv_length != nullptr) text += ", kv_length " + std::to_string(s.kv_length[0]) + "...";
  const auto sizes = [](const ConstView<4>& v) {
    std::string list = " [";
    for (const int64_t n : v.shape) list += std::to_string(n) + " ";
    return list + "]";
  };
  if (s.bias.data != nullptr)
    text += ", bias" + sizes(s.bias) + " type " + std::to_string(static_cast<int>(s.bias.dtype));
  if (s.bias_scale != nullptr) text += ", bias_scale " + std::to_string(s.bias_scale[0]) + "...";
  if (s.mask.data != nullptr) text += ", keep" + sizes(s.mask);
  if (s.packed_mask.data != nullptr) text += ", bits of " + std::to_string(s.packed_mask.columns) + " columns";
  if (s.alibi_slopes != nullptr) text += ", ALiBi";
  if (s.sinks != nullptr) text += ", sinks";
  return text;
}

// ---------------------------------------------------------------------------------------------------------------------
// Caches

int64_t KvStorage::at(int64_t b, int64_t h, int64_t t, int64_t d) const {
  const int64_t size = size_of(dtype());
  int64_t entry = b;
  if (kv.page_size > 0) {
    entry = page(b, t);
    t %= kv.page_size;
  } else if (kv.ring > 0) {
    t %= kv.ring;
  }
  const int64_t start = entry * kv.batch_stride + h * kv.head_stride;
  if (kv.layout == KvLayout::kRows) return (start + t * kv.token_stride) / size + d;
  const int64_t panel = (start + t / kPanelWidth * kv.token_stride) / size;
  const int64_t lane = t % kPanelWidth;
  return panel + (kv.type == KvType::kBF16 ? d / 2 * 2 * kPanelWidth + 2 * lane + d % 2 : d * kPanelWidth + lane);
}

int32_t& KvStorage::page(int64_t b, int64_t t) const {
  const int64_t tight = (kv.capacity + kv.page_size - 1) / kv.page_size;
  return table.data()[b * (kv.block_table_stride < 0 ? tight : kv.block_table_stride) + t / kv.page_size];
}

namespace {

/// Where a token is in data or scales: bytes of its sequence, ring or page.
template <class F>
auto token_place(const KvStorage& s, int64_t b, int64_t t, const F& f) {
  const Kv& kv = s.kv;
  if (kv.page_size > 0) return f(int64_t{s.page(b, t)}, t % kv.page_size);
  return f(b, kv.ring > 0 ? t % kv.ring : t);
}

}  // namespace

unsigned char* KvStorage::byte(int64_t b, int64_t h, int64_t t, int64_t i) const {
  return token_place(*this, b, t, [&](int64_t unit, int64_t inside) {
    const bool rows = kv.layout == KvLayout::kRows;
    return static_cast<unsigned char*>(kv.data) + unit * kv.batch_stride + h * kv.head_stride +
           (rows ? inside : inside / kPanelWidth) * kv.token_stride +
           (rows ? i : reference::panel_byte(kv.type, kv.dim, i, inside % kPanelWidth));
  });
}

float* KvStorage::scale(int64_t b, int64_t h, int64_t t) const {
  if (kv.scales == nullptr) return nullptr;
  return token_place(*this, b, t, [&](int64_t unit, int64_t inside) {
    return reinterpret_cast<float*>(static_cast<char*>(kv.scales) + unit * kv.scale_batch_stride +
                                    h * kv.scale_head_stride + inside * kv.scale_token_stride);
  });
}

KvStorage make_kv(Random& random, DType dtype, KvForm form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                  int64_t ring) {
  return make_kv(random, kv_type_of(dtype), form, batch, heads, tokens, dim, ring);
}

KvStorage make_kv(Random& random, KvType type, KvForm form, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                  int64_t ring) {
  KvStorage s;
  Kv& kv = s.kv;
  const bool panels = form == KvForm::kPanels || form == KvForm::kPagedPanels || form == KvForm::kRingPanels;
  const bool paged = form == KvForm::kPagedRows || form == KvForm::kPagedPanels;
  kv.type = type;
  kv.layout = panels ? KvLayout::kPanels : KvLayout::kRows;
  kv.batch = batch;
  kv.heads = heads;
  kv.capacity = tokens;
  kv.dim = dim;
  int64_t entries = batch;  // of batch_stride
  int64_t held = tokens;    // per entry
  if (form == KvForm::kRingRows || form == KvForm::kRingPanels) {
    kv.ring = panels ? round_up(std::max<int64_t>(ring, 1), kPanelWidth) : std::max<int64_t>(ring, 1);
    held = kv.ring;
  }
  if (paged) {
    kv.page_size = panels ? kPanelWidth * random.integer(1, 3) : random.of<int64_t>({1, 3, 16, 17, 48, 128});
    const int64_t blocks = (tokens + kv.page_size - 1) / kv.page_size;
    const int64_t table_stride = blocks + random.integer(0, 2);
    if (table_stride > blocks || random.coin()) kv.block_table_stride = table_stride;  // else the default, tight
    entries = kv.n_pages = batch * blocks + random.integer(0, 3);
    held = kv.page_size;
    // Pages in random order, some in nobody's hands.
    std::vector<int32_t> pages(static_cast<size_t>(kv.n_pages));
    std::iota(pages.begin(), pages.end(), 0);
    shuffle(pages, random);
    std::vector<int32_t> table(static_cast<size_t>(batch > 0 ? (batch - 1) * table_stride + blocks : 0), -1);
    size_t next = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < blocks; ++i) table[static_cast<size_t>(b * table_stride + i)] = pages[next++];
    }
    s.table = Numbers<int32_t>(random, table);
    kv.block_table = s.table.data();
  }
  const int64_t size = type > KvType::kF16 ? 2 : row_bytes(type, 1);
  const int64_t unit = panels ? panel_bytes(kv.type, dim) : row_bytes(kv.type, dim);
  const int64_t units = panels ? (held + kPanelWidth - 1) / kPanelWidth : held;
  kv.token_stride = unit + (random.one_in(4) ? random.integer(1, 9) : 0) * size;
  kv.head_stride = kv.token_stride * units + (random.one_in(4) ? random.integer(0, 9) : 0) * size;
  kv.batch_stride = kv.head_stride * heads;
  if (!panels && random.one_in(3)) {  // [tokens, heads, dim]
    kv.head_stride = unit;
    kv.token_stride = heads * unit;
    kv.batch_stride = held * kv.token_stride;
  }
  const int64_t last_unit =
      units == 0 || entries == 0 || heads == 0
          ? 0
          : (entries - 1) * kv.batch_stride + (heads - 1) * kv.head_stride + (units - 1) * kv.token_stride + unit;
  s.memory = Guarded(static_cast<size_t>(last_unit), random.guard());
  std::memset(s.memory.data(), 0xFF, s.memory.size());  // a NaN in every type
  kv.data = s.memory.data();
  if (has_scales(type) && (type == KvType::kInt8 || !random.one_in(4))) {
    // [batch, heads, tokens] or [batch, tokens, heads], with gaps.
    const bool heads_inside = random.one_in(3);
    kv.scale_token_stride = 4 * (heads_inside ? heads : 1) + (random.one_in(4) ? 4 * random.integer(0, 3) : 0);
    kv.scale_head_stride = heads_inside ? 4 : held * kv.scale_token_stride;
    kv.scale_batch_stride = heads_inside ? held * kv.scale_token_stride : heads * kv.scale_head_stride;
    const int64_t last = entries == 0 || heads == 0 || held == 0
                             ? 0
                             : (entries - 1) * kv.scale_batch_stride + (heads - 1) * kv.scale_head_stride +
                                   (held - 1) * kv.scale_token_stride + 4;
    s.scales = Guarded(static_cast<size_t>(last), random.guard());
    std::memset(s.scales.data(), 0xFF, s.scales.size());
    kv.scales = s.scales.data();
  }
  return s;
}

KvType random_narrow_type(Random& random, bool rows) {
  if (rows && random.one_in(4)) return kReadOnlyTypes[random.integer(0, std::ssize(kReadOnlyTypes) - 1)];
  return kNarrowTypes[random.integer(0, std::ssize(kNarrowTypes) - 1)];
}

KvStorage random_codes(Random& random, KvType type, const Array<4>& rows, KvForm form, Values values, int64_t ring,
                       int64_t spare) {
  const auto& shape = rows.view.shape;
  KvStorage s = make_kv(random, type, form, shape[0], shape[1], shape[2] + spare, shape[3], ring);
  if (spare > 0) s.kv.length = shape[2];
  const reference::Codes codes = reference::codes_of(type);
  std::vector<unsigned char> row(static_cast<size_t>(row_bytes(type, shape[3])));
  for (const auto [b, h, t] : indices(shape[0], shape[1], shape[2])) {
    for (unsigned char& byte : row) byte = static_cast<unsigned char>(random.bits());
    float scale = number(random, values) / 128;
    if (type == KvType::kFp8E4M3 || type == KvType::kFp8E5M2) {
      // A sign and a number up to 1, unless anything goes. Ordinary codes have no NaN.
      const bool any = values == Values::kHuge || (values == Values::kSpecial && random.one_in(9));
      const unsigned char one = type == KvType::kFp8E4M3 ? 0x38 : 0x3C;
      for (unsigned char& byte : row)
        byte = any ? byte : static_cast<unsigned char>((byte & 0x80) | (byte & 0x7F) % (one + 1));
      scale = s.kv.scales == nullptr ? 1.0f : number(random, values);
    }
    // Blocks begin with f16 numbers.
    for (int64_t i = 0; codes.scales > 0 && i < std::ssize(row); i += codes.bytes) {
      // d, and m where there is one: in 4 of the first 4 or 8 bytes.
      for (int64_t at = i; at < i + (codes.scales % 4 == 0 ? 4 : 2); at += 2) {
        const float d = number(random, values) / 256;
        put(row.data() + at, DType::kF16, 0, d);
      }
    }
    const std::vector<float> x = reference::decode(type, row.data(), scale, shape[3]);
    for (size_t i = 0; i < row.size(); ++i) *s.byte(b, h, t, static_cast<int64_t>(i)) = row[i];
    if (float* const place = s.scale(b, h, t); place != nullptr) *place = scale;
    for (int64_t d = 0; d < shape[3]; ++d) rows.set_at({b, h, t, d}, x[static_cast<size_t>(d)]);
  }
  return s;
}

KvStorage store_kv(Random& random, const Array<4>& rows, KvForm form, int64_t ring, int64_t spare) {
  const auto& shape = rows.view.shape;
  KvStorage s = make_kv(random, rows.view.dtype, form, shape[0], shape[1], shape[2] + spare, shape[3], ring);
  if (spare > 0) s.kv.length = shape[2];
  for (const auto [b, h] : indices(shape[0], shape[1])) {
    for (const auto [t, d] : indices(shape[2], shape[3])) {
      set_element_bits(s.kv.data, s.dtype(), s.at(b, h, t, d),
                       element_bits(rows.view.data, rows.view.dtype, rows.at({b, h, t, d})));
    }
    // An odd last dimension of bf16 panels is paired with zero.
    if (s.kv.layout == KvLayout::kPanels && s.kv.type == KvType::kBF16 && shape[3] % 2 == 1) {
      for (int64_t t = 0; t < shape[2]; ++t) set_element_bits(s.kv.data, s.dtype(), s.at(b, h, t, shape[3]), 0);
    }
  }
  return s;
}

namespace {

bool in_ring(KvForm form) { return form == KvForm::kRingRows || form == KvForm::kRingPanels; }

/// Lets the sequences begin with the same pages, those of the first one: a prompt that all share.
void share_pages(Random& random, const KvStorage& s, const Array<4>& rows) {
  const auto& shape = rows.view.shape;
  if (s.kv.page_size == 0 || shape[2] < s.kv.page_size) return;
  const int64_t tokens = random.integer(1, shape[2] / s.kv.page_size) * s.kv.page_size;
  for (int64_t b = 1; b < shape[0]; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      s.page(b, t) = s.page(0, t);
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t d = 0; d < shape[3]; ++d) rows.set_at({b, h, t, d}, rows.get_at({0, h, t, d}));
      }
    }
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Attention

AttentionCase random_attention(Random& random, const AttentionLimits& limits) {
  AttentionCase c;
  const int64_t batch = random.integer(1, limits.max_batch);
  const int64_t kv_heads = random.integer(1, limits.max_kv_heads);
  const int64_t heads = kv_heads * random.integer(1, limits.max_group);
  // Whole blocks now and then.
  const auto some_dim = [&] {
    const int64_t size = random.size(1, limits.max_dim);
    return limits.narrow && limits.max_dim >= 32 && random.coin() ? (size + 31) / 32 * 32 : size;
  };
  const int64_t dim = some_dim();
  const int64_t dim_v = random.coin() ? dim : some_dim();
  const bool packed_q = limits.varlen && random.one_in(3);
  const bool packed_k = packed_q && random.coin();
  ScoringShapes shapes;
  shapes.heads = heads;
  const int64_t common_q = random.coin() ? random.integer(0, 3) : random.integer(0, limits.max_q);
  const int64_t common_kv = random.size(0, limits.max_kv);
  for (int64_t b = 0; b < batch; ++b) {
    shapes.n_q.push_back(packed_q ? random.integer(0, limits.max_q) : common_q);
    shapes.n_kv.push_back(packed_k ? random.size(0, limits.max_kv) : common_kv);
  }
  const int64_t total_q = std::accumulate(shapes.n_q.begin(), shapes.n_q.end(), int64_t{0});
  const int64_t total_k = std::accumulate(shapes.n_kv.begin(), shapes.n_kv.end(), int64_t{0});
  shapes.mask_batch = packed_q ? 1 : batch;
  shapes.mask_rows = packed_q ? total_q : common_q;
  shapes.mask_columns = *std::max_element(shapes.n_kv.begin(), shapes.n_kv.end());
  c.scoring = random_scoring(random, shapes, limits.scoring);

  const int64_t rows_batch = packed_q ? 1 : batch;
  c.q = Array<4>(random, random.storage(), {rows_batch, heads, shapes.mask_rows, dim}, Strides::kInput);
  c.q.fill(random, limits.values);
  c.out = Array<4>(random, random.storage(), {rows_batch, heads, shapes.mask_rows, dim_v}, Strides::kOutput);
  c.lse = Array<3>(random, DType::kF32, {rows_batch, heads, shapes.mask_rows}, Strides::kOutput);
  const std::array<int64_t, 4> k_shape = {packed_k ? 1 : batch, kv_heads, packed_k ? total_k : common_kv, dim};
  std::array<int64_t, 4> v_shape = k_shape;
  v_shape[3] = dim_v;
  c.k_rows = Array<4>(random, random.storage(), k_shape);
  c.v_rows = Array<4>(random, random.coin() ? c.k_rows.view.dtype : random.storage(), v_shape);
  c.k_rows.fill(random, limits.values);
  c.v_rows.fill(random, limits.values);
  KvForm k_form = KvForm::kRows, v_form = KvForm::kRows;
  if (limits.forms && !packed_k) {
    k_form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    v_form = random.of({KvForm::kRows, KvForm::kPagedRows});
    if (limits.rings && random.one_in(3)) k_form = random.of({KvForm::kRingRows, KvForm::kRingPanels});
    if (limits.rings && random.one_in(3)) v_form = KvForm::kRingRows;
  }
  const auto narrow = [&](Array<4>& rows, KvForm form) {
    const KvType type = random_narrow_type(random, in_rows(form));
    if (!limits.narrow || !random.one_in(3) || rows.view.shape[3] % reference::codes_of(type).numbers != 0) {
      return kv_type_of(rows.view.dtype);
    }
    rows = Array<4>(random, DType::kF32, rows.view.shape);
    return type;
  };
  const KvType k_type = narrow(c.k_rows, k_form), v_type = narrow(c.v_rows, v_form);
  const bool k_ring = in_ring(k_form), v_ring = in_ring(v_form);
  const auto spare = [&](bool ring) {
    return limits.forms && !packed_k && !ring && random.one_in(4) ? random.integer(1, 70) : 0;
  };
  const int64_t k_spare = spare(k_ring), v_spare = spare(v_ring);
  const int64_t ring = random.integer(1, common_kv + 1);
  const auto store = [&](KvType type, const Array<4>& rows, KvForm form, int64_t more) {
    KvStorage s = type > KvType::kF16 ? random_codes(random, type, rows, form, limits.values, ring, more)
                                      : store_kv(random, rows, form, ring, more);
    // Nobody writes what lies beside an odd last dimension of bf16 but kv_append: half of it is no zero here.
    if (s.kv.layout == KvLayout::kPanels && s.kv.type == KvType::kBF16 && rows.view.shape[3] % 2 == 1) {
      const auto& shape = rows.view.shape;
      for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i += 2) {
        const int64_t t = i % shape[2], h = i / shape[2] % shape[1], b = i / shape[2] / shape[1];
        set_element_bits(s.kv.data, s.dtype(), s.at(b, h, t, shape[3]),
                         t % 3 == 0 ? 0x7FC1 : 0x7F00 + static_cast<uint64_t>(t % 128));
      }
    }
    if (random.coin()) share_pages(random, s, rows);
    return s;
  };
  c.k = store(k_type, c.k_rows, k_form, k_spare);
  c.v = store(v_type, c.v_rows, v_form, v_spare);
  // A ring holds the last tokens there are: shorter sequences would need those that these have overwritten.
  if (k_ring || v_ring) c.scoring.scoring.kv_length = nullptr;

  AttentionProblem& a = c.problem;
  a.q = c.q.view;
  a.k = c.k.kv;
  a.v = c.v.kv;
  a.out = c.out.view;
  if (!random.one_in(4)) a.lse = c.lse.view;
  a.scoring = c.scoring.scoring;
  if (packed_q) {
    std::vector<int32_t> cu_q = {0}, cu_k = {0};
    for (int64_t b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(shapes.n_q[static_cast<size_t>(b)]));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(shapes.n_kv[static_cast<size_t>(b)]));
    }
    c.cu_q = Numbers<int32_t>(random, cu_q);
    a.cu_q = c.cu_q.data();
    a.n_sequences = batch;
    if (packed_k) {
      c.cu_k = Numbers<int32_t>(random, cu_k);
      a.cu_k = c.cu_k.data();
    }
  }
  if (limits.arithmetics) a.arithmetic = random_arithmetic(random);
  // Integers that are taken as they are have no numbers to compare with: narrow_test.cc does.
  const auto integers = [](KvType type, bool keys) {
    return type == KvType::kInt8 || (keys && (type == KvType::kQ8_0 || type == KvType::kQ4_0));
  };
  if (a.arithmetic == Arithmetic::kInt8 && (integers(k_type, true) || integers(v_type, false))) {
    a.arithmetic = random.coin() ? Arithmetic::kF32 : Arithmetic::kBF16;
  }
  return c;
}

std::string describe(const AttentionProblem& a) {
  const char* const types[] = {"f32",  "bf16", "f16",  "int8", "e4m3", "e5m2",
                               "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
  std::string text = "q [";
  for (const int64_t n : a.q.shape) text += std::to_string(n) + " ";
  text += std::string("] ") + types[static_cast<size_t>(a.q.dtype)];
  for (const ConstKv* kv : {&a.k, &a.v}) {
    text += std::string(kv == &a.k ? ", k" : ", v") + " [" + std::to_string(kv->batch) + " " +
            std::to_string(kv->heads) + " " + std::to_string(kv->capacity) + " " + std::to_string(kv->dim) + "] " +
            types[static_cast<size_t>(kv->type)];
    if (kv->layout == KvLayout::kPanels) text += " panels";
    if (kv->length >= 0) text += " of length " + std::to_string(kv->length);
    if (kv->page_size > 0) text += " pages of " + std::to_string(kv->page_size);
    if (kv->ring > 0) text += " ring of " + std::to_string(kv->ring);
  }
  text += std::string(", out ") + types[static_cast<size_t>(a.out.dtype)];
  if (a.cu_q != nullptr) {
    text += ", cu_q";
    for (int64_t s = 0; s <= a.n_sequences; ++s) text += " " + std::to_string(a.cu_q[s]);
  }
  if (a.cu_k != nullptr) {
    text += ", cu_k";
    for (int64_t s = 0; s <= a.n_sequences; ++s) text += " " + std::to_string(a.cu_k[s]);
  }
  if (a.arithmetic != Arithmetic::kF32) text += std::string(", arithmetic ") + arithmetic_name(a.arithmetic);
  return text + describe(a.scoring);
}

namespace {

template <class F>
Status with_workspace(size_t bytes, const Target* target, const F& f) {
  const Guarded workspace(bytes, Guard::kAfter);
  std::memset(workspace.data(), 0xFF, bytes);
  return f(Exec{.target = target, .workspace = workspace.data(), .workspace_bytes = bytes});
}

}  // namespace

Status run_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                  const Target* target) {
  return with_workspace(scores_workspace(options.arithmetic, q.shape[3]), target,
                        [&](const Exec& exec) { return scores(q, k, out, options, exec); });
}
Status run_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                           const ValueOptions& options, const Target* target) {
  return with_workspace(weighted_values_workspace(options.arithmetic, v.shape[3]), target,
                        [&](const Exec& exec) { return weighted_values(p, v, out, options, exec); });
}

Status run_attention(const AttentionProblem& problem, const Target* target) {
  Plan plan;
  Exec exec = {.target = target};
  if (const Status s = attention_plan(problem, &plan, exec); !s.ok()) return s;
  const Guarded workspace(plan.workspace_bytes, Guard::kAfter);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  return attention(problem, exec);
}

Result result_of(const AttentionCase& c, const AttentionProblem& a, const Target& target) {
  EXPECT_TRUE(ok(run_attention(a, &target))) << describe(a);
  const Result result = written(c);
  c.clear();
  return result;
}

Status run_tasks(const AttentionProblem& problem, const Target* target, Random& random) {
  Plan plan;
  Exec exec = {.target = target};
  if (const Status s = attention_plan(problem, &plan, exec); !s.ok()) return s;
  const Plan copy = plan;
  const Guarded partial(plan.partial_bytes, random.guard());
  for (const bool reduce : {false, true}) {
    const int64_t count = reduce ? plan.reduce_tasks : plan.tasks;
    // Ranges of random lengths, in random order.
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t first = 0; first < count;) {
      const int64_t last = std::min(count, first + (random.coin() ? 1 : random.integer(1, 5)));
      ranges.emplace_back(first, last);
      first = last;
    }
    shuffle(ranges, random);
    for (const auto& [first, last] : ranges) {
      const Guarded workspace(plan.workspace_bytes, random.guard());
      std::memset(workspace.data(), 0xFF, workspace.size());
      exec.workspace = workspace.data();
      exec.workspace_bytes = workspace.size();
      const Plan& p = random.coin() ? plan : copy;
      const Status s = reduce ? attention_reduce(p, first, last, partial.data(), partial.size(), exec)
                              : attention_range(p, first, last, partial.data(), partial.size(), exec);
      if (!s.ok()) return s;
    }
  }
  return {};
}

}  // namespace simdattn::test
