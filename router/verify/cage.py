"""Runs one program where it can reach nothing: no network, no file but those it is shown, no second process.

Run by itself, as `python -I -S -c`: nothing but the standard library is imported, and nothing here knows the router.
The order is JSON in the first argument, the program reads this process's standard input and writes to its standard
error, and one line of JSON on standard output says how it ended."""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from router.verify.filters import Instruction, filter_program
from router.verify.landlock import shut_in

NEW_SPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, host name, IPC, processes, network."""
NEW_USER = 0x10000000
STRANGER = 0x7FFE0000
"""A user that owns nothing and runs nothing else."""
NOBODY = 65534
STAGE = "/proc"
"""The new root is built over it: a place that is always there, and where nothing that is shown can lie."""
OUT, PRIVATE = "/out", "/private"
NAMESPACES, LANDLOCK = "namespaces", "landlock"

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = ((os.ST_NOEXEC, _NOEXEC), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048), (os.ST_RELATIME, 1 << 21))
"""A user's own mounts may not be looser than what they show."""
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_PDEATHSIG, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _DROP_POWER, _CAP_AMBIENT, _CLEAR_ALL = 1, 22, 38, 24, 47, 4
_MOST_POWERS = 64
_FILTER_MODE = 2

libc = ctypes.CDLL(None, use_errno=True)


class Trouble(Exception):
    """The cage cannot be built here."""


def main() -> NoReturn:
    order: dict[str, Any] = json.loads(sys.argv[1])
    _end_with(order["parent"])
    os.nice(19)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        child = _start(order)
    except (Trouble, OSError) as error:
        _report({"trouble": str(error)})
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.waitpid(child, 0)
    os._exit(0)


def _end_with(parent: int) -> None:
    _checked("prctl", _SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _start(order: dict[str, Any]) -> int:
    """The process that builds the cage, and waits for the one inside."""
    silence = os.open("/dev/null", os.O_WRONLY)
    if order["mode"] == NAMESPACES:
        _enter_new_spaces()
    child = os.fork()
    if child:
        return child
    try:
        _checked("prctl", _SET_PDEATHSIG, signal.SIGKILL)
        if order["mode"] == NAMESPACES:
            _show_only(order["view"], order["writable"])
        _report(_ended(_run_inside(order, silence)))
    except (Trouble, OSError) as error:
        _report({"trouble": str(error)})
    finally:
        os._exit(0)


def _enter_new_spaces() -> None:
    if libc.unshare(NEW_SPACES) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _checked("unshare", NEW_SPACES | NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        Path("/proc/self", name).write_text(text)


def _show_only(view: list[str], writable: str | None) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", STAGE, "tmpfs", _NOSUID | _NODEV, "size=4m,mode=755")
    for path in view:
        _show(path, STAGE + path)
    Path(STAGE + PRIVATE).mkdir()
    _mount("tmpfs", STAGE + PRIVATE, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "size=16m,mode=1777")
    if writable is not None:
        _show(writable, STAGE + OUT, _NOEXEC, read_only=False)
    _mount(None, STAGE, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(STAGE)
    if libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."):
        raise Trouble(f"pivot_root: {os.strerror(ctypes.get_errno())}")
    _checked("umount2", b".", _DETACH)
    os.chdir(PRIVATE)


def _show(path: str, place: str, flags: int = 0, *, read_only: bool = True) -> None:
    """By its own name, whatever links lead there."""
    true = os.path.realpath(path)
    if Path(true).is_dir():
        Path(place).mkdir(parents=True, exist_ok=True)
    else:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).touch()
    _mount(true, place, None, _BIND)
    kept = sum(mount_flag for flag, mount_flag in _KEPT_FLAGS if os.statvfs(place).f_flag & flag)
    flags |= kept | (_RDONLY if read_only else 0)
    _mount(None, place, None, _REMOUNT | _BIND | _NOSUID | _NODEV | flags)


def _run_inside(order: dict[str, Any], silence: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.dup2(silence, 1)
        _limit(order["limits"])
        _give_up_powers()
        if order["mode"] == NAMESPACES:
            _become_nobody()
        _checked("prctl", _SET_PDEATHSIG, signal.SIGKILL)
        _checked("prctl", _SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if order["mode"] == LANDLOCK:
            shut_in(libc, order["view"], order["writable"])
        _filter_calls()
        os.execve(order["program"][0], order["program"], order["environment"])  # noqa: S606
    except BaseException as error:
        os.write(2, f"cage: {error}".encode()[:500])
    finally:
        os._exit(127)


def _limit(limits: dict[str, int]) -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, limits["cpu"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 << 20),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _give_up_powers() -> None:
    """From the next program on, also where it is root's: then only those are left that it can be given."""
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for power in range(_MOST_POWERS):
        if libc.prctl(_DROP_POWER, power, 0, 0, 0) and ctypes.get_errno() == errno.EPERM and os.geteuid() == 0:
            raise Trouble("root could not give up its powers")


def _become_nobody() -> None:
    """Where the files it is shown are shown to everybody."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    for user in (STRANGER, NOBODY):
        with contextlib.suppress(OSError):
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return
    raise Trouble("root could not become nobody")


def _filter_calls() -> None:
    program = filter_program(os.uname().machine)
    instructions = (Instruction * len(program))(*program)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction)))

    whole = Program(len(program), instructions)
    _checked("prctl", _SET_SECCOMP, _FILTER_MODE, ctypes.byref(whole), 0, 0)


def _ended(child: int) -> dict[str, Any]:
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss << 10}


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        raise Trouble(f"mount: {os.strerror(ctypes.get_errno())}")


def _checked(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments):
        raise Trouble(f"{name}: {os.strerror(ctypes.get_errno())}")


def _report(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")
