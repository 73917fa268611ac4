// scores(), and its relatives beside the dot product: gaussian_scores(), bilinear_scores(), additive_scores().
#include <algorithm>

#include "dispatch/environment.h"
#include "lib/contract/operand_bytes.h"
#include "lib/contract/steps.h"
#include "lib/definition/math.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/operands.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Query rows of 16-bit types are widened to f32 on the stack: up to this many elements (32 KiB) and rows at a time.
constexpr int64_t kQueryElements = 8192;
constexpr int64_t kQueryRows = 8;

/// kernel(call, head, next_head) for all rows of q, at most `at_once` at a time: row r is of head `head + r *
/// next_head`. Rows that are not f32 are widened into `buffer`; if that is null they stay where they are, too.
template <class Kernel>
void for_query_rows(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, float factor,
                    float* buffer, int64_t at_once, const Kernel& kernel) {
  const int64_t dim = q.shape[3];
  const GroupedRows grouped = {q, k.shape[1]};
  const int64_t q_stride = grouped.stride(q);
  const bool stay = buffer == nullptr || q.dtype == DType::kF32;
  ScoreRows call = {.q = buffer,
                    .ldq = stay ? q_stride : dim,
                    .n_q = 0,
                    .k = nullptr,
                    .ldk = step_of(k, 2),
                    .n_k = k.shape[2],
                    .dim = dim,
                    .scale = factor,
                    .s = nullptr,
                    .lds = grouped.stride(out),
                    .fetch = fetch_of(bytes_of(k), kCacheBytes)};
  grouped.for_each(at_once, [&](int64_t b, int64_t kv_head, int64_t h, int64_t i, int64_t n) {
    const char* const rows = row_of(q, b, h, 0) + i * q_stride * size_of(q.dtype);
    call.k = row_of(k, b, kv_head, 0);
    call.n_q = n;
    call.s = f32_row_of(out, b, h, 0) + i * call.lds;
    if (stay) call.q = reinterpret_cast<const float*>(rows);
    else widen_rows(uk, q.dtype, rows, q_stride, n, dim, buffer, dim);
    kernel(call, h + i * grouped.next_head, grouped.next_head);
  });
}

/// A row of any element type, element by element.
struct AnyRow {
  const void* data;
  DType type;

  float operator[](int64_t d) const {
    return with_storage(type, [&](auto t) { return to_f32(static_cast<const decltype(t)*>(data)[d]); });
  }
};

/// Scores of all rows of q, whose dimension is that of k. definition(q, k, head) is the kernel's sum, the same bits but
/// slow, for rows of 16-bit types that do not fit the buffer. Not inlined, because the buffer takes stack.
template <class Kernel, class Definition>
[[gnu::noinline]] void score_all_rows(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k,
                                      const View<4>& out, float factor, Kernel&& kernel, Definition&& definition) {
  alignas(64) float buffer[kQueryElements];
  const int64_t at_once = q.dtype == DType::kF32 ? kMaxSize : std::min(kQueryRows, kQueryElements / q.shape[3]);
  if (at_once > 0) return for_query_rows(uk, q, k, out, factor, buffer, at_once, kernel);
  for_query_rows(uk, q, k, out, factor, nullptr, 1,
                 [&](const ScoreRows& call, int64_t head, int64_t) __attribute__((cold, noinline)) {
                   for (int64_t j = 0; j < call.n_k; ++j) {
                     const void* const key = static_cast<const char*>(call.k) + j * call.ldk * size_of(k.dtype);
                     call.s[j] = canonical(definition(AnyRow{call.q, q.dtype}, AnyRow{key, k.dtype}, head) * factor);
                   }
                 });
}

