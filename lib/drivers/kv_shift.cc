// kv_shift(): tokens of a cache to other positions, keys rotated by the distance.
#include <cstdlib>
#include <numeric>
#include <utility>

#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/kv_store.h"
#include "lib/drivers/turn_row.h"
#include "lib/dtypes.h"
#include "lib/rules/positions.h"
#include "lib/rules/views.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr KvText kText = SIMDATTN_KV_TEXT("kv");

/// Elements between neighbouring keys of a panel.
template <class T>
inline constexpr int64_t kPanelColumn = std::is_same_v<T, bf16> ? 2 : 1;
/// Where element d of a key is in its panel, relative to the key's element 0.
template <class T>
int64_t panel_step(int64_t d) {
  return std::is_same_v<T, bf16> ? d / 2 * 2 * kPanelWidth + d % 2 : d * kPanelWidth;
}

class Shift {
 public:
  Shift(const UKernels& uk, const Kv& cache, const RopeHeads& rotation, bool rotate)
      : uk_(uk), cache_(cache), rotation_(rotation), rotate_(rotate) {}

  /// Token `from` to token `to` of a sequence.
  void move(int64_t sequence, int64_t from, int64_t to) const {
    if (from == to && !rotate_) return;
    char* source = address(sequence, from);
    char* target = address(sequence, to);
    const int64_t head_elements = cache_.head_stride / row_bytes(cache_.type, 1);
    if (cache_.layout == KvLayout::kRows) {
      RopeHeads call = rotation_;
      call.heads = cache_.heads;
      call.x = source;
      call.y = target;
      call.x_stride = head_elements;
      call.y_stride = head_elements;
      kernel()(call);
      return;
    }
    with_storage(DType(cache_.type), [&](auto t) {
      using T = decltype(t);
      for (int64_t h = 0; h < cache_.heads; ++h) {
        move_column(reinterpret_cast<const T*>(source) + h * head_elements,
                    reinterpret_cast<T*>(target) + h * head_elements);
      }
    });
  }

  /// Two tokens change places, unrotated.
  void swap(int64_t sequence, int64_t a, int64_t b) const {
    const bool panels = cache_.layout == KvLayout::kPanels;
    with_storage(DType(cache_.type), [&](auto t) {
      using T = decltype(t);
      for (int64_t h = 0; h < cache_.heads; ++h) {
        T* x = reinterpret_cast<T*>(address(sequence, a) + h * cache_.head_stride);
        T* y = reinterpret_cast<T*>(address(sequence, b) + h * cache_.head_stride);
        for (int64_t d = 0; d < cache_.dim; ++d) {
          const int64_t at = panels ? panel_step<T>(d) : d;
          std::swap(x[at], y[at]);
        }
      }
    });
  }

 private:
  void (*kernel() const)(const RopeHeads&) {
    return uk_.rope_heads[slot(DType(cache_.type))][slot(DType(cache_.type))];
  }

  /// Of a token's first element of head 0.
  char* address(int64_t sequence, int64_t token) const {
    const KvStore<false> store(cache_, sequence, 0);
    int64_t run = 0;
    if (!store.panels()) return store.at(token, &run);
    const int64_t column = token % kPanelWidth;
    return store.at(token - column, &run) +
           column * (DType(cache_.type) == DType::kBF16 ? 2 : 1) * size_of(DType(cache_.type));
  }

  template <class T>
  void move_column(const T* from, T* to) const {
    const int64_t dim = cache_.dim;
    if (!rotate_) {
      for (int64_t d = 0; d < dim; ++d) to[panel_step<T>(d)] = from[panel_step<T>(d)];
    } else {
      turn_row(
          uk_, rotation_, DType(cache_.type), DType(cache_.type),
          [&](int64_t d, int64_t n, char* piece) {
            for (int64_t i = 0; i < n; ++i) reinterpret_cast<T*>(piece)[i] = from[panel_step<T>(d + i)];
          },
          [&](const char* piece, int64_t d, int64_t n) {
            for (int64_t i = 0; i < n; ++i) to[panel_step<T>(d + i)] = reinterpret_cast<const T*>(piece)[i];
          });
    }
    // An odd last dimension of bf16 is paired with zero.
    if (std::is_same_v<T, bf16> && dim % 2 != 0) to[panel_step<T>(dim)] = T{};
  }

  const UKernels& uk_;
  const Kv& cache_;
  const RopeHeads& rotation_;
  bool rotate_;
};

