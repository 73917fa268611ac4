// What simdattn._core shows to Python; _run.py alone calls it.
#include <initializer_list>

#include "python/core/core.h"

namespace simdattn_python {

namespace {

// A function's address from a dict of them.
template <class F>
bool take(PyObject* addresses, const char* name, F** function) {
  PyObject* address = PyDict_GetItemString(addresses, name);  // borrowed
  if (address == nullptr) return PyErr_Format(PyExc_KeyError, "%s", name), false;
  *function = reinterpret_cast<F*>(PyLong_AsVoidPtr(address));
  return PyErr_Occurred() == nullptr;
}

// setup(addresses of functions, types by name, threads of the process)
PyObject* setup(PyObject*, PyObject* arguments) {
  PyObject *addresses = nullptr, *given = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!i", &PyDict_Type, &addresses, &PyDict_Type, &given, &threads_of_process))
    return nullptr;
  if (!take(addresses, "simdattn_arithmetic_for", &library.arithmetic_for) ||
      !take(addresses, "simdattn_attention", &library.attention) || !take(addresses, "simdattn_rope", &library.rope) ||
      !take(addresses, "simdattn_attention_plan", &library.attention_plan) ||
      !take(addresses, "simdattn_attention_range", &library.attention_range) ||
      !take(addresses, "simdattn_attention_reduce", &library.attention_reduce) ||
      !take(addresses, "simdattn_masked_softmax", &library.masked_softmax) ||
      !take(addresses, "simdattn_kv_append", &library.kv_append)) {
    return nullptr;
  }
  struct {
    const char* name;
    PyObject** type;
  } const places[] = {{"ndarray", &types.ndarray},
                      {"bf16", &types.bf16},
                      {"store", &types.store},
                      {"mark_written", &types.mark_written}};
  for (const auto& place : places) {
    *place.type = PyDict_GetItemString(given, place.name);
    Py_XINCREF(*place.type);
  }
  Py_RETURN_NONE;
}

// setup_torch(Tensor, Parameter, is_plain, get_num_threads, address of GOMP_parallel or 0): whether there is DLPack's C
// interface
PyObject* setup_torch(PyObject*, PyObject* arguments) {
  unsigned long long parallel = 0;
  if (!PyArg_ParseTuple(arguments, "OOOOK", &types.tensor, &types.parameter, &types.is_plain, &types.num_threads,
                        &parallel)) {
    return nullptr;
  }
  for (PyObject* x : {types.tensor, types.parameter, types.is_plain, types.num_threads}) Py_INCREF(x);
  set_openmp(reinterpret_cast<void*>(uintptr_t(parallel)));
  return PyBool_FromLong(find_exchange(types.tensor));
}

// run(function, block, parts, target, threads, tensor): (code, detail); the block is a bytearray.
PyObject* run_once(PyObject*, PyObject* arguments) {
  int function = 0, tensor = 0;
  PyObject *block = nullptr, *parts = nullptr, *threads = nullptr;
  unsigned long long target = 0;
  if (!PyArg_ParseTuple(arguments, "iO!O!KOp", &function, &PyByteArray_Type, &block, &PyTuple_Type, &parts, &target,
                        &threads, &tensor)) {
    return nullptr;
  }
  int64_t offsets[kMostParts] = {};
  for (Py_ssize_t i = 0; i < PyTuple_Size(parts) && i < kMostParts; ++i)
    offsets[i] = PyLong_AsLongLong(PyTuple_GetItem(parts, i));
  if (PyErr_Occurred() != nullptr) return nullptr;
  simdattn_status status;
  const auto* resolved = reinterpret_cast<const simdattn_target*>(uintptr_t(target));
  if (!run({Function(function), PyByteArray_AsString(block), offsets, resolved, threads, tensor != 0}, &status))
    return nullptr;
  return Py_BuildValue("is", int(status.code), status.detail);
}

// set_work_of_a_thread(multiply-adds): the former number
PyObject* set_work(PyObject*, PyObject* number) {
  const long long wanted = PyLong_AsLongLong(number), former = work_of_a_thread;
  if (PyErr_Occurred() != nullptr) return nullptr;
  work_of_a_thread = wanted > 0 ? wanted : 1;
  return PyLong_FromLongLong(former);
}

// A call of an extension and nothing else, to compare with.
PyObject* nothing(PyObject*, PyObject*) { Py_RETURN_NONE; }

PyMethodDef methods[] = {{"setup", setup, METH_VARARGS, nullptr},
                         {"setup_torch", setup_torch, METH_VARARGS, nullptr},
                         {"run", run_once, METH_VARARGS, nullptr},
                         {"replay", replay, METH_VARARGS, nullptr},
                         {"learn", learn, METH_VARARGS, nullptr},
                         {"set_work_of_a_thread", set_work, METH_O, nullptr},
                         {"install_kernel", install_kernel, METH_VARARGS, nullptr},
                         {"uninstall_kernel", uninstall_kernel, METH_NOARGS, nullptr},
                         {"kernel_calls", kernel_calls, METH_NOARGS, nullptr},
                         {"nothing", nothing, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "simdattn._core", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

}  // namespace simdattn_python

PyMODINIT_FUNC PyInit__core() { return PyModule_Create(&simdattn_python::definition); }
