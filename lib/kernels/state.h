// Attention with a state: tokens that update columns of it, one sweep over its rows each.
//
// With the delta rule a token reads the state, then updates it, then reads it again. The second and third step of a
// token and the first one of the next are one sweep: a load, a store and four operations for each vector.
#pragma once

#include "lib/contract/ukernels.h"
#include "lib/kernels/register_tile.h"

namespace simdattn {
namespace {

/// What a sweep does to each number of the state, in this order.
struct Steps {
  bool decay = false;       // times the factor of the token
  bool update = false;      // plus k u
  bool out = false;         // add q s to o
  bool next_decay = false;  // times the factor of the next token
  bool store = false;
  bool read = false;  // add k s, of the next token after an update, to r; at the end u = (v - r) beta
};
constexpr Steps kReadAlone = {.decay = true, .read = true};
constexpr Steps kReadFirst = {.decay = true, .store = true, .read = true};
constexpr Steps kUpdateAndRead = {.update = true, .out = true, .next_decay = true, .store = true, .read = true};
constexpr Steps kUpdateLast = {.update = true, .out = true, .store = true};
constexpr Steps kWhole = {.decay = true, .update = true, .out = true, .store = true};
constexpr Steps kOutAlone = {.out = true};

/// Vectors of columns of one sweep: two chains each, and u, fit the registers.
constexpr int64_t kSweepBatches = kRegisters == 32 ? 4 : kX86 && kLanes == 8 ? 3 : 2;
/// The same of a token alone, which has one chain at a time.
constexpr int64_t kAloneBatches = kX86 && kLanes == 8 ? 4 : kSweepBatches;

/// The rows of one sweep, and the numbers of its tokens.
struct Sweep {
  StateRows from, to;
  int64_t dim;
  const float* q;
  const float* k;
  const float* next_k;  // of the token that reads
  const float* decay;   // one, or one a row
  int64_t next_decay;   // 0; 1
  const float* v;       // of the token that reads
  float beta;
  const float* u;
  float* next_u;
  float* o;
  uintptr_t ahead;  // of a token alone: lines to prefetch
};

template <Steps kSteps, bool kAlone, int64_t kBatches>
__attribute__((noinline)) void sweep(const Sweep& a) {
  // Two sweeps of a token alone prefetch as much as they read.
  constexpr int64_t kFetched = kBatches * kLanes * 4 / 2;
  Registers<kBatches> u, o, r, s;
  unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
    reg<c>(o) = reg<c>(r) = Floats(0.0f);
    if constexpr (kSteps.update) reg<c>(u) = load(a.u + c * kLanes);
  });
  const auto each = [](const auto& f) SIMDATTN_LAMBDA { unroll<kBatches>(f); };
  const int64_t dim = a.dim, next_decay = a.next_decay;
  const float *const q = a.q, *const k = a.k, *const next_k = a.next_k, *decay = a.decay;
  Cursor<const float> from(a.from.s);
  Cursor<float> to(a.to.s);
  for (int64_t i = 0; i < dim; ++i, from += a.from.stride, to += a.to.stride, decay += next_decay) {
    if constexpr (kAlone) prefetch<kFetched>(a.ahead + static_cast<uintptr_t>(i * kFetched));
    each([&](auto c) SIMDATTN_LAMBDA { reg<c>(s) = load(from.get() + c * kLanes); });
    const auto scale = [&]() SIMDATTN_LAMBDA {
      const Floats factor(*decay);
      each([&](auto c) SIMDATTN_LAMBDA { reg<c>(s) = reg<c>(s) * factor; });
    };
    if constexpr (kSteps.decay) scale();
    if constexpr (kSteps.update) {
      const Floats factor(k[i]);
      each([&](auto c) SIMDATTN_LAMBDA { reg<c>(s) = mul_add(factor, reg<c>(u), reg<c>(s)); });
    }
    if constexpr (kSteps.out) {
      const Floats factor(q[i]);
      each([&](auto c) SIMDATTN_LAMBDA { reg<c>(o) = mul_add(factor, reg<c>(s), reg<c>(o)); });
    }
    if constexpr (kSteps.next_decay) scale();
    if constexpr (kSteps.store) each([&](auto c) SIMDATTN_LAMBDA { store(reg<c>(s), to.get() + c * kLanes); });
    if constexpr (kSteps.read) {
      const Floats factor(next_k[i]);
      each([&](auto c) SIMDATTN_LAMBDA { reg<c>(r) = mul_add(factor, reg<c>(s), reg<c>(r)); });
    }
  }
  each([&](auto c) SIMDATTN_LAMBDA {
    if constexpr (kSteps.out) store(reg<c>(o), a.o + c * kLanes);
    if constexpr (kSteps.read) store((load(a.v + c * kLanes) - reg<c>(r)) * Floats(a.beta), a.next_u + c * kLanes);
  });
}

