// kv_shift(): tokens of a cache to other positions, keys rotated by the distance.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/cache/kv_tokens.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/extras/hadamard_rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

class Shift {
 public:
  /// `hadamard_block`: of keys that rotate; 0 for none.
  Shift(const UKernels& uk, const Kv& kv, const RopeHeads& rotation, bool rotates, int64_t hadamard_block)
      : uk_(uk), kv_(kv), store_(uk, kv), rotation_(rotation), rotates_(rotates), hadamard_block_(hadamard_block) {
    as_f32_ = store_.narrow() || hadamard_block > 0;
    most_ = store_.panels() && !as_f32_ ? kPanelWidth : tokens_at_a_time(kv.dim);
    rotation_.x_stride = rotation_.y_stride = kv.dim;
    const DType type = as_f32_ ? DType::kF32 : store_.dtype();
    kernel_ = uk.rope_heads[slot(type)];
  }

  /// Tokens first .. last - 1 of a sequence by `delta`, one after the other: towards higher positions from the end.
  void move(int64_t sequence, int64_t first, int64_t last, int64_t delta, bool from_end) const {
    while (first < last) {
      const int64_t at = from_end ? last - 1 : first;
      TokenPlace from = place_of(kv_, sequence, at), to = place_of(kv_, sequence, at + delta);
      // As many as lie in one page on both sides, and in one panel where they go to.
      int64_t n = std::min({most_, last - first, room(from, from_end), room(to, from_end)});
      if (store_.panels()) {
        const int64_t column = store_.column(to);
        n = std::min(n, from_end ? column + 1 : kPanelWidth - column);
      }
      if (from_end) {
        from.inside -= n - 1;
        to.inside -= n - 1;
        last -= n;
      } else {
        first += n;
      }
      if (from.unit >= 0 && to.unit >= 0) move(from, to, n);
    }
  }

  /// n tokens side by side to places side by side, as if all were read before any is written.
  void move(const TokenPlace& from, const TokenPlace& to, int64_t n) const {
    if (!rotates_ && from.inside == to.inside && from.unit == to.unit) return;
    if (as_f32_) return move_f32(from, to, n);
    if (store_.panels() && (n >= kColumns || n * kv_.dim > kTokenBuffer)) return move_columns(from, to, n);
    if (kv_.dim > kTokenBuffer) return move_long(from, to);
    move_rows(from, to, n);
  }

  /// Two tokens of one unit change places, unrotated.
  [[gnu::noinline]] void swap(const TokenPlace& a, const TokenPlace& b) const {
    if (store_.narrow()) return swap_narrow(a, b);
    alignas(64) char x[TokenStore::kPiece * sizeof(float)];
    alignas(64) char y[TokenStore::kPiece * sizeof(float)];
    for (int64_t h = 0; h < kv_.heads; ++h) {
      for (int64_t d = 0; d < kv_.dim; d += TokenStore::kPiece) {
        const int64_t n = std::min(TokenStore::kPiece, kv_.dim - d);
        store_.load_piece(x, d, n, a, h);
        store_.load_piece(y, d, n, b, h);
        store_.store_piece(x, d, n, b, h);
        store_.store_piece(y, d, n, a, h);
      }
    }
  }

