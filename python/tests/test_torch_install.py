"""install(): everything that reaches PyTorch's CPU kernel, with PyTorch's own gradients, and the way back."""
import gc
import os
import shutil
import threading

import pytest
import torch
from test_torch import formula, tensors
from test_torch_compilers import has_headers
from torch.nn import functional

import simdattn
import simdattn.torch
from simdattn import _aten, _run

HAS = _run._core is not None and tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 10)
needed = pytest.mark.skipif(not HAS, reason='PyTorch 2.10 and later, and the extension module')


@pytest.fixture
def installed():
    simdattn.torch.install(always=True)
    yield
    simdattn.torch.uninstall()


@pytest.mark.skipif(HAS, reason='this PyTorch can')
def test_an_older_pytorch():
    with pytest.raises(simdattn.Error, match='install: PyTorch .* has no |install: needs the extension module'):
        simdattn.torch.install()


@needed
@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-5), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
def test_numbers(installed, dtype, tolerance):
    q, k, v = tensors((2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), dtype=dtype)
    options = [{}, {'is_causal': True}, {'attn_mask': torch.rand(5, 9) < 0.9}, {'attn_mask': torch.randn(2, 1, 5, 9).to(dtype)}, {'scale': 0.3},
               {'attn_mask': torch.randn(9, 5).t().to(dtype)}]
    for n, given in enumerate(options, 1):
        wide = {name: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in given.items()}
        found = functional.scaled_dot_product_attention(q, k, v, **given)
        torch.testing.assert_close(found.float(), formula(*(x.float() for x in (q, k, v)), **wide), rtol=0, atol=tolerance)
        assert simdattn.torch.calls() == (n, {})
    grouped = functional.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    assert torch.equal(grouped, simdattn.torch.sdpa(q, k[:, :2], v[:, :2], enable_gqa=True))


@needed
def test_bits_are_those_of_simdattn(installed):
    q, k, v = tensors((1, 4, 50, 64), (1, 4, 90, 64), (1, 4, 90, 64))
    assert torch.equal(functional.scaled_dot_product_attention(q, k, v), simdattn.torch.sdpa(q, k, v))


@needed
def test_what_reaches_the_kernel(installed):
    from torch.nn.functional import scaled_dot_product_attention as imported
    x, = tensors((2, 4, 6, 16))

    class Model(torch.nn.Module):
        def forward(self, a):
            return functional.scaled_dot_product_attention(a, a, a, is_causal=True)

    model, decoder = Model(), torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(64, 4, 64, batch_first=True), 2).eval()
    y, = tensors((2, 6, 64))
    with torch.no_grad():
        calls = {
            'imported by name': (lambda: imported(x, x, x), 1), 'compiled': (lambda: torch.compile(model, backend='aot_eager')(x), 1),
            'exported': (lambda: torch.export.export(model, (x,)).module()(x), 1), 'traced': (lambda: torch.jit.trace(model, (x,))(x), 1),
            'vmap': (lambda: torch.vmap(imported)(x[None], x[None], x[None]), 1), 'decoder': (lambda: decoder(y, y), 2),  # others take the fast path of MultiheadAttention
        }
        for name, (call, least) in calls.items():
            before = simdattn.torch.calls().taken
            call()
            assert simdattn.torch.calls().taken >= before + least, name


@needed
@pytest.mark.skipif(not has_headers() or not shutil.which('g++'), reason='inductor: no C++ compiler or PyTorch\'s headers (libtorch-dev)')
@pytest.mark.parametrize('gradient', [False, True])
def test_inductor(installed, gradient):
    """Its code asserts the strides of both results, which PyTorch's own fake kernel has promised."""
    def model(x):
        return functional.scaled_dot_product_attention(x * 1.0, x, x, is_causal=True) + 1

    for x in (*tensors((2, 4, 7, 32)), tensors((2, 7, 4, 32))[0].transpose(1, 2), *tensors((2, 4, 1, 32))):
        torch._dynamo.reset()
        leaves = [x.detach().requires_grad_(gradient) for _ in range(2)]
        found, wanted = torch.compile(model)(leaves[0]), model(leaves[1])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        if gradient:
            found.sum().backward(), wanted.sum().backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=0, atol=1e-4)
    assert simdattn.torch.calls().taken == 6 and not simdattn.torch.calls().others


