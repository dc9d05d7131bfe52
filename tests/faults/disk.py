"""A small disk that can be filled and made read-only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.commands import CommandFailed, need, run
from tests.forbidden import forbidden

_STEP = 4096


@dataclass(frozen=True, slots=True)
class Disk:
    folder: Path

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self.folder / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(_STEP)):
                    continue
            except OSError:
                return

    def relieve(self) -> None:
        (self.folder / "ballast").unlink()

    def forbid(self) -> None:
        """Make the disk read-only. This fails while a process has a file open for writing."""
        run("mount", "-o", "remount,ro", str(self.folder))


@contextmanager
def disk(folder: Path, size: str = "1M") -> Iterator[Disk]:
    """Mount a small disk. Skip the test if mounting is not possible."""
    need("mount", "umount", root=True)
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "octet-faults", str(folder))
    except CommandFailed as error:
        pytest.skip(forbidden(str(error)))
    try:
        yield Disk(folder)
    finally:
        run("umount", "--lazy", str(folder))
