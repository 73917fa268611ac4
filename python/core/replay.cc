// Calls that come again: the structs that Python made and checked for one are kept under a key of its arguments, and
// the next call with an equal key differs by addresses alone. The library checks each call as ever.
#include <cstdlib>
#include <cstring>

#include "python/core/core.h"

namespace simdattn_python {

namespace {

using simdattn::Code;

constexpr int kMostArguments = 48, kMostMade = 2;
constexpr size_t kMostBytes = 4096;
constexpr Py_ssize_t kMostKeys = 1024;

struct Patch {
  int64_t offset, argument;  // argument below 0: result -1 - argument, which is made
};

// What a patch writes for an argument: an address, or the struct of a store.
struct Piece {
  const void* data;
  size_t bytes;
};
Piece piece_of(const Array& array) {
  return array.store ? Piece{array.data, sizeof(simdattn_kv)} : Piece{&array.data, sizeof(void*)};
}

struct Template {
  Function function;
  size_t bytes;
  char block[kMostBytes];
  int64_t parts[kMostParts];
  const simdattn_target* target;
  int patches, makes, results;
  Patch patch[kMostArguments];
  PyObject* make[kMostMade];  // callables without arguments: arrays for results
  int64_t result[2];          // as Patch::argument
  int64_t threads;            // which argument says how many; -1: none
  int64_t lengths, added;     // which argument is int32 numbers that rise after the call, and by how much; -1: none
  PyObject* keep;             // what the block points to beside the arguments
};

void free_template(PyObject* capsule) {
  auto* t = static_cast<Template*>(PyCapsule_GetPointer(capsule, "simdattn.template"));
  for (int i = 0; i < t->makes; ++i) Py_XDECREF(t->make[i]);
  Py_XDECREF(t->keep);
  std::free(t);
}

struct Call {
  Key key;
  Array arrays[kMostArguments];
  int count = 0;
  bool tensors = false;
  bool describe(PyObject* arguments);
};

bool Call::describe(PyObject* arguments) {
  const Py_ssize_t n = PyTuple_Size(arguments);
  if (n > kMostArguments) return false;
  count = int(n);
  for (int i = 0; i < count; ++i) {
    if (!simdattn_python::describe(PyTuple_GetItem(arguments, i), &key, &arrays[i], &tensors)) return false;
  }
  return key.fits;
}

// Results that nobody gave an array for.
bool make_results(const Template& t, char* block, PyObject** made) {
  for (int i = 0; i < t.makes; ++i) {
    made[i] = PyObject_CallObject(t.make[i], nullptr);
    if (made[i] == nullptr) return false;
    void* data = memory_of_new(made[i]);
    if (data == nullptr) return false;
    for (int p = 0; p < t.patches; ++p) {
      if (t.patch[p].argument == -1 - i) std::memcpy(block + t.patch[p].offset, &data, sizeof(void*));
    }
  }
  return true;
}

// Autograd learns what was written, as in the long way.
bool mark_results(const Template& t, const Call& call, PyObject* arguments) {
  for (int p = 0; p < t.results; ++p) {
    const int64_t i = t.result[p];
    if (i < 0 || !call.arrays[i].tensor) continue;  // no fault: the first argument is no result
    PyObject* list = PyList_New(0);
    if (list == nullptr) return false;
    PyObject* done = PyList_Append(list, PyTuple_GetItem(arguments, Py_ssize_t(i))) != 0
                         ? nullptr
                         : PyObject_CallFunctionObjArgs(types.mark_written, list, nullptr);
    Py_DECREF(list);
    if (done == nullptr) return false;
    Py_DECREF(done);
  }
  return true;
}

PyObject* results_of(const Template& t, PyObject* arguments, PyObject** made) {
  PyObject* found[2] = {};
  for (int i = 0; i < t.results; ++i) {
    const int64_t at = t.result[i];
    found[i] = at < 0 ? made[-1 - at] : PyTuple_GetItem(arguments, Py_ssize_t(at));
    Py_INCREF(found[i]);
  }
  if (t.results == 0) Py_RETURN_NOTIMPLEMENTED;
  if (t.results == 1) return found[0];
  PyObject* pair = PyTuple_Pack(2, found[0], found[1]);
  Py_DECREF(found[0]);
  Py_DECREF(found[1]);
  return pair;
}

void raise_lengths(const Template& t, const Call& call, char* block) {
  if (t.lengths < 0) return;
  auto* lengths = static_cast<int32_t*>(call.arrays[t.lengths].data);
  const auto* rows = reinterpret_cast<const simdattn_const_view4*>(block + t.parts[0]);  // no fault: it is 0
  for (int64_t b = 0; b < rows->shape[0]; ++b) lengths[b] += int32_t(t.added);
}

// The call, or None where it is refused: the long way says why. `made` are the caller's to give back.
PyObject* run_template(const Template& t, const Call& call, PyObject* arguments, PyObject** made) {
  alignas(64) char block[kMostBytes];
  std::memcpy(block, t.block, t.bytes);
  for (int p = 0; p < t.patches; ++p) {
    if (t.patch[p].argument < 0) continue;
    const Piece piece = piece_of(call.arrays[t.patch[p].argument]);
    std::memcpy(block + t.patch[p].offset, piece.data, piece.bytes);
  }
  if (!make_results(t, block, made)) return PyErr_Occurred() != nullptr ? nullptr : (Py_INCREF(Py_None), Py_None);
  PyObject* threads = t.threads < 0 ? Py_None : PyTuple_GetItem(arguments, Py_ssize_t(t.threads));
  simdattn_status status;
  if (!run({t.function, block, t.parts, t.target, threads, call.tensors}, &status)) return nullptr;
  if (status.code != Code::kOk) Py_RETURN_NONE;
  raise_lengths(t, call, block);
  if (call.tensors && !mark_results(t, call, arguments)) return nullptr;
  return results_of(t, arguments, made);
}

bool numbers(PyObject* tuple, int64_t* out, Py_ssize_t most, int* count) {
  const Py_ssize_t n = PyTuple_Size(tuple);
  if (n < 0 || n > most) return false;
  for (Py_ssize_t i = 0; i < n; ++i) out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  if (count != nullptr) *count = int(n);
  return PyErr_Occurred() == nullptr;
}

// From (function, block, parts, target, patches, makes, results, threads, lengths, added, keep), as _run.py makes it;
// null: an exception.
Template* read_template(PyObject* description) {
  int function = 0;
  const char* block = nullptr;
  Py_ssize_t bytes = 0;
  PyObject *parts = nullptr, *patches = nullptr, *makes = nullptr, *results = nullptr, *keep = nullptr;
  unsigned long long target = 0;
  long long threads = -1, lengths = -1, added = 0;
  if (!PyArg_ParseTuple(description, "iy#O!KO!O!O!LLLO", &function, &block, &bytes, &PyTuple_Type, &parts, &target,
                        &PyTuple_Type, &patches, &PyTuple_Type, &makes, &PyTuple_Type, &results, &threads, &lengths,
                        &added, &keep)) {
    return nullptr;
  }
  auto* t = static_cast<Template*>(std::calloc(1, sizeof(Template)));
  if (t == nullptr) return PyErr_NoMemory(), nullptr;
  int64_t flat[2 * kMostArguments];
  int flat_count = 0;
  const bool good = size_t(bytes) <= kMostBytes && function >= 0 && function < kFunctions &&
                    PyTuple_Size(makes) <= kMostMade && numbers(parts, t->parts, kMostParts, nullptr) &&
                    numbers(patches, flat, 2 * kMostArguments, &flat_count) &&
                    numbers(results, t->result, 2, &t->results);
  if (!good) {
    std::free(t);
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, "a description that no call has");
    return nullptr;
  }
  t->function = Function(function);
  t->bytes = size_t(bytes);
  std::memcpy(t->block, block, t->bytes);
  t->target = reinterpret_cast<const simdattn_target*>(uintptr_t(target));
  t->patches = flat_count / 2;
  for (int i = 0; i < t->patches; ++i) t->patch[i] = {flat[2 * i], flat[2 * i + 1]};
  t->threads = threads, t->lengths = lengths, t->added = added;
  t->makes = int(PyTuple_Size(makes));
  for (int i = 0; i < t->makes; ++i) t->make[i] = PyTuple_GetItem(makes, i), Py_INCREF(t->make[i]);
  t->keep = keep, Py_INCREF(keep);
  return t;
}

// Whether every address in the block is that of the argument it is said to be: a copy that Python made is not.
bool addresses_match(const Template& t, const Call& call) {
  for (int p = 0; p < t.patches; ++p) {
    const Patch& patch = t.patch[p];
    if (patch.argument < -kMostMade || patch.argument >= call.count || patch.offset < 0) return false;
    const Piece piece = patch.argument < 0 ? Piece{nullptr, sizeof(void*)} : piece_of(call.arrays[patch.argument]);
    if (size_t(patch.offset) + piece.bytes > t.bytes) return false;
    if (piece.data != nullptr && std::memcmp(t.block + patch.offset, piece.data, piece.bytes) != 0) return false;
  }
  return true;
}

}  // namespace

