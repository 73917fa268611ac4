// Eigen: its own products, compiled for this CPU.
#include <Eigen/Core>

#include "bench/peers/plain.h"

namespace bench {
namespace {

using simdattn::DType;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using In = Eigen::Map<const Matrix>;
using Out = Eigen::Map<Matrix>;

void scores(const float* q, int64_t rows, const float* k, int64_t keys, int64_t d, float scale, float* out) {
  // A product of a matrix and a vector is another kernel, and the faster one for one row.
  if (rows == 1) {
    Eigen::Map<Eigen::VectorXf>(out, keys).noalias() =
        In(k, keys, d) * (scale * Eigen::Map<const Eigen::VectorXf>(q, d));
  } else {
    Out(out, rows, keys).noalias() = scale * In(q, rows, d) * In(k, keys, d).transpose();
  }
}

void values(const float* p, int64_t rows, int64_t keys, const float* v, int64_t d, float* out) {
  if (rows == 1) {
    Eigen::Map<Eigen::RowVectorXf>(out, d).noalias() = Eigen::Map<const Eigen::RowVectorXf>(p, keys) * In(v, keys, d);
  } else {
    Out(out, rows, d).noalias() = In(p, rows, keys) * In(v, keys, d);
  }
}

Call make(const Work& w) {
  const float *q = static_cast<const float*>(w.q), *k = static_cast<const float*>(w.k),
              *v = static_cast<const float*>(w.v);
  float* out = static_cast<float*>(w.out);
  switch (w.kind) {
    case Kind::kSoftmax:
      return {[=] {
        for (int64_t i = 0; i < w.n_q; ++i) {
          const Eigen::Map<const Eigen::ArrayXf> x(q + i * w.n, w.n);
          Eigen::Map<Eigen::ArrayXf> o(out + i * w.n, w.n);
          o = (x - x.maxCoeff()).exp();
          o *= 1 / o.sum();
        }
      }};
    case Kind::kScores: return {[=] { scores(q, w.n_q, k, w.n, w.d, w.scale, out); }};
    case Kind::kWeightedValues: return {[=] { values(q, w.n_q, w.n, v, w.d, out); }};
    default: {
      const auto memory = std::make_shared<std::vector<float>>();
      return {[=] {
        composed_attention(
            w, *memory,
            [&](const float* a, int64_t rows, const float* b, int64_t keys, float* o) {
              scores(a, rows, b, keys, w.d, w.scale, o);
            },
            [&](const float* a, int64_t rows, int64_t keys, const float* b, float* o) {
              values(a, rows, keys, b, w.d, o);
            });
      }};
    }
  }
}

bool can(const Work& w) { return w.threads == 1 && w.type == DType::kF32 && w.kind != Kind::kRope; }

std::string settings() {
#ifdef EIGEN_PATCH_VERSION  // from 5 on
  const int version[] = {EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION, EIGEN_PATCH_VERSION};
#else
  const int version[] = {EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION};
#endif
  return "Eigen " + std::to_string(version[0]) + "." + std::to_string(version[1]) + "." + std::to_string(version[2]) +
         ", -O3 -march=native -ffast-math; attention: products by Eigen, softmax by loops, group folded into rows, "
         "prompts in blocks of 128 rows";
}

const Peer kPeers[] = {{"eigen", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
