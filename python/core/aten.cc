// The fused kernel that PyTorch's scaled_dot_product_attention ends in on a CPU, in the place of PyTorch's own.
//
// It is registered by libtorch's stable C interface, which is the same in every version from 2.10 on. A kernel in
// Python takes 6 us a call to be reached, half of what PyTorch's own kernel takes for a token, and it needs the GIL.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <pthread.h>

#include "python/core/aten.h"

namespace simdattn_python::aten {

using simdattn::Code;
using simdattn::DType;

Torch torch;

namespace {

constexpr int32_t kCpu = 0;  // the device
constexpr const char* kName = "_scaled_dot_product_flash_attention_for_cpu";
constexpr const char* kFormula = "_scaled_dot_product_attention_math";  // for what the kernel does not take

AtenOptions options;
void* registered;        // the library object; null: not installed
void* registered_above;  // that of the formula in the place of autograd

// ---- What calls came to ---------------------------------------------------------------------------------------------

struct Reason {
  char text[120];
  int64_t calls;
};
constexpr int kMostReasons = 32;
std::atomic<int64_t> taken;
Reason reasons[kMostReasons];
int reasons_known;
pthread_mutex_t reasons_lock = PTHREAD_MUTEX_INITIALIZER;

void count(const char* text) {
  pthread_mutex_lock(&reasons_lock);
  int i = 0;
  while (i < reasons_known && std::strncmp(reasons[i].text, text, sizeof(reasons[i].text) - 1) != 0) ++i;
  if (i == kMostReasons) i = kMostReasons - 1;  // more than anybody looks at: they share the last one
  if (i == reasons_known) {
    std::strncpy(reasons[i].text, text, sizeof(reasons[i].text) - 1);
    reasons[i].calls = 0;
    ++reasons_known;
  }
  ++reasons[i].calls;
  pthread_mutex_unlock(&reasons_lock);
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

Sizes contiguous(const int64_t* shape) { return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}; }

// Whether a step of dimension i stays inside of one of dimension j: the order in which PyTorch sorts dimensions.
bool comes_after(const Tensor& x, int i, int j) {
  if (x.stride[i] == 0 || x.stride[j] == 0) return false;
  return x.stride[i] != x.stride[j] ? x.stride[i] > x.stride[j] : x.shape[i] > x.shape[j];
}

// The strides of torch.empty_like(x): those of x where its elements fill their memory, else dense ones in their order.
Sizes strides_like(const Tensor& x) {
  int order[4] = {3, 2, 1, 0};
  for (int i = 1; i < 4; ++i) {
    int at = i;
    for (int before = i - 1; before >= 0; --before) {
      if (comes_after(x, order[before], order[at])) {
        const int swapped = order[before];
        order[before] = order[at], order[at] = swapped, at = before;
      } else if (comes_after(x, order[at], order[before])) {
        break;
      }
    }
  }
  Sizes dense;
  int64_t step = 1;
  bool same = true;
  for (const int i : order) {
    dense[size_t(i)] = step;
    same = same && (x.shape[i] == 1 || x.stride[i] == step);
    step *= x.shape[i] > 1 ? x.shape[i] : 1;
  }
  return same ? Sizes{x.stride[0], x.stride[1], x.stride[2], x.stride[3]} : dense;
}

// ---- A call ---------------------------------------------------------------------------------------------------------

simdattn::ConstView<4> view_of(const Tensor& x, DType type) {
  simdattn::ConstView<4> view;
  view.data = x.data;
  view.dtype = type;
  for (size_t i = 0; i < 4; ++i) {  // sizes of 1 before those that there are, as in broadcasting
    const int64_t at = int64_t(i) + x.rank - 4;
    view.shape[i] = at < 0 ? 1 : x.shape[at];
    view.stride[i] = view.shape[i] == 1 ? i == 3 : x.stride[at];
  }
  return view;
}

// Products of float32 with one row, or with so few scores for each head, are the BLAS's, which takes 0.7 - 0.9 of the
// time for them. Narrower types are slower there at every size.
constexpr int64_t kFewScores = 2500;

// [batch, heads, rows] into memory that lies [batch, rows, heads]. A row that sees no key has 0, as PyTorch's own
// kernel gives it: its backward takes exp(score - lse), which would be NaN.
void put_lse(const float* from, float* to, int64_t batch, int64_t heads, int64_t rows) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        const float x = from[(b * heads + h) * rows + i];
        to[(b * rows + i) * heads + h] = std::isinf(x) && x < 0 ? 0 : x;
      }
    }
  }
}

double double_of(Value x) {
  double number;
  std::memcpy(&number, &x, sizeof(number));
  return number;
}

}  // namespace

