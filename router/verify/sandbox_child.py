"""The sandbox's child process. It confines a program with namespaces or Landlock, and with seccomp.

Runs as `python -I -S -c` and imports only the standard library. The first argument states, as JSON, what to run and
with which limits. The program inherits this process's standard input and standard error; its standard output is
discarded. One line of JSON on this process's standard output reports how the program ended.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH constants of the kernel

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_THREAD = 0x00010000
_OTHER_TABLE = 0x40000000  # from this number on, x86_64 numbers the same calls a second time (x32)

_REFUSED_CALLS = (
    "socket 41 198; socketpair 53 199; fork 57 -; vfork 58 -; kill 62 129; tkill 200 130; tgkill 234 131; "
    "rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; pidfd_send_signal 424 424; pidfd_open 434 434; "
    "pidfd_getfd 438 438; ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; kcmp 312 272; "
    "setpgid 109 154; setsid 112 157; shmget 29 194; shmat 30 196; semget 64 190; msgget 68 186; "
    "mq_open 240 180; truncate 76 45; chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; "
    "fchown 93 55; lchown 94 -; fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88; "
    "setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15; "
    "fremovexattr 199 16; setxattrat 463 463; removexattrat 466 466; mount 165 40; umount2 166 39; "
    "pivot_root 155 41; chroot 161 51; unshare 272 97; setns 308 268; open_tree 428 428; move_mount 429 429; "
    "fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433; mount_setattr 442 442; "
    "open_tree_attr 467 467; name_to_handle_at 303 264; open_by_handle_at 304 265; add_key 248 217; "
    "request_key 249 218; keyctl 250 219; perf_event_open 298 241; bpf 321 280; userfaultfd 323 282; "
    "io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427"
)
"""Names and numbers (x86_64, aarch64) of calls that reach other processes, the network or rarely used kernel code."""
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRLIMIT = (302, 261)


class BpfInstruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32))


def seccomp_program(machine: str) -> list[BpfInstruction]:
    """Return the seccomp filter of system calls. Raises ValueError for an unknown machine."""
    refused = _ERRNO | errno.EPERM
    column = list(AUDIT_ARCHITECTURES).index(machine)
    program = [
        BpfInstruction(_LOAD, 0, 0, _MACHINE),
        BpfInstruction(_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        BpfInstruction(_RETURN, 0, 0, _KILL),
        BpfInstruction(_LOAD, 0, 0, _NUMBER),
        BpfInstruction(_AT_LEAST, 0, 1, _OTHER_TABLE),
        BpfInstruction(_RETURN, 0, 0, refused),
    ]
    for call in _REFUSED_CALLS.split("; "):
        number = call.split()[1 + column]
        if number != "-":
            program += _return_for(int(number), refused)
    program += _return_for(_CLONE3[column], _ERRNO | errno.ENOSYS)
    program += _by_first_argument(_CLONE[column], BpfInstruction(_ANY_BIT, 1, 0, _THREAD), refused)
    program += _by_first_argument(_PRLIMIT[column], BpfInstruction(_EQUAL, 1, 0, 0), refused)
    return [*program, BpfInstruction(_RETURN, 0, 0, _ALLOW)]


def _return_for(number: int, what: int) -> list[BpfInstruction]:
    return [BpfInstruction(_EQUAL, 0, 1, number), BpfInstruction(_RETURN, 0, 0, what)]


def _by_first_argument(number: int, allowed: BpfInstruction, otherwise: int) -> list[BpfInstruction]:
    """Allow the call if `allowed` accepts the low 32 bits of its first argument: the clone flags or the pid."""
    return [
        BpfInstruction(_EQUAL, 0, 4, number),
        BpfInstruction(_LOAD, 0, 0, _FIRST_ARGUMENT),
        allowed,
        BpfInstruction(_RETURN, 0, 0, otherwise),
        BpfInstruction(_RETURN, 0, 0, _ALLOW),
    ]


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_BENEATH = 1

_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_READS = _EXECUTE | _READ_FILE | _READ_FOLDER
_OF_FILES = _EXECUTE | _READ_FILE
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All access rights, by the first Landlock version that supports them."""
_NETWORK_RULES, _NETWORK_SINCE = 0b11, 4
_SIGNALS_AND_SOCKETS, _SCOPES_SINCE = 0b11, 6


class _LandlockRules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version(libc: ctypes.CDLL) -> int:
    return max(0, int(libc.syscall(_CREATE, None, 0, _ASK_VERSION)))