 private:
  [[gnu::noinline]] void move_rows(const TokenPlace& from, const TokenPlace& to, int64_t n) const {
    alignas(64) char buffer[kTokenBuffer * sizeof(float)];
    const int64_t size = store_.row_size();
    RopeHeads call = rotation_;
    call.x = call.y = buffer;
    call.heads = n;
    for (int64_t h = 0; h < kv_.heads; ++h) {
      store_.load(buffer, size, n, from, h, true);
      if (rotates_) kernel_(call);
      store_.store(buffer, size, n, to, h, true);
    }
  }
  /// True if every token has a scale of its own, which moves with it.
  bool own_scales() const { return has_scales(kv_.type) && kv_.scales != nullptr && kv_.scale_token_stride != 0; }
  /// Codes are copied, unless they are rotated or multiplied by another scale at their new place. Then the numbers are
  /// stored again.
  [[gnu::noinline]] void move_f32(const TokenPlace& from, const TokenPlace& to, int64_t n) const {
    alignas(64) char buffer[kTokenBuffer * sizeof(float)];
    float* const numbers = reinterpret_cast<float*>(buffer);
    float scales[kPanelWidth], there[kPanelWidth];
    for (int64_t h = 0; h < kv_.heads; ++h) {
      bool copies = !rotates_;
      if (has_scales(kv_.type)) {
        store_.load_scales(scales, n, from, h);
        store_.load_scales(there, n, to, h);
        if (!own_scales()) copies = copies && std::memcmp(scales, there, static_cast<size_t>(n) * sizeof(float)) == 0;
      }
      const int64_t size = copies ? row_bytes(kv_.type, kv_.dim) : 4 * kv_.dim;
      store_.load(buffer, size, n, from, h, copies);
      if (own_scales()) store_.store_scales(scales, n, to, h);
      if (rotates_) {
        RopeHeads call = rotation_;
        call.x = call.y = buffer;
        call.heads = n;
        // The matrix is its own inverse.
        if (hadamard_block_ > 0) hadamard_in_place(uk_, numbers, n * kv_.dim, hadamard_block_);
        kernel_(call);
        if (hadamard_block_ > 0) hadamard_in_place(uk_, numbers, n * kv_.dim, hadamard_block_);
      }
      store_.store(buffer, size, n, to, h, copies);
    }
  }
  [[gnu::noinline]] void swap_narrow(const TokenPlace& a, const TokenPlace& b) const {
    alignas(64) char x[kTokenBuffer * 2];
    alignas(64) char y[kTokenBuffer * 2];
    for (int64_t h = 0; h < kv_.heads; ++h) {
      store_.load(x, 0, 1, a, h, true);
      store_.load(y, 0, 1, b, h, true);
      store_.store(x, 0, 1, b, h, true);
      store_.store(y, 0, 1, a, h, true);
      if (!own_scales()) continue;
      float of_a, of_b;
      store_.load_scales(&of_a, 1, a, h);
      store_.load_scales(&of_b, 1, b, h);
      store_.store_scales(&of_a, 1, b, h);
      store_.store_scales(&of_b, 1, a, h);
    }
  }
  /// Tokens from p on, or up to p, in its page or ring.
  int64_t room(const TokenPlace& p, bool from_end) const {
    if (from_end) return p.inside + 1;
    const int64_t end = kv_.page_size > 0 ? kv_.page_size : kv_.ring > 0 ? kv_.ring : kv_.tokens;
    return end - p.inside;
  }
  /// Fewer tokens are faster as rows: whole registers of lanes rotate, and there is work for each dimension.
  static constexpr int64_t kColumns = 8;
  /// In panels: lanes are tokens, and all of them rotate alike.
  void move_columns(const TokenPlace& from, const TokenPlace& to, int64_t n) const {
    for (int64_t h = 0; h < kv_.heads; ++h) {
      store_.kernels().rotate_columns({.from = store_.at(from, h),
                                       .from_stride = kv_.token_stride,
                                       .from_column = store_.column(from),
                                       .to = store_.at(to, h),
                                       .to_column = store_.column(to),
                                       .columns = n,
                                       .dim = kv_.dim,
                                       .first = rotation_.first,
                                       .half = rotation_.half,
                                       .cos = rotation_.cos,
                                       .sin = rotation_.sin,
                                       .interleaved = rotation_.interleaved,
                                       .inverse = rotation_.inverse});
    }
  }
  void move_long(const TokenPlace& from, const TokenPlace& to) const {
    for (int64_t h = 0; h < kv_.heads; ++h) {
      rotate_long_row(
          uk_, rotation_, store_.dtype(), store_.dtype(),
          [&](int64_t d, int64_t n, char* piece) { store_.load_piece(piece, d, n, from, h); },
          [&](const char* piece, int64_t d, int64_t n) { store_.store_piece(piece, d, n, to, h); });
    }
  }

