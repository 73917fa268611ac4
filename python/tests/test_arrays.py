"""Arrays from elsewhere: nothing is copied, nothing outlives its owner, nothing read-only is written."""
import ctypes
import gc
import weakref

import numpy as np
import pytest

import simdattn
from simdattn import _dlpack
from simdattn._abi import Code
from simdattn._arrays import operand

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_address = ctypes.pythonapi.PyCapsule_GetPointer


class Producer:
    """Another library's array: a capsule of each kind, made by hand. Counts what it has lent and got back."""

    def __init__(self, array, kind, versioned=False, read_only=False, strides=True, offset=0, device=1, major=1):
        self.array, self.lent, self.returned, self.device = array, 0, 0, device
        self.arguments = (kind, read_only, strides, offset, major)
        self.versioned = versioned
        self.alive = {}

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError('no max_version here')
        (code, bits), read_only, strides, offset, major = self.arguments
        managed = _dlpack._Versioned()
        managed.major, managed.flags = major, int(read_only)
        a = self.array
        shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        steps = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        managed.tensor = _dlpack._Tensor(a.ctypes.data - offset, self.device, 0, a.ndim, code, bits, 1,
                                         ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
                                         ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)) if strides else None, offset)
        start = ctypes.addressof(managed) + (0 if self.versioned else _dlpack._Versioned.tensor.offset)

        def destroy(_capsule):
            self.returned += 1

        callback = _DESTRUCTOR(destroy)
        self.alive[start] = managed, shape, steps, callback
        self.lent += 1
        name = b'dltensor_versioned' if self.versioned else b'dltensor'
        return _new(start, name, ctypes.cast(callback, ctypes.c_void_p))


F32, F16, BF16, BOOL, I64 = (2, 32), (2, 16), (4, 16), (6, 8), (0, 64)


def tensors(random):
    return (random.standard_normal((2, 4, 6, 8)).astype(np.float32), random.standard_normal((2, 2, 9, 8)).astype(np.float32),
            random.standard_normal((2, 2, 9, 8)).astype(np.float32))


@pytest.mark.parametrize('options', [{}, {'versioned': True}, {'strides': False}, {'offset': 64}])
def test_dlpack_is_read_in_place(random, options):
    q, k, v = tensors(random)
    expected = simdattn.attention(q, k, v)
    producers = [Producer(x, F32, **options) for x in (q, k, v)]
    out = np.zeros_like(expected)
    target = Producer(out, F32, **options)
    simdattn.attention(*producers, out=target)
    assert out.tobytes() == expected.tobytes()
    gc.collect()
    assert [(p.lent, p.returned) for p in (*producers, target)] == [(1, 1)] * 4


def test_dlpack_strides(random):
    q, k, v = tensors(random)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    assert simdattn.attention(*(Producer(x, F32) for x in turned)).tobytes() == simdattn.attention(q, k, v).tobytes()


def test_dlpack_bfloat16_and_bool(random):
    q, k, v = (simdattn.to_bf16(x) for x in tensors(random))
    keep = random.random((6, 9)) < 0.7
    expected = simdattn.attention(q, k, v, mask=keep)
    assert isinstance(expected, simdattn.BF16)
    plain = [x.view(np.ndarray) for x in (q, k, v)]
    out = simdattn.attention(*(Producer(x, BF16) for x in plain), mask=Producer(keep, BOOL))
    assert isinstance(out, simdattn.BF16) and out.tobytes() == expected.tobytes()


def test_dlpack_lives_as_long_as_the_plan(random):
    q, k, v = tensors(random)
    producers = [Producer(x, F32) for x in (q, k, v)]
    plan = simdattn.Plan(*producers)
    gc.collect()
    assert [p.returned for p in producers] == [0, 0, 0]
    assert plan.run().tobytes() == simdattn.attention(q, k, v).tobytes()
    del plan
    gc.collect()
    assert [p.returned for p in producers] == [1, 1, 1]


