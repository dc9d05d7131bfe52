"""How a process begins: as a copy of this one or as a program, with pipes to its supervisor, and not outliving it."""

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from octet.supervise.role import Role
from octet.supervise.status import VARIABLE, Status

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NOT_FOUND = 127
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Those a supervisor handles itself."""


class Spawned(NamedTuple):
    pid: int
    log: int
    """What it writes to standard output and standard error, without blocking whoever reads."""
    status: int


class _Birth(NamedTuple):
    """What a copy needs to become itself."""

    parent: int
    mask: set[int | signal.Signals]
    log: int
    status: int
    close: list[int]


def spawn(role: Role, close: Iterable[int] = ()) -> Spawned:
    """`close` are the supervisor's own descriptors, which are nobody else's business."""
    check_forkable()
    log, log_in = os.pipe()
    status, status_in = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none is lost between being copied and being oneself
    pid = os.fork()
    if pid == 0:
        _become(role, _Birth(parent, mask, log_in, status_in, [*close, log, status]))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(log_in)
    os.close(status_in)
    os.set_blocking(log, False)
    os.set_blocking(status, False)
    return Spawned(pid, log, status)


def check_forkable() -> None:
    """A copy has only the thread that made it; what the others held it would wait for forever."""
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise RuntimeError(f"a supervisor forks, and must have no other threads: {names}")


def _become(role: Role, birth: _Birth) -> NoReturn:
    code = 1
    try:
        _settle(birth)
        code = _run(role, birth.status)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # nobody reads any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _settle(birth: _Birth) -> None:
    die_with(birth.parent)
    os.setpgid(0, 0)  # Ctrl-C is the supervisor's to hear
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, birth.mask)
    for fd in birth.close:
        os.close(fd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (birth.log, 1), (birth.log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(birth.log)


def die_with(parent: int) -> None:
    """When the supervisor is killed, so is this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _call_itself(name: str) -> None:
    """For `ps` and `top`, which show 15 bytes. A program shows its own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"octet:{name}".encode(errors="replace"))


def _run(role: Role, status: int) -> int:
    if role.fork is None:
        _execute(role.command, status)
    _call_itself(role.name)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return role.fork(Status(status))


def _execute(command: tuple[str, ...], status: int) -> NoReturn:
    os.set_inheritable(status, True)
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, VARIABLE: str(status)}
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        print(f"{command[0]} cannot be run: {error}", file=sys.stderr)
        sys.exit(_NOT_FOUND)
