"""replace_sdpa: blocks in any order and in threads, CausalBias, and a call that replaces nothing."""
import gc
import threading

import pytest
import torch
from conftest import TOLERANCE
from test_torch import formula, tensors
from torch.nn import functional

import simdattn
import simdattn.torch

NAME = 'scaled_dot_product_attention' if hasattr(functional, 'scaled_dot_product_attention') else '_scaled_dot_product_attention'
THEIRS = getattr(functional, NAME)


def now():
    return getattr(functional, NAME)


def result(q):
    """That of the function that is there now; PyTorch 1.13 has weights beside it."""
    out = now()(q, q, q)
    return out if isinstance(out, torch.Tensor) else out[0]


def test_blocks_that_overlap():
    q, = tensors((1, 2, 5, 16))
    usual, rounded = (simdattn.torch.sdpa(q, q, q, arithmetic=kind) for kind in ('f32', 'bf16'))
    first, second = simdattn.torch.replace_sdpa(arithmetic='f32'), simdattn.torch.replace_sdpa(arithmetic='bf16')
    assert not torch.equal(usual, rounded)
    first.__enter__()
    assert torch.equal(result(q), usual)
    second.__enter__()
    assert torch.equal(result(q), rounded)  # the options of the newest count
    first.__exit__(None, None, None)
    assert now() is not THEIRS
    assert torch.equal(result(q), rounded)
    second.__exit__(None, None, None)
    assert now() is THEIRS
    with pytest.raises(simdattn.Error, match='target: .nothing'):
        simdattn.torch.replace_sdpa(target='nothing')


def test_blocks_of_threads():
    n, rounds = 4, 50
    together = threading.Barrier(n)
    wrong = []

    def work():
        for _ in range(rounds):
            together.wait()
            with simdattn.torch.replace_sdpa():
                if now() is THEIRS:
                    wrong.append('not replaced inside a block')
            together.wait()
            if now() is not THEIRS:
                wrong.append('replaced after all blocks')

    threads = [threading.Thread(target=work) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and now() is THEIRS


def test_a_function_that_wraps_ours():
    """Whoever wraps the function inside of a block keeps the wrapper, which reaches PyTorch's own after the block."""
    q, = tensors((1, 2, 5, 16))
    calls = []
    with simdattn.torch.replace_sdpa():
        ours = now()
        setattr(functional, NAME, lambda *a, **o: (calls.append(1), ours(*a, **o))[1])
        wrapper = now()
    try:
        assert now() is wrapper
        leaf = q.clone().requires_grad_()
        out = now()(leaf, q, q)
        out = out if isinstance(out, torch.Tensor) else out[0]
        assert out.requires_grad and calls == [1]  # PyTorch's own; ours refuses gradients
    finally:
        setattr(functional, NAME, THEIRS)


def test_without_a_block():
    with pytest.warns(UserWarning, match='replaces nothing: write `with simdattn.torch.replace_sdpa'):
        simdattn.torch.replace_sdpa()
        gc.collect()
    assert now() is THEIRS


def test_as_a_decorator():
    @simdattn.torch.replace_sdpa()
    def inside():
        return now()

    assert inside() is not THEIRS and now() is THEIRS and inside() is not THEIRS


@pytest.mark.skipif(simdattn.torch.biases is None, reason='torch.nn.attention.bias: PyTorch 2.3 and later')
@pytest.mark.parametrize('corner', ['upper_left', 'lower_right'])
def test_a_causal_bias_through_the_name_that_was_imported(corner):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    bias = getattr(simdattn.torch.biases, 'causal_' + corner)(5, 9)
    wanted = formula(q, k, v, torch.ones(5, 9, dtype=torch.bool).tril(0 if corner == 'upper_left' else 4))
    usual = vars(simdattn.torch.biases.CausalBias)['__torch_function__']
    with simdattn.torch.replace_sdpa():
        found = THEIRS(q, k, v, bias)
        named = THEIRS(query=q, key=k, value=v, attn_mask=bias)
    for x in (found, named):
        torch.testing.assert_close(x, wanted, rtol=0, atol=TOLERANCE['f32'])
    assert vars(simdattn.torch.biases.CausalBias)['__torch_function__'] is usual
