"""python -m simdattn: the library, and which of its targets this CPU can run."""

from . import info

found = info()
print(f"simdattn {found['version']}, {found['library']}")
for target in found['targets']:
    note = 'default' if target.name == found['default'] else f'missing: {target.missing}' if target.missing else ''
    print(f'  {target.name:24} {note}'.rstrip())
