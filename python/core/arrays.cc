// Where the numbers of arrays are: NumPy's by the buffer protocol, PyTorch's by DLPack's C exchange interface.
#include <cstring>

#include "python/core/core.h"

// The buffer protocol is part of the stable ABI from Python 3.11 on. Its functions and this struct are the same since
// 3.3, so they are used from 3.9 on; Python.h hides them there.
#if Py_LIMITED_API < 0x030B0000
extern "C" {
struct bufferinfo {
  void* buf;
  PyObject* obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char* format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void* internal;
};
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject* x, bufferinfo* view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(bufferinfo* view);
}
#endif

namespace simdattn_python {

Types types;

namespace {

using simdattn::DType;

constexpr int kMostDims = 16;
constexpr int kRecordsReadOnly = 0x1C;  // PyBUF_RECORDS_RO: shape, strides, format

// ---- DLPack 1.x -----------------------------------------------------------------------------------------------------

struct DLTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major, minor;
  void* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void* object, DLTensor* tensor);
  void* current_stream;
};

const ExchangeApi* exchange;

int dtype_of(uint8_t code, uint8_t bits) {
  switch (code << 8 | bits) {
    case 2 << 8 | 32: return int(DType::kF32);
    case 4 << 8 | 16: return int(DType::kBF16);
    case 2 << 8 | 16: return int(DType::kF16);
    case 6 << 8 | 8:
    case 1 << 8 | 8: return int(DType::kU8);
    case 0 << 8 | 32: return int(DType::kI32);
    case 0 << 8 | 64: return int(DType::kI64);
    default: return -1;
  }
}

int dtype_of(const char* format, Py_ssize_t size, bool bf16) {
  if (format == nullptr || format[0] == 0 || format[1] != 0) return -1;
  switch (format[0]) {
    case 'f': return int(DType::kF32);
    case 'e': return int(DType::kF16);
    case 'H': return bf16 ? int(DType::kBF16) : -1;  // no fault: any number below 0
    case 'B':
    case '?': return int(DType::kU8);
    case 'i':
    case 'l':
    case 'q': return size == 4 ? int(DType::kI32) : int(DType::kI64);
    default: return -1;
  }
}

// An address that the library takes, and a shape with numbers in it: the rest is for the long way.
bool usable(const void* data, const int64_t* shape, int rank, int64_t element) {
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == 0) return false;
  }
  return data != nullptr && reinterpret_cast<uintptr_t>(data) % uintptr_t(element) == 0;
}

void put_array(Key* key, char kind, int dtype, bool writable, int rank, const int64_t* shape, const int64_t* strides) {
  const char head[4] = {kind, char(dtype), char(writable), char(rank)};
  key->put(head, sizeof(head));
  key->put(shape, sizeof(int64_t) * size_t(rank));
  key->put(strides, sizeof(int64_t) * size_t(rank));
}

bool describe_numpy(PyObject* x, bool bf16, Key* key, Array* array) {
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "sizes of NumPy's arrays");
  bufferinfo view;
  if (PyObject_GetBuffer(x, &view, kRecordsReadOnly) != 0) {
    PyErr_Clear();
    return false;
  }
  const int dtype = dtype_of(view.format, view.itemsize, bf16);
  const auto* shape = reinterpret_cast<const int64_t*>(view.shape);
  const bool good = dtype >= 0 && view.ndim <= kMostDims && usable(view.buf, shape, view.ndim, view.itemsize);
  if (good) {
    *array = {view.buf, view.readonly == 0, false};
    put_array(key, bf16 ? 'B' : 'A', dtype, array->writable, view.ndim, shape,
              reinterpret_cast<const int64_t*>(view.strides));
  }
  PyBuffer_Release(&view);  // the caller holds the array, and with it the memory
  return good;
}

// ---- PyTorch --------------------------------------------------------------------------------------------------------

bool is_true(PyObject* owned) {
  const bool yes = owned == Py_True;
  if (owned == nullptr) PyErr_Clear();
  Py_XDECREF(owned);
  return yes;
}

struct Names {
  PyObject *requires_grad, *is_neg, *is_cpu, *data_ptr, *stride, *shape, *dtype, *address;
};
const Names& names() {
  static const Names found = {PyUnicode_InternFromString("requires_grad"), PyUnicode_InternFromString("is_neg"),
                              PyUnicode_InternFromString("is_cpu"),        PyUnicode_InternFromString("data_ptr"),
                              PyUnicode_InternFromString("stride"),        PyUnicode_InternFromString("shape"),
                              PyUnicode_InternFromString("dtype"),         PyUnicode_InternFromString("address")};
  return found;
}

bool numbers_of(PyObject* owned, int64_t* numbers, int* rank) {
  bool good = owned != nullptr && PyTuple_Check(owned) && PyTuple_Size(owned) <= kMostDims;
  if (good) {
    *rank = int(PyTuple_Size(owned));
    for (int i = 0; i < *rank; ++i) numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(owned, i));
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear(), good = false;
  Py_XDECREF(owned);
  return good;
}