bool element_of(int32_t type, DType* element) {
  if (type == torch.float32) return *element = DType::kF32, true;
  if (type == torch.bfloat16) return *element = DType::kBF16, true;
  if (type == torch.float16) return *element = DType::kF16, true;
  if (type == torch.boolean) return *element = DType::kU8, true;
  return false;
}

Handle make(const int64_t* shape, const int64_t* stride, int32_t type, int64_t rank) {
  Handle made = nullptr;
  return torch.empty_strided(rank, shape, stride, type, kCpu, 0, &made) == 0 ? made : nullptr;
}

void* memory_of(Handle x) {
  void* data = nullptr;
  return x == nullptr || torch.get_data_ptr(x, &data) != 0 ? nullptr : data;
}

bool Call::theirs_is_faster() const {
  const int64_t rows = q.shape[2], keys = k.shape[2];
  return q.type == torch.float32 && q.shape[1] == k.shape[1] && (rows == 1 || rows * keys <= kFewScores);
}

const char* Call::unknown() const {
  for (const Tensor* x : {&q, &k, &v}) {
    DType type;
    if (x->type == torch.float64) return "torch.float64";
    if (!element_of(x->type, &type) || type == DType::kU8) return "another type than float32, bfloat16 and float16";
  }
  if (dropout != 0) return "dropout";
  if (q.empty() || k.empty() || v.empty()) return "empty tensors";
  DType type;
  if (has_mask && !element_of(mask.type, &type)) return "a mask of another type";
  return nullptr;
}

const char* Call::refusal() const {
  for (const Tensor* x : {&q, &k, &v})
    if (x->rank != 4) return "another number of dimensions than 4";
  if (const char* reason = unknown()) return reason;
  if (!options.always && theirs_is_faster()) return "float32, one row or few scores: PyTorch's kernel is faster";
  return has_mask && mask.rank > 4 ? "a mask of more dimensions than 4" : nullptr;
}

bool Call::pack(Tensor* x) {
  if (x->rows_are_contiguous()) return true;
  int64_t stride[kMostRank], step = 1;
  for (int64_t i = x->rank - 1; i >= 0; --i) stride[i] = step, step *= x->shape[i];
  const Handle copy = make(x->shape, stride, x->type, x->rank);
  if (copy == nullptr) return false;
  copies[copied++] = copy;
  return torch.copy_(copy, x->handle, 0) == 0 && x->read(copy);
}

const char* Call::run(simdattn_attention_problem* problem, const DType* types) const {
  if (has_scale) problem->scoring.scale = float(scale);
  problem->scoring.causal = causal;
  if (causal) problem->scoring.offset = 0;
  simdattn_exec exec;
  exec.target = options.target;
  problem->arithmetic = options.arithmetic >= 0
                            ? simdattn::Arithmetic(options.arithmetic)
                            : library.arithmetic_for(types[0], problem->k.type, problem->v.type, &exec);
  uint32_t threads = options.threads;
  if (threads == 0 && torch.get_num_threads(&threads) != 0) threads = 1;
  simdattn_status status;
  if (!run_by_torch(*problem, options.target, int(threads), &status)) return kNoMemory;
  return status.code == Code::kOk ? nullptr : status.detail;
}

// Makes `out` and `lse` as PyTorch's kernel does.
const char* Call::attend() {
  const Sizes out_shape = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  const Sizes promised = q.shape[3] == v.shape[3] ? strides_like(q) : contiguous(out_shape.data());
  const bool direct = promised[3] == 1 || out_shape[3] == 1;
  const int32_t type = q.type;
  const int64_t batch = q.shape[0], heads = q.shape[1], rows = q.shape[2];
  out = make(out_shape.data(), promised.data(), type);
  const Sizes plain = contiguous(out_shape.data());
  const Handle written = direct ? out : make(out_shape.data(), plain.data(), type);
  if (!direct && written != nullptr) copies[copied++] = written;
  const int64_t lse_shape[3] = {batch, heads, rows}, lse_stride[3] = {heads * rows, 1, heads};
  lse = make(lse_shape, lse_stride, torch.float32, 3);
  if (!pack_all()) return kNoMemory;

  DType types[4] = {};
  element_of(q.type, &types[0]), element_of(k.type, &types[1]), element_of(v.type, &types[2]);
  simdattn_attention_problem problem;
  problem.q = view_of(q, types[0]);
  problem.k = view_of(k, types[1]);
  problem.v = view_of(v, types[2]);
  const Sizes& steps = direct ? promised : plain;
  problem.out = simdattn::View<4>(memory_of(written), types[0], out_shape, steps);
  if (out_shape[3] == 1) problem.out.stride[3] = 1;
  float* sums = static_cast<float*>(std::malloc(sizeof(float) * size_t(batch * heads * rows)));
  float* result = static_cast<float*>(memory_of(lse));
  problem.lse = simdattn::View<3>(sums, DType::kF32, {batch, heads, rows});
  if (has_mask) {
    element_of(mask.type, &types[3]);
    (types[3] == DType::kU8 ? problem.scoring.mask : problem.scoring.bias) = view_of(mask, types[3]);
  }
  const bool there = sums != nullptr && result != nullptr && problem.out.data != nullptr;
  const char* reason = there ? run(&problem, types) : kNoMemory;
  if (reason == nullptr) put_lse(sums, result, batch, heads, rows);
  std::free(sums);
  if (reason != nullptr) return reason;
  return direct || torch.copy_(out, written, 0) == 0 ? nullptr : kNoMemory;
}

