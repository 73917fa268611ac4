"""The node tests of ONNX for Attention and RotaryEmbedding, through the provider."""
import models
import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

CASES = {case.name: case for op in ('Attention', 'RotaryEmbedding') for case in collect_testcases(op)
         if not case.name.endswith('_expanded')}


@pytest.mark.parametrize('name', sorted(CASES))
def test_node(name, capfd):
    case = CASES[name]
    versions = [s.version for s in case.model.opset_import if s.domain == '']
    case.model.opset_import[0].version = min(versions[0], 24)
    for value in case.model.graph.input:  # a node whose few rows the model states would be left
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            d.dim_param = f'{value.name}{i}'
    try:
        session = models.session(case.model, True, log='1')
    except Exception as e:  # noqa: BLE001: an operator that is left and that ONNX Runtime lacks
        said = capfd.readouterr().err
        assert 'leaves ' in said or 'opset' in str(e).lower(), (said, e)
        pytest.skip(f'left to ONNX Runtime, which says: {str(e)[:100]}')
    said = capfd.readouterr().err
    if 'took 1 nodes' not in said:
        pytest.skip(f'left to ONNX Runtime: {[line for line in said.splitlines() if "leaves" in line]}')
    for inputs, outputs in case.data_sets:
        got = session.run(None, dict(zip([i.name for i in session.get_inputs()], [np.asarray(x) for x in inputs])))
        for mine, wanted in zip(got, outputs):
            narrow = np.asarray(wanted).dtype == np.float16
            np.testing.assert_allclose(np.asarray(mine, np.float64), np.asarray(wanted, np.float64), rtol=max(case.rtol, 1e-2 if narrow else 0),
                                       atol=max(case.atol, 2e-3 if narrow else 1e-6))


def test_there_are_some():
    assert sum(name.startswith('test_attention') for name in CASES) >= 20 or helper.VERSION_TABLE[-1][3] < 23
