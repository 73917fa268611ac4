// kv_append(): new tokens into a store, converted, rotated and laid out on the way.
#include <algorithm>
#include <cstring>

#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/cache/kv_tokens.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/extras/hadamard_rows.h"
#include "lib/drivers/rows/convert.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

class Append {
 public:
  Append(const UKernels& uk, const ConstView<4>& rows, const Kv& kv, const AppendedRows& appended,
         const KeyRotation& rope)
      : uk_(uk),
        rows_(rows),
        kv_(kv),
        store_(uk, kv),
        appended_(appended),
        rope_(rope),
        hadamard_block_(rope.hadamard_block) {
    rotates_ = appended.rotates();
    as_stored_ = !store_.narrow() && rows.dtype == store_.dtype();
    direct_ = !rotates_ && hadamard_block_ == 0 && (rows.dtype == store_.dtype() || rows.dtype == DType::kF32);
    buffered_as_stored_ = as_stored_ && hadamard_block_ == 0;
    most_ = direct_ ? kPanelWidth : tokens_at_a_time(kv.dim);
    // Half a panel, if more heads go together then: a token's angles and rows are read in one go.
    if (rotates_ && most_ == kPanelWidth && kv.heads * most_ * row_size() > kBufferBytes) most_ /= 2;
    // Without a table the same kernel converts: it copies all dimensions that it does not rotate.
    call_ = {.x = nullptr,
             .y = nullptr,
             .x_stride = rows.stride[1],
             .y_stride = 0,
             .heads = 1,
             .dim = kv.dim,
             .first = rotates_ ? rope.options.first_dim : 0,
             .half = rotates_ ? rope.cos.shape[1] : 0,
             .cos = nullptr,
             .sin = nullptr,
             .interleaved = rope.options.pairing == RopePairing::kInterleaved,
             .inverse = rope.options.inverse};
  }

  void sequence(int64_t b) {
    const int64_t count = appended_.count(b);
    for (int64_t i = 0; i < count;) {
      const TokenPlace p = appended_.place(b, i);
      if (p.unit < 0) {
        ++i;
        continue;
      }
      // Neighbours go together, and not beyond the end of a panel.
      const int64_t most = std::min(most_ - store_.column(p) % most_, count - i);
      int64_t tokens = 1;
      for (; tokens < most; ++tokens) {
        const TokenPlace next = appended_.place(b, i + tokens);
        if (next.unit != p.unit || next.inside != p.inside + tokens) break;
      }
      run(b, i, tokens, p);
      i += tokens;
    }
  }

 private:
  static constexpr int64_t kBufferBytes = kTokenBuffer * sizeof(float);
  /// Of a rotated token in the buffer: in f32, but where rows are of the storage type already.
  DType buffered() const { return buffered_as_stored_ ? store_.dtype() : DType::kF32; }
  int64_t row_size() const { return size_of(buffered()) * kv_.dim; }
  const char* row(int64_t b, int64_t h, int64_t i) const {
    return static_cast<const char*>(rows_.data) +
           (b * rows_.stride[0] + h * rows_.stride[1] + i * rows_.stride[2]) * size_of(rows_.dtype);
  }
  void rotate_by(int64_t b, int64_t i) {
    if (!rotates_) return;
    const int64_t p = appended_.position(b, i);
    call_.cos = table_row(rope_.cos, p);
    call_.sin = table_row(rope_.sin, p);
  }

  /// Rows i .. i + tokens - 1 to p and the places after it.
  void run(int64_t b, int64_t i, int64_t tokens, const TokenPlace& p) {
    if (direct_) {
      for (int64_t h = 0; h < kv_.heads; ++h) {
        store_.store(row(b, h, i), step_of(rows_, 2) * size_of(rows_.dtype), tokens, p, h, as_stored_);
      }
    } else if (kv_.dim <= kTokenBuffer) {
      through_buffer(b, i, tokens, p);
    } else {
      rotate_by(b, i);
      for (int64_t h = 0; h < kv_.heads; ++h) {
        const char* const from = row(b, h, i);
        const int64_t size = size_of(rows_.dtype);
        rotate_long_row(
            uk_, call_, rows_.dtype, store_.dtype(),
            [&](int64_t d, int64_t n, char* to) { std::memcpy(to, from + d * size, static_cast<size_t>(n * size)); },
            [&](const char* values, int64_t d, int64_t n) { store_.store_piece(values, d, n, p, h); });
      }
    }
  }

  /// Rotated token by token, for as many heads as the buffer holds; then rounded and laid out head by head.
  [[gnu::noinline]] void through_buffer(int64_t b, int64_t i, int64_t tokens, const TokenPlace& p) {
    alignas(64) char buffer[kBufferBytes];
    const int64_t size = row_size();
    const int64_t most = kBufferBytes / (tokens * size);
    call_.y_stride = tokens * kv_.dim;
    for (int64_t h = 0; h < kv_.heads; h += call_.heads) {
      call_.heads = std::min(most, kv_.heads - h);
      for (int64_t t = 0; t < tokens; ++t) {
        rotate_by(b, i + t);
        call_.x = row(b, h, i + t);
        call_.y = buffer + t * size;
        rotate_heads(uk_, rows_.dtype, buffered(), call_);
      }
      if (hadamard_block_ > 0) {
        hadamard_in_place(uk_, reinterpret_cast<float*>(buffer), call_.heads * tokens * kv_.dim, hadamard_block_);
      }
      for (int64_t k = 0; k < call_.heads; ++k) {
        store_.store(buffer + k * tokens * size, size, tokens, p, h + k, buffered_as_stored_);
      }
    }
  }

  const UKernels& uk_;
  const ConstView<4>& rows_;
  const Kv& kv_;
  TokenStore store_;
  const AppendedRows& appended_;
  const KeyRotation& rope_;
  int64_t hadamard_block_;  // 0: none
  bool rotates_;
  bool as_stored_;  // rows are of the storage type
  bool direct_;     // the store converts, or has nothing to convert
  bool buffered_as_stored_;
  int64_t most_;  // tokens at a time
  RopeHeads call_;
};

}  // namespace

Status drivers::kv_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                          const AppendOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_CHECK(check_append(rows, positions, kv, options));
  const int64_t batch = rows.shape[0];
  if (batch == 0 || kv.heads == 0) return {};
  const AppendedRows appended(positions, kv, options, rows.shape[2]);
  Append append(*uk, rows, kv, appended, options.rope);
  for (int64_t b = 0; b < batch; ++b) append.sequence(b);
  return {};
}

}  // namespace simdattn