def restrict_files(libc: ctypes.CDLL, view: Iterable[str], writable: str | None) -> None:
    version = landlock_version(libc)
    everything = max((mask for since, mask in _ALL_BY_VERSION.items() if since <= version), default=0)
    rules = _LandlockRules(
        everything,
        _NETWORK_RULES if version >= _NETWORK_SINCE else 0,
        _SIGNALS_AND_SOCKETS if version >= _SCOPES_SINCE else 0,
    )
    size = 8 * (1 + (version >= _NETWORK_SINCE) + (version >= _SCOPES_SINCE))  # older kernels take fewer fields
    ruleset = _landlock_call(libc, _CREATE, ctypes.byref(rules), size, 0)
    for path in view:
        _allow(libc, ruleset, path, _READS if Path(path).is_dir() else _OF_FILES)
    if writable is not None:
        _allow(libc, ruleset, writable, everything & ~_EXECUTE)
    _landlock_call(libc, _RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, what: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _landlock_call(libc, _ADD, ruleset, _BENEATH, ctypes.byref(_PathBeneath(what, folder)), 0)
    finally:
        os.close(folder)


def _landlock_call(libc: ctypes.CDLL, *arguments: object) -> int:
    result = int(libc.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    return result


NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""New namespaces for mounts, host name, IPC, processes and network."""
NEW_USER_NAMESPACE = 0x10000000
UNUSED_UID = 0x7FFE0000  # a user id that owns no file and runs no other process
NOBODY_UID = 65534
STAGING_ROOT = "/proc"  # the new root is mounted here: the path always exists, and no readable path lies below it
OUTPUT_FOLDER, PRIVATE_FOLDER = "/out", "/private"
NAMESPACES, LANDLOCK = "namespaces", "landlock"

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = ((os.ST_NOEXEC, _NOEXEC), (os.ST_NOATIME, 1024), (os.ST_NODIRATIME, 2048), (os.ST_RELATIME, 1 << 21))
"""In a user namespace, a bind mount must keep these flags of its source."""
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_PDEATHSIG, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _CAPBSET_DROP, _CAP_AMBIENT, _CLEAR_ALL = 1, 22, 38, 24, 47, 4
_MOST_CAPABILITIES = 64
_FILTER_MODE = 2

libc = ctypes.CDLL(None, use_errno=True)


class SandboxUnavailable(Exception):
    """This machine cannot build the sandbox."""


def main() -> NoReturn:
    order: dict[str, Any] = json.loads(sys.argv[1])
    _die_with_parent(order["parent"])
    os.nice(19)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        child = _start(order)
    except (SandboxUnavailable, OSError) as error:
        _write_report({"trouble": str(error)})
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.waitpid(child, 0)
    os._exit(0)


def _die_with_parent(parent: int) -> None:
    _checked_call("prctl", _SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _start(order: dict[str, Any]) -> int:
    """Fork the process that builds the sandbox and waits for the program inside; return its id."""
    null = os.open("/dev/null", os.O_WRONLY)
    if order["mode"] == NAMESPACES:
        _enter_namespaces()
    child = os.fork()
    if child:
        return child
    try:
        _checked_call("prctl", _SET_PDEATHSIG, signal.SIGKILL)
        if order["mode"] == NAMESPACES:
            _build_root(order["view"], order["writable"])
        _write_report(_wait_report(_run_inside(order, null)))
    except (SandboxUnavailable, OSError) as error:
        _write_report({"trouble": str(error)})
    finally:
        os._exit(0)


def _enter_namespaces() -> None:
    if libc.unshare(NEW_NAMESPACES) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _checked_call("unshare", NEW_NAMESPACES | NEW_USER_NAMESPACE)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        Path("/proc/self", name).write_text(text)


def _build_root(view: list[str], writable: str | None) -> None:
    _mount(None, "/", None, _REC | _MS_PRIVATE)
    _mount("tmpfs", STAGING_ROOT, "tmpfs", _NOSUID | _NODEV, "size=4m,mode=755")
    for path in view:
        _bind_mount(path, STAGING_ROOT + path)
    Path(STAGING_ROOT + PRIVATE_FOLDER).mkdir()
    _mount("tmpfs", STAGING_ROOT + PRIVATE_FOLDER, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "size=16m,mode=1777")
    if writable is not None:
        _bind_mount(writable, STAGING_ROOT + OUTPUT_FOLDER, _NOEXEC, read_only=False)
    _mount(None, STAGING_ROOT, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(STAGING_ROOT)
    if libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."):
        raise SandboxUnavailable(f"pivot_root: {os.strerror(ctypes.get_errno())}")
    _checked_call("umount2", b".", _DETACH)
    os.chdir(PRIVATE_FOLDER)


def _bind_mount(path: str, place: str, flags: int = 0, *, read_only: bool = True) -> None:
    """Resolve symbolic links in `path`, and mount the result at `place`."""
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


def _run_inside(order: dict[str, Any], null: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.dup2(null, 1)
        _limit(order["limits"])
        _drop_capabilities()
        if order["mode"] == NAMESPACES:
            _drop_user()
        _checked_call("prctl", _SET_PDEATHSIG, signal.SIGKILL)
        _checked_call("prctl", _SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if order["mode"] == LANDLOCK:
            restrict_files(libc, order["view"], order["writable"])
        _install_seccomp()
        os.execve(order["program"][0], order["program"], order["environment"])  # noqa: S606
    except BaseException as error:
        os.write(2, f"sandbox: {error}".encode()[:500])
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


def _drop_capabilities() -> None:
    """Empty the ambient and bounding capability sets, so that the program gains no capability even as root."""
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for capability in range(_MOST_CAPABILITIES):
        if libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) and ctypes.get_errno() == errno.EPERM and os.geteuid() == 0:
            raise SandboxUnavailable("root could not drop its capabilities")


def _drop_user() -> None:
    """Change from root to an unprivileged user."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    for user in (UNUSED_UID, NOBODY_UID):
        with contextlib.suppress(OSError):
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return
    raise SandboxUnavailable("root could not become an unprivileged user")


def _install_seccomp() -> None:
    program = seccomp_program(os.uname().machine)
    instructions = (BpfInstruction * len(program))(*program)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(BpfInstruction)))

    filter_program = Program(len(program), instructions)
    _checked_call("prctl", _SET_SECCOMP, _FILTER_MODE, ctypes.byref(filter_program), 0, 0)


def _wait_report(child: int) -> dict[str, Any]:
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss << 10}


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        raise SandboxUnavailable(f"mount: {os.strerror(ctypes.get_errno())}")


def _checked_call(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments):
        raise SandboxUnavailable(f"{name}: {os.strerror(ctypes.get_errno())}")


def _write_report(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")
