import os
import sys
from pathlib import Path

import numpy as np
import pytest

import simdattn

sys.path.insert(0, os.path.dirname(__file__))

# f32 arithmetic on sums of up to 600 numbers of size 1 (docs/numerics.md gives the bound: n * 2^-24).
F32 = 600 * 2.0**-24
# Half a unit in the last place of what is stored, for numbers below 4.
TOLERANCE = {'f32': F32, 'bf16': F32 + 2 * 2.0**-8, 'f16': F32 + 2 * 2.0**-11}


@pytest.fixture
def random():
    return np.random.default_rng(20)


def exact_targets():
    """Targets of this CPU that return the bits of the definition."""
    return [t.name for t in simdattn.targets() if t.runnable and t.exact]


def source(*names):
    """A file of the checkout, for tests that need one."""
    root = os.environ.get('SIMDATTN_SOURCE', str(Path(__file__).parents[2]))
    path = Path(root, *names)
    if not path.exists():
        pytest.skip(f'{path} is not here')
    return path