/// A function by reference. The loops above are templates: scores() has a copy of them, and the other kinds of scores
/// share one, which calls theirs through this.
template <class Result, class... Arguments>
class RowFunction {
 public:
  template <class F>
  RowFunction(const F& f)  // NOLINT(google-explicit-constructor): of a lambda
      : function_(&f), call_([](const void* function, Arguments... arguments) -> Result {
          return (*static_cast<const F*>(function))(arguments...);
        }) {}
  Result operator()(Arguments... arguments) const { return call_(function_, arguments...); }

 private:
  const void* function_;
  Result (*call_)(const void*, Arguments...);
};
using SharedKernel = RowFunction<void, const ScoreRows&, int64_t, int64_t>;
using SharedDefinition = RowFunction<float, AnyRow, AnyRow, int64_t>;

/// Of arithmetics other than f32, enough for every target.
struct PackedScoreBuffers {
  Workspace w;
  int64_t dim;
  char* q = w.take<char>(GroupedRows::kPacked * most_query_bytes(dim));
  char* panel = w.take<char>(most_panel_bytes(dim));
  char* rows = w.take<char>(kLoadedRows * 4 * dim);
  float* s = w.take<float>(GroupedRows::kPacked * kPanelWidth);
};

void packed_scores(const UKernels& uk, const AttentionKernels& ops, const ConstView<4>& q, const ConstView<4>& k,
                   const View<4>& out, float factor, const PackedScoreBuffers& w) {
  const ConstKv kv(k);
  const int64_t n_kv = k.shape[2];
  const GroupedRows grouped = {q, k.shape[1]};
  const int64_t query_bytes = ops.query_bytes(w.dim);
  grouped.for_each_block([&](int64_t b, int64_t kv_head, int64_t i, int64_t rows) {
    const KvStore store(kv, b, kv_head);
    const Operands operands = {uk, ops, kv.type, kv.dim, w.rows, w.panel};
    for (int64_t r = 0; r < rows; ++r) {
      ops.prepare_query[index_of(q.dtype)](grouped.row(q, b, kv_head, i + r), w.q + r * query_bytes, w.dim);
    }
    for (int64_t j = 0; j < n_kv; j += kPanelWidth) {
      const int64_t n = std::min(kPanelWidth, n_kv - j);
      const ScoreTile tile = {
          .q = w.q, .q_stride = query_bytes, .rows = rows, .scale = factor, .s = w.s, .lds = kPanelWidth};
      operands.score(ScoreWay::kPackedPanel, tile, {store, j}, {0, n});
      for (int64_t r = 0; r < rows; ++r) {
        float* s = reinterpret_cast<float*>(grouped.row(out, b, kv_head, i + r)) + j;
        for (int64_t c = 0; c < n; ++c) s[c] = canonical(w.s[r * kPanelWidth + c]);
      }
    }
  });
}

/// Keys whose projections are in the workspace at a time.
constexpr int64_t kProjectedKeys = 128;

struct ProjectionBuffers {
  Workspace w;
  int64_t d_q;  // 0: queries are not projected
  int64_t d_k;  // 0: keys are not
  int64_t d;
  float* queries = w.take<float>(kQueryRows * d_q);
  float* query_projections = w.take<float>(kQueryRows * d);
  float* keys = w.take<float>(kProjectedKeys * d_k);
  float* key_projections = w.take<float>(d_k > 0 ? kProjectedKeys * d : 0);
};

const char* head_of(const ConstView<3>& weights, int64_t head) {
  return static_cast<const char*>(weights.data) + head * weights.stride[0] * size_of(weights.dtype);
}

/// f(head, row, rows) for `n` rows, of which row r is of head `head + r * next_head`: those of one head go together.
template <class F>
void for_each_head(int64_t head, int64_t next_head, int64_t n, const F& f) {
  if (next_head == 0) return f(head, 0, n);
  for (int64_t r = 0; r < n; ++r) f(head + r * next_head, r, 1);
}

