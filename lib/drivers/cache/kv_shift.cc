// kv_shift(): tokens of a cache to other positions, keys rotated by the distance.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "lib/drivers/cache/token_store.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

struct Shift {
  const UKernels& uk;
  const Kv& kv;
  RopeHeads rotation;
  bool rotates;
  int64_t hadamard_block;  // of keys that rotate; 0: none
  TokenStore store{uk, kv};
  // Of tokens in a buffer, where they do not move from row to row: f32 of narrow types and behind a Hadamard matrix.
  DType buffered = hadamard_block > 0 ? DType::kF32 : store.dtype();
  bool direct = !store.narrow() && !store.panels() && hadamard_block == 0;
  // Every token has a scale of its own, which moves with it.
  bool own_scales = has_scales(kv.type) && kv.scales != nullptr && kv.scale_token_stride != 0;

  /// Tokens first .. last - 1 of a sequence by `delta`, one after the other: towards higher positions from the end.
  void move(int64_t sequence, int64_t first, int64_t last, int64_t delta, bool from_end) const {
    const int64_t most = direct ? last - first : tokens_at_a_time(kv.dim);
    while (first < last) {
      const int64_t at = from_end ? last - 1 : first;
      TokenPlace from = place_of(kv, sequence, at), to = place_of(kv, sequence, at + delta);
      // As many as lie in one page on both sides, and in one panel where they go to.
      int64_t n = std::min(most, last - first);
      for (const TokenPlace& p : {from, to}) n = std::min(n, from_end ? p.inside + 1 : store.tokens_left(p));
      if (store.panels()) {
        const int64_t column = store.column(to);
        n = std::min(n, from_end ? column + 1 : kPanelWidth - column);
      } else if (direct && from.unit == to.unit && from.inside != to.inside) {
        n = std::min(n, std::abs(to.inside - from.inside));  // rows that are read are not written
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
    if (!rotates && from.inside == to.inside && from.unit == to.unit) return;
    if (!direct) return kv.dim <= kTokenBuffer ? through_buffer(from, to, n) : in_pieces(from, to);
    RopeHeads call = rotation;
    call.heads = n;
    call.x_stride = call.y_stride = n == 1 ? 0 : kv.token_stride / size_of(buffered);
    for (int64_t h = 0; h < kv.heads; ++h) {
      call.x = row_at(kv, from, h);
      call.y = row_at(kv, to, h);
      uk.rope_heads[index_of(buffered)](call);
    }
  }

  /// Two tokens of one unit change places, unrotated.
  [[gnu::noinline, gnu::cold]] void swap(const TokenPlace& a, const TokenPlace& b) const {
    alignas(64) char x[kTokenBuffer * 2];
    alignas(64) char y[kTokenBuffer * 2];
    for (int64_t h = 0; h < kv.heads; ++h) {
      if (store.narrow()) {
        store.load(x, 0, 1, a, h, true);
        store.load(y, 0, 1, b, h, true);
        store.store(x, 0, 1, b, h, true);
        store.store(y, 0, 1, a, h, true);
        if (own_scales) std::swap_ranges(scale_at(kv, a, h), scale_at(kv, a, h) + sizeof(float), scale_at(kv, b, h));
        continue;
      }
      const int64_t size = size_of(store.dtype());
      for (int64_t d = 0; d < kv.dim; ++d) {
        char* const element = store.element(a, h, d);
        std::swap_ranges(element, element + size, store.element(b, h, d));
      }
    }
  }

 private:
  /// What does not rotate is copied, unless its scale differs at the new place: then the numbers are stored again.
  [[gnu::noinline]] void through_buffer(const TokenPlace& from, const TokenPlace& to, int64_t n) const {
    alignas(64) char buffer[kTokenBuffer * sizeof(float)];
    float scales[kPanelWidth], there[kPanelWidth];
    for (int64_t h = 0; h < kv.heads; ++h) {
      bool copies = !rotates;
      if (has_scales(kv.type)) {
        load_scales(kv, from, h, n, scales);
        load_scales(kv, to, h, n, there);
        if (!own_scales) copies = copies && std::memcmp(scales, there, static_cast<size_t>(n) * sizeof(float)) == 0;
      }
      const bool as_stored = copies || (!store.narrow() && hadamard_block == 0);
      const int64_t size = as_stored ? row_bytes(kv.type, kv.dim) : 4 * kv.dim;
      store.load(buffer, size, n, from, h, as_stored);
      if (own_scales) store.store_scales(to, h, n, scales);
      if (rotates) {
        RopeHeads call = rotation;
        call.x = call.y = buffer;
        call.x_stride = call.y_stride = kv.dim;
        call.heads = n;
        const auto hadamard = [&] {
          float* const numbers = reinterpret_cast<float*>(buffer);
          if (hadamard_block > 0) hadamard_blocks(uk, numbers, n * kv.dim, hadamard_block, DType::kF32, numbers);
        };
        hadamard();  // the matrix is its own inverse
        uk.rope_heads[index_of(buffered)](call);
        hadamard();
      }
      store.store(buffer, size, n, to, h, as_stored);
    }
  }
  /// A token of a panel of more dimensions than the buffer holds.
  [[gnu::noinline, gnu::cold]] void in_pieces(const TokenPlace& from, const TokenPlace& to) const {
    alignas(64) char buffer[kTokenPiece * sizeof(float)];
    for (int64_t h = 0; h < kv.heads; ++h) {
      rotate_pieces(
          uk, rotation, buffered, buffer, kTokenPiece,
          [&](int64_t d, int64_t n, char* piece) { store.load_piece(from, h, d, n, piece); },
          [&](const char* piece, int64_t d, int64_t n) { store.store_piece(piece, to, h, d, n); });
    }
  }
};

/// Moves the tokens of `count` places of a ring, from `first` on, by `step` places (0 < step < ring). Places that are
/// `step` apart are a cycle, which is walked against the move: so each place gets its token after its own one has left.
/// A cycle begins at a place without a token; if all of its places have one (`closed`), they change places one by one.
void shift_ring(const Shift& shift, int64_t sequence, int64_t ring, int64_t first, int64_t count, int64_t step) {
  const auto at = [&](int64_t place) { return TokenPlace{sequence, place}; };
  const int64_t cycles = std::gcd(step, ring);
  for (int64_t r = 0; r < cycles; ++r) {
    const bool closed = r >= ring - count;  // so many places behind the last one are not read
    const int64_t start = (first + count + r) % ring;
    int64_t to = start;
    for (int64_t from; (from = (to + ring - step) % ring) != start; to = from) {
      if (closed) {
        shift.swap(at(to), at(from));
        shift.move(at(to), at(to), 1);
      } else if ((from + ring - first) % ring < count) {
        shift.move(at(from), at(to), 1);
      }
    }
    if (closed) shift.move(at(to), at(to), 1);
  }
}

}  // namespace

Status drivers::kv_shift(const UKernels& uk, const Kv& kv, int64_t first, int64_t last, int64_t delta,
                         const KeyRotation& rope) {
  SIMDATTN_CHECK(check_kv_shift(kv, first, last, delta, rope));
  if (delta == 0 || first == last || kv.heads == 0) return {};

  const bool rotate = has_table(rope);
  RopeHeads rotation = rotation_of(rope.options, kv.dim, rotate ? rope.cos.shape[1] : 0);
  rotation.inverse = rotation.inverse != (delta < 0);
  if (rotate) {
    rotation.cos = table_row(rope.cos, std::abs(delta));
    rotation.sin = table_row(rope.sin, std::abs(delta));
  }
  const Shift shift = {uk, kv, rotation, rotate, rotate ? rope.hadamard_block : 0};
  const int64_t count = last - first;
  // In a ring a token moves by `step` places forwards, which is ring - step backwards.
  const int64_t step = kv.ring > 0 ? ((delta % kv.ring) + kv.ring) % kv.ring : 0;
  // Nothing may be written before it is read. Where a token goes, one in front of it may still be: then the last one
  // moves first. Or one behind it may: then the first one does. Or in a ring both: then they move along cycles.
  const bool in_front = kv.ring > 0 ? step > 0 && step < count : delta > 0;
  const bool both = kv.ring > 0 && in_front && step + count > kv.ring;
  for (int64_t b = 0; b < kv.batch; ++b) {
    if (both) shift_ring(shift, b, kv.ring, first % kv.ring, count, step);
    else shift.move(b, first, last, delta, in_front);
  }
  return {};
}

}  // namespace simdattn
