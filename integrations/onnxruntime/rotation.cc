#include "rotation.h"

namespace simdattn_onnxruntime {
namespace {

/// Rows `first` .. `first + count - 1` of a table as f32.
void widen(Call* call, const Tensor& t, sa::DType type, int64_t first, int64_t count, float* out) {
  const int64_t columns = t.dim[static_cast<size_t>(t.rank - 1)], rows = t.size() / columns;
  const sa::ConstKv table = sa::ConstView<4>(t.data, type, {1, 1, rows, columns});
  call->check(sa::kv_read(table, first, sa::View<4>(out, sa::DType::kF32, {1, 1, count, columns})));
}

void check_positions(const Call& call, int cos, const Places& p, int64_t rows) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < p.n; ++i) {
      const int64_t at = p.ids != nullptr ? p.ids[b * p.n + i] : p.starts[b] + i;
      if (at < 0 || at >= rows)
        call.refuse(cos, "has " + std::to_string(rows) + " rows, and a token is at " + std::to_string(at));
    }
  }
}

}  // namespace

sa::Positions Rotation::positions(int64_t b) const {
  if (places.ids != nullptr) return sa::ConstView<2>(places.ids + b * places.n, sa::DType::kI64, {1, places.n});
  return places.starts != nullptr ? places.starts[b] : b * places.n;
}

Rotation make_rotation(Call* call, int cos, const Tensor& c, const Places& places) {
  const Tensor s = call->input(cos + 1);
  if (!c) call->refuse(cos, "is needed");
  if (!s) call->refuse(cos + 1, "is needed");
  const sa::DType type = call->type_of(cos, c);
  if (call->type_of(cos + 1, s) != type) call->refuse(cos + 1, "has another type than the cosines");
  const bool by_row = places.ids == nullptr && places.starts == nullptr;
  if (by_row) {
    call->expect(cos, c, {places.batch, places.n, -1});
  } else {
    call->expect(cos, c, {-1, -1});
    check_positions(*call, cos, places, c.dim[0]);
  }
  const int64_t columns = c.dim[static_cast<size_t>(c.rank - 1)];
  if (by_row) {
    call->expect(cos + 1, s, {places.batch, places.n, columns});
  } else {
    call->expect(cos + 1, s, {c.dim[0], columns});
  }
  Rotation r;
  r.options.pairing = call->node.interleaved != 0 ? sa::RopePairing::kInterleaved : sa::RopePairing::kHalfSplit;
  r.places = places;
  const int64_t used = places.batch * places.n;
  if (type == sa::DType::kF32) {
    const std::array<int64_t, 2> shape{by_row ? used : c.dim[0], columns};
    r.cos = sa::ConstView<2>(c.data, type, shape);
    r.sin = sa::ConstView<2>(s.data, type, shape);
    return r;
  }
  float* const wide[] = {call->room<float>(used * columns), call->room<float>(used * columns)};
  for (const Tensor* t : {&c, &s}) {
    float* const out = wide[t == &s];
    if (by_row) {
      widen(call, *t, type, 0, used, out);
      continue;
    }
    for (int64_t b = 0; b < places.batch; ++b) {
      // One call where the rows of a sequence follow one another.
      const int64_t together = places.ids == nullptr ? places.n : 1;
      for (int64_t i = 0; i < places.n; i += together) {
        const int64_t row = b * places.n + i;
        widen(call, *t, type, places.ids != nullptr ? places.ids[row] : places.starts[b], together,
              out + row * columns);
      }
    }
  }
  r.cos = sa::ConstView<2>(wide[0], sa::DType::kF32, {used, columns});
  r.sin = sa::ConstView<2>(wide[1], sa::DType::kF32, {used, columns});
  r.places.ids = nullptr;
  r.places.starts = nullptr;
  return r;
}

}  // namespace simdattn_onnxruntime