bool take(Value given, Value* value) {
  auto* held = reinterpret_cast<Value*>(uintptr_t(given));
  if (held == nullptr) return false;
  *value = *held;
  torch.delete_value(held);
  return true;
}

Handle handle_of(Value x) { return reinterpret_cast<Handle>(uintptr_t(x)); }

bool Call::read(Value* stack, int dropout_at, int mask_at, int scale_at) {
  Value given_mask = 0, given_scale = 0;
  dropout = double_of(stack[dropout_at]);
  causal = (stack[dropout_at + 1] & 0xFF) != 0;
  has_mask = take(stack[mask_at], &given_mask);
  has_scale = take(stack[scale_at], &given_scale);
  scale = double_of(given_scale);
  mask_given = handle_of(given_mask);
  return q.read(handle_of(stack[0])) && k.read(handle_of(stack[1])) && v.read(handle_of(stack[2])) &&
         (!has_mask || mask.read(mask_given));
}

void free_handles(Handle* handles, int n) {
  for (int i = 0; i < n; ++i)
    if (handles[i] != nullptr) torch.delete_tensor_object(handles[i]), handles[i] = nullptr;
}

void Call::end(const char* reason) {
  free_handles(copies, copied);
  if (reason == nullptr) {
    taken.fetch_add(1, std::memory_order_relaxed);
  } else {
    count(reason);
    free_handles(&out, 1);
    free_handles(&lse, 1);
  }
}

namespace {

// What PyTorch calls: the arguments of the operator in `stack`, then its two results. Arguments belong to the kernel.
void kernel(Value* stack, uint64_t, uint64_t) {
  Call call;
  Handle given[3] = {handle_of(stack[0]), handle_of(stack[1]), handle_of(stack[2])};
  const char* reason = call.read(stack, 3, 5, 6) ? call.refusal() : "tensors without memory";
  if (reason == nullptr) reason = call.attend();
  call.end(reason);
  Failure failure = 0;
  if (reason != nullptr) {
    failure = torch.theirs(given[0], given[1], given[2], call.dropout, call.causal,
                           call.has_mask ? &call.mask_given : nullptr, call.has_scale ? &call.scale : nullptr,
                           &call.out, &call.lse);
  }
  free_handles(given, 3);
  free_handles(&call.mask_given, 1);
  if (failure != 0) {
    torch.check_fail(kName, __FILE__, __LINE__,
                     torch.what != nullptr ? torch.what() : "PyTorch's kernel refuses the call; it has said why");
  }
  stack[0] = uintptr_t(call.out);
  stack[1] = uintptr_t(call.lse);
}

// A function's address from a dict of them; `optional`: null where there is none.
template <class F>
bool find(PyObject* addresses, const char* name, F** function, bool optional = false) {
  PyObject* address = PyDict_GetItemString(addresses, name);  // borrowed
  *function = nullptr;
  if (address == nullptr) return optional || (PyErr_Format(PyExc_KeyError, "%s", name), false);
  *function = reinterpret_cast<F*>(PyLong_AsVoidPtr(address));
  return PyErr_Occurred() == nullptr;
}

bool type_of(PyObject* addresses, const char* name, int32_t* type) {
  int32_t (*function)() = nullptr;
  if (!find(addresses, name, &function)) return false;
  *type = function();
  return true;
}

// All of them, or the formula stays as it is.
bool find_formula(PyObject* a) {
  const bool good = find(a, "formula", &torch.formula, true) && find(a, "any_tangents", &torch.any_tangents, true) &&
                    find(a, "any_modes", &torch.any_modes, true) &&
                    find(a, "grad_mode_is_enabled", &torch.grad_mode_is_enabled, true) &&
                    find(a, "requires_grad", &torch.requires_grad, true) &&
                    find(a, "new_uninitialized_tensor", &torch.new_uninitialized_tensor, true);
  const bool there = torch.formula != nullptr && torch.any_tangents != nullptr && torch.any_modes != nullptr &&
                     torch.requires_grad != nullptr && torch.grad_mode_is_enabled != nullptr &&
                     torch.new_uninitialized_tensor != nullptr;
  if (!there) torch.formula = nullptr;
  return good;
}

// PyTorch has no kernel of its own for the formula, but a function that is called before autograd, which sees what that
// calls. So the kernel stands there too, and below, for tensors that autograd does not know.
bool register_formula() {
  return torch.library_init_impl("aten", "AutogradCPU", __FILE__, __LINE__, &registered_above) == 0 &&
         torch.library_impl(registered_above, kFormula, formula_kernel) == 0 &&
         torch.library_impl(registered, kFormula, formula_kernel) == 0;
}

bool find_all(PyObject* a) {
  return find(a, "library_init_impl", &torch.library_init_impl) && find(a, "library_impl", &torch.library_impl) &&
         find(a, "delete_library_object", &torch.delete_library_object) &&
         find(a, "delete_tensor_object", &torch.delete_tensor_object) && find(a, "get_data_ptr", &torch.get_data_ptr) &&
         find(a, "get_dim", &torch.get_dim) && find(a, "get_sizes", &torch.get_sizes) &&
         find(a, "get_strides", &torch.get_strides) && find(a, "get_dtype", &torch.get_dtype) &&
         find(a, "empty_strided", &torch.empty_strided) && find(a, "copy_", &torch.copy_) &&
         find(a, "theirs", &torch.theirs) && find(a, "get_num_threads", &torch.get_num_threads) &&
         find(a, "delete_value", &torch.delete_value) && find(a, "what", &torch.what, true) && find_formula(a) &&
         find(a, "check_fail", &torch.check_fail) && type_of(a, "dtype_float32", &torch.float32) &&
         type_of(a, "dtype_bfloat16", &torch.bfloat16) && type_of(a, "dtype_float16", &torch.float16) &&
         type_of(a, "dtype_float64", &torch.float64) && type_of(a, "dtype_bool", &torch.boolean);
}

}  // namespace

}  // namespace simdattn_python::aten

