"""The Python of docs/python.md does what the page says: its blocks run in order, in one namespace."""
import re

import numpy as np
import reference
from conftest import source


def test_the_readme():
    blocks = re.findall(r'^```python\n(.*?)^```$', source('README.md').read_text(), flags=re.M | re.S)
    assert blocks
    for block in blocks:
        names = {}
        exec(compile(block, 'README.md', 'exec'), names)
        assert np.allclose(names['out'], 1)


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = source('docs', 'python.md').read_text()
    blocks = re.findall(r'^```python\n(.*?)^```$', text, flags=re.M | re.S)
    assert len(blocks) >= 6
    names = {}
    try:
        import torch  # noqa: F401
    except ImportError:
        blocks = [b for b in blocks if 'torch' not in b]
    for block in blocks:
        exec(compile(block, 'docs/python.md', 'exec'), names)

    wanted, wanted_lse = reference.attention(names['q'], names['k'], names['v'], causal=True)
    np.testing.assert_allclose(names['out'], wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(names['lse'], wanted_lse, rtol=1e-4, atol=1e-4)
    first = re.search(r'^```python\n(.*?)^```$', text, flags=re.M | re.S).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10, 'the page promises ten lines'