/// out[r,:] = weights[head] rows[r,:], as dot products with the rows of the weights.
void project(const UKernels& uk, const ConstView<3>& weights, int64_t head, int64_t next_head, const float* rows,
             int64_t ld, int64_t n, float* out) {
  const int64_t d = weights.shape[1];
  for_each_head(head, next_head, n, [&](int64_t h, int64_t r, int64_t some) {
    uk.score_rows[index_of(weights.dtype)]({.q = rows + r * ld,
                                            .ldq = ld,
                                            .n_q = some,
                                            .k = head_of(weights, h),
                                            .ldk = step_of(weights, 1),
                                            .n_k = d,
                                            .dim = weights.shape[2],
                                            .scale = 1.0f,
                                            .s = out + r * d,
                                            .lds = d});
  });
}

}  // namespace

size_t drivers::scores_workspace(Arithmetic arithmetic, int64_t dim) {
  if (arithmetic == Arithmetic::kF32) return 0;
  return PackedScoreBuffers{Workspace(nullptr), std::clamp(dim, int64_t{0}, kMaxSize)}.w.bytes();
}

Status drivers::scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                       const ScoreOptions& options, const Exec& exec) {
  SIMDATTN_CHECK(
      check_scores(q, k, out, options, false, exec, drivers::scores_workspace(options.arithmetic, q.shape[3])));
  if (is_empty(out)) return {};
  const Environment environment;
  const float factor = scale_of(options.scale, q.shape[3]);
  if (options.arithmetic != Arithmetic::kF32) {
    const AttentionKernels& ops = uk.attention[index_of(options.arithmetic)];
    const KernelHooks hooks(ops);
    packed_scores(uk, ops, q, k, out, factor, {Workspace(exec.workspace), q.shape[3]});
    return {};
  }
  score_all_rows(
      uk, q, k, out, factor, [&](const ScoreRows& call, int64_t, int64_t) { uk.score_rows[index_of(k.dtype)](call); },
      [&](AnyRow row, AnyRow key, int64_t) { return scalar::dot(row, key, q.shape[3]); });
  return {};
}

Status drivers::gaussian_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                                const ScoreOptions& options) {
  SIMDATTN_CHECK(check_scores(q, k, out, options, true, {}, 0));
  if (is_empty(out)) return {};
  const auto score = [&](const ScoreRows& call, int64_t, int64_t) { uk.gaussian_rows[index_of(k.dtype)](call); };
  const auto one = [&](AnyRow row, AnyRow key, int64_t) { return scalar::squared_distance(row, key, q.shape[3]); };
  score_all_rows(uk, q, k, out, -0.5f * options.scale.value_or(1.0f), SharedKernel(score), SharedDefinition(one));
  return {};
}

size_t drivers::bilinear_scores_workspace(int64_t d_q, int64_t d_k) {
  return is_size(d_q) && is_size(d_k) ? ProjectionBuffers{Workspace(nullptr), d_q, 0, d_k}.w.bytes() : 0;
}

Status drivers::bilinear_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k,
                                const View<4>& out, const ScoreOptions& options, const Exec& exec) {
  const int64_t d_q = q.shape[3];
  const int64_t d_k = k.shape[3];
  SIMDATTN_CHECK(check_bilinear_scores(q, m, k, out, options, exec, bilinear_scores_workspace(d_q, d_k)));
  if (is_empty(out)) return {};

  const ProjectionBuffers buffers = {Workspace(exec.workspace), d_q, 0, d_k};
  const auto score = [&](ScoreRows call, int64_t head, int64_t next_head) {
    // q^T M for a row of q or several of one head: the chain over d_q is that of weighted values.
    std::fill_n(buffers.query_projections, call.n_q * d_k, 0.0f);
    for_each_head(head, next_head, call.n_q, [&](int64_t h, int64_t r, int64_t n) {
      uk.attention[0].kv[index_of(m.dtype)].value_tile({.w = call.q + r * call.ldq,
                                                        .ldw = call.ldq,
                                                        .rows = n,
                                                        .v = head_of(m, h),
                                                        .key_stride = step_of(m, 1) * size_of(m.dtype),
                                                        .group_stride = kValueGroup * size_of(m.dtype),
                                                        .keys = d_q,
                                                        .dim = d_k,
                                                        .o = buffers.query_projections + r * d_k,
                                                        .ldo = d_k});
    });
    call.q = buffers.query_projections;
    call.ldq = call.dim = d_k;
    uk.score_rows[index_of(k.dtype)](call);
  };
  for_query_rows(uk, q, k, out, options.scale.value_or(1.0f), buffers.queries, kQueryRows, SharedKernel(score));
  return {};
}

