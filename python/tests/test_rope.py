"""Rotations and tables against the formula."""
import numpy as np
import pytest
import reference
from test_arrays import refused

import simdattn
from simdattn._abi import Code


def exact_angles(positions, pairs, theta=10000.0):
    """In the widest type that there is: an angle of 1e5 radians loses 17 bits."""
    inv = np.longdouble(theta) ** (-np.arange(pairs, dtype=np.longdouble) / pairs)
    return np.asarray(positions, np.longdouble)[..., None] * inv


def test_a_table(random):
    for positions, first in [(5, 0), (3, 131070), (np.array([7, 0, -3, 99999]), 0), (np.array([1, 2], np.int32), 0)]:
        table = simdattn.rope_table(positions, 64, first=first)
        where = np.arange(first, first + positions) if isinstance(positions, int) else positions
        angles = exact_angles(where, 32)
        np.testing.assert_allclose(table.cos, np.cos(angles), rtol=0, atol=2.0**-24)
        np.testing.assert_allclose(table.sin, np.sin(angles), rtol=0, atol=2.0**-24)


@pytest.mark.parametrize('options, wanted', [
    ({'rope_theta': 5e5}, lambda i: 5e5 ** (-i / 32)),
    ({'rope_type': 'linear', 'factor': 4.0}, lambda i: 1e4 ** (-i / 32) / 4),
    ({'inv_freq': np.arange(32) / 64}, lambda i: i / 64),
    ({'freq_factors': [2.0] * 32}, lambda i: 1e4 ** (-i / 32) / 2),
    ({'rope_type': 'proportional', 'factor': 1.0, 'partial_rotary_factor': 0.25}, lambda i: np.where(i < 8, 1e4 ** (-i / 32), 0)),
    ({'rope_type': 'longrope', 'short_factor': [4.0] * 32, 'long_factor': [8.0] * 32, 'original_max_position_embeddings': 4096},
     lambda i: 1e4 ** (-i / 32) / 4),
    ({'rope_type': 'dynamic', 'factor': 2.0, 'max_position_embeddings': 1024, 'seq_len': 512}, lambda i: 1e4 ** (-i / 32)),
])
def test_frequencies(options, wanted):
    frequencies, factor = simdattn.rope_frequencies(32, **options)
    np.testing.assert_allclose(frequencies, wanted(np.arange(32.0)), rtol=1e-14)
    assert factor == 1


def test_options_of_model_configurations():
    """Llama 3.1's "rope_scaling" as it stands there: short waves unchanged, long ones divided by 8."""
    scaling = {'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192,
               'rope_type': 'llama3'}
    frequencies, _ = simdattn.rope_frequencies(64, rope_theta=500000.0, **scaling)
    plain = 500000.0 ** (-np.arange(64) / 64)
    wave = 2 * np.pi / plain
    np.testing.assert_allclose(frequencies[wave < 8192 / 4], plain[wave < 8192 / 4], rtol=1e-14)
    np.testing.assert_allclose(frequencies[wave > 8192], plain[wave > 8192] / 8, rtol=1e-14)
    _, factor = simdattn.rope_frequencies(64, rope_type='yarn', factor=4.0, original_max_position_embeddings=4096)
    np.testing.assert_allclose(factor, 0.1 * np.log(4) + 1)
    assert simdattn.rope_frequencies(8, attention_factor=2.5)[1] == 2.5


def test_sections_follow_their_axes():
    positions = np.array([[1, 2, 3], [10, 20, 30], [100, 200, 300]])
    table = simdattn.rope_table(positions, 16, mrope_section=[2, 3, 3])
    angles = exact_angles(np.arange(301), 8)
    axis = [0, 0, 1, 1, 1, 2, 2, 2]
    wanted = np.array([[angles[positions[axis[c], p], c] for c in range(8)] for p in range(3)])
    np.testing.assert_allclose(table.cos, np.cos(wanted), rtol=0, atol=2.0**-24)


@pytest.mark.parametrize('pairing', ['half_split', 'interleaved'])
def test_rotation(random, pairing):
    x = random.standard_normal((2, 3, 5, 24)).astype(np.float32)
    table = simdattn.rope_table(40, 16)
    positions = random.integers(0, 40, (2, 5))
    angles = exact_angles(np.arange(40), 8).astype(float)
    y = simdattn.rope(x, *table, positions, pairing=pairing, first_dim=4)
    np.testing.assert_allclose(y, reference.rope(x, angles[positions], pairing, 4), rtol=0, atol=1e-6)
    y = simdattn.rope(x, *table, start=7, pairing=pairing)
    np.testing.assert_allclose(y, reference.rope(x, angles[None, 7:12], pairing), rtol=0, atol=1e-6)
    back = simdattn.rope(y, *table, start=7, pairing=pairing, inverse=True)
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-6)
    assert simdattn.rope(x, *table, start=7, pairing=pairing, out=x) is x
    assert x.tobytes() == y.tobytes()


def test_types(random):
    table = simdattn.rope_table(10, 16)
    x = simdattn.to_bf16(random.standard_normal((1, 2, 5, 16)))
    y = simdattn.rope(x, *table)
    assert isinstance(y, simdattn.BF16)
    wide = simdattn.rope(simdattn.from_bf16(x), *table)
    assert y.tobytes() == simdattn.to_bf16(wide).tobytes()


def test_bad_calls(random):
    x = random.standard_normal((1, 2, 5, 16)).astype(np.float32)
    table = simdattn.rope_table(10, 16)
    out = np.full_like(x, 7)
    refused(Code.RANGE, 'start: .*start is 6', lambda: simdattn.rope(x, *table, start=6, out=out), out)
    refused(Code.RANGE, 'position', lambda: simdattn.rope(x, *table, np.full((1, 5), 10), out=out), out)
    refused(Code.SHAPE, 'positions: has 1 dimensions', lambda: simdattn.rope(x, *table, np.arange(5), out=out), out)
    refused(Code.SHAPE, 'x: has 2 dimensions', lambda: simdattn.rope(x[0, 0], *table, out=out), out)
    refused(Code.RANGE, "pairing: there is no 'pairs'", lambda: simdattn.rope(x, *table, pairing='pairs', out=out), out)
    refused(Code.SHAPE, 'dim: is 15', lambda: simdattn.rope_table(4, 15))
    refused(Code.RANGE, 'factor', lambda: simdattn.rope_table(4, 16, rope_type='linear'))
    refused(Code.RANGE, "rope_type: there is no 'ntk'", lambda: simdattn.rope_table(4, 16, rope_type='ntk'))
    refused(Code.SHAPE, 'mrope_section: has 5', lambda: simdattn.rope_table(4, 16, mrope_section=[1] * 5))
    with pytest.raises(TypeError, match="'theta' is no option of a table"):
        simdattn.rope_table(4, 16, theta=3)
