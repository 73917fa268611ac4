// Arguments of the slots of attention with a state, and of the convolution before it.
#pragma once

#include <cstdint>

namespace simdattn {

/// Columns of a state that lie side by side in each of its rows.
inline constexpr int64_t kStateGroup = 32;
/// Columns of a state that one task updates: they stay in L1 from token to token.
inline constexpr int64_t kStateColumns = 2 * kStateGroup;

/// Rows of some columns of a state: column c of row i is s[i stride + c].
struct StateRows {
  float* s = nullptr;
  int64_t stride = 0;
};

/// Tokens in order, each of which updates some columns of a state S of `dim` rows, and reads them:
///   S[i][c] = decay[i] == 0 ? 0 : decay[i] S[i][c]
///   u[c] = v[c], or with `beta` (v[c] - r[c]) beta, r[c] the chain of fma(k[i], S[i][c], r[c]) over ascending i from 0
///   S[i][c] = fma(k[i], u[c], S[i][c])
///   o[c] = the chain of fma(q[i], S[i][c], o[c]) over ascending i from 0, for each query
/// S comes from `from`, whose rows are overwritten where the first token clears them, and goes to `to`, where a NaN is
/// canonical; both may be `scratch` or each other.
struct StateTile {
  StateRows from = {};
  StateRows scratch = {};  // between two tokens: what stays in L1
  StateRows to = {};
  int64_t groups = 0;  // of kStateGroup columns: 1 or 2
  int64_t dim, tokens;
  int64_t queries;           // that read each token's state
  const float* q;            // [tokens][queries][dim]
  const float* k;            // [tokens][dim]
  const float* v = nullptr;  // [tokens][v_stride], whole groups
  int64_t v_stride;
  float* o;                      // [tokens][queries][kStateColumns]
  const float* decay;            // [tokens], or [tokens][dim] with `by_row`; no sign bit
  bool by_row;                   // each row has a decay of its own
  const uint8_t* clears;         // [tokens]: not 0 where a decay of this token is 0
  const float* beta;             // [tokens]; null: u = v
  const float* ahead = nullptr;  // as many numbers as the columns have: prefetched by a token alone
};

/// y[t][c] = f(the chain of fma(w[j][c], z[t + j][c], y) over ascending j from bias[c]), f the identity or, with e =
/// exp(-|y|), silu: (y < 0 ? y e : y) / (1 + e). y[t] takes the place of z[t]. Channels c are panels of kStateGroup.
struct ConvTile {
  const float* w;      // [panels][width][kStateGroup]
  const float* bias;   // [panels][kStateGroup]
  float* z;            // tokens + width - 1 rows
  int64_t row, panel;  // numbers from row to row, and from panel to panel
  int64_t panels, width, tokens;
  bool silu;
};

}  // namespace simdattn
