#include "tensor.h"

#include <memory>
#include <new>
#include <thread>

namespace simdattn_onnxruntime {
namespace {

std::string text_of(const int64_t* dims, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i)
    text += (i != 0 ? "," : "") + (dims[i] < 0 ? std::string("*") : std::to_string(dims[i]));
  return text + "]";
}

Tensor tensor_of(const OrtValue* value) {
  Tensor t;
  if (value == nullptr) return t;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(host.api->GetTensorTypeAndShape(value, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
      info, [](OrtTensorTypeAndShapeInfo* i) { host.api->ReleaseTensorTypeAndShapeInfo(i); });
  size_t rank = 0;
  check(host.api->GetDimensionsCount(info, &rank));
  if (rank > t.dim.size()) fail(ORT_INVALID_ARGUMENT, "a tensor has more than 6 dimensions");
  check(host.api->GetDimensions(info, t.dim.data(), rank));
  check(host.api->GetTensorElementType(info, &t.element));
  t.rank = static_cast<int>(rank);
  t.present = true;
  // An input is never written; the functions that return const data came later.
  check(host.api->GetTensorMutableData(const_cast<OrtValue*>(value), &t.data));
  return t;
}

/// Memory of a thread that only grows, so that a program which repeats its nodes allocates nothing.
void* workspace_of_thread(size_t bytes) {
  thread_local std::unique_ptr<char[]> data;
  thread_local size_t size = 0;
  if (size < bytes || data == nullptr) {
    data.reset();
    size = 0;
    data.reset(new (std::nothrow) char[std::max<size_t>(bytes, 1)]);  // not cleared
    if (data != nullptr) size = bytes;
  }
  return data.get();
}

/// How many threads may work at once. The interface does not tell how many a session has; shares that find no task left
/// cost nothing that can be measured.
int64_t most_threads() {
  static const int64_t n = std::max(1u, std::thread::hardware_concurrency());
  return n;
}

}  // namespace

bool is_float(ONNXTensorElementDataType element, sa::DType* type) {
  switch (element) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: *type = sa::DType::kF32; return true;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: *type = sa::DType::kF16; return true;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: *type = sa::DType::kBF16; return true;
    default: return false;
  }
}

Call::~Call() {
  for (void* room : rooms_) {
    if (OrtStatus* s = host.api->AllocatorFree(allocator_, room)) host.api->ReleaseStatus(s);
  }
  if (allocator_ != nullptr) host.api->ReleaseAllocator(allocator_);
}

Tensor Call::input(int index) const {
  const int at = node.input[static_cast<size_t>(index)];
  if (at < 0) return {};
  const OrtValue* value = nullptr;
  simdattn_onnxruntime::check(host.api->KernelContext_GetInput(context_, static_cast<size_t>(at), &value));
  return tensor_of(value);
}

Tensor Call::input(int index, std::initializer_list<int64_t> shape) const {
  const Tensor t = input(index);
  if (!t) refuse(index, "is needed");
  expect(index, t, shape);
  return t;
}

void Call::expect(int index, const Tensor& t, const int64_t* shape, size_t rank) const {
  bool same = static_cast<size_t>(t.rank) == rank;
  for (size_t i = 0; same && i < rank; ++i) same = shape[i] < 0 || t.dim[i] == shape[i];
  if (!same) {
    refuse(index, "has shape " + text_of(t.dim.data(), static_cast<size_t>(t.rank)) + " in the place of " +
                      text_of(shape, rank));
  }
}

Tensor Call::output(int index, const int64_t* shape, size_t rank) const {
  const int at = node.output[static_cast<size_t>(index)];
  if (at < 0) return {};
  OrtValue* value = nullptr;
  simdattn_onnxruntime::check(
      host.api->KernelContext_GetOutput(context_, static_cast<size_t>(at), shape, rank, &value));
  if (value == nullptr) return {};
  Tensor t;
  t.present = true;
  t.rank = static_cast<int>(rank);
  std::copy_n(shape, rank, t.dim.begin());
  simdattn_onnxruntime::check(host.api->GetTensorMutableData(value, &t.data));
  return t;
}

sa::DType Call::type_of(int index, const Tensor& t) const {
  sa::DType type = sa::DType::kF32;
  if (!is_float(t.element, &type)) refuse(index, "is neither float, float16 nor bfloat16");
  return type;
}

void Call::refuse(int index, const std::string& rule) const {
  fail(ORT_INVALID_ARGUMENT, node.name + ": input " + node.input_names[index] + " " + rule);
}