size_t drivers::additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d) {
  const bool ok = is_size(d_q) && is_size(d_k) && is_size(d) && (d_q > 0 || d_k > 0);
  return ok ? ProjectionBuffers{Workspace(nullptr), d_q, d_k, d}.w.bytes() : 0;
}

Status drivers::additive_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w,
                                const View<4>& out, const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec) {
  const int64_t d = w.shape[1];
  const bool project_q = wq.data != nullptr;
  const bool project_k = wk.data != nullptr;
  const int64_t d_q = project_q ? q.shape[3] : 0;
  const int64_t d_k = project_k ? k.shape[3] : 0;
  SIMDATTN_CHECK(check_additive_scores(q, k, w, out, wq, wk, exec, additive_scores_workspace(d_q, d_k, d)));
  if (is_empty(out)) return {};

  const float* weights = static_cast<const float*>(w.data);
  if (!project_q && !project_k) {
    const auto score = [&](const ScoreRows& call, int64_t head, int64_t next_head) {
      uk.additive_rows[index_of(k.dtype)]({call, weights + head * w.stride[0], next_head * w.stride[0]});
    };
    const auto one = [&](AnyRow row, AnyRow key, int64_t head) {
      return scalar::additive(row, key, weights + head * w.stride[0], d);
    };
    score_all_rows(uk, q, k, out, 1.0f, SharedKernel(score), SharedDefinition(one));
    return {};
  }

  const ProjectionBuffers buffers = {Workspace(exec.workspace), d_q, d_k, d};
  float* const widened = project_q ? buffers.queries : buffers.query_projections;
  const auto [batch, kv_heads, n_k, k_dim] = k.shape;
  const int64_t group = q.shape[1] / kv_heads;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const int64_t first_head = kv_head * group;
      const ConstView<4> queries = part_of(q, {b, first_head}, {1, group, q.shape[2], q.shape[3]});
      for (int64_t j = 0; j < n_k; j += kProjectedKeys) {
        const int64_t n = std::min(kProjectedKeys, n_k - j);
        ConstView<4> keys = part_of(k, {b, kv_head, j}, {1, 1, n, k_dim});
        if (project_k) {
          widen_rows(uk, k.dtype, keys.data, step_of(keys, 2), n, d_k, buffers.keys, d_k);
          project(uk, wk, kv_head, 0, buffers.keys, d_k, n, buffers.key_projections);
          keys = view(static_cast<const float*>(buffers.key_projections), {1, 1, n, d});
        }
        const auto score = [&](ScoreRows call, int64_t head, int64_t next_head) {
          const int64_t h = first_head + head;
          if (project_q) {
            project(uk, wq, h, next_head, call.q, call.ldq, call.n_q, buffers.query_projections);
            call.q = buffers.query_projections;
            call.ldq = call.dim = d;
          }
          uk.additive_rows[index_of(keys.dtype)]({call, weights + h * w.stride[0], next_head * w.stride[0]});
        };
        for_query_rows(uk, queries, keys, part_of(out, {b, first_head, 0, j}, {1, group, q.shape[2], n}), 1.0f, widened,
                       kQueryRows, SharedKernel(score));
      }
    }
  }
  return {};
}

}  // namespace simdattn
