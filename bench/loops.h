// Plain loops to compare with: what a good compiler makes of the obvious code. They are compiled once per instruction set
// with its flags, -O3 and -ffast-math; so that their orders of summation, unlike the library's, are the compiler's.
#ifndef SIMDATTN_BENCH_LOOPS_H_
#define SIMDATTN_BENCH_LOOPS_H_

#include <stddef.h>
#include <stdint.h>

namespace bench {

struct Loops {
  const char* isa;  // as in machine.h
  void (*softmax)(const float* x, float* out, size_t rows, size_t n);
  void (*scores_f32)(const float* q, size_t n_q, const float* k, size_t n, size_t d, float scale, float* out);
  void (*scores_bf16)(const uint16_t* q, size_t n_q, const uint16_t* k, size_t n, size_t d, float scale, float* out);
  void (*values_f32)(const float* p, size_t n_q, const float* v, size_t n, size_t d, float* out);
  void (*values_bf16)(const float* p, size_t n_q, const uint16_t* v, size_t n, size_t d, uint16_t* out);
  // x [n][heads][d] in place, tables [n][d/2].
  void (*rope_half)(float* x, const float* cos, const float* sin, size_t n, size_t heads, size_t d);
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, size_t n, size_t heads, size_t d);
};

/// Null if there are none for that set in this build.
const Loops* find_loops(const char* isa);

}  // namespace bench

#endif  // SIMDATTN_BENCH_LOOPS_H_
