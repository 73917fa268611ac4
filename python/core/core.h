// The extension module simdattn._core: the calls that models make for every token, without ctypes.
//
// The limited API of Python 3.9: one file serves every CPython from there on. It links nothing but the C library; the
// functions of simdattn are those that ctypes has loaded, whose addresses _run.py gives.
#pragma once

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "simdattn/simdattn_c.h"

namespace simdattn_python {

// ---- Functions of the library ---------------------------------------------------------------------------------------

struct Library {
  decltype(&simdattn_arithmetic_for) arithmetic_for;
  decltype(&simdattn_attention) attention;
  decltype(&simdattn_attention_plan) attention_plan;
  decltype(&simdattn_attention_range) attention_range;
  decltype(&simdattn_attention_reduce) attention_reduce;
  decltype(&simdattn_rope) rope;
  decltype(&simdattn_masked_softmax) masked_softmax;
  decltype(&simdattn_kv_append) kv_append;
};
extern Library library;

// ---- Arrays (arrays.cc) ---------------------------------------------------------------------------------------------

// What an argument is, as bytes: arguments with equal keys make the same C call, but for addresses.
struct Key {
  char bytes[2048];
  size_t size = 0;
  bool fits = true;
  void put(const void* data, size_t n);
  template <class T>
  void put_number(T x) {
    put(&x, sizeof(x));
  }
};

struct Array {
  void* data = nullptr;  // null: the argument is no array
  bool writable = false;
  bool tensor = false;  // PyTorch's
  bool store = false;   // of a cache: `data` is its simdattn_kv
};

// What arrays.cc has to know of Python's types. Null: not there (yet).
struct Types {
  PyObject* ndarray;      // numpy.ndarray
  PyObject* bf16;         // simdattn.BF16
  PyObject* store;        // simdattn.Store
  PyObject* tensor;       // torch.Tensor
  PyObject* parameter;    // torch.nn.Parameter
  PyObject* is_plain;     // whether PyTorch neither records nor transforms calls
  PyObject* num_threads;  // torch.get_num_threads
  PyObject* mark_written;
};
extern Types types;

// Finds the DLPack exchange interface of torch.Tensor; without one (PyTorch before 2.10) tensors are asked by their
// methods.
bool find_exchange(PyObject* tensor_type);

// Appends the argument to the key, and where its numbers are to `array`. False: it cannot be in a key, and the call
// takes the long way, which says what is wrong, if anything is. `plain_checked`: whether this call has asked PyTorch
// already.
bool describe(PyObject* x, Key* key, Array* array, bool* plain_checked);

// Where the numbers of an array are that was just made; null: nowhere that the library takes.
void* memory_of_new(PyObject* x);

// ---- Threads (team.cc) ----------------------------------------------------------------------------------------------

// Calls function(argument) on this thread and up to n - 1 others, and waits. With `openmp` the others are PyTorch's
// own, which wait for its next operation anyway; else, and in a forked child, they are threads that sleep between
// calls.
void run_team(void (*function)(void*), void* argument, int n, bool openmp);
void set_openmp(void* parallel);  // the address of GOMP_parallel, as PyTorch's OpenMP has it; of this process alone

// ---- Running (run.cc) -----------------------------------------------------------------------------------------------

enum Function { kAttention, kRope, kSoftmax, kAppend, kFunctions };

struct Running {
  Function function;
  char* block;           // structs, one behind the other
  const int64_t* parts;  // where each of the function's arguments lies in it; -1: null
  const simdattn_target* target;
  PyObject* threads;  // None, or how many at most
  bool tensor;        // PyTorch's number of threads is meant
};
constexpr int kMostParts = 9;

// Runs with the GIL released. False: a Python exception was raised, by a signal or for want of memory.
bool run(const Running& what, simdattn_status* status);

// Attention of a thread that need not have the GIL, shared by PyTorch's threads, at most `threads`. False: no memory.
bool run_by_torch(const simdattn_attention_problem& problem, const simdattn_target* target, int threads,
                  simdattn_status* status);

extern int threads_of_process;    // where no framework says how many
extern int64_t work_of_a_thread;  // multiply-adds below which another thread costs more than it does

// ---- PyTorch's kernel (aten.cc) -------------------------------------------------------------------------------------

struct AtenOptions {
  const simdattn_target* target;
  uint32_t threads;    // at most; 0: as many as PyTorch has
  int32_t arithmetic;  // -1: what is fastest for the types
  bool always;         // also calls for which PyTorch's kernel is faster
};

PyObject* install_kernel(PyObject* self, PyObject* arguments);
PyObject* uninstall_kernel(PyObject* self, PyObject* unused);
PyObject* kernel_calls(PyObject* self, PyObject* unused);

// ---- Calls that come again (replay.cc) ------------------------------------------------------------------------------

PyObject* replay(PyObject* self, PyObject* arguments);
PyObject* learn(PyObject* self, PyObject* arguments);

}  // namespace simdattn_python
