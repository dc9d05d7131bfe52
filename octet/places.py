"""Where each replica that is started here is to listen."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octet.config.ensemble import Ensemble, SpecialistConfig

_MAX_FOLDER = 64
"""Bytes: the path of a Unix socket has 107, and the file below needs its share."""
_MAX_NAME = 24


@dataclass(frozen=True, slots=True)
class Place:
    """One replica."""

    name: str
    specialist: SpecialistConfig
    socket: Path

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """Nobody else may enter it. Gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="octet-", dir=_short_folder()) as folder:
        yield Path(folder)


def _short_folder() -> Path:
    for path in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/var/tmp"):  # noqa: S108
        if path and len(os.fsencode(path)) <= _MAX_FOLDER and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    raise OSError(f"no folder for sockets: XDG_RUNTIME_DIR or TMPDIR must be writable and at most {_MAX_FOLDER} bytes")


def places_of(ensemble: Ensemble, folder: Path) -> Sequence[Place]:
    """One for each replica; none for specialists that run elsewhere."""
    return [
        Place(name, specialist, folder / f"{number}-{specialist.name[:_MAX_NAME]}.sock")
        for number, (name, specialist) in enumerate(_names(ensemble))
    ]


def _names(ensemble: Ensemble) -> Iterator[tuple[str, SpecialistConfig]]:
    for specialist in ensemble.specialists:
        if specialist.addresses:
            continue
        if specialist.replicas == 1:
            yield specialist.name, specialist
            continue
        for index in range(specialist.replicas):
            yield f"{specialist.name}/{index + 1}", specialist
