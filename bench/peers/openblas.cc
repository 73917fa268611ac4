// OpenBLAS. It takes new AMD CPUs with AVX-512 for Haswell: the loader of the modules sets OPENBLAS_CORETYPE first.
#include <cblas.h>

#include "bench/peers/plain.h"

namespace bench {
namespace {

using simdattn::DType;

void scores(const float* q, int64_t rows, const float* k, int64_t keys, int64_t d, float scale, float* out) {
  const int r = static_cast<int>(rows), n = static_cast<int>(keys), e = static_cast<int>(d);
  if (rows == 1) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, n, e, scale, k, e, q, 1, 0, out, 1);
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, r, n, e, scale, q, e, k, e, 0, out, n);
  }
}

void values(const float* p, int64_t rows, int64_t keys, const float* v, int64_t d, float* out) {
  const int r = static_cast<int>(rows), n = static_cast<int>(keys), e = static_cast<int>(d);
  if (rows == 1) {
    cblas_sgemv(CblasRowMajor, CblasTrans, n, e, 1, v, e, p, 1, 0, out, 1);
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, r, e, n, 1, p, n, v, e, 0, out, e);
  }
}

Call make(const Work& w) {
  const float *q = static_cast<const float*>(w.q), *k = static_cast<const float*>(w.k),
              *v = static_cast<const float*>(w.v);
  float* out = static_cast<float*>(w.out);
  const auto memory = std::make_shared<std::vector<float>>();
  return {[=] {
    openblas_set_num_threads(w.threads);
    if (w.kind == Kind::kScores) {
      scores(q, w.n_q, k, w.n, w.d, w.scale, out);
    } else if (w.kind == Kind::kWeightedValues) {
      values(q, w.n_q, w.n, v, w.d, out);
    } else {
      composed_attention(
          w, *memory,
          [&](const float* a, int64_t rows, const float* b, int64_t keys, float* o) {
            scores(a, rows, b, keys, w.d, w.scale, o);
          },
          [&](const float* a, int64_t rows, int64_t keys, const float* b, float* o) {
            values(a, rows, keys, b, w.d, o);
          });
    }
  }};
}

bool can(const Work& w) {
  return w.type == DType::kF32 &&
         (w.kind == Kind::kScores || w.kind == Kind::kWeightedValues || w.kind == Kind::kAttention);
}

std::string settings() {
  return std::string(openblas_get_config()) + ", kernels of " + openblas_get_corename() +
         "; sgemv for one row, else sgemm; attention: softmax by loops, group folded into rows, prompts in blocks of "
         "128 " +
         "rows";
}

const Peer kPeers[] = {{"openblas", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
