#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/reference.h"

namespace simdattn::test {

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

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

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
    random.shuffle(pages);
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

}  // namespace simdattn::test
