"""Faster collection of tests: less garbage collection, and byte code shared between workers."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_MANY_MODULES = 100


@contextmanager
def without_the_collector() -> Iterator[None]:
    """Disable garbage collection in this context. At its end, exclude all live objects from later collections, because
    imported modules stay in memory anyway."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Frozen:
    """Freezes imported objects between test files. Some tests collect garbage often, and would otherwise traverse a
    million objects that are never freed."""

    def __init__(self) -> None:
        self._num_modules = 0

    def again(self) -> None:
        if len(sys.modules) > self._num_modules + _MANY_MODULES:
            freeze()
            self._num_modules = len(sys.modules)


def freeze() -> None:
    """Exclude all live objects from garbage collection."""
    gc.collect()
    gc.freeze()


def import_from(share: float) -> None:
    """Import every test module, starting at this fraction of the list and wrapping around. Workers start at different
    modules, so most byte code is already written by another worker when a worker imports a module."""
    names = [_name(path) for path in sorted((_ROOT / "tests").rglob("test_*.py"))]
    first = int(len(names) * share)
    for name in names[first:] + names[:first]:
        with suppress(Exception, pytest.skip.Exception):  # pytest reports the error when it collects the module
            import_module(name)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts)