@needed
@pytest.mark.parametrize('options', [{}, {'is_causal': True}, {'attn_mask': torch.ones(6, 6, dtype=torch.bool).tril(-1)}])
def test_gradients(installed, options):
    x = tensors((1, 2, 6, 16))[0]
    found, wanted = [], []
    for into, function in ((found, functional.scaled_dot_product_attention), (wanted, formula)):
        leaves = [x.clone().requires_grad_() for _ in range(3)]
        out = function(*leaves, **options)
        out = torch.nan_to_num(out) if function is formula else out
        out.square().sum().backward()
        into += [out.detach(), *(torch.nan_to_num(leaf.grad) for leaf in leaves)]
        if function is functional.scaled_dot_product_attention:
            assert all(leaf.grad.isfinite().all() for leaf in leaves)
    if 'attn_mask' not in options:  # of rows that see nothing the formula's gradients are NaN in all keys
        for f, w in zip(found, wanted):
            torch.testing.assert_close(f, w, rtol=0, atol=1e-4)
    assert simdattn.torch.calls().taken == 1


# What PyTorch's function gives to its formula of products, by shapes of query, key, value, mask, and options.
FORMS = {
    'MLA': ((2, 4, 70, 24), (2, 4, 90, 24), (2, 4, 90, 16), None, {}), 'MLA, causal': ((2, 4, 90, 24), (2, 4, 90, 24), (2, 4, 90, 16), None, {'is_causal': True}),
    'MLA, groups': ((2, 4, 3, 24), (2, 2, 9, 24), (2, 2, 9, 16), None, {'enable_gqa': True}), 'MLA, a mask': ((2, 4, 5, 24), (2, 4, 9, 24), (2, 4, 9, 16), (2, 1, 5, 9), {}),
    '2 dimensions': ((5, 16), (9, 16), (9, 16), None, {}), '3 dimensions': ((4, 5, 16), (4, 9, 16), (4, 9, 16), (5, 9), {}),
    '5 dimensions': ((2, 3, 4, 5, 16), (2, 3, 4, 9, 16), (2, 3, 4, 9, 8), (3, 1, 1, 9), {}), '6 dimensions': ((2, 1, 3, 4, 5, 16), (1, 2, 3, 4, 9, 16), (9, 16), None, {}),
    'one batch of keys': ((3, 4, 5, 16), (1, 4, 9, 16), (1, 4, 9, 16), None, {}), 'one batch of queries': ((1, 4, 5, 16), (3, 4, 9, 16), (3, 4, 9, 16), None, {}),
    'one head of keys': ((2, 4, 5, 16), (2, 1, 9, 16), (2, 1, 9, 16), None, {}), 'one head of values': ((2, 4, 5, 16), (2, 4, 9, 16), (2, 1, 9, 16), None, {}),
    'one head of queries': ((2, 1, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), None, {}), 'fewer dimensions of keys': ((2, 4, 5, 16), (9, 16), (9, 16), None, {}),
    'a mask of 3 dimensions': ((2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), (4, 5, 9), {}), 'a mask for a key each': ((2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), (1, 9), {}),
    'another scale': ((5, 16), (9, 16), (9, 16), None, {'scale': 0.3}), 'columns': ((5, 1), (9, 1), (9, 1), None, {}),
}


@needed
@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-5), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
@pytest.mark.parametrize('form', FORMS)
def test_other_forms(form, dtype, tolerance):
    """Of tensors whose rows are not contiguous too, beside PyTorch's own function, which says the same of numbers,
    shape and type."""
    *shapes, mask, options = FORMS[form]
    q, k, v = tensors(*shapes, dtype=dtype)
    lines = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    kinds = [None] if mask is None else [torch.rand(mask) < 0.7, torch.randn(mask).to(dtype)]
    for given in ((q, k, v), lines):
        for attn_mask in kinds:
            wanted = functional.scaled_dot_product_attention(*given, attn_mask=attn_mask, **options)
            simdattn.torch.install(always=True)
            try:
                with torch.no_grad():
                    found = functional.scaled_dot_product_attention(*given, attn_mask=attn_mask, **options)
                assert simdattn.torch.calls() == (1, {}) and found.is_contiguous()
            finally:
                simdattn.torch.uninstall()
            torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@needed
