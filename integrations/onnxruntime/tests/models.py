"""Models of one node, and sessions with and without the provider."""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

PROVIDER = 'SimdattnExecutionProvider'
LIBRARY = os.environ['SIMDATTN_ONNXRUNTIME_LIBRARY']
ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
            np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64, np.dtype(bool): TensorProto.BOOL}
VERSION = tuple(int(x) for x in ort.__version__.split('.')[:2])
ort.set_default_logger_severity(3)


def add(options, **settings):
    """As simdattn.onnxruntime.add(), which programs without the package write like this."""
    if not any(d.ep_name == PROVIDER for d in ort.get_ep_devices()):
        ort.register_execution_provider_library('simdattn', LIBRARY)
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == PROVIDER], settings)
    return options


def session(model, ours, threads=1, **settings):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    text = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    if not ours:
        return ort.InferenceSession(text, options, providers=['CPUExecutionProvider'])
    return ort.InferenceSession(text, add(options, **settings))


def of_one_node(op, inputs, outputs, opset=23, domain='', fixed=False, **attributes):
    """inputs: (name, array or None) in the operator's order; outputs: (name or '', dtype, rank).

    fixed: shapes are in the model, not only numbers of dimensions. rank: None where it is not known."""
    names = [name if array is not None else '' for name, array in inputs]
    while names and not names[-1]:
        names.pop()
    given, seen = [], set()
    for name, array in inputs:
        if array is not None and name not in seen:
            seen.add(name)
            shape = list(array.shape) if fixed else [f'{name}{i}' for i in range(array.ndim)]
            given.append(helper.make_tensor_value_info(name, ELEMENTS[array.dtype], shape))
    made = [helper.make_tensor_value_info(name, ELEMENTS[np.dtype(t)], None if rank is None else [f'{name}{i}' for i in range(rank)])
            for name, t, rank in outputs if name]
    node = helper.make_node(op, names, [name for name, *_ in outputs], domain=domain, name='node', **attributes)
    sets = [helper.make_opsetid('', opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(helper.make_graph([node], 'graph', given, made), opset_imports=sets, ir_version=11)


def taken(model, **settings):
    """Whether the provider takes the one node of a model."""
    import subprocess
    import sys
    program = ('import sys, models\n'
               'models.session(sys.stdin.buffer.read(), True, log="1")\n')
    r = subprocess.run([sys.executable, '-c', program], input=model.SerializeToString(), capture_output=True,
                       cwd=os.path.dirname(__file__), check=False)
    return 'took 1 nodes' in r.stderr.decode(), r.stderr.decode()


def load(path):
    return onnx.load(path)
