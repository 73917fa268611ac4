// gaussian_scores(), bilinear_scores(), additive_scores().
#include <cmath>

#include "dispatch/target.h"
#include "lib/definition/scores.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/score_rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Keys whose projections are in the workspace at a time.
constexpr int64_t kProjectedKeys = 128;

/// Rows as f32: themselves, or widened into `buffer` [rows][dim].
struct F32Rows {
  const float* data;
  int64_t stride;
};
F32Rows as_f32(const UKernels& uk, const void* rows, DType dtype, int64_t stride, int64_t n, int64_t dim,
               float* buffer) {
  if (dtype == DType::kF32) return {static_cast<const float*>(rows), stride};
  for (int64_t r = 0; r < n; ++r) {
    uk.widen[slot(dtype)](static_cast<const char*>(rows) + r * stride * size_of(dtype), buffer + r * dim, dim);
  }
  return {buffer, dim};
}

const void* head_of(const ConstView<3>& weights, int64_t head) {
  return static_cast<const char*>(weights.data) + head * weights.stride[0] * size_of(weights.dtype);
}
template <bool kConst>
auto row_of(const BasicView<4, kConst>& v, int64_t b, int64_t h, int64_t i) {
  using Byte = std::conditional_t<kConst, const char, char>;
  return static_cast<Byte*>(v.data) + (b * v.stride[0] + h * v.stride[1] + i * v.stride[2]) * size_of(v.dtype);
}

/// out[r,:] = weights[head] rows[r,:], as dot products with the rows of the weights.
void project(const UKernels& uk, const ConstView<3>& weights, int64_t head, const F32Rows& rows, int64_t n,
             float* out) {
  const int64_t d = weights.shape[1];
  uk.score_rows[slot(weights.dtype)]({.q = rows.data,
                                      .ldq = rows.stride,
                                      .n_q = n,
                                      .k = head_of(weights, head),
                                      .ldk = step_of(weights, 1),
                                      .n_k = d,
                                      .dim = weights.shape[2],
                                      .scale = 1.0f,
                                      .s = out,
                                      .lds = d});
}

struct BilinearBuffers {
  float* queries;
  float* projected;
  size_t bytes;
  BilinearBuffers(void* memory, int64_t d_q, int64_t d_k) {
    Workspace w(memory);
    queries = w.take<float>(kQueryRows * d_q);
    projected = w.take<float>(kQueryRows * d_k);
    bytes = w.bytes();
  }
};

struct AdditiveBuffers {
  float* queries;
  float* query_projections;
  float* keys;
  float* key_projections;
  size_t bytes;
  AdditiveBuffers(void* memory, int64_t d_q, int64_t d_k, int64_t d) {
    Workspace w(memory);
    queries = w.take<float>(kQueryRows * d_q);
    query_projections = w.take<float>(kQueryRows * d);
    keys = w.take<float>(kProjectedKeys * d_k);
    key_projections = w.take<float>(d_k > 0 ? kProjectedKeys * d : 0);
    bytes = w.bytes();
  }
};

bool size_ok(int64_t n) { return n >= 0 && n <= kMaxSize; }

}  // namespace

Status drivers::gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                                const ScoreOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_CHECK(check_gaussian_scores(q, k, out, options));
  if (is_empty(out)) return {};
  score_all_rows(
      *uk, q, k, out, -0.5f * options.scale.value_or(1.0f),
      [&](const ScoreRows& call, int64_t, int64_t) { uk->gaussian_rows[slot(k.dtype)](call); },
      [&](const auto* row, const auto* key, int64_t) { return scalar::squared_distance(row, key, q.shape[3]); });
  return {};
}

size_t drivers::bilinear_scores_workspace(int64_t d_q, int64_t d_k) {
  return size_ok(d_q) && size_ok(d_k) ? BilinearBuffers(nullptr, d_q, d_k).bytes : 0;
}

