"""Collecting six thousand tests in every worker, as cheaply as it can be done."""

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
    """What is imported stays: nobody walks it while there is more to import, nor while tests run."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Frozen:
    """What tests import is frozen between their files: some collect everything, again and again, and should walk what
    is theirs, not a million objects that stay anyway."""

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
    """Every module of tests, beginning that far into them and ending with those before. Workers that begin in different
    places find most of the byte code written by another, where side by side each would compile everything itself."""
    names = [_name(path) for path in sorted((_ROOT / "tests").rglob("test_*.py"))]
    first = int(len(names) * share)
    for name in names[first:] + names[:first]:
        with suppress(Exception, pytest.skip.Exception):  # which collecting meets again, and tells
            import_module(name)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts)
