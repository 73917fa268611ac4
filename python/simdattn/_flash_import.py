"""`import flash_attn` where no such package is installed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any, Iterator, Optional

from ._targets import arithmetic_name
from ._types import ArithmeticName

VERSION = '2.8.3'  # whose signatures, and results of unpad_input, these are

arithmetic: Any = 'auto'  # of install()

# What stands in the place of its modules. '': a package that has nothing of its own.
_MODULES = {
    'flash_attn': '.flash_attn', 'flash_attn.flash_attn_interface': '.flash_attn',
    'flash_attn.bert_padding': '._flash_padding', 'flash_attn.layers': '', 'flash_attn.layers.rotary': '._flash_rotary'
}


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        ours = _MODULES[module.__name__]
        if ours:
            found = importlib.import_module(ours, __package__)
            module.__dict__.update(
                {name: getattr(found, name) for name in found.__all__ if name not in ('install', 'uninstall')})
            if module.__name__ == 'flash_attn.flash_attn_interface':
                inner = importlib.import_module('._flash_inner', __package__)
                module.__dict__.update({name: getattr(inner, name) for name in inner.__all__})
            module.__doc__ = found.__doc__


class _Described(Distribution):
    """What importlib.metadata says of it: models compare versions by that."""
    def read_text(self, filename: str) -> Optional[str]:
        return {
            'METADATA': f'Metadata-Version: 2.1\nName: flash-attn\nVersion: {VERSION}\n',
            'top_level.txt': 'flash_attn\n'
        }.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f'{path}: this flash_attn is a part of simdattn')


class _Finder(DistributionFinder):
    """Stands last, so that an installed package is found before it."""
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if fullname not in _MODULES:
            if fullname.startswith('flash_attn.'):
                raise ModuleNotFoundError(f'{fullname}: this flash_attn is a part of simdattn, which has of its modules '
                                          f'{", ".join(_MODULES)}', name=fullname)
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(), is_package=fullname
                                               in ('flash_attn', 'flash_attn.layers'))

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        if context is None or context.name is None or context.name.replace('_', '-').lower() == 'flash-attn':
            yield _Described()


_finder = _Finder()


def install(*, arithmetic: ArithmeticName = 'auto') -> bool:
    """Makes `import flash_attn` find simdattn.flash_attn, where none is installed; whether it does.

    arithmetic: what multiplies, in every function of simdattn.flash_attn that is not told. Called again, it takes this
        one.

    For code that does not load without the package: flash_attn, flash_attn.flash_attn_interface,
    flash_attn.bert_padding and flash_attn.layers.rotary are there, with the names of this module, _flash_attn_forward,
    _flash_attn_varlen_forward, all of bert_padding, apply_rotary_emb and RotaryEmbedding. ModuleNotFoundError names
    what else is imported: fused layers, losses, training and flash-attn 3's flash_attn_interface. Transformers' own
    attn_implementation='flash_attention_2' asks for a GPU besides: 'simdattn' is the word there.
    """
    globals()['arithmetic'] = arithmetic_name(arithmetic)
    if _finder not in sys.meta_path:
        if importlib.util.find_spec('flash_attn') is not None:
            return False
        sys.meta_path.append(_finder)
    return True


def uninstall() -> None:
    """`import flash_attn` fails again where none is installed. Who has imported it keeps it."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        for name in _MODULES:
            found = sys.modules.get(name)
            if found is not None and isinstance(getattr(found.__spec__, 'loader', None), _Loader):
                del sys.modules[name]
