// kv_append(): new tokens into a store, converted, rotated and laid out on the way. kv_read(): tokens as rows of f32.
#include <algorithm>
#include <cstring>

#include "lib/drivers/cache/token_store.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

struct Append {
  const UKernels& uk;
  const ConstView<4>& rows;
  const Kv& kv;
  const AppendedRows& appended;
  const KeyRotation& rope;
  TokenStore store{uk, kv};
  int64_t size = size_of(rows.dtype);
  int64_t hadamard_block = rope.hadamard_block;  // 0: none
  bool rotates = appended.rotates();
  bool norms = has_norm(rope.options);
  bool as_stored = !store.narrow() && rows.dtype == store.dtype();  // rows are of the storage type
  // The store converts, or has nothing to convert.
  bool direct = !rotates && !norms && hadamard_block == 0 && (rows.dtype == store.dtype() || rows.dtype == DType::kF32);
  // Of a token in the buffer: in f32, but where rows are of the storage type already.
  bool buffered_as_stored = as_stored && hadamard_block == 0 && !norms;
  DType buffered = buffered_as_stored ? store.dtype() : DType::kF32;
  int64_t row_size = size_of(buffered) * kv.dim;
  // Without a table the same kernel converts: it copies all dimensions that it does not rotate.
  RopeHeads call = rotation_of(rope.options, kv.dim, rotates ? rope.cos.shape[1] : 0);

  static constexpr int64_t kBufferBytes = kTokenBuffer * sizeof(float);

  void sequence(int64_t b) {
    const int64_t at_once = direct ? kPanelWidth : tokens_at_a_time(kv.dim);
    const int64_t count = appended.count(b);
    for (int64_t i = 0; i < count;) {
      const TokenPlace p = appended.place(b, i);
      if (p.unit < 0) {
        ++i;
        continue;
      }
      // Neighbours go together, and not beyond the end of a panel.
      const int64_t most = std::min(at_once - store.column(p) % at_once, count - i);
      int64_t tokens = 1;
      for (; tokens < most; ++tokens) {
        const TokenPlace next = appended.place(b, i + tokens);
        if (next.unit != p.unit || next.inside != p.inside + tokens) break;
      }
      if (direct) {
        for (int64_t h = 0; h < kv.heads; ++h) {
          store.store(row_of(rows, b, h, i), step_of(rows, 2) * size, tokens, p, h, as_stored);
        }
      } else if (kv.dim <= kTokenBuffer) {
        through_buffer(b, i, tokens, p);
      } else {
        in_pieces(b, i, p);
      }
      i += tokens;
    }
  }

  void rotate_by(int64_t b, int64_t i) {
    if (!rotates) return;
    const int64_t p = appended.position(b, i);
    call.cos = table_row(rope.cos, p);
    call.sin = table_row(rope.sin, p);
  }

  /// Rotated token by token, for as many heads as the buffer holds; then rounded and laid out head by head.
  [[gnu::noinline]] void through_buffer(int64_t b, int64_t i, int64_t tokens, const TokenPlace& p) {
    alignas(64) char buffer[kBufferBytes];
    const int64_t most = kBufferBytes / (tokens * row_size);
    call.y_stride = tokens * kv.dim;
    call.x_stride = norms ? call.y_stride : rows.stride[1];
    for (int64_t h = 0; h < kv.heads; h += call.heads) {
      call.heads = std::min(most, kv.heads - h);
      for (int64_t t = 0; t < tokens; ++t) {
        rotate_by(b, i + t);
        call.x = row_of(rows, b, h, i + t);
        call.y = buffer + t * row_size;
        for (int64_t k = 0; norms && k < call.heads; ++k) {
          float* const row = static_cast<float*>(call.y) + k * call.y_stride;
          norm_row(uk, rope.options, rows.dtype, row_of(rows, b, h + k, i + t), row, kv.dim);
        }
        if (norms) call.x = call.y;  // where they are normed they are rotated
        rotate_heads(uk, norms ? DType::kF32 : rows.dtype, buffered, call);
      }
      if (hadamard_block > 0) {
        hadamard_blocks(uk, reinterpret_cast<float*>(buffer), call.heads * tokens * kv.dim, hadamard_block, DType::kF32,
                        buffer);
      }
      for (int64_t k = 0; k < call.heads; ++k) {
        store.store(buffer + k * tokens * row_size, row_size, tokens, p, h + k, buffered_as_stored);
      }
    }
  }

  /// A token of more dimensions than the buffer holds.
  [[gnu::noinline, gnu::cold]] void in_pieces(int64_t b, int64_t i, const TokenPlace& p) {
    alignas(64) char buffer[kTokenPiece * sizeof(float)];
    alignas(64) char stored[kTokenPiece * sizeof(float)];
    rotate_by(b, i);
    for (int64_t h = 0; h < kv.heads; ++h) {
      rotate_pieces(
          uk, call, buffered, buffer, kTokenPiece,
          [&](int64_t d, int64_t n, char* to) {
            const char* const from = row_of(rows, b, h, i) + d * size;
            if (as_stored) std::memcpy(to, from, static_cast<size_t>(n * size));
            if (!as_stored) uk.widen[index_of(rows.dtype)](from, reinterpret_cast<float*>(to), n);
          },
          [&](const char* from, int64_t d, int64_t n) {
            if (!as_stored) round_rows(uk, reinterpret_cast<const float*>(from), 0, 1, n, store.dtype(), stored, 0);
            store.store_piece(as_stored ? from : stored, p, h, d, n);
          });
    }
  }
};

}  // namespace

Status drivers::kv_append(const UKernels& uk, const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                          const AppendOptions& options) {
  SIMDATTN_CHECK(check_append(rows, positions, kv, options));
  const int64_t batch = rows.shape[0];
  if (batch == 0 || kv.heads == 0) return {};
  const AppendedRows appended = {positions, kv, options, rows.shape[2]};
  Append append = {uk, rows, kv, appended, options.rope};
  for (int64_t b = 0; b < batch; ++b) append.sequence(b);
  return {};
}

Status drivers::kv_read(const UKernels& uk, const ConstKv& kv, int64_t first, const View<4>& out) {
  SIMDATTN_CHECK(check_kv_read(kv, first, out));
  const BasicTokenStore<true> store = {uk, kv};
  const int64_t n = out.shape[2];
  const int64_t ld = step_of(out, 2);
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      for (int64_t i = 0; i < n;) {
        const TokenPlace p = place_of(kv, b, first + i);
        // At most to the end of a panel, so that a token's column is its place in the run.
        const int64_t tokens = std::min({store.tokens_left(p), n - i, kPanelWidth - store.column(p)});
        float* const rows = f32_row_of(out, b, h, i);
        store.load(rows, 4 * ld, tokens, p, h, false);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t d = 0; d < kv.dim; ++d) rows[t * ld + d] = canonical(rows[t * ld + d]);
        }
        i += tokens;
      }
    }
  }
  return {};
}

}  // namespace simdattn
