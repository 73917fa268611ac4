"""Runs one file of tests with pytest; status 77, and a sentence, where what it needs is not installed."""
import importlib.util
import sys

file = sys.argv[1]
needed = ['numpy', 'pytest', *(name for word, name in (('test_torch', 'torch'), ('transformers', 'transformers'), ('test_types', 'mypy'), ('onnx', 'onnx'))
                               if word in file)]
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f'skipped {file}: not installed: {", ".join("python3-" + name for name in missing)}')
    sys.exit(77)
sys.dont_write_bytecode = True
import pytest  # noqa: E402

# A file that skips itself as a whole, because a version is too old for it, leaves pytest without a test; -rs prints
# why.
status = pytest.main(['-q', '-rs', '-p', 'no:cacheprovider', file])
sys.exit(77 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status)
