"""Where the replicas of one ensemble listen: a private runtime folder with a socket for each."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.supervisor.weights import WEIGHTS_FILES
from octet.telemetry.logs import LogSettings

ACCEPTED_CONFIG = "accepted.yaml"  # the configuration that the router accepted last
_MAX_NAME = 24
_MAX_PARENT = 64  # bytes: a Unix socket's path has at most 107, including its folder and file name
_PREFIX = "octet-serve-"
_SOCKET = re.compile(r"[0-9]+-.+\.sock")


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    name: str
    specialist: SpecialistConfig
    socket: Path
    adapter_root: Path | None = None  # adapters loaded at run time must be below it; None if none may be loaded
    otlp: str = ""  # trace endpoint; empty for no traces
    logs: LogSettings = field(default_factory=LogSettings)

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"


def place_replicas(
    ensemble: Ensemble, folder: Path, otlp: str = "", logs: LogSettings | None = None
) -> Sequence[ReplicaPlacement]:
    """Return a placement for each replica that is started here. Specialists with addresses run elsewhere."""
    root, settings = adapter_root(ensemble), logs or LogSettings()
    placements: list[ReplicaPlacement] = []
    for specialist in ensemble.specialists:
        for index in range(0 if specialist.addresses else specialist.replicas):
            name = specialist.name if specialist.replicas == 1 else f"{specialist.name}/{index + 1}"
            socket = folder / f"{len(placements)}-{specialist.name[:_MAX_NAME]}.sock"
            placements.append(ReplicaPlacement(name, specialist, socket, root, otlp, settings))
    return placements


def adapter_root(ensemble: Ensemble) -> Path:
    """Return the configured adapter root, else the configuration file's folder, else the working directory."""
    if ensemble.adapter_root is not None:
        return Path(ensemble.adapter_root)
    return Path.cwd() if ensemble.source is None else ensemble.source.resolve().parent


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """Create a folder that only this user can enter, locked while it is used and removed afterwards. Also remove
    folders that killed supervisors left behind."""
    folder, lock = _create()
    try:
        _remove_abandoned(folder.parent)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create() -> tuple[Path, int]:
    reasons = []
    for path in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/var/tmp"):  # noqa: S108
        if path and len(os.fsencode(path)) <= _MAX_PARENT:
            try:
                return _create_locked(Path(path))
            except OSError as error:
                reasons.append(str(error))
    folders = f"XDG_RUNTIME_DIR or TMPDIR must name a writable folder whose path has at most {_MAX_PARENT} bytes"
    raise OSError(f"no folder for sockets: {folders} ({'; '.join(reasons) or 'none is short enough'})")


def _create_locked(parent: Path) -> tuple[Path, int]:
    """Create a folder and lock it. If another supervisor removes it before it is locked, try again."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # locked, already removed, or owned by another user
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid() and all(map(_is_known_file, folder.iterdir())):
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _is_known_file(file: Path) -> bool:
    if file.name in (ACCEPTED_CONFIG, f"{ACCEPTED_CONFIG}.new", *WEIGHTS_FILES):
        return True
    return _SOCKET.fullmatch(file.name) is not None and stat.S_ISSOCK(file.lstat().st_mode)
