// What the kernels of aten.cc and aten_formula.cc share: libtorch's functions, tensors, and a call.
#pragma once

#include <atomic>
#include <optional>
#include <tuple>

#include "python/core/core.h"

namespace simdattn_python::aten {

using Handle = void*;             // AtenTensorHandle
using Value = uint64_t;           // StableIValue
using Failure = int32_t;          // AOTITorchError; 0: none
constexpr int64_t kMostRank = 8;  // that of other arrays is PyTorch's

// What a Handle points to, an at::Tensor: one address. Copies here count no references.
struct Held {
  void* tensor;
  Held(const Held& other) : tensor(other.tensor) {}  // one of its own, so it is returned and handed on as at::Tensor is
  ~Held() {}
};
inline const Held& held(Handle x) { return *static_cast<const Held*>(x); }
inline Handle handle_of(const Held& x) { return const_cast<Held*>(&x); }

// at::native::flash_attention_fn: PyTorch's fused kernel. It writes to results that are there, [batch, rows, heads,
// dimensions] and [batch, rows, heads].
using Kernel = void(const Held& out, const Held& lse, const Held& q, const Held& k, const Held& v, double dropout,
                    bool causal, std::optional<Held> mask, std::optional<double> scale);

// at::native::_scaled_dot_product_attention_math(), which is no kernel that the stable interface could call.
using Formula = std::tuple<Held, Held>(const Held& q, const Held& k, const Held& v, const std::optional<Held>& mask,
                                       double dropout, bool causal, const std::optional<Held>& dropped,
                                       std::optional<double> scale, bool grouped);

// Functions of libtorch by the names that Python looks up, without their prefixes.
struct Torch {
  Failure (*library_init_impl)(const char* space, const char* key, const char* file, uint32_t line, void** library);
  Failure (*library_impl)(void* library, const char* name, void (*kernel)(Value*, uint64_t, uint64_t));
  Failure (*delete_library_object)(void* library);
  Failure (*delete_tensor_object)(Handle x);
  Failure (*get_data_ptr)(Handle x, void** data);
  Failure (*get_dim)(Handle x, int64_t* rank);
  Failure (*get_sizes)(Handle x, int64_t** sizes);
  Failure (*get_strides)(Handle x, int64_t** strides);
  Failure (*get_dtype)(Handle x, int32_t* dtype);
  Failure (*empty_strided)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device,
                           int32_t index, Handle* made);
  Failure (*copy_)(Handle to, Handle from, int32_t non_blocking);
  Failure (*get_num_threads)(uint32_t* threads);
  void (*delete_value)(void* value);
  std::atomic<Kernel*>* place;  // PyTorch's pointer to the kernel that it calls
  Kernel* theirs;               // PyTorch's kernel for this CPU
  Formula* formula;             // null: calls that end there are left alone
  bool (*any_tangents)();
  bool (*any_modes)(bool but_for_infrastructure);
  bool (*grad_mode_is_enabled)();
  bool (*requires_grad)(const void* tensor);
  Failure (*new_uninitialized_tensor)(Handle* made);
  int32_t float32, bfloat16, float16, float64, boolean;
};
extern Torch torch;

// The element type of a torch.dtype; false: none that the library has.
bool element_of(int32_t type, simdattn::DType* element);

struct Tensor {
  Handle handle = nullptr;
  void* data = nullptr;
  int32_t type = 0;
  int64_t rank = 0;
  const int64_t *shape = nullptr, *stride = nullptr;

  bool read(Handle x) {
    int64_t *sizes = nullptr, *strides = nullptr;
    handle = x;
    const bool good = torch.get_data_ptr(x, &data) == 0 && torch.get_dtype(x, &type) == 0 &&
                      torch.get_dim(x, &rank) == 0 && torch.get_sizes(x, &sizes) == 0 &&
                      torch.get_strides(x, &strides) == 0;
    shape = sizes, stride = strides;
    return good;
  }
  bool rows_are_contiguous() const { return rank == 0 || shape[rank - 1] <= 1 || stride[rank - 1] == 1; }
  bool empty() const {
    for (int64_t i = 0; i < rank; ++i)
      if (shape[i] == 0) return true;
    return false;
  }
};

// Functions that return a text: null where all is well, else why the call is PyTorch's.
struct Call {
  Tensor q, k, v, mask;
  double dropout = 0, scale = 0;
  bool causal = false, has_mask = false, has_scale = false, grouped = false;
  Handle out = nullptr, lse = nullptr;  // of the formula
  Handle copies[5] = {};
  int copied = 0;

  // Reads tensors; mask: null if there is none. False: one of them has no memory.
  bool read(Handle q_given, Handle k_given, Handle v_given, Handle mask_given);
  // What the library does not take, in whatever form.
  const char* unknown() const;
  // Copies where a last dimension is not contiguous.
  bool pack_all() { return pack(&q) && pack(&k) && pack(&v) && (!has_mask || pack(&mask)); }
  // Runs a problem whose arrays are there, with the call's options. types: of q, k, v.
  const char* run(simdattn_attention_problem* problem, const simdattn::DType* types) const;
  // Counts the call, and frees copies.
  void end(const char* reason);

  // Of the kernel: writes results that are there.
  const char* attend(Handle out_given, Handle lse_given);

  // Of the formula.
  bool is_the_kernels() const;
  const char* refusal_of_formula() const;
  const char* attend_all();
  void by_formula(const Handle* given);

 private:
  bool pack(Tensor* x);
};

constexpr const char* kNoMemory = "no memory";

// A new tensor; null: no memory.
Handle make(const int64_t* shape, const int64_t* stride, int32_t type, int64_t rank = 4);
void free_handles(Handle* handles, int n);

// What PyTorch calls in the place of its formula: the arguments of the operator in `stack`, then its two results.
void formula_kernel(Value* stack, uint64_t, uint64_t);

}  // namespace simdattn_python::aten
