// The fused kernel that PyTorch's scaled_dot_product_attention ends in on a CPU, in the place of PyTorch's own.
//
// PyTorch's operator makes its results and calls the kernel of the CPU's instruction set by a pointer (DispatchStub).
// That points here instead, so a call that is left to PyTorch costs a look at its types and sizes. To take the place of
// the whole operator costs more, because the dispatcher then makes boxes for arguments and results.
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

constexpr int32_t kCpu = 0;                                             // the device
constexpr const char* kFormula = "_scaled_dot_product_attention_math";  // for what the kernel does not take

AtenOptions options;
Kernel* before;  // what PyTorch's pointer was: null where PyTorch chooses the kernel again for each call
bool installed;
void* registered;        // the library object that has the formula; null: none
void* registered_above;  // that of the formula in the place of autograd

// ---- What calls came to ---------------------------------------------------------------------------------------------

struct Reason {
  char text[120];
  int64_t calls;
};
constexpr int kMostReasons = 32;
std::atomic<int64_t> taken, theirs_faster;
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

const char* Call::attend(Handle out_given, Handle lse_given) {
  Tensor result, result_lse;
  if (!result.read(out_given) || !result_lse.read(lse_given)) return "results without memory";
  const int64_t batch = q.shape[0], heads = q.shape[1], rows = q.shape[2], dim = result.shape[3];
  const bool direct = result.rows_are_contiguous();
  Tensor written = result;
  if (!direct) {
    const int64_t dense[4] = {rows * heads * dim, heads * dim, dim, 1};
    const Handle copy = make(result.shape, dense, q.type);
    if (copy == nullptr) return kNoMemory;
    copies[copied++] = copy;
    if (!written.read(copy)) return kNoMemory;
  }
  if (!pack_all()) return kNoMemory;

  DType types[4] = {};
  element_of(q.type, &types[0]), element_of(k.type, &types[1]), element_of(v.type, &types[2]);
  simdattn_attention_problem problem;
  problem.q = view_of(q, types[0]);
  problem.k = view_of(k, types[1]);
  problem.v = view_of(v, types[2]);
  problem.out = simdattn::View<4>(written.data, types[0], {batch, heads, rows, dim},
                                  {written.stride[0], written.stride[2], written.stride[1], 1});
  if (has_mask) {
    element_of(mask.type, &types[3]);
    (types[3] == DType::kU8 ? problem.scoring.mask : problem.scoring.bias) = view_of(mask, types[3]);
  }
  float* sums = static_cast<float*>(std::malloc(sizeof(float) * size_t(batch * heads * rows)));
  problem.lse = simdattn::View<3>(sums, DType::kF32, {batch, heads, rows});
  const char* reason = sums == nullptr ? kNoMemory : run(&problem, types);
  if (reason == nullptr) put_lse(sums, static_cast<float*>(result_lse.data), batch, heads, rows);
  std::free(sums);
  if (reason != nullptr) return reason;
  return direct || torch.copy_(out_given, written.handle, 0) == 0 ? nullptr : kNoMemory;
}

bool Call::read(Handle q_given, Handle k_given, Handle v_given, Handle mask_given) {
  has_mask = mask_given != nullptr;
  return q.read(q_given) && k.read(k_given) && v.read(v_given) && (!has_mask || mask.read(mask_given));
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
  }
}

