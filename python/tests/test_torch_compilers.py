"""What traces, compiles and transforms programs sees one operator, and what it makes of it gives the bits of the
call."""
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from test_arrays import refused
from test_torch import tensors

import simdattn
import simdattn.torch
from simdattn._abi import Code

sdpa = simdattn.torch.sdpa
compiles = pytest.mark.skipif(not hasattr(torch, 'compile'), reason='torch.compile: PyTorch 2.0 and later')
exports = pytest.mark.skipif(not hasattr(torch, 'export'), reason='torch.export: PyTorch 2.1 and later')
checks = pytest.mark.skipif(not hasattr(torch.library, 'opcheck'), reason='torch.library.opcheck: PyTorch 2.4 and later')

SHAPES = [((2, 3, 5, 16), (2, 3, 9, 16), (2, 3, 9, 24)), ((2, 3, 7, 16), (2, 3, 20, 16), (2, 3, 20, 24))]


def model(q, k, v):
    return sdpa(q + 1, k, v, is_causal=True) * 2


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return model(q, k, v)


def test_trace():
    traced = torch.jit.trace(model, tensors(*SHAPES[0]))
    for shapes in SHAPES:
        q, k, v = tensors(*shapes)
        assert torch.equal(traced(q, k, v), model(q, k, v))
    assert 'simdattn::sdpa' in str(traced.graph)


def test_trace_of_other_functions_is_refused():
    q, k, v = tensors(*SHAPES[0])
    refused(Code.RANGE, 'q: torch.jit.trace does not see this function; it sees those of simdattn.torch: sdpa, attention',
            lambda: torch.jit.trace(lambda *x: simdattn.attention(*x), (q, k, v)))


def has_headers():
    """Inductor compiles C++ against them; Debian has them in libtorch-dev."""
    from torch.utils import cpp_extension
    return any(Path(folder, 'ATen', 'NumericUtils.h').exists() for folder in [*cpp_extension.include_paths(), '/usr/include'])


@compiles
@pytest.mark.parametrize('backend', ['eager', 'aot_eager', 'inductor'])
@pytest.mark.parametrize('dynamic', [None, True])
def test_compile(backend, dynamic):
    if backend == 'inductor' and (not has_headers() or not shutil.which('g++')):
        pytest.skip('inductor: a C++ compiler and PyTorch\'s headers (libtorch-dev) are not installed')
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for shapes in SHAPES:
            q, k, v = tensors(*shapes)
            torch.testing.assert_close(compiled(q, k, v), model(q, k, v), rtol=0, atol=1e-6)


@compiles
def test_compile_of_what_replace_sdpa_replaces():
    torch._dynamo.reset()
    q, k, v = tensors(*SHAPES[0])

    def theirs(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with simdattn.torch.replace_sdpa():
        found = torch.compile(theirs, fullgraph=True, backend=backend)(q, k, v)
    assert torch.equal(found, sdpa(q, k, v, is_causal=True))
    assert 'simdattn.sdpa' in ' '.join(seen)


@compiles
def test_compile_follows_autocast_and_masks():
    torch._dynamo.reset()
    q, k, v = tensors(*SHAPES[0])
    mask = torch.randn(5, 9)

    def masked(q, k, v, mask):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            return sdpa(q, k, v, mask)

    found = torch.compile(masked, fullgraph=True, backend='aot_eager')(q, k, v, mask)
    assert found.dtype == torch.bfloat16 and torch.equal(found, masked(q, k, v, mask))


@compiles
def test_compile_with_a_pool_is_refused():
    from concurrent.futures import ThreadPoolExecutor
    torch._dynamo.reset()
    q, k, v = tensors(*SHAPES[0])
    with ThreadPoolExecutor(2) as pool:
        compiled = torch.compile(lambda *x: sdpa(*x, pool=pool), fullgraph=True, backend='eager')
        with pytest.raises(Exception, match='are no arguments of an operator'):
            compiled(q, k, v)


@compiles
def test_compile_goes_around_the_other_functions():
    torch._dynamo.reset()
    q, k, v = tensors(*SHAPES[0])
    compiled = torch.compile(lambda *x: simdattn.attention(x[0] + 1, *x[1:], causal=True) * 2, backend='eager')
    assert torch.equal(compiled(q, k, v), simdattn.attention(q + 1, k, v, causal=True) * 2)


@exports
def test_export():
    program = torch.export.export(Model(), tuple(tensors(*SHAPES[0])))
    q, k, v = tensors(*SHAPES[0])
    assert torch.equal(program.module()(q, k, v), model(q, k, v))
    assert 'simdattn.sdpa' in str(program.graph)


def vmap():
    try:
        from torch.func import vmap
    except ImportError:
        from functorch import vmap
    return vmap


@pytest.mark.parametrize('dims', [(0, 0, 0), (0, None, None), (2, 0, None), (None, 0, 1)])
def test_vmap(dims):
    shapes = [list(s) for s in ((3, 5, 16), (3, 9, 16), (3, 9, 24))]
    for shape, dim in zip(shapes, dims):
        if dim is not None:
            shape.insert(dim, 4)
    q, k, v = tensors(*shapes)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that a loop could be faster
        found = vmap()(lambda *x: sdpa(*x, is_causal=True), in_dims=dims)(q, k, v)
    for i in range(4):
        one = [x if dim is None else x.select(dim, i) for x, dim in zip((q, k, v), dims)]
        assert torch.equal(found[i], sdpa(*one, is_causal=True))


def test_vmap_of_other_functions_is_refused():
    q, k, v = tensors((4, 1, 3, 5, 16), (4, 1, 3, 9, 16), (4, 1, 3, 9, 24))
    refused(Code.DTYPE, 'q: has no memory of its own', lambda: vmap()(simdattn.attention)(q, k, v))


@checks
def test_the_operator_is_what_pytorch_expects():
    q, k, v = tensors(*SHAPES[0])
    for mask, offset in ((None, None), (None, 0), (torch.randn(5, 9), None)):
        torch.library.opcheck(torch.ops.simdattn.sdpa.default, (q, k, v, mask, offset, None, False, None))


def test_gradients_are_refused_behind_the_operator_too():
    q, k, v = tensors(*SHAPES[0])
    leaf = q.clone().requires_grad_()
    refused(Code.RANGE, 'query: requires a gradient', lambda: torch.ops.simdattn.sdpa(leaf, k, v, None, None, None, False, None))
    traced = torch.jit.trace(model, (q, k, v))
    with pytest.raises(RuntimeError):
        traced(leaf, k, v)
