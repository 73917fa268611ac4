// What a library to compare with looks like from here: one file per library, each a module of its own that is loaded
// where it was built. A library that is missing costs nothing but its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "simdattn/types.h"

namespace bench {

enum class Kind { kNone, kSoftmax, kScores, kWeightedValues, kRope, kAttention, kState };

/// One problem: shapes, and arrays in row-major order. A case describes itself with it, without arrays.
struct Work {
  Kind kind = Kind::kNone;
  simdattn::DType type = simdattn::DType::kF32;  // of q, k, v and of out, but for what is said below
  int64_t heads = 1, kv_heads = 1;
  int64_t n_q = 1;  // rows of softmax and of queries, tokens of rope
  int64_t n = 0;    // columns of softmax, keys
  int64_t d = 0;    // of a head
  float scale = 1;
  bool causal = false;
  bool masked = false;
  bool interleaved = false;
  bool in_place = false;
  int64_t position = 0;  // of the first token of rope; frequencies are 10000^(-2i/d)
  /// kSoftmax: x [n_q][n]. kScores: queries [n_q][d]. kWeightedValues: probabilities [n_q][n], f32. kRope: x
  /// [n_q][heads][d]; the same array as `out` if it works in place. kAttention: queries [heads][n_q][d].
  const void* q = nullptr;
  const void* k = nullptr;                     // [kv_heads][n][d]
  const void* v = nullptr;                     // [kv_heads][n][d]
  const uint8_t* keep = nullptr;               // kAttention, `masked`: [n_q][n], 0 hides
  const float *cos = nullptr, *sin = nullptr;  // [n_q][d / 2]
  /// kSoftmax: [n_q][n]. kScores: [n_q][n], f32. kWeightedValues: [n_q][d]. Others: as `q`.
  void* out = nullptr;
  /// kState: the gated delta rule in `layers` layers of the same inputs, queries, keys and values [n_q][heads][d],
  /// decay [n_q][heads], or [n_q][heads][d] by channel, beta [n_q][heads], states before it [layers][heads][d][d]. The
  /// result is that of the last layer.
  int64_t layers = 1;
  bool by_channel = false;
  const float *decay = nullptr, *beta = nullptr, *states = nullptr;
  int threads = 1;
  /// What stood in `q` at first, if the work is done in place; null otherwise.
  const void* original = nullptr;
};

/// A call that does the work.
struct Call {
  std::function<void()> run;  // empty: it cannot after all
  /// Brings the result into Work::out, in its type; empty if it is there. Not timed.
  std::function<void()> after{};
};

struct Peer {
  const char* name;
  /// Version and everything that was set for speed.
  std::string (*settings)();
  /// By kind, type and shape alone.
  bool (*can)(const Work& work);
  Call (*make)(const Work& work);
};

}  // namespace bench

/// The one symbol of a module.
extern "C" __attribute__((visibility("default"))) const bench::Peer* simdattn_bench_peers(size_t* count);
