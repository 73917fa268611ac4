// Whole calls of attention by the library and by ggml, for tools/arm-counts to count the instructions of.
//
//   count_calls TARGET    the library on this target, and ggml as it chooses for this CPU
//
// Prints a line for each call, and the emulator's plug-in (count_instructions.c) the number. What both are given is
// the same: queries in f32, keys and values as rows of a storage type. Fails if their results differ.
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"

namespace {

using simdattn::DType;
using simdattn::KvLayout;
using simdattn::KvType;

constexpr int64_t kHeads = 8, kKvHeads = 2, kDim = 128;
constexpr double kAgree = 0.05;  // ggml rounds queries to the type of the keys, 8 bits among them

void check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "count_calls: %s\n", what);
  std::exit(1);
}
void check(const simdattn::Status& s) { check(s.ok(), s.detail); }

struct Storage {
  const char* name;
  KvType type;
  ggml_type keys;
  ggml_type plain_values;  // without its flash kernel ggml has no quantised ones
};
constexpr Storage kStorages[] = {{"f32", KvType::kF32, GGML_TYPE_F32, GGML_TYPE_F32},
                                 {"f16", KvType::kF16, GGML_TYPE_F16, GGML_TYPE_F16},
                                 {"q8_0", KvType::kQ8_0, GGML_TYPE_Q8_0, GGML_TYPE_F16}};

std::vector<float> random_numbers(int64_t count, uint32_t seed, float largest = 1) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(seed >> 8) - (1 << 23)) * 0x1p-23f * largest;
  }
  return x;
}

struct Cache {
  std::vector<char> bytes;
  simdattn::Kv kv;
  Cache(const std::vector<float>& rows, KvType type, int64_t n)
      : bytes(static_cast<size_t>(simdattn::kv_bytes(type, KvLayout::kRows, 1, kKvHeads, n, kDim))),
        kv(simdattn::contiguous_kv(bytes.data(), type, KvLayout::kRows, 1, kKvHeads, n, kDim)) {
    check(simdattn::kv_append(simdattn::ConstView<4>(rows.data(), DType::kF32, {1, kKvHeads, n, kDim}), {}, kv));
  }
};

/// A call of one token runs twice and is counted the second time, as the first one chooses kernels and fills tables.
void counted(const std::string& name, bool first, const std::function<void()>& call) {
  if (first) call();
  std::printf("%s\t", name.c_str());
  std::fflush(stdout);
  syscall(0x7a11);  // also in count_instructions.c
  call();
  syscall(0x7a11);
}

/// Queries and results as a model has them: [rows][heads][dim].
struct Problem {
  int64_t rows, n;
  const Storage& storage;
  std::string name = (rows > 1 ? "prompt\t" : "token\t") + std::string(storage.name) + '\t';
  std::vector<float> q = random_numbers(rows * kHeads * kDim, 1, 8), k = random_numbers(kKvHeads * n * kDim, 2),
                     v = random_numbers(kKvHeads * n * kDim, 3), out = std::vector<float>(q.size());
  Cache keys{k, storage.type, n}, values{v, storage.type, n};

  void own(const char* target) {
    simdattn::Exec exec;
    check(simdattn::find_target(target, &exec.target));
    const std::array<int64_t, 4> shape = {1, kHeads, rows, kDim}, stride = {0, kDim, kHeads * kDim, 1};
    simdattn::AttentionProblem a;
    a.q = simdattn::ConstView<4>(q.data(), DType::kF32, shape, stride);
    a.out = simdattn::View<4>(out.data(), DType::kF32, shape, stride);
    a.k = keys.kv, a.v = values.kv;
    a.scoring.causal = true;
    std::vector<char> workspace(simdattn::attention_workspace(a, exec));
    exec.workspace = workspace.data(), exec.workspace_bytes = workspace.size();
    counted(name + "simdattn", rows == 1, [&] { check(simdattn::attention(a, exec)); });
  }
  void ggml(ggml_backend_t backend, bool flash);
};