def test_what_the_formula_keeps(installed):
    """Gradients, tangents, dropout and mistakes are PyTorch's, counted; so is who asks for its formula."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    x, y = tensors((1, 2, 6, 16), (1, 2, 6, 8))
    kernel = torch.ops.aten._scaled_dot_product_attention_math

    def call(*given, **options):
        before = simdattn.torch.calls().others
        out = functional.scaled_dot_product_attention(*given, **options)
        return out, [reason for reason, n in simdattn.torch.calls().others.items() if n > before.get(reason, 0)]

    found, wanted = [], []
    for into, function in ((found, functional.scaled_dot_product_attention), (wanted, formula)):
        leaves = [t.clone().requires_grad_() for t in (x, x, y)]
        function(*leaves).square().sum().backward()
        into += [leaf.grad for leaf in leaves]
    for f, w in zip(found, wanted):
        torch.testing.assert_close(f, w, rtol=0, atol=1e-5)
    mask = torch.zeros(6, 6, requires_grad=True)
    out, reasons = call(x, x, x, attn_mask=mask)
    out.sum().backward()
    assert mask.grad is not None and 'gradient' in reasons[0]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        out, reasons = call(dual, x, y)
        assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None and reasons == ['tangents']
    assert call(x, x, y, dropout_p=0.5)[1] == ['dropout'] and call(*(t.double() for t in (x, x, y)))[1] == ['torch.float64']
    with sdpa_kernel(SDPBackend.MATH):
        assert 'sdpa_kernel' in call(x, x, x)[1][0]
    for wrong in ((x, x, y[:, :, :5]), (x, x[..., :8], x), (x, torch.cat([x, x], 1), y)):
        for _ in range(3):
            with pytest.raises(RuntimeError, match='size|shape'):
                functional.scaled_dot_product_attention(*wrong)
    assert 'shapes that do not fit' in simdattn.torch.calls().others
    storage = x.untyped_storage()  # an error keeps its arguments until the next call
    holders = torch._C._storage_Use_Count(storage._cdata)
    for _ in range(5):
        with pytest.raises(RuntimeError):
            functional.scaled_dot_product_attention(x, x[..., :8], y)
    call(x[:], x[:], y)  # tensors of their own, which nobody keeps
    gc.collect()
    assert torch._C._storage_Use_Count(storage._cdata) == holders
    assert kernel(x, x, y)[1] is None  # no weights: whoever wants them does not get others
    assert simdattn.torch.calls().taken == 2


@needed
@pytest.mark.parametrize('backend', ['aot_eager', 'inductor'])
@pytest.mark.parametrize('gradient', [False, True])
def test_other_forms_in_graphs(installed, backend, gradient):
    if backend == 'inductor' and not (has_headers() and shutil.which('g++')):
        pytest.skip("inductor: no C++ compiler or PyTorch's headers (libtorch-dev)")

    def model(x, y):
        return functional.scaled_dot_product_attention(x * 1.0, x, y) + 1

    leaves = [[t.clone().requires_grad_(gradient) for t in tensors((2, 3, 7, 16), (2, 3, 7, 8))] for _ in range(2)]
    torch._dynamo.reset()
    found, wanted = torch.compile(model, backend=backend, fullgraph=True)(*leaves[0]), formula(leaves[1][0], *leaves[1]) + 1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    if gradient:
        found.sum().backward(), wanted.sum().backward()
        for f, w in zip(*leaves):
            torch.testing.assert_close(f.grad, w.grad, rtol=0, atol=1e-5)


@needed
def test_other_forms_in_transformations(installed):
    x, y = tensors((2, 3, 7, 16), (2, 3, 7, 8))
    call = functional.scaled_dot_product_attention
    wanted = formula(x, x, y)

    class Model(torch.nn.Module):
        def forward(self, a, b):
            return call(a, a, b)

    found = {'vmap': torch.vmap(call)(x, x, y), 'traced': torch.jit.trace(Model(), (x, y))(x, y), 'exported': torch.export.export(Model(), (x, y)).module()(x, y),
             'decomposed': torch.export.export(Model(), (x, y)).run_decompositions().module()(x, y),
             'make_fx': torch.fx.experimental.proxy_tensor.make_fx(call)(x, x, y)(x, x, y)}
    with torch.inference_mode():
        found['inference_mode'] = call(x * 1, x, y)
    for name, out in found.items():
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5, msg=name)
    assert call(x.to('meta'), x.to('meta'), y.to('meta')).shape == wanted.shape
    slope = torch.func.grad(lambda a: call(a, x, y).sum())(x)
    torch.testing.assert_close(slope, torch.func.grad(lambda a: formula(a, x, y).sum())(x), rtol=0, atol=1e-5)
    tangent = torch.func.jvp(lambda a: call(a, x, y), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(lambda a: formula(a, x, y), (x,), (torch.ones_like(x),))[1], rtol=0, atol=1e-5)


@needed
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('like', ['out', 'contiguous', 'expanded'])
@pytest.mark.parametrize('layout', [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_sdpa_backward_with_gradient(dtype, like, layout):
    """The derivatives are those that PyTorch's own kernel has for a gradient that is given, however that lies in
    memory."""
    x = tensors((2, 3, 49, 32), (2, 3, 49, 32), (2, 3, 49, 32), (2, 3, 49, 32), dtype=dtype)
    x = [t.permute(layout).contiguous().permute([layout.index(i) for i in range(4)]) for t in x]
    results = []
    for ours in (False, True):
        if ours:
            simdattn.torch.install(always=True)
        try:
            leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in x[:3]]
            out = functional.scaled_dot_product_attention(*leaves)
            given = {'out': torch.empty_like(out).copy_(x[3]), 'contiguous': x[3].contiguous(), 'expanded': x[3][:1, :, :1].expand_as(out)}[like]
            out.backward(given, retain_graph=True)
            results.append([out.detach(), *(t.grad for t in leaves)])
            assert not ours or simdattn.torch.calls() == (1, {})
        finally:
            simdattn.torch.uninstall()
    for theirs, found in zip(*results):
        assert found.stride() == theirs.stride()
        torch.testing.assert_close(found, theirs, rtol=0, atol=1e-5 if dtype is torch.float32 else 2**-6)


@needed
def test_what_is_left_to_pytorch(installed):
    x, = tensors((1, 2, 6, 16))
    double = functional.scaled_dot_product_attention(x.double(), x.double(), x.double())
    torch.testing.assert_close(double, formula(x.double(), x.double(), x.double()))
    assert simdattn.torch.calls() == (0, {'torch.float64': 1})
    functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert simdattn.torch.calls() == (0, {'torch.float64': 1, 'dropout': 1})


@needed
def test_the_way_back():
    x, = tensors((1, 2, 60, 16))
    before = functional.scaled_dot_product_attention(x, x, x)
    for _ in range(2):
        simdattn.torch.install(target='scalar', always=True)
        simdattn.torch.install(threads=1, always=True)
        functional.scaled_dot_product_attention(x, x, x)
        assert simdattn.torch.calls().taken == 1
        simdattn.torch.uninstall()
        simdattn.torch.uninstall()
        assert torch.equal(functional.scaled_dot_product_attention(x, x, x), before) and simdattn.torch.calls() == (0, {})


@needed
def test_few_scores_of_f32_are_pytorchs_own():
    q, k, v = tensors((1, 4, 8, 16), (1, 4, 8, 16), (1, 4, 8, 16))
    large, shared = tensors((1, 4, 64, 16), (1, 2, 8, 16))
    theirs = functional.scaled_dot_product_attention(q, k, v)
    simdattn.torch.install()
    try:
        for _ in range(4):
            assert torch.equal(functional.scaled_dot_product_attention(q, k, v), theirs)
        taken, others = simdattn.torch.calls()
        assert taken == 0 and list(others.values()) == [4] and 'faster' in list(others)[0]
        functional.scaled_dot_product_attention(large, large, large)
        functional.scaled_dot_product_attention(q, shared, shared, enable_gqa=True)
        functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
        assert simdattn.torch.calls().taken == 3
    finally:
        simdattn.torch.uninstall()


@needed
@pytest.mark.parametrize('layout', [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3), (0, 1, 3, 2)])
@pytest.mark.parametrize('turn', range(4))  # the third and later ones are made by the extension
def test_strides_are_those_that_compilers_expect(installed, layout, turn):
    query, = tensors((2, 3, 6, 16))
    query = query.permute(layout).contiguous().permute([layout.index(i) for i in range(4)])
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    wanted = kernel(*(x.to('meta') for x in (query, query, query)))
    for _ in range(turn + 1):
        found = kernel(query, query, query)
    assert [x.stride() for x in found] == [x.stride() for x in wanted]
    scores = query @ query.transpose(-1, -2) / 4
    torch.testing.assert_close(found[1], scores.logsumexp(-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(found[0], scores.softmax(-1) @ query, rtol=0, atol=1e-5)


@needed
def test_what_pytorchs_kernel_refuses_is_its_error(installed):
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    x, = tensors((1, 2, 6, 16))
    for given in ((x, x[0], x), (x.double(), x, x), (x, x, x.long())):
        with pytest.raises(RuntimeError, match='dim|expected scalar type'):
            kernel(*given)
    assert simdattn.torch.calls() == (0, {'torch.float64': 1, 'another type than float32, bfloat16 and float16': 1})


@needed
@pytest.mark.parametrize('name, says', [('not_there', 'has no not_there'), ('environ', 'does not call its kernel as')])
def test_another_pytorch(monkeypatch, name, says):
    """One that has no such pointer, or in which something else is there."""
    monkeypatch.setattr(_aten, '_NAMES', {**_aten._NAMES, 'place': (name,)})
    with pytest.raises(simdattn.Error, match=f'install: PyTorch .* {says}'):
        simdattn.torch.install()
    assert simdattn.torch.calls() == (0, {}) and os.environ['PATH']


@needed
@pytest.mark.parametrize('name', _aten._OPTIONAL)
def test_the_formula_stays_without(monkeypatch, name):
    """What the kernel of other forms asks PyTorch for may be missing in a later one."""
    monkeypatch.setitem(_aten._NAMES, name, ('not_there',))
    x, y = tensors((1, 2, 6, 16), (1, 2, 6, 8))
    simdattn.torch.install(always=True)
    try:
        torch.testing.assert_close(functional.scaled_dot_product_attention(x, x, y), formula(x, x, y), rtol=0, atol=1e-5)
        assert simdattn.torch.calls() == (0, {})
    finally:
        simdattn.torch.uninstall()


@needed
def test_the_operator_stays_pytorchs():
    """A kernel registered in its place would be called by boxed arguments, calls that are left to PyTorch's too."""
    dump = torch._C._dispatch_dump
    name = 'aten::_scaled_dot_product_flash_attention_for_cpu'
    before = dump(name)
    simdattn.torch.install()
    try:
        assert dump(name) == before
    finally:
        simdattn.torch.uninstall()