Status drivers::bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                                const ScoreOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  const int64_t heads = q.shape[1];
  const int64_t d_q = q.shape[3];
  const int64_t d_k = k.shape[3];
  SIMDATTN_CHECK(check_bilinear_scores(q, m, k, out, options, exec, bilinear_scores_workspace(d_q, d_k)));
  if (is_empty(out)) return {};

  const int64_t group = heads / k.shape[1];
  const BilinearBuffers buffers(exec.workspace, d_q, d_k);
  const int64_t m_stride = step_of(m, 1);
  // q^T M for a row of q or several of one head: the chain over d_q is that of weighted values.
  const auto project_rows = [&](int64_t head, const F32Rows& rows, int64_t n, float* result) {
    std::fill_n(result, n * d_k, 0.0f);
    for (int64_t d = 0; d < d_q; d += kKeyBlock) {
      uk->attention[0].kv[slot(m.dtype)].value_tile(
          {.w = rows.data + d,
           .ldw = rows.stride,
           .rows = n,
           .v = static_cast<const char*>(head_of(m, head)) + d * m_stride * size_of(m.dtype),
           .first_key = 0,
           .key_stride = m_stride * size_of(m.dtype),
           .group_stride = kValueGroup * size_of(m.dtype),
           .keys = std::min(kKeyBlock, d_q - d),
           .dim = d_k,
           .o = result,
           .ldo = d_k,
           .alpha = nullptr});
    }
  };
  // A single query row per head (decode): the heads of a group are the rows, and their keys are read once.
  const bool grouped = q.shape[2] == 1;
  const int64_t rows = grouped ? group : q.shape[2];
  const int64_t q_stride = step_of(q, grouped ? 1 : 2);
  const int64_t out_stride = step_of(out, grouped ? 1 : 2);
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t h = 0; h < heads; h += grouped ? group : 1) {
      for (int64_t i = 0; i < rows; i += kQueryRows) {
        const int64_t n = std::min(kQueryRows, rows - i);
        const F32Rows block = as_f32(*uk, row_of(q, b, h, 0) + i * q_stride * size_of(q.dtype), q.dtype, q_stride, n,
                                     d_q, buffers.queries);
        if (grouped) {
          for (int64_t r = 0; r < n; ++r) {
            project_rows(h + i + r, {block.data + r * block.stride, block.stride}, 1, buffers.projected + r * d_k);
          }
        } else {
          project_rows(h, block, n, buffers.projected);
        }
        uk->score_rows[slot(k.dtype)]({.q = buffers.projected,
                                       .ldq = d_k,
                                       .n_q = n,
                                       .k = row_of(k, b, h / group, 0),
                                       .ldk = step_of(k, 2),
                                       .n_k = k.shape[2],
                                       .dim = d_k,
                                       .scale = options.scale.value_or(1.0f),
                                       .s = reinterpret_cast<float*>(row_of(out, b, h, 0)) + i * out_stride,
                                       .lds = out_stride});
      }
    }
  }
  return {};
}

size_t drivers::additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d) {
  const bool ok = size_ok(d_q) && size_ok(d_k) && size_ok(d) && (d_q > 0 || d_k > 0);
  return ok ? AdditiveBuffers(nullptr, d_q, d_k, d).bytes : 0;
}

Status drivers::additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                                const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  const int64_t heads = q.shape[1];
  const int64_t d = w.shape[1];
  const bool project_q = wq.data != nullptr;
  const bool project_k = wk.data != nullptr;
  const int64_t d_q = project_q ? q.shape[3] : 0;
  const int64_t d_k = project_k ? k.shape[3] : 0;
  SIMDATTN_CHECK(check_additive_scores(q, k, w, out, wq, wk, exec, additive_scores_workspace(d_q, d_k, d)));
  if (is_empty(out)) return {};

  const float* weights = static_cast<const float*>(w.data);
  if (!project_q && !project_k) {
    score_all_rows(
        *uk, q, k, out, 1.0f,
        [&](const ScoreRows& call, int64_t head, int64_t next_head) {
          uk->additive_rows[slot(k.dtype)]({call, weights + head * w.stride[0], next_head * w.stride[0]});
        },
        [&](const auto* row, const auto* key, int64_t head) {
          return scalar::additive(row, key, weights + head * w.stride[0], d);
        });
    return {};
  }

  const AdditiveBuffers buffers(exec.workspace, d_q, d_k, d);
  const int64_t group = heads / k.shape[1];
  const int64_t n_q = q.shape[2];
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t kv_head = 0; kv_head < k.shape[1]; ++kv_head) {
      for (int64_t j = 0; j < k.shape[2]; j += kProjectedKeys) {
        const int64_t keys = std::min(kProjectedKeys, k.shape[2] - j);
        const char* rows = row_of(k, b, kv_head, j);
        ScoreRows call = {.q = nullptr,
                          .ldq = 0,
                          .n_q = 0,
                          .k = rows,
                          .ldk = step_of(k, 2),
                          .n_k = keys,
                          .dim = d,
                          .scale = 1.0f,
                          .s = nullptr,
                          .lds = step_of(out, 2)};
        if (project_k) {
          project(*uk, wk, kv_head, as_f32(*uk, rows, k.dtype, step_of(k, 2), keys, d_k, buffers.keys), keys,
                  buffers.key_projections);
          call.k = buffers.key_projections;
          call.ldk = d;
        }
        const auto kernel = uk->additive_rows[project_k ? slot(DType::kF32) : slot(k.dtype)];
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          for (int64_t i = 0; i < n_q; i += kQueryRows) {
            call.n_q = std::min(kQueryRows, n_q - i);
            F32Rows block = as_f32(*uk, row_of(q, b, h, i), q.dtype, step_of(q, 2), call.n_q, q.shape[3],
                                   project_q ? buffers.queries : buffers.query_projections);
            if (project_q) {
              project(*uk, wq, h, block, call.n_q, buffers.query_projections);
              block = {buffers.query_projections, d};
            }
            call.q = block.data;
            call.ldq = block.stride;
            call.s = reinterpret_cast<float*>(row_of(out, b, h, i)) + j;
            kernel({call, weights + h * w.stride[0], 0});
          }
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