ggml_backend_t one_thread() {
  ggml_backend_load_all();
  ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  check(backend != nullptr, "ggml has no CPU backend");
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
  const auto features = reinterpret_cast<ggml_backend_get_features_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features"));
  check(set != nullptr && features != nullptr, "ggml's CPU backend is another one");
  set(backend, 1);
  std::string has;
  for (const ggml_backend_feature* f = features(reg); f->name != nullptr; ++f)
    has += std::string(" ") + f->name + '=' + f->value;
  std::printf("# ggml %s:%s\n", ggml_version(), has.c_str());
  return backend;
}

void Problem::ggml(ggml_backend_t backend, bool flash) {
  const ggml_context_ptr context(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
  ggml_context* c = context.get();
  ggml_tensor* tq = ggml_new_tensor_3d(c, GGML_TYPE_F32, kDim, kHeads, rows);
  ggml_tensor* tk = ggml_new_tensor_3d(c, storage.keys, kDim, n, kKvHeads);
  // Without its flash kernel llama.cpp keeps values transposed.
  ggml_tensor* tv = flash ? ggml_new_tensor_3d(c, storage.keys, kDim, n, kKvHeads)
                          : ggml_new_tensor_3d(c, storage.plain_values, n, kDim, kKvHeads);
  ggml_tensor* mask = rows > 1 ? ggml_new_tensor_2d(c, GGML_TYPE_F16, n, rows) : nullptr;
  ggml_tensor* q_heads = ggml_permute(c, tq, 0, 2, 1, 3);
  const float scale = 1 / std::sqrt(static_cast<float>(kDim));
  ggml_tensor* r = flash ? ggml_flash_attn_ext(c, q_heads, tk, tv, mask, scale, 0, 0)
                         : ggml_mul_mat(c, tv, ggml_soft_max_ext(c, ggml_mul_mat(c, tk, q_heads), mask, scale, 0));
  if (!flash) r = ggml_cont(c, ggml_permute(c, r, 0, 2, 1, 3));
  ggml_cgraph* graph = ggml_new_graph(c);
  ggml_build_forward_expand(graph, r);
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(c, backend));
  check(buffer != nullptr, "ggml has no memory for the tensors");

  ggml_backend_tensor_set(tq, q.data(), 0, ggml_nbytes(tq));
  ggml_backend_tensor_set(tk, keys.bytes.data(), 0, ggml_nbytes(tk));
  if (flash) {
    ggml_backend_tensor_set(tv, values.bytes.data(), 0, ggml_nbytes(tv));
  } else {
    for (int64_t i = 0; i < kKvHeads * kDim * n; ++i) {
      const float x = v[static_cast<size_t>((i / n / kDim * n + i % n) * kDim + i / n % kDim)];
      const ggml_fp16_t half = ggml_fp32_to_fp16(x);
      const size_t size = ggml_element_size(tv);
      const void* from = size == sizeof x ? static_cast<const void*>(&x) : &half;
      ggml_backend_tensor_set(tv, from, static_cast<size_t>(i) * size, size);
    }
  }
  if (mask != nullptr) {
    std::vector<ggml_fp16_t> hidden(static_cast<size_t>(rows * n), ggml_fp32_to_fp16(-INFINITY));
    for (int64_t i = 0; i < rows; ++i) std::fill_n(hidden.begin() + i * n, n - rows + i + 1, ggml_fp32_to_fp16(0));
    ggml_backend_tensor_set(mask, hidden.data(), 0, ggml_nbytes(mask));
  }
  counted(name + (flash ? "ggml, flash" : "ggml, plain"), rows == 1,
          [&] { check(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "ggml could not compute"); });
  std::vector<float> its(out.size());
  ggml_backend_tensor_get(r, its.data(), 0, ggml_nbytes(r));
  double most = 0;
  for (size_t i = 0; i < its.size(); ++i) most = std::max(most, std::fabs(static_cast<double>(its[i] - out[i])));
  std::fprintf(stderr, "%s: results differ by %.1e\n", name.c_str(), most);
  check(most <= kAgree, "that is too much");
}

}  // namespace

int main(int argc, char** argv) {
  check(argc == 2, "which target?");
  ggml_backend_t backend = one_thread();
  for (const int64_t rows : {1, 512}) {
    for (const Storage& storage : kStorages) {
      Problem p{.rows = rows, .n = rows > 1 ? rows : 4096, .storage = storage};
      p.own(argv[1]);
      p.ggml(backend, true);
      p.ggml(backend, false);
    }
  }
  ggml_backend_free(backend);
}