// replay(templates, arguments): the result, NotImplemented if there is none. False: the arguments are new; True: they
// came before, learn() them; None: the long way.
PyObject* replay(PyObject*, PyObject* given) {
  PyObject *templates = nullptr, *arguments = nullptr;
  if (!PyArg_ParseTuple(given, "O!O!", &PyDict_Type, &templates, &PyTuple_Type, &arguments)) return nullptr;
  Call call;
  if (!call.describe(arguments)) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  PyObject* key = PyBytes_FromStringAndSize(call.key.bytes, Py_ssize_t(call.key.size));
  if (key == nullptr) return nullptr;
  PyObject* found = PyDict_GetItemWithError(templates, key);
  if (found == nullptr) {
    if (PyDict_Size(templates) >= kMostKeys) PyDict_Clear(templates);
    const int stored = PyErr_Occurred() != nullptr ? -1 : PyDict_SetItem(templates, key, Py_False);
    Py_DECREF(key);
    if (stored != 0) return nullptr;
    Py_RETURN_FALSE;
  }
  Py_DECREF(key);
  if (found == Py_False) Py_RETURN_TRUE;
  if (found == Py_None) Py_RETURN_NONE;
  Py_INCREF(found);  // the call lets other threads in, which may forget it
  PyObject* made[kMostMade] = {};
  const auto* t = static_cast<const Template*>(PyCapsule_GetPointer(found, "simdattn.template"));
  PyObject* result = t == nullptr ? nullptr : run_template(*t, call, arguments, made);
  for (PyObject* x : made) Py_XDECREF(x);
  Py_DECREF(found);
  return result;
}