namespace simdattn_python {

using namespace aten;

// install_kernel(addresses, target, threads or 0, arithmetic or -1, always): puts the kernels in the place of
// PyTorch's, or gives those that are there these options.
PyObject* install_kernel(PyObject*, PyObject* arguments) {
  PyObject* addresses = nullptr;
  unsigned long long target = 0;
  unsigned threads = 0;
  int arithmetic = -1, always = 0;
  if (!PyArg_ParseTuple(arguments, "O!KIip", &PyDict_Type, &addresses, &target, &threads, &arithmetic, &always)) {
    return nullptr;
  }
  if (registered == nullptr && !find_all(addresses)) return nullptr;
  options = {reinterpret_cast<const simdattn_target*>(uintptr_t(target)), threads, arithmetic, always != 0};
  if (registered != nullptr) Py_RETURN_NONE;
  taken = 0, reasons_known = 0;
  if (torch.library_init_impl("aten", "CPU", __FILE__, __LINE__, &registered) != 0 ||
      torch.library_impl(registered, kName, kernel) != 0 || (torch.formula != nullptr && !register_formula())) {
    PyErr_SetString(PyExc_RuntimeError, "PyTorch does not register the kernel");
    return nullptr;
  }
  Py_RETURN_NONE;
}

// uninstall_kernel(): PyTorch's own again.
PyObject* uninstall_kernel(PyObject*, PyObject*) {
  for (void** one : {&registered, &registered_above}) {
    if (*one != nullptr) torch.delete_library_object(*one);
    *one = nullptr;
  }
  Py_RETURN_NONE;
}

// kernel_calls(): how many the kernel took, and a dict of why it gave others to PyTorch's.
PyObject* kernel_calls(PyObject*, PyObject*) {
  PyObject* others = PyDict_New();
  if (others == nullptr) return nullptr;
  pthread_mutex_lock(&reasons_lock);
  for (int i = 0; i < reasons_known; ++i) {
    PyObject* calls = PyLong_FromLongLong(reasons[i].calls);
    if (calls != nullptr) PyDict_SetItemString(others, reasons[i].text, calls);
    Py_XDECREF(calls);
  }
  pthread_mutex_unlock(&reasons_lock);
  if (PyErr_Occurred() != nullptr) return Py_DECREF(others), nullptr;
  return Py_BuildValue("LN", static_cast<long long>(taken), others);
}

}  // namespace simdattn_python
