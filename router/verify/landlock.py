"""The kernel's Landlock: a process gives up every file but those it names, for itself and for good. For where no
namespaces can be had."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_BENEATH = 1

_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_READS = _EXECUTE | _READ_FILE | _READ_FOLDER
_OF_FILES = _EXECUTE | _READ_FILE
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""What can be given up, by the first version of Landlock that knows it."""
_NETWORK, _NETWORK_SINCE = 0b11, 4
_SIGNALS_AND_SOCKETS, _SCOPES_SINCE = 0b11, 6


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version(libc: ctypes.CDLL) -> int:
    """0 where there is none."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _ASK_VERSION)))


def shut_in(libc: ctypes.CDLL, view: Iterable[str], writable: str | None) -> None:
    """Raises OSError."""
    known = version(libc)
    everything = max((mask for since, mask in _ALL_BY_VERSION.items() if since <= known), default=0)
    rules = _Rules(
        everything,
        _NETWORK if known >= _NETWORK_SINCE else 0,
        _SIGNALS_AND_SOCKETS if known >= _SCOPES_SINCE else 0,
    )
    ruleset = _called(libc, _CREATE, ctypes.byref(rules), _size(known), 0)
    for path in view:
        _allow(libc, ruleset, path, _READS if Path(path).is_dir() else _OF_FILES)
    if writable is not None:
        _allow(libc, ruleset, writable, everything & ~_EXECUTE)
    _called(libc, _RESTRICT, ruleset, 0)
    os.close(ruleset)


def _size(known: int) -> int:
    """An older kernel knows a shorter structure."""
    if known >= _SCOPES_SINCE:
        return ctypes.sizeof(_Rules)
    return 16 if known >= _NETWORK_SINCE else 8


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, what: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _called(libc, _ADD, ruleset, _BENEATH, ctypes.byref(_Beneath(what, folder)), 0)
    finally:
        os.close(folder)


def _called(libc: ctypes.CDLL, *arguments: object) -> int:
    result = int(libc.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    return result