@needed
def test_threads_and_forks(installed):
    q, k, v = tensors((1, 4, 300, 64), (1, 4, 900, 64), (1, 4, 900, 64))
    wanted, found = simdattn.torch.sdpa(q, k, v), []
    threads = [threading.Thread(target=lambda: found.append(functional.scaled_dot_product_attention(q, k, v))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all(torch.equal(x, wanted) for x in found)
    child = os.fork()
    if child == 0:
        out = functional.scaled_dot_product_attention(q, k, v)
        os._exit(0 if out.numpy().tobytes() == wanted.numpy().tobytes() else 1)  # PyTorch's comparison would wait for OpenMP's threads
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needed
@pytest.mark.parametrize('layout', [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 1, 0, 2)])
def test_results_lie_as_empty_like_makes_them(installed, layout):
    """Of queries that are a part of an array too, with sizes of one and steps of 0."""
    whole, = tensors((2, 3, 6, 16))
    for x in (whole, whole[:, :2], whole[..., :8], whole[:, :, :1], whole[:1], whole[:, :1].expand(2, 3, 6, 16)):
        x = x.permute(layout)
        if x.stride(3) != 1:
            continue  # PyTorch's function gives such to another kernel
        out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)
        assert out.stride() == torch.empty_like(x).stride(), (x.shape, x.stride())
        torch.testing.assert_close(out, formula(x, x, x), rtol=0, atol=1e-5)


@needed
def test_copies_of_everything(installed):
    """No last dimension is contiguous: queries, keys, values, the mask and the result go through copies."""
    q, k, v = (x.transpose(2, 3) for x in tensors((2, 3, 16, 6), (2, 3, 16, 9), (2, 3, 16, 9)))
    mask = torch.randn(9, 6).t()
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    assert out.stride() == torch.empty_like(q).stride() and simdattn.torch.calls() == (1, {})
    torch.testing.assert_close(out, formula(q, k, v, attn_mask=mask), rtol=0, atol=1e-5)