namespace {

// Before all else, as this is asked of calls that take some microseconds.
bool theirs_is_faster(const Held& q, const Held& k) {
  int32_t type = 0;
  int64_t *n = nullptr, *n_kv = nullptr;
  return torch.get_dtype(handle_of(q), &type) == 0 && type == torch.float32 && torch.get_sizes(handle_of(q), &n) == 0 &&
         torch.get_sizes(handle_of(k), &n_kv) == 0 && n[1] == n_kv[1] && (n[2] == 1 || n[2] * n_kv[2] <= kFewScores);
}

// What PyTorch calls, when it has seen that there are four dimensions, no dropout, and one size of heads.
void kernel(const Held& out, const Held& lse, const Held& q, const Held& k, const Held& v, double dropout, bool causal,
            std::optional<Held> mask, std::optional<double> scale) {
  if (!options.always && theirs_is_faster(q, k)) {
    theirs_faster.fetch_add(1, std::memory_order_relaxed);
  } else {
    Call call;
    call.causal = causal, call.has_scale = scale.has_value(), call.scale = scale.value_or(0);
    const bool read = call.read(handle_of(q), handle_of(k), handle_of(v), mask ? handle_of(*mask) : nullptr);
    const char* reason = read ? call.unknown() : "tensors without memory";
    if (reason == nullptr) reason = call.attend(handle_of(out), handle_of(lse));
    call.end(reason);
    if (reason == nullptr) return;
  }
  torch.theirs(out, lse, q, k, v, dropout, causal, mask, scale);
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
         torch.library_init_impl("aten", "CPU", __FILE__, __LINE__, &registered) == 0 &&
         torch.library_impl(registered, kFormula, formula_kernel) == 0;
}

bool find_all(PyObject* a) {
  return find(a, "library_init_impl", &torch.library_init_impl) && find(a, "library_impl", &torch.library_impl) &&
         find(a, "delete_library_object", &torch.delete_library_object) &&
         find(a, "delete_tensor_object", &torch.delete_tensor_object) && find(a, "get_data_ptr", &torch.get_data_ptr) &&
         find(a, "get_dim", &torch.get_dim) && find(a, "get_sizes", &torch.get_sizes) &&
         find(a, "get_strides", &torch.get_strides) && find(a, "get_dtype", &torch.get_dtype) &&
         find(a, "empty_strided", &torch.empty_strided) && find(a, "copy_", &torch.copy_) &&
         find(a, "get_num_threads", &torch.get_num_threads) && find(a, "delete_value", &torch.delete_value) &&
         find(a, "place", &torch.place) && find(a, "theirs", &torch.theirs) && find_formula(a) &&
         type_of(a, "dtype_float32", &torch.float32) && type_of(a, "dtype_bfloat16", &torch.bfloat16) &&
         type_of(a, "dtype_float16", &torch.float16) && type_of(a, "dtype_float64", &torch.float64) &&
         type_of(a, "dtype_bool", &torch.boolean);
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
  if (!installed && !find_all(addresses)) return nullptr;
  options = {reinterpret_cast<const simdattn_target*>(uintptr_t(target)), threads, arithmetic, always != 0};
  if (installed) Py_RETURN_NONE;
  taken = 0, theirs_faster = 0, reasons_known = 0;
  if (torch.formula != nullptr && !register_formula()) {
    PyErr_SetString(PyExc_RuntimeError, "PyTorch does not register the kernel");
    return nullptr;
  }
  before = torch.place->exchange(kernel);
  installed = true;
  Py_RETURN_NONE;
}

// uninstall_kernel(): PyTorch's own again.
PyObject* uninstall_kernel(PyObject*, PyObject*) {
  if (installed) *torch.place = before;
  installed = false;
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
  const auto put = [others](const char* reason, int64_t n) {
    PyObject* calls = n > 0 ? PyLong_FromLongLong(n) : nullptr;
    if (calls != nullptr) PyDict_SetItemString(others, reason, calls);
    Py_XDECREF(calls);
  };
  put("float32, one row or few scores: PyTorch's kernel is faster", theirs_faster);
  pthread_mutex_lock(&reasons_lock);
  for (int i = 0; i < reasons_known; ++i) put(reasons[i].text, reasons[i].calls);
  pthread_mutex_unlock(&reasons_lock);
  if (PyErr_Occurred() != nullptr) return Py_DECREF(others), nullptr;
  return Py_BuildValue("LN", static_cast<long long>(taken), others);
}

}  // namespace simdattn_python
