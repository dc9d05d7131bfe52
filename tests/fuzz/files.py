"""Turns functions that read a file into parsers of bytes. The file is in memory where possible."""

import os
from atexit import register
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp


@cache
def scratch() -> Path:
    """Return a folder that is deleted when the process exits. It is in memory if /dev/shm is writable."""
    place = Path("/dev/shm")  # noqa: S108  # a folder of its own below it
    folder = Path(mkdtemp(prefix="octet-fuzz-", dir=place if os.access(place, os.W_OK) else None))
    register(rmtree, folder, ignore_errors=True)
    return folder


def read_as(read: Callable[[Path], object], name: str = "input") -> Callable[[bytes], object]:
    def parse(raw: bytes) -> object:
        path = scratch() / name
        path.write_bytes(raw)
        return read(path)

    return parse
