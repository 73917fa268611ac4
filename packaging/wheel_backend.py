"""Builds the Python wheel with meson-python, in three ways better than it would alone.

The build happens in a copy of the checkout, so that nothing of it stays there, also if it is killed. The wheel is for every
Python 3: ctypes loads the library, the extension module is of the limited API, and a Python that cannot load that does without; so the
tag is py3-none-PLATFORM. And on Linux the platform is
manylinux_2_N (PEP 600): the oldest glibc that has what the library asks for, 2.17 at least.
"""
import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import mesonpy
from mesonpy import build_sdist, get_requires_for_build_sdist  # noqa: F401  (the hooks of PEP 517)

shutil.rmtree(Path(__file__).with_name('__pycache__'), ignore_errors=True)  # written when this was imported

if hasattr(mesonpy, 'build_editable'):  # 0.13 and later; it works in the checkout, as it has to
    build_editable, get_requires_for_build_editable = mesonpy.build_editable, mesonpy.get_requires_for_build_editable


def get_requires_for_build_wheel(config_settings=None):
    return [] if shutil.which('ninja') else ['ninja']


def _left_out(folder, names):
    """Build folders, and what begins with a dot: the history, caches."""
    return {name for name in names if name.startswith('.') or (Path(folder, name) / 'build.ninja').exists() or name == '__pycache__'}


@contextlib.contextmanager
def _copy():
    checkout = os.getcwd()
    with tempfile.TemporaryDirectory(prefix='simdattn-wheel-') as folder:
        copy = Path(folder, 'simdattn')
        shutil.copytree(checkout, copy, symlinks=True, ignore=_left_out)
        os.chdir(copy)
        try:
            yield
        finally:
            os.chdir(checkout)


def _oldest_glibc(library):
    """N of the oldest glibc 2.N that has the symbols of a shared library; none if it needs other libraries, or what reads it is not there."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        try:
            facts = subprocess.run(['objdump', '-p', file.name], stdout=subprocess.PIPE, check=True).stdout.decode()
        except (OSError, subprocess.CalledProcessError):
            return None
    if not all(re.match(r'(libc|libm)\.so\.6$|ld-linux', name) for name in re.findall(r'NEEDED +(\S+)', facts)):
        return None
    return max([17, *(int(n) for n in re.findall(r'\bGLIBC_2\.(\d+)', facts))])


def _for_every_python(wheel):
    """The same wheel with the tag py3-none-PLATFORM; its name."""
    base, _, _, platform = wheel.stem.rsplit('-', 3)
    with zipfile.ZipFile(wheel) as given:
        files = {entry: given.read(entry) for entry in given.infolist()}
    libraries = [data for e, data in files.items() if e.filename.endswith('.so')]
    oldest = [_oldest_glibc(library) for library in libraries] if platform.startswith('linux_') else [None]
    if None not in oldest:
        platform = platform.replace('linux_', f'manylinux_2_{max(oldest)}_')
    tag = f'py3-none-{platform}'
    result = wheel.with_name(f'{base}-{tag}.whl')
    wheel.unlink()
    facts = next(e for e in files if e.filename.endswith('.dist-info/WHEEL'))
    record = next(e for e in files if e.filename.endswith('.dist-info/RECORD'))
    files[facts] = re.sub(rb'(?m)^Tag: .*$', b'Tag: ' + tag.encode(), files[facts])
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[facts]).digest()).rstrip(b'=').decode()
    line = f'{facts.filename},sha256={digest},{len(files[facts])}'
    files[record] = re.sub(rf'(?m)^{re.escape(facts.filename)},.*$', line, files[record].decode()).encode()
    with zipfile.ZipFile(result, 'w', zipfile.ZIP_DEFLATED) as made:
        for entry, data in files.items():
            made.writestr(entry, data)
    return result.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder = Path(wheel_directory).absolute()
    with _copy():
        name = mesonpy.build_wheel(str(folder), config_settings)
    return _for_every_python(folder / name)