/// Moves `count` slots of a ring, from `first` on, by `step` (0 < step < ring), where they may run into each other in both
/// directions. Every slot that is written to and not read from begins a chain of moves; what is left are closed cycles.
void shift_ring(const Shift& shift, int64_t sequence, int64_t ring, int64_t first, int64_t count, int64_t step) {
  const auto wrap = [&](int64_t slot) { return slot >= ring ? slot - ring : slot < 0 ? slot + ring : slot; };
  const auto is_read = [&](int64_t slot) { return wrap(slot - first) < count; };
  const auto is_written = [&](int64_t slot) { return wrap(slot - wrap(first + step)) < count; };
  for (int64_t i = 0; i < count; ++i) {
    int64_t to = wrap(wrap(first + step) + i);
    if (is_read(to)) continue;
    do {
      const int64_t from = wrap(to - step);
      shift.move(sequence, from, to);
      to = from;
    } while (is_written(to));
  }
  // A cycle is all slots of one residue; it is closed if it avoids the ring - count slots that are not read.
  const int64_t cycles = std::gcd(step, ring);
  const int64_t unread = wrap(first + count);
  for (int64_t r = 0; r < cycles; ++r) {
    if ((r + cycles - unread % cycles) % cycles < ring - count) continue;
    for (int64_t to = r, from = wrap(to - step); from != r; to = from, from = wrap(to - step)) {
      shift.swap(sequence, to, from);
    }
    for (int64_t slot = r; slot < ring; slot += cycles) shift.move(sequence, slot, slot);
  }
}

}  // namespace

Status drivers::kv_shift(const Kv& cache, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope,
                         const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  ByteSet ek, ec, es;
  SIMDATTN_CHECK(check_kv(cache, {.output = true}, kText, &ek));
  SIMDATTN_REQUIRE(0 <= first && first <= last && last <= cache.tokens, Code::kRange,
                   "first, last: must be in 0 <= first <= last <= cache.tokens");
  SIMDATTN_REQUIRE(delta >= -kMaxSize && delta <= kMaxSize, Code::kRange, "delta: must be within +-(2^30 - 1)");
  SIMDATTN_REQUIRE(first == last || (first + delta >= 0 && last + delta <= cache.tokens), Code::kRange,
                   "delta: moves tokens outside 0 .. cache.tokens-1");
  const bool rotate = rope.cos.data != nullptr || rope.sin.data != nullptr;
  const int64_t distance = std::abs(delta);
  if (rotate) {
    SIMDATTN_CHECK(check_rope_table(rope.cos, rope.sin, rope.options, cache.dim, kAppendRope, &ec, &es));
    SIMDATTN_REQUIRE(distance < rope.cos.shape[0], Code::kRange, "delta: rope.cos and rope.sin have no row |delta|");
    SIMDATTN_REQUIRE(!share_bytes(ec, ek) && !share_bytes(es, ek), Code::kOverlap,
                     "cache: overlaps rope.cos or rope.sin");
  }
  SIMDATTN_REQUIRE(cache.ring == 0 || last - first <= cache.ring, Code::kRange,
                   "first, last: more tokens than the ring holds");
  if (cache.block_table != nullptr) {
    for (int64_t b = 0; b < cache.batch; ++b) {
      for (int64_t t = first; t < last; ++t) {
        SIMDATTN_REQUIRE(page_of(cache, b, t) < cache.n_pages && page_of(cache, b, t + delta) < cache.n_pages,
                         Code::kRange, kText.pages);
      }
    }
  }
  if (delta == 0 || first == last || ek.empty()) return {};

  const RopeHeads rotation = {
      .x = nullptr,
      .y = nullptr,
      .x_stride = 0,
      .y_stride = 0,
      .heads = 0,
      .dim = cache.dim,
      .first = rotate ? rope.options.first_dim : 0,
      .half = rotate ? rope.cos.shape[1] : 0,
      .cos = rotate ? static_cast<const float*>(rope.cos.data) + distance * rope.cos.stride[0] : nullptr,
      .sin = rotate ? static_cast<const float*>(rope.sin.data) + distance * rope.sin.stride[0] : nullptr,
      .interleaved = rope.options.pairing == RopePairing::kInterleaved,
      .inverse = rope.options.inverse != (delta < 0)};
  const Shift shift(*uk, cache, rotation, rotate);
  const int64_t count = last - first;
  // In a ring a token moves by `step` slots forwards or by ring - step backwards.
  const int64_t step = cache.ring > 0 ? ((delta % cache.ring) + cache.ring) % cache.ring : 0;
  // Nothing is written before it is read: from the end that tokens move towards.
  bool descending = delta > 0;
  if (cache.ring > 0) {
    const bool forwards = step + count <= cache.ring;
    const bool backwards = count <= step;
    descending = forwards && step > 0;
    if (step > 0 && !forwards && !backwards) {
      for (int64_t b = 0; b < cache.batch; ++b) shift_ring(shift, b, cache.ring, first % cache.ring, count, step);
      return {};
    }
  }
  for (int64_t b = 0; b < cache.batch; ++b) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = descending ? last - 1 - i : first + i;
      if (cache.block_table != nullptr && (page_of(cache, b, token) < 0 || page_of(cache, b, token + delta) < 0)) {
        continue;
      }
      shift.move(b, token, token + delta);
    }
  }
  return {};
}

}  // namespace simdattn
