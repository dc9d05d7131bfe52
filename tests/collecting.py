"""Cheap collection of all tests in every worker."""

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
    """Imported modules stay, so the garbage collector skips them during collection and tests."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Frozen:
    """Freeze imported objects between the files of tests: some tests collect garbage often, and should not walk a
    million objects that stay anyway."""

    def __init__(self) -> None:
        self._num_modules = 0

    def again(self) -> None:
        if len(sys.modules) > self._num_modules + _MANY_MODULES:
            freeze()
            self._num_modules = len(sys.modules)


def freeze() -> None:
    """All that is in use."""
    gc.collect()
    gc.freeze()


def import_from(share: float) -> None:
    """Import every test module, starting at this share of the list and wrapping around. Workers that begin in different
    places find most of the byte code written by another, where side by side each would compile everything itself."""
    names = [_name(path) for path in sorted((_ROOT / "tests").rglob("test_*.py"))]
    first = int(len(names) * share)
    for name in names[first:] + names[:first]:
        with suppress(Exception, pytest.skip.Exception):  # pytest reports it when it collects the module
            import_module(name)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts)