void Call::check(const sa::Status& status) const {
  if (!status.ok()) fail(ORT_INVALID_ARGUMENT, node.name + ": " + status.detail);
}

void Call::give_back(std::initializer_list<Shape> outputs) const {
  const OrtApi& api = *host.api;
  std::array<const OrtValue*, kInputs> in{};
  std::array<OrtValue*, kOutputs> out{};
  for (size_t i = 0; i < static_cast<size_t>(node.inputs); ++i) {
    if (const int at = node.input[i]; at >= 0)
      simdattn_onnxruntime::check(api.KernelContext_GetInput(context_, static_cast<size_t>(at), &in[i]));
  }
  for (size_t i = 0; i < static_cast<size_t>(node.outputs); ++i) {
    const Shape& shape = outputs.begin()[i];
    simdattn_onnxruntime::check(api.KernelContext_GetOutput(
        context_, static_cast<size_t>(node.output[i]), shape.dim.data(), static_cast<size_t>(shape.rank), &out[i]));
  }
  simdattn_onnxruntime::check(api.InvokeOp(context_, stock_, in.data(), node.inputs, out.data(), node.outputs));
}

void* Call::allocate(size_t bytes) {
  constexpr size_t kAlign = 64;
  if (bytes <= sizeof small_ - used_) {
    void* const room = small_ + used_;
    used_ = std::min(sizeof small_, (used_ + bytes + kAlign - 1) / kAlign * kAlign);
    return room;
  }
  if (allocator_ == nullptr) {
    static const OrtMemoryInfo* const cpu = [] {
      OrtMemoryInfo* info = nullptr;
      simdattn_onnxruntime::check(host.api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &info));
      return info;
    }();
    simdattn_onnxruntime::check(host.api->KernelContext_GetAllocator(context_, cpu, &allocator_));
  }
  rooms_.reserve(rooms_.size() + 1);
  void* room = nullptr;
  simdattn_onnxruntime::check(host.api->AllocatorAlloc(allocator_, bytes, &room));
  rooms_.push_back(room);
  return room;
}

void Call::parallel_for(void (*job)(void*, size_t), int64_t jobs, void* data) const {
  simdattn_onnxruntime::check(host.api->KernelContext_ParallelFor(context_, job, static_cast<size_t>(jobs), 0, data));
}

void Call::share_tasks(int64_t tasks, size_t workspace_bytes, Tasks range, const void* of) const {
  // Threads take tasks as they come: a thread that is late takes none, and no other one waits for it. Eight parts a
  // thread let the threads end together although rows of a mask take unlike times.
  struct Work {
    int64_t tasks, step;
    size_t workspace_bytes;
    Tasks range;
    const void* of;
    std::atomic<int64_t> next{0};
    std::atomic<const char*> failed{nullptr};
  } all{tasks, std::max<int64_t>(1, tasks / (most_threads() * 8)), workspace_bytes, range, of};
  const auto work = [](void* data, size_t) {
    auto& w = *static_cast<Work*>(data);
    sa::Exec exec;
    exec.workspace = workspace_of_thread(w.workspace_bytes);
    exec.workspace_bytes = exec.workspace != nullptr ? w.workspace_bytes : 0;
    for (int64_t first; (first = w.next.fetch_add(w.step, std::memory_order_relaxed)) < w.tasks;) {
      const sa::Status s = w.range(w.of, first, std::min(first + w.step, w.tasks), exec);
      if (!s.ok()) w.failed.store(s.detail);
    }
  };
  const int64_t shares = std::min(tasks, most_threads());
  if (shares > 1) {
    parallel_for(work, shares, &all);
  } else if (tasks > 0) {
    work(&all, 0);
  }
  if (const char* const detail = all.failed.load()) fail(ORT_FAIL, node.name + ": " + detail);
}

void Call::run(sa::AttentionProblem* problem) {
  problem->arithmetic = arithmetic_of(settings, *problem);
  sa::Plan plan;
  check(sa::attention_plan(*problem, &plan));
  void* const partial = plan.partial_bytes != 0 ? room<char>(static_cast<int64_t>(plan.partial_bytes)) : nullptr;
  share(plan.tasks, plan.workspace_bytes, [&](int64_t first, int64_t last, const sa::Exec& exec) {
    return sa::attention_range(plan, first, last, partial, plan.partial_bytes, exec);
  });
  share(plan.reduce_tasks, plan.workspace_bytes, [&](int64_t first, int64_t last, const sa::Exec& exec) {
    return sa::attention_reduce(plan, first, last, partial, plan.partial_bytes, exec);
  });
}

}  // namespace simdattn_onnxruntime
