// The tensors of one run of a node, memory for it, and the threads of its session.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "node.h"
#include "settings.h"

namespace simdattn_onnxruntime {

struct Tensor {
  void* data = nullptr;  // null where a tensor has no elements too
  bool present = false;
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  int rank = 0;
  std::array<int64_t, 6> dim{};

  explicit operator bool() const { return present; }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[static_cast<size_t>(i)];
    return n;
  }
  char* bytes() const { return static_cast<char*>(data); }
};

/// f32, f16 or bf16; the types of all nodes that are taken.
bool is_float(ONNXTensorElementDataType element, sa::DType* type);

/// One run of a node.
class Call {
 public:
  /// stock: ONNX Runtime's kernel of the node, or null.
  Call(const Node& n, const Settings& s, const OrtOp* stock, OrtKernelContext* context)
      : node(n), settings(s), stock_(stock), context_(context) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Node& node;
  const Settings& settings;

  Tensor input(int index) const;
  /// Input `index` with this shape, where -1 stands for any number; fails where it is another one or absent.
  Tensor input(int index, std::initializer_list<int64_t> shape) const;
  void expect(int index, const Tensor& t, std::initializer_list<int64_t> shape) const {
    expect(index, t, shape.begin(), shape.size());
  }
  void expect(int index, const Tensor& t, const int64_t* shape, size_t rank) const;
  /// Without its element type, which only a call more would tell.
  Tensor output(int index, std::initializer_list<int64_t> shape) const {
    return output(index, shape.begin(), shape.size());
  }
  Tensor output(int index, const int64_t* shape, size_t rank) const;
  /// Floating-point numbers of an input.
  sa::DType type_of(int index, const Tensor& t) const;
  /// Throws a status that names the node, the input and the rule that it breaks.
  [[noreturn]] void refuse(int index, const std::string& rule) const;
  void check(const sa::Status& status) const;

  /// Whether a call of so many rows and keys is one of give_back().
  bool is_level(int64_t rows, int64_t keys = 1, bool grouped = false) const {
    return stock_ != nullptr && node.is_level(rows, keys, grouped);
  }
  /// The call by ONNX Runtime's kernel, which checks its inputs, into outputs of these shapes.
  struct Shape {
    std::array<int64_t, 6> dim;
    int rank;
  };
  void give_back(std::initializer_list<Shape> outputs) const;

  /// Memory of ONNX Runtime until the run ends, not cleared.
  template <class T>
  T* room(int64_t count) {
    return static_cast<T*>(allocate(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
  }

  /// Whether so many bytes, read and written, are worth another thread.
  static bool shares(int64_t bytes) { return bytes >= 1 << 17; }
  /// job(0) .. job(jobs - 1), by the threads of the session if `bytes` are worth it. No job may throw; the status of
  /// one that failed is the result.
  template <class F>
  sa::Status parallel(int64_t jobs, int64_t bytes, const F& job) const {
    struct Jobs {
      const F& job;
      std::atomic<const char*> failed{nullptr};
    } all{job};
    const auto run = [](void* data, size_t i) {
      auto& a = *static_cast<Jobs*>(data);
      if (const sa::Status s = a.job(static_cast<int64_t>(i)); !s.ok()) a.failed.store(s.detail);
    };
    if (jobs <= 1 || !shares(bytes)) {
      for (int64_t i = 0; i < jobs; ++i) run(&all, static_cast<size_t>(i));
    } else {
      parallel_for(run, jobs, &all);
    }
    const char* const detail = all.failed.load();
    return detail == nullptr ? sa::Status{} : sa::Status{sa::Code::kShape, detail};
  }

  /// run(first, last, exec) for all of tasks 0 .. tasks - 1, by the threads of the session; exec has a workspace of its
  /// thread.
  template <class F>
  void share(int64_t tasks, size_t workspace_bytes, const F& run) const {
    share_tasks(
        tasks, workspace_bytes,
        [](const void* f, int64_t first, int64_t last, const sa::Exec& exec) {
          return (*static_cast<const F*>(f))(first, last, exec);
        },
        &run);
  }
  /// Attention, by the threads of the session.
  void run(sa::AttentionProblem* problem);

 private:
  using Tasks = sa::Status (*)(const void*, int64_t first, int64_t last, const sa::Exec&);
  void share_tasks(int64_t tasks, size_t workspace_bytes, Tasks range, const void* of) const;
  void* allocate(size_t bytes);
  void parallel_for(void (*job)(void*, size_t), int64_t jobs, void* data) const;

  const OrtOp* stock_;
  OrtKernelContext* context_;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> rooms_;
  size_t used_ = 0;
  alignas(64) char small_[4096];  // what most tokens need, so that they ask for no memory
};

}  // namespace simdattn_onnxruntime