  const UKernels& uk_;
  const Kv& kv_;
  TokenStore store_;
  RopeHeads rotation_;
  bool rotates_;
  int64_t hadamard_block_;
  bool as_f32_;  // narrow types, and keys behind a matrix
  int64_t most_;
  void (*kernel_)(const RopeHeads&);
};

/// Moves `count` places of a ring, from `first` on, by `step` (0 < step < ring), where they may run into each other in both
/// directions. Every place that is written to and not read from begins a chain of moves; what is left are closed cycles.
void shift_ring(const Shift& shift, int64_t sequence, int64_t ring, int64_t first, int64_t count, int64_t step) {
  const auto wrap = [&](int64_t place) { return place >= ring ? place - ring : place < 0 ? place + ring : place; };
  const auto is_read = [&](int64_t place) { return wrap(place - first) < count; };
  const auto is_written = [&](int64_t place) { return wrap(place - wrap(first + step)) < count; };
  const auto at = [&](int64_t place) { return TokenPlace{sequence, place}; };
  for (int64_t i = 0; i < count; ++i) {
    int64_t to = wrap(wrap(first + step) + i);
    if (is_read(to)) continue;
    do {
      const int64_t from = wrap(to - step);
      shift.move(at(from), at(to), 1);
      to = from;
    } while (is_written(to));
  }
  // A cycle is all places of one residue; it is closed if it avoids the ring - count places that are not read.
  const int64_t cycles = std::gcd(step, ring);
  const int64_t unread = wrap(first + count);
  for (int64_t r = 0; r < cycles; ++r) {
    if ((r + cycles - unread % cycles) % cycles < ring - count) continue;
    for (int64_t to = r, from = wrap(to - step); from != r; to = from, from = wrap(to - step)) {
      shift.swap(at(to), at(from));
    }
    for (int64_t place = r; place < ring; place += cycles) shift.move(at(place), at(place), 1);
  }
}

}  // namespace

Status drivers::kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope,
                         const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_kv_shift(kv, first, last, delta, rope, &empty));
  if (delta == 0 || first == last || empty) return {};

  const bool rotate = rope.cos.data != nullptr || rope.sin.data != nullptr;
  const int64_t distance = std::abs(delta);
  const RopeHeads rotation = {.x = nullptr,
                              .y = nullptr,
                              .x_stride = 0,
                              .y_stride = 0,
                              .heads = 0,
                              .dim = kv.dim,
                              .first = rotate ? rope.options.first_dim : 0,
                              .half = rotate ? rope.cos.shape[1] : 0,
                              .cos = rotate ? table_row(rope.cos, distance) : nullptr,
                              .sin = rotate ? table_row(rope.sin, distance) : nullptr,
                              .interleaved = rope.options.pairing == RopePairing::kInterleaved,
                              .inverse = rope.options.inverse != (delta < 0)};
  const Shift shift(*uk, kv, rotation, rotate, rotate ? rope.hadamard_block : 0);
  const int64_t count = last - first;
  // In a ring a token moves by `step` places forwards or by ring - step backwards.
  const int64_t step = kv.ring > 0 ? ((delta % kv.ring) + kv.ring) % kv.ring : 0;
  // Nothing is written before it is read: from the end that tokens move towards.
  bool descending = delta > 0;
  if (kv.ring > 0) {
    const bool forwards = step + count <= kv.ring;
    const bool backwards = count <= step;
    descending = forwards && step > 0;
    if (step > 0 && !forwards && !backwards) {
      for (int64_t b = 0; b < kv.batch; ++b) shift_ring(shift, b, kv.ring, first % kv.ring, count, step);
      return {};
    }
  }
  for (int64_t b = 0; b < kv.batch; ++b) shift.move(b, first, last, delta, descending);
  return {};
}

}  // namespace simdattn