// learn(templates, arguments, description): keeps a call that went the long way, or None: that it has to.
PyObject* learn(PyObject*, PyObject* given) {
  PyObject *templates = nullptr, *arguments = nullptr, *description = nullptr;
  if (!PyArg_ParseTuple(given, "O!O!O", &PyDict_Type, &templates, &PyTuple_Type, &arguments, &description))
    return nullptr;
  Call call;
  if (!call.describe(arguments)) Py_RETURN_NONE;
  if (description == Py_None) {  // a call that always takes the long way
    PyObject* key = PyBytes_FromStringAndSize(call.key.bytes, Py_ssize_t(call.key.size));
    const bool stored = key != nullptr && PyDict_SetItem(templates, key, Py_None) == 0;
    Py_XDECREF(key);
    return stored ? (Py_INCREF(Py_None), Py_None) : nullptr;
  }
  Template* t = read_template(description);
  if (t == nullptr) return nullptr;
  PyObject* kept = PyCapsule_New(t, "simdattn.template", free_template);
  PyObject* key = PyBytes_FromStringAndSize(call.key.bytes, Py_ssize_t(call.key.size));
  const bool matches = addresses_match(*t, call);
  const bool stored =
      kept != nullptr && key != nullptr && PyDict_SetItem(templates, key, matches ? kept : Py_None) == 0;
  Py_XDECREF(kept);
  Py_XDECREF(key);
  if (!stored) return nullptr;
  return PyBool_FromLong(matches);
}

}  // namespace simdattn_python
