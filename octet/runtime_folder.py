"""A folder for the sockets of one ensemble, which nobody else may enter."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAX_PARENT = 64
"""Bytes: the path of a Unix socket has 107, and folder and file below need their share."""
_PREFIX = "octet-serve-"
_SOCKET = re.compile(r"[0-9]+-.+\.sock")
ACCEPTED = "accepted.yaml"
"""The configuration that the router last accepted."""


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """Locked as long as it is used, and gone afterwards; those that a killed supervisor has left are removed first."""
    folder, lock = _made()
    try:
        _remove_abandoned(folder.parent)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[Path, int]:
    reasons = []
    for parent in _parents():
        try:
            return _locked(parent)
        except OSError as error:
            reasons.append(str(error))
    raise OSError(
        f"no folder for sockets: XDG_RUNTIME_DIR or TMPDIR must be writable and at most {_MAX_PARENT} bytes "
        f"({'; '.join(reasons) or 'none is short enough'})"
    )


def _parents() -> Iterator[Path]:
    for path in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/var/tmp"):  # noqa: S108
        if path and len(os.fsencode(path)) <= _MAX_PARENT:
            yield Path(path)


def _locked(parent: Path) -> tuple[Path, int]:
    """Whoever clears up may have been quicker than the lock: then there is another one."""
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
        with suppress(OSError):  # somebody uses it, it is gone, or it is nobody's business
            _remove_unless_used(folder)


def _remove_unless_used(folder: Path) -> None:
    """Raises OSError for one that is locked."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.getuid() and all(map(_is_ours, folder.iterdir())):
            shutil.rmtree(folder)
    finally:
        os.close(lock)


def _is_ours(file: Path) -> bool:
    if file.name in (ACCEPTED, f"{ACCEPTED}.new"):
        return True
    return _SOCKET.fullmatch(file.name) is not None and stat.S_ISSOCK(file.lstat().st_mode)
