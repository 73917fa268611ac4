// Shapes of real models: what the benchmark measures is what inference engines call.
#pragma once

#include <array>
#include <cstdint>

namespace bench {

struct Model {
  const char* name;
  int64_t heads;
  int64_t kv_heads;
  int64_t d_qk;
  int64_t d_v;
  float softcap = 0;
  int64_t window = 0;   // keys a row sees, itself included; 0 = all
  float scale = 0;      // 0 = 1/sqrt(d_qk)
  bool v_is_k = false;  // values are the first d_v elements of the key rows

  int64_t group() const { return heads / kv_heads; }
};

inline constexpr Model kLlama3{.name = "llama3-8b", .heads = 32, .kv_heads = 8, .d_qk = 128, .d_v = 128};
// A key head for each query head: no group shares keys.
inline constexpr Model kLlama2{.name = "llama2-7b", .heads = 32, .kv_heads = 32, .d_qk = 128, .d_v = 128};
inline constexpr Model kQwen25{.name = "qwen2.5-7b", .heads = 28, .kv_heads = 4, .d_qk = 128, .d_v = 128};
// Every other layer has the window; the softcap and the scale of 1/sqrt(256) are in all.
inline constexpr Model kGemma2{
    .name = "gemma2-9b", .heads = 16, .kv_heads = 8, .d_qk = 256, .d_v = 256, .softcap = 50, .window = 4096};
inline constexpr Model kGpt2{.name = "gpt2", .heads = 12, .kv_heads = 12, .d_qk = 64, .d_v = 64};
// Latent attention, absorbed: one latent row of 512 and 64 rotary dimensions; the scale is that of the 192 dimensions
// before absorption.
inline constexpr Model kDeepSeekV3{.name = "deepseek-v3-mla",
                                   .heads = 128,
                                   .kv_heads = 1,
                                   .d_qk = 576,
                                   .d_v = 512,
                                   .scale = 0.072168784f,
                                   .v_is_k = true};
inline constexpr std::array kModels{kLlama3, kLlama2, kQwen25, kGemma2, kGpt2, kDeepSeekV3};

inline constexpr std::array<int64_t, 3> kDecodeKeys{512, 4096, 32768};
inline constexpr std::array<int64_t, 5> kPrefillRows{128, 256, 512, 2048, 4096};

struct Matrix {
  int64_t rows, columns;
};
inline constexpr std::array kSoftmaxShapes{Matrix{1, 4096}, Matrix{32, 4096}, Matrix{1024, 128}, Matrix{1024, 1024},
                                           Matrix{64, 32768}};

// Rows of keys or values of 128 dimensions; 64 of them (32 KiB in f32) stay in L1.
inline constexpr int64_t kRowDim = 128;
inline constexpr std::array<int64_t, 5> kRowCounts{64, 512, 4096, 32768, 262144};
inline constexpr std::array<int64_t, 3> kQueryCounts{1, 4, 8};

}  // namespace bench