// PyTorch before 2.10 has no C interface that a program may use without linking it.
bool ask_tensor(PyObject* x, Key* key, Array* array) {
  int64_t shape[kMostDims], strides[kMostDims];
  int rank = 0, strided = 0;
  if (!is_true(PyObject_GetAttr(x, names().is_cpu))) return false;
  if (!numbers_of(PyObject_GetAttr(x, names().shape), shape, &rank)) return false;
  if (!numbers_of(PyObject_CallMethodObjArgs(x, names().stride, nullptr), strides, &strided) || strided != rank)
    return false;
  PyObject* pointer = PyObject_CallMethodObjArgs(x, names().data_ptr, nullptr);
  PyObject* dtype = pointer == nullptr ? nullptr : PyObject_GetAttr(x, names().dtype);
  array->data = pointer == nullptr ? nullptr : PyLong_AsVoidPtr(pointer);
  Py_XDECREF(pointer);
  Py_XDECREF(dtype);  // PyTorch's dtypes are there for ever
  if (PyErr_Occurred() != nullptr) PyErr_Clear(), array->data = nullptr;
  if (array->data == nullptr || dtype == nullptr || !usable(array->data, shape, rank, 1)) return false;
  array->writable = array->tensor = true;
  put_array(key, 'P', 0, true, rank, shape, strides);
  key->put_number(dtype);
  return true;
}

bool describe_memory(PyObject* x, Key* key, Array* array) {
  if (exchange == nullptr) return ask_tensor(x, key, array);
  DLTensor t;
  if (exchange->tensor_from_object(x, &t) != 0) {
    PyErr_Clear();
    return false;
  }
  const int dtype = t.lanes == 1 ? dtype_of(t.code, t.bits) : -1;
  void* data = static_cast<char*>(t.data) + t.byte_offset;
  if (t.device_type != 1 || dtype < 0 || t.ndim > kMostDims || t.strides == nullptr ||
      !usable(data, t.shape, t.ndim, t.bits / 8)) {
    return false;
  }
  *array = {data, true, true};
  put_array(key, 'T', dtype, true, t.ndim, t.shape, t.strides);
  return true;
}

bool describe_tensor(PyObject* x, Key* key, Array* array) {
  return !is_true(PyObject_GetAttr(x, names().requires_grad)) &&
         !is_true(PyObject_CallMethodObjArgs(x, names().is_neg, nullptr)) && describe_memory(x, key, array);
}

bool describe_number(PyObject* x, Key* key) {
  if (PyFloat_CheckExact(x)) {
    key->put("f", 1);
    key->put_number(PyFloat_AsDouble(x));
    return true;
  }
  if (!PyLong_CheckExact(x)) return false;
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(x, &overflow);
  key->put("i", 1);
  key->put_number(n);
  return overflow == 0;
}

bool describe_word(PyObject* x, Key* key) {
  wchar_t word[33];
  const Py_ssize_t n = PyUnicode_GetLength(x) <= 32 ? PyUnicode_AsWideChar(x, word, 33) : -1;
  if (n < 0) return PyErr_Clear(), false;
  key->put("s", 1);
  key->put_number(int32_t(n));
  key->put(word, sizeof(wchar_t) * size_t(n));
  return true;
}

// Stores of caches are equal if their structs are, but for addresses.
bool describe_store(PyObject* x, Key* key, Array* array) {
  PyObject* address = PyObject_GetAttr(x, names().address);
  if (address == nullptr) return PyErr_Clear(), false;
  *array = {PyLong_AsVoidPtr(address), false, false, true};
  Py_DECREF(address);
  simdattn_kv kv;
  std::memcpy(&kv, array->data, sizeof(kv));
  kv.data = kv.scales = nullptr, kv.block_table = nullptr;
  key->put("S", 1);
  key->put(&kv, sizeof(kv));
  return true;
}

}  // namespace

void Key::put(const void* data, size_t n) {
  fits = fits && size + n <= sizeof(bytes);
  if (!fits) return;
  std::memcpy(bytes + size, data, n);
  size += n;
}

bool find_exchange(PyObject* tensor_type) {
  exchange = nullptr;
  PyObject* capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
  if (capsule != nullptr) {
    const auto* found = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (found != nullptr && found->major == 1 && found->tensor_from_object != nullptr) exchange = found;
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  return exchange != nullptr;
}

void* memory_of_new(PyObject* x) {
  Key unused;
  Array array;
  bool plain = true;
  const bool tensor = reinterpret_cast<PyObject*>(Py_TYPE(x)) == types.tensor;
  const bool good = tensor ? describe_memory(x, &unused, &array) : describe(x, &unused, &array, &plain);
  return good ? array.data : nullptr;
}

bool describe(PyObject* x, Key* key, Array* array, bool* plain_checked) {
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(x));
  *array = {};
  if (x == Py_None) return key->put("N", 1), true;
  if (x == Py_True || x == Py_False) return key->put(x == Py_True ? "1" : "0", 1), true;
  if (type == types.ndarray || type == types.bf16) return describe_numpy(x, type == types.bf16, key, array);
  if (type == types.tensor || type == types.parameter) {
    if (!*plain_checked) {
      if (!is_true(PyObject_CallObject(types.is_plain, nullptr))) return false;
      *plain_checked = true;
    }
    return describe_tensor(x, key, array);
  }
  if (type == types.store) return describe_store(x, key, array);
  if (PyUnicode_CheckExact(x)) return describe_word(x, key);
  return describe_number(x, key);
}

}  // namespace simdattn_python