def test_plans_keep_arrays_of_numpy(random):
    q, k, v = tensors(random)
    expected = simdattn.attention(q, k, v, kv_length=[9, 5])
    plan = simdattn.Plan(q, k, v, kv_length=[9, 5])
    watched = [weakref.ref(x) for x in (q, k, v)]
    del q, k, v
    gc.collect()
    assert all(w() is not None for w in watched)
    assert plan.run().tobytes() == expected.tobytes()
    del plan
    gc.collect()
    assert all(w() is None for w in watched)


def refused(code, match, call, *unchanged):
    """The call raises, with the code and the sentence, and writes nothing."""
    before = [x.tobytes() for x in unchanged]
    with pytest.raises(simdattn.Error, match=match) as caught:
        call()
    assert caught.value.code is code
    assert isinstance(caught.value, ValueError) and caught.value.detail in str(caught.value)
    assert [x.tobytes() for x in unchanged] == before


def test_read_only_outputs_are_refused(random):
    q, k, v = tensors(random)
    out = np.full_like(q, 7)
    frozen = out.view()
    frozen.flags.writeable = False
    refused(Code.OVERLAP, 'out: is read-only', lambda: simdattn.attention(q, k, v, out=frozen), out)
    refused(Code.OVERLAP, 'out: is read-only',
            lambda: simdattn.attention(q, k, v, out=Producer(out, F32, versioned=True, read_only=True)), out)
    refused(Code.OVERLAP, 'out: is read-only', lambda: simdattn.softmax(q, out=frozen), out)
    refused(Code.OVERLAP, 'out: is read-only', lambda: simdattn.scaled_dot_product_attention(q, q, q, out=frozen), out)
    # What is only read may be read-only.
    for x in (q, k, v):
        x.flags.writeable = False
    simdattn.attention(q, k, v, out=out)


def test_what_is_no_array(random):
    q, k, v = tensors(random)
    with pytest.raises(TypeError, match='q: list is no array'):
        simdattn.attention([[1.0]], k, v)
    refused(Code.DTYPE, 'q: is on DLPack device 2; the CPU is 1', lambda: simdattn.attention(Producer(q, F32, device=2), k, v))
    refused(Code.DTYPE, 'q: speaks DLPack 2.0', lambda: simdattn.attention(Producer(q, F32, versioned=True, major=2), k, v))
    refused(Code.DTYPE, 'k: float64 is not an element type', lambda: simdattn.attention(q, k.astype(float), v))
    refused(Code.DTYPE, r'q: uint16 .* view\(simdattn.BF16\)', lambda: simdattn.attention(q.astype(np.uint16), k, v))
    refused(Code.DTYPE, 'q: DLPack type', lambda: simdattn.attention(Producer(q, (5, 64)), k, v))
    refused(Code.DTYPE, 'q: bytes in the order of another', lambda: simdattn.attention(q.astype('>f4'), k, v))
    refused(Code.DTYPE, 'q', lambda: simdattn.attention(q.astype(np.int32), k, v))
    odd = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
    refused(Code.STRIDE, 'q: its address is no multiple', lambda: simdattn.attention(odd, k, v))
    fields = np.zeros(q.shape, np.dtype([('a', np.float32), ('b', np.uint8)]))['a']
    refused(Code.STRIDE, 'q: a stride of .* bytes is no multiple', lambda: simdattn.attention(fields, k, v))


