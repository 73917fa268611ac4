"""PyTorch's own samples of scaled_dot_product_attention, with which it tests the function, through install()."""
import pytest
import torch

import simdattn
import simdattn.torch

if not hasattr(torch.library, 'get_kernel'):
    pytest.skip('torch.library.get_kernel: PyTorch 2.9 and later', allow_module_level=True)
try:
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as e:
    pytest.skip(f'PyTorch is installed without what its samples need: {e}', allow_module_level=True)

# Half a unit in the last place of numbers below 16, and f32's error of scores of up to 100, which the exponential
# multiplies.
TYPES = {torch.float32: 1e-4, torch.bfloat16: 1e-4 + 2.0**-5, torch.float16: 1e-4 + 2.0**-8}


def wide(x):
    return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def gradients(inputs, result):
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.autograd.grad(result.float().square().sum() if result.dtype != torch.float64 else result.square().sum(), leaves)


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('derivative', [False, True])
def test_samples(dtype, derivative):
    op = next(op for op in op_db if op.name == 'nn.functional.scaled_dot_product_attention')
    simdattn.torch.install(always=True)
    try:
        compared = 0
        for sample in op.sample_inputs('cpu', dtype, requires_grad=derivative):
            if sample.kwargs.get('dropout_p', 0.0):
                continue  # random
            inputs = [sample.input, *sample.args]
            found = op(*inputs, **sample.kwargs)
            exact = [wide(x) for x in inputs]
            wanted = op(*exact, **{name: wide(x) for name, x in sample.kwargs.items()})
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=TYPES[dtype])
            if derivative:
                for x, y in zip(gradients(inputs, found), gradients(exact, wanted)):
                    torch.testing.assert_close(x.double(), y, rtol=20 * TYPES[dtype], atol=20 * TYPES[dtype] * max(1, float(y.abs().max())))
            compared += 1
        taken, others = simdattn.torch.calls()
        print(f'{compared} samples, {taken} taken, {others}')
        left = [n for reason, n in others.items() if reason != 'torch.float64']
        if derivative:  # PyTorch's kernel has a backward pass, its formula for other shapes is one for autograd
            assert compared >= 10 and taken > 0 and taken + sum(left) == compared and 'gradient' in ' '.join(others)
        else:
            assert compared >= 10 and taken == compared and not left
    finally:
        simdattn.torch.uninstall()