/// Clears the rows of a.from that a.decay makes 0.
template <int64_t kBatches>
SIMDATTN_INLINE void clear_rows(const Sweep& a) {
  for (int64_t i = 0; i < a.dim; ++i) {
    if (a.decay[i * a.next_decay] != 0.0f) continue;
    for (int64_t c = 0; c < kBatches; ++c) store(Floats(0.0f), a.from.s + i * a.from.stride + c * kLanes);
  }
}
/// A NaN of a state makes its column's output NaN, because 0 times NaN is NaN.
template <int64_t kBatches>
SIMDATTN_INLINE void make_nan_canonical(const Sweep& a) {
  for (int64_t c = 0; c < kBatches * kLanes; c += kLanes) {
    const Floats o = load(a.o + c);
    if (all(o == o)) continue;
    for (int64_t i = 0; i < a.dim; ++i) {
      float* const s = a.from.s + i * a.from.stride + c;
      store(canonical_nan(load(s)), s);
    }
  }
}

inline StateRows from_column(const StateRows& rows, int64_t column) { return {rows.s + column, rows.stride}; }

/// The columns of kBatches vectors from `column` on.
template <bool kAlone, int64_t kBatches>
void update_columns(const StateTile& a, int64_t column) {
  alignas(64) float u[kBatches * kLanes];
  Sweep x = {};
  x.from = from_column(a.from, column);
  x.dim = a.dim;
  x.next_decay = a.by_row ? 1 : 0;
  x.next_u = u;
  x.ahead = address_at(a.ahead, column * a.dim);
  const auto run = [&]<Steps kSteps>(const StateRows& to) SIMDATTN_LAMBDA {
    x.to = from_column(to, column);
    sweep<kSteps, kAlone, kBatches>(x);
    x.from = x.to;
  };
  // The token that decays the state, and reads it.
  const auto reads = [&](int64_t t) SIMDATTN_LAMBDA {
    x.decay = a.decay + (a.by_row ? t * a.dim : t);
    x.next_k = a.k + t * a.dim;
    x.v = a.v + t * a.v_stride + column;
    x.beta = a.beta != nullptr ? a.beta[t] : 1.0f;
    x.u = a.beta != nullptr ? u : x.v;
  };
  bool is_read = false;  // token t has its u
  for (int64_t t = 0; t < a.tokens; ++t) {
    const bool is_last = t + 1 == a.tokens;
    const bool goes_on = a.beta != nullptr && a.queries == 1 && !is_last && a.clears[t + 1] == 0;
    const StateRows& to = is_last ? a.to : a.scratch;
    x.q = a.q + t * a.queries * a.dim;
    x.k = a.k + t * a.dim;
    x.o = a.o + t * a.queries * kStateColumns + column;
    if (!is_read) {
      reads(t);
      if (a.clears[t] != 0) clear_rows<kBatches>(x);
      if (a.beta != nullptr) {
        if constexpr (kAlone) {
          run.template operator()<kReadAlone>(a.from);
          x.ahead += static_cast<uintptr_t>(kBatches * kLanes * 4 / 2 * a.dim);
        } else {
          run.template operator()<kReadFirst>(a.scratch);
        }
      }
    }
    if constexpr (kAlone) {
      run.template operator()<kWhole>(to);
    } else if (goes_on) {
      reads(t + 1);
      run.template operator()<kUpdateAndRead>(to);
    } else if (a.beta != nullptr) {
      run.template operator()<kUpdateLast>(to);
    } else {
      run.template operator()<kWhole>(to);
    }
    is_read = goes_on;
    for (int64_t query = 1; query < a.queries; ++query) {
      x.q += a.dim;
      x.o += kStateColumns;
      sweep<kOutAlone, false, kBatches>(x);
    }
  }
  make_nan_canonical<kBatches>(x);
}

template <bool kAlone>
SIMDATTN_INLINE void update_groups(const StateTile& a) {
  constexpr int64_t kBatches = kAlone ? kAloneBatches : kSweepBatches;
  for (int64_t left = a.groups * kStateGroup / kLanes, column = 0; left > 0;) {
    const bool most = left >= kBatches && (kBatches != 3 || left != 4);
    most ? update_columns<kAlone, kBatches>(a, column) : update_columns<kAlone, 2>(a, column);
    left -= most ? kBatches : 2;
    column += (most ? kBatches : 2) * kLanes;
  }
}

void update_state(const StateTile& a) { a.tokens == 1 ? update_groups<true>(a) : update_groups<false>(a); }

/// The activation of a convolution.
SIMDATTN_INLINE Floats silu_of(Floats x) {
  const Floats e = exp_of(float_of(bits_of(x) | Bits32(0x80000000u)));  // of -|x|
  return quotient(select(x < Floats(0.0f), x * e, x), Floats(1.0f) + e);
}

void convolve(const ConvTile& a) {
  for (int64_t p = 0; p < a.panels; ++p) {
    for (int64_t c = 0; c < kStateGroup; c += kLanes) {
      const float* const w = a.w + p * a.width * kStateGroup + c;
      const Floats bias = load(a.bias + p * kStateGroup + c);
      for (int64_t t = 0; t < a.tokens; ++t) {
        float* const z = a.z + p * a.panel + t * a.row + c;
        Floats y = bias;
        for (int64_t j = 0; j < a.width; ++j) y = mul_add(load(w + j * kStateGroup), load(z + j * a.row), y);
        store(a.silu ? silu_of(y) : y, z);
      }
    }
  }
}

}  // namespace
}  // namespace simdattn