def test_bf16_by_hand():
    """Rounding to nearest even, as the storage of the library does it; NaN is the quiet one."""
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3.4e38, np.inf, np.nan, 0, -0.0, 1e-40], np.float32)
    wanted = [0x3F80, 0x3F80, 0x3F82, 0xBF81, 0x7F80, 0x7F80, 0x7FC0, 0, 0x8000, 0x0001]
    bits = simdattn.to_bf16(x)
    assert [int(n) for n in bits] == wanted
    cache = simdattn.KVCache(1, 1, 16, 10, dtype='bf16', layout='rows')
    cache.append(x.reshape(1, 1, 1, 10), x.reshape(1, 1, 1, 10))
    assert cache.keys.memory[0].view(np.uint16)[:10].tolist() == wanted
    assert simdattn.from_bf16(bits)[:2].tolist() == [1, 1]
    assert operand(bits.reshape(2, 5).T[1:], 'x').dtype.name == 'BF16'
    assert operand(bits[:0].reshape(0, 1), 'x').shape == (0, 1)


def test_a_dtype_counts_by_its_name():
    """What ml_dtypes and others register with NumPy is known by its name alone."""
    from types import SimpleNamespace

    from simdattn._arrays import _layout
    dtype = SimpleNamespace(name='bfloat16', itemsize=2, isnative=True)
    found = _layout.__wrapped__(dtype, (2, 3), (6, 2), False)
    assert (found[0].name, found[1]) == ('BF16', (3, 1))
    dtype.name = 'float8_e3m4'
    assert _layout.__wrapped__(dtype, (2, 3), (3, 1), False).code is Code.DTYPE


def test_ml_dtypes(random):
    ml_dtypes = pytest.importorskip('ml_dtypes')
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in tensors(random))
    out = simdattn.attention(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    assert out.tobytes() == simdattn.attention(*(x.view(np.uint16).view(simdattn.BF16) for x in (q, k, v))).tobytes()


def test_negative_and_repeating_strides(random):
    q, k, v = tensors(random)
    expected = simdattn.attention(q, k, v)
    assert simdattn.attention(q[::-1], k[::-1], v[::-1]).tobytes() == expected[::-1].tobytes()
    same = np.broadcast_to(k[:1], k.shape)
    assert simdattn.attention(q, same, v).tobytes() == simdattn.attention(q, same.copy(), v).tobytes()
    refused(Code.STRIDE, 'out', lambda: simdattn.attention(q, k, v, out=np.lib.stride_tricks.as_strided(
        np.zeros(64, np.float32), q.shape, (0, 0, 0, 4))))
    refused(Code.STRIDE, 'k: the last dimension is not contiguous', lambda: simdattn.attention(q, np.repeat(k, 2, 3)[..., ::2], v))


def test_bf16_arithmetic_is_of_its_numbers():
    x = simdattn.to_bf16([[1.5, -2.0, np.inf], [0.0, -0.0, 3.0]])
    plain = simdattn.from_bf16(x)
    for call in (lambda a: a + a, lambda a: a * np.float32(2), lambda a: a.sum(axis=1), lambda a: a.max(), lambda a: np.abs(a), lambda a: a == 0,
                 lambda a: a.astype(np.float64), lambda a: np.maximum(a, 0.5), lambda a: a @ a.T, lambda a: a.mean(axis=0)):
        with np.errstate(invalid='ignore'):
            np.testing.assert_array_equal(call(x), call(plain))
    assert simdattn.to_bf16(x).tobytes() == x.tobytes()
    with pytest.raises(TypeError, match='a BF16 array is not written by arithmetic'):
        x += 1
    out = np.zeros(x.shape, np.float32)
    np.add(x, x, out=out)
    np.testing.assert_array_equal(out, plain + plain)
    assert x.view(np.uint16).dtype == np.uint16 and isinstance(x[0], simdattn.BF16)


def test_from_bf16_takes_no_other_numbers():
    for kind in (np.float32, np.float16, np.uint8, np.int16, np.float64, np.uint32):
        refused(Code.DTYPE, f'x: is {np.dtype(kind)}; BF16, uint16 or bfloat16 is wanted', lambda kind=kind: simdattn.from_bf16(np.ones(4, kind)))
    assert simdattn.from_bf16(np.array([0x3F80], np.uint16)).tolist() == [1.0]
