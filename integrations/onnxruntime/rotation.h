// cos_cache and sin_cache of a node as tables of f32.
#pragma once

#include "tensor.h"

namespace simdattn_onnxruntime {

/// Where the rows of a node stand: at ids[b * n + i], or where that is null at starts[b] + i; if both are null, the
/// tables have a row for each row of each sequence.
struct Places {
  int64_t batch = 0, n = 0;
  const int64_t* ids = nullptr;
  const int32_t* starts = nullptr;
};

/// What sa::rope() needs.
struct Rotation {
  sa::ConstView<2> cos, sin;
  sa::RopeOptions options;
  Places places;
  /// Of the rows of sequence b.
  sa::Positions positions(int64_t b) const;
};

/// Reads the tables, `c`, which is the input `cos`, and the input behind it, and checks every position. Of tables of
/// f16 and bf16 only the rows that the node needs are converted.
Rotation make_rotation(Call* call, int cos, const Tensor& c, const Places& places);

}  // namespace simdattn_onnxruntime
