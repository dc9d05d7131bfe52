"""One supervised process: its specification, its start, its log and status pipes."""

import ctypes
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Literal, NamedTuple, NoReturn

from octet.backoff import Backoff, BackoffDelays
from octet.clock import Clock
from octet.rpc.memory import MemoryKills
from octet.supervisor.console import Console
from octet.supervisor.signals import SUPERVISOR_SIGNALS

EXIT_USAGE = 2  # exit status of a process that can never run as configured
MAX_LINE_BYTES = 8192  # a longer line is split, so that no buffer grows without bound
STATUS_FD_VARIABLE = "OCTET_STATUS_FD"  # names the status pipe for a process that runs as a program
PREVIOUS_END_VARIABLE = "OCTET_PREVIOUS_END"  # tells a restarted process how its predecessor ended, as JSON
MAX_END_CHARACTERS = 240
LISTENER_FD_VARIABLE = "OCTET_LISTENER_FD"  # names the socket that a program serves, which its supervisor has bound
_MAX_TEXT = 300  # characters. The kernel writes 4096 bytes atomically, and JSON takes up to twelve bytes per character.
ProcessState = Literal["not started", "starting", "ready", "dead"]
_READ_BYTES = 1 << 16
_EXIT_NOT_FOUND = 127
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended."""

    kind: str  # killed, out_of_memory, exited or hung
    text: str
    number: int = 0  # how many processes of the same name have ended so far, without failed restarts; 0 if unknown

    @classmethod
    def from_environment(cls) -> "ProcessEnd | None":
        """Return how the predecessor of this process ended; None without a supervisor or a predecessor."""
        given = os.environ.pop(PREVIOUS_END_VARIABLE, "")
        try:
            match json.loads(given or "null"):
                case {"kind": str(kind), "text": str(text), "number": int(number)} if 0 <= number < 1 << 32:
                    return cls(kind, text, number)
        except (ValueError, RecursionError):
            pass
        return None

    @classmethod
    def from_status(cls, status: int, last_line: str, *, ran_out_of_memory: bool) -> "ProcessEnd":
        """Describe a wait status. `last_line` is the last line that the process wrote."""
        code = os.waitstatus_to_exitcode(status)
        said = " ".join(last_line.split())
        if -code == signal.SIGKILL and ran_out_of_memory:
            return cls("out_of_memory", "out of memory: killed by the kernel")
        if code < 0:
            return cls("killed", format_exit(status).removeprefix("was "))
        text = f"exit code {code}{f': {said}' if said else ''}"
        return cls("out_of_memory" if said.startswith("MemoryError") else "exited", text[:MAX_END_CHARACTERS])

    def add_failed_start(self, end: "ProcessEnd") -> "ProcessEnd":
        """Add the end of a successor that was never ready. The kind stays that of the process that had been ready."""
        first = self.text.partition("; its restart failed: ")[0]
        return replace(self, text=f"{first}; its restart failed: {end.text}"[:MAX_END_CHARACTERS])

    def follow(self, before: "ProcessEnd | None") -> "ProcessEnd":
        """Number this end after the one `before`."""
        return replace(self, number=1 if before is None else before.number + 1)


def parse_status(line: bytes) -> dict[str, Any] | None:
    """Return the status message, or None for any other line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"progress": [str(), int(), int()]} | {"ready": str()} | {"alive": True}:
            return dict(message)
    return None


def take_inherited_descriptor(variable: str) -> int | None:
    """Return the descriptor that a supervisor named in this variable, if any. Children do not inherit it."""
    given = os.environ.pop(variable, "")
    if not given.isdecimal():
        return None
    os.set_inheritable(int(given), False)
    return int(given)


class StatusReporter:
    """A supervised process's end of the status pipe. Without a supervisor, it does nothing."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._last_progress: tuple[str, int] | None = None
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls) -> "StatusReporter":
        """Create a reporter, inactive unless a supervisor started this program. Children do not inherit the pipe."""
        return cls(take_inherited_descriptor(STATUS_FD_VARIABLE))

    def progress(self, what: str, done: int, total: int) -> None:
        """Send progress, at most once per percent."""
        percent = 100 * done // total if total > 0 else 100
        if (what, percent) != self._last_progress:
            self._last_progress = (what, percent)
            self._write({"progress": [what[:_MAX_TEXT], done, total]})

    def ready(self, text: str) -> None:
        """Report readiness. Wait while the pipe is full, because this message must not be lost."""
        if self._fd is not None:
            select.select([], [self._fd], [])
        self._write({"ready": text[:_MAX_TEXT]})

    def alive(self) -> None:
        self._write({"alive": True})

    def _write(self, message: object) -> None:
        """Write a message, or drop it if the pipe is full or the supervisor is gone."""
        if self._fd is None:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._fd, json.dumps(message).encode() + b"\n")


@dataclass(frozen=True, slots=True, eq=False)
class ProcessSpec:
    """How to run a process. Exactly one of `fork` and `command` is set."""

    name: str
    fork: Callable[[StatusReporter], int] | None = None
    """Runs in a fork of the supervisor and shares its imports and mapped memory. Returns the exit status."""
    command: tuple[str, ...] = ()  # runs as a program
    stage: int = 0  # starts when all lower stages are ready, and stops before they do
    ready_words: str | None = None
    """A program that sends no status is ready once it has written a line with these words."""
    reloads: bool = False  # whether SIGHUP is passed on to it
    is_optional: bool = False  # whether the supervisor goes on without it if it never becomes ready
    listener: int | None = None
    """Descriptor of a bound socket that the program inherits and listens on. The supervisor keeps it open, so that
    connections made while the program restarts wait for it instead of being refused."""

    def __post_init__(self) -> None:
        if (self.fork is None) == (not self.command):
            raise ValueError(f"{self.name}: exactly one of `fork` and `command` must be given")


class SpawnedProcess(NamedTuple):
    pid: int
    log: int  # non-blocking: its standard output and standard error
    status: int


class SupervisedProcess:
    """A specification and its current process, if one runs."""

    def __init__(
        self,
        spec: ProcessSpec,
        console: Console,
        clock: Clock,
        draw: Callable[[], float],
        delays: BackoffDelays,
        memory_kills: MemoryKills,
    ) -> None:
        """`memory_kills` is shared by the processes of a supervisor."""
        self.spec = spec
        self.state: ProcessState = "not started"
        self.backoff = Backoff(clock, draw, delays)
        self.spawned: SpawnedProcess | None = None
        self.ready_text = ""  # the text of its latest ready message
        self.was_ready = False  # whether it was ready at least once
        self.num_starts = 0
        self.last_line = ""  # the last line that its latest process wrote
        self.previous_end: ProcessEnd | None = None
        self.is_killed_as_hung = False
        self.is_retired = False  # whether it is being stopped for good while the others go on
        self.kill_at = inf  # when a retired process is killed
        self.start_at: float | None = None  # when to start it; None if no start is due
        self.last_sign_of_life: float | None = None
        """Initially the time of its start. None for a process that is ready and sends no heartbeats."""
        self.sends_heartbeats = False
        self._console = console
        self._clock = clock
        self._started_at = 0.0
        self._memory_kills = memory_kills
        self._num_memory_kills = 0  # at its start
        self._log, self._status = LineSplitter(), LineSplitter()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_alive(self) -> bool:
        return self.spawned is not None

    @property
    def seconds(self) -> float:
        """Seconds since the process was started."""
        return self._clock.now() - self._started_at

    def start(self, close: list[int]) -> SpawnedProcess:
        """Start the process. `close` lists descriptors of the supervisor that it must not inherit."""
        self.state, self.start_at, self.sends_heartbeats = "starting", None, False
        self.num_starts += 1
        self.last_line, self.is_killed_as_hung, self._num_memory_kills = "", False, self._memory_kills.count()
        self._log, self._status = LineSplitter(), LineSplitter()
        self._started_at = self.last_sign_of_life = self._clock.now()
        self.spawned = spawn_process(self.spec, close, self.previous_end)
        return self.spawned

    def kill(self, number: int) -> None:
        """Send a signal. This is safe until the process has been waited for: only then can its pid be reused."""
        if self.spawned is not None:
            os.kill(self.spawned.pid, number)

    def read_log(self) -> int | None:
        """Read the log pipe. Return the number of bytes read: 0 at its end, None if no bytes are available."""
        return None if self.spawned is None else _read_lines(self.spawned.log, self._log, self._handle_log_line)

    def read_status(self) -> int | None:
        return None if self.spawned is None else _read_lines(self.spawned.status, self._status, self._handle_status)

    def reap(self, status: int) -> None:
        """Read the rest of the pipes and close them. The process has been waited for and had this wait status."""
        if self.spawned is None:
            return
        while self.read_status():
            pass
        while self.read_log():
            pass
        for line in self._log.finish():
            self._handle_log_line(line)
        os.close(self.spawned.log)
        os.close(self.spawned.status)
        end = self._find_end(status)
        is_failed_start = self.state == "starting" and self.previous_end is not None
        before = self.previous_end
        self.previous_end = before.add_failed_start(end) if is_failed_start and before else end.follow(before)
        self.spawned, self.state, self.last_sign_of_life = None, "dead", None

    def _find_end(self, status: int) -> ProcessEnd:
        if self.is_killed_as_hung:
            return ProcessEnd("hung", "hung: killed by its supervisor")
        is_sigkill = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        ran_out_of_memory = is_sigkill and self._memory_kills.attribute(self._num_memory_kills)
        return ProcessEnd.from_status(status, self.last_line, ran_out_of_memory=ran_out_of_memory)

    def _handle_log_line(self, line: bytes) -> None:
        self.last_line = printable_line(line)
        self._console.log(self.name, self.last_line)
        words = self.spec.ready_words
        if words is not None and words in self.last_line:
            self._set_ready(self.last_line)

    def _handle_status(self, line: bytes) -> None:
        match parse_status(line):
            case {"progress": [what, done, total]}:
                self._console.progress(self.name, what, done, total)
            case {"ready": text}:
                self._set_ready(text)
            case {"alive": True}:
                self.last_sign_of_life, self.sends_heartbeats = self._clock.now(), True
            case _:
                self._console.say(f"{self.name} sent an unknown status message: {printable_line(line)}")
                return
        if self.last_sign_of_life is not None:
            self.last_sign_of_life = self._clock.now()

    def _set_ready(self, text: str) -> None:
        if self.state == "starting" and self.spawned is not None:
            self.state, self.was_ready, self.ready_text = "ready", True, text
            self.last_sign_of_life = self.last_sign_of_life if self.sends_heartbeats else None
            self.backoff.mark_ready()
            self._console.ready(self.name, self.spawned.pid, self.seconds)


class LineSplitter:
    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """Return the complete lines, without their newlines; a line that is too long is split."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [piece for line in whole for piece in self._split(line)]
        *overlong, self._rest = self._split(self._rest)
        return lines + overlong

    def finish(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _split(self, line: bytes) -> list[bytes]:
        """Split a line that is too long into pieces, but never inside a UTF-8 character."""
        pieces = []
        while len(line) > (stop := self._max_bytes):
            starts = (index for index in range(stop, max(0, stop - 4), -1) if line[index] & 0xC0 != 0x80)
            boundary = next(starts, stop)  # the last start of a character, if one is near
            pieces.append(line[:boundary])
            line = line[boundary:]
        return [*pieces, line]


def printable_line(line: bytes) -> str:
    """Make a line safe for a terminal: control characters become escapes."""
    text = line.decode(errors="replace").rstrip("\r")
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)


def _read_lines(fd: int, lines: LineSplitter, handle: Callable[[bytes], None]) -> int | None:
    try:
        data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
    for line in lines.push(data):
        handle(line)
    return len(data)


def spawn_process(
    spec: ProcessSpec, close: Iterable[int] = (), previous_end: ProcessEnd | None = None
) -> SpawnedProcess:
    """Start the process. `close` lists descriptors of the supervisor that it must not inherit."""
    check_single_threaded()
    log, log_in = os.pipe()
    status, status_in = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISOR_SIGNALS)  # until the child has its own handlers
    pid = os.fork()
    if pid == 0:
        os.environ.pop(PREVIOUS_END_VARIABLE, None)
        if previous_end is not None:
            os.environ[PREVIOUS_END_VARIABLE] = json.dumps(asdict(previous_end))
        _exit_after(lambda: _run_child(spec, parent, mask, [log_in, status_in, *close, log, status]))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(log_in)
    os.close(status_in)
    os.set_blocking(log, False)
    os.set_blocking(status, False)
    return SpawnedProcess(pid, log, status)


def check_single_threaded() -> None:
    """Raises RuntimeError if other threads run: a fork does not copy them, so their locks would never be released."""
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise RuntimeError(f"cannot fork while other threads are running: {names}")


def _exit_after(run: Callable[[], int]) -> NoReturn:
    """Call `run`, then exit this forked process, even if `run` raises."""
    code = 1
    try:
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # the reader may be gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run_child(spec: ProcessSpec, parent: int, mask: "set[int | signal.Signals]", pipes: list[int]) -> int:
    """Run `spec` in the forked process; return the exit status. `pipes` are log, status, then descriptors to close."""
    log, status, *close = pipes
    _set_up_child(parent, mask, log, close)
    if spec.fork is None:
        _execute(spec, status)
    if sys.platform == "linux":  # for `ps` and `top`, which show 15 bytes
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"octet:{spec.name}".encode(errors="replace"))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return spec.fork(StatusReporter(status))


def _set_up_child(parent: int, mask: "set[int | signal.Signals]", log: int, close: list[int]) -> None:
    die_with_parent(parent)
    os.setpgid(0, 0)  # Ctrl-C goes to the supervisor only
    signal.set_wakeup_fd(-1)
    for number in SUPERVISOR_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for fd in close:
        os.close(fd)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(devnull)
    os.close(log)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. If the parent is already dead, exit."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _execute(spec: ProcessSpec, status: int) -> NoReturn:
    command, environment = spec.command, {"PYTHONUNBUFFERED": "1", **os.environ}
    for variable, fd in ((STATUS_FD_VARIABLE, status), (LISTENER_FD_VARIABLE, spec.listener)):
        if fd is not None:
            os.set_inheritable(fd, True)
            environment[variable] = str(fd)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr)
        sys.exit(_EXIT_NOT_FOUND)


class ForkedCallFailed(RuntimeError):
    """The forked process failed, or exited without a result."""


def call_in_fork(compute: Callable[[], Any]) -> Any:
    """Call `compute` in a forked process, so that its threads, pools and caches are gone afterwards. The result must be
    serialisable as JSON. Raises ForkedCallFailed."""
    check_single_threaded()
    reading, writing = os.pipe()
    parent = os.getpid()

    def send_result() -> int:
        die_with_parent(parent)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(compute()).encode())
        return 0

    pid = os.fork()
    if pid == 0:
        _exit_after(send_result)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status or not result:
        raise ForkedCallFailed(f"the forked process {format_exit(status)}")
    return json.loads(result)


def format_exit(status: int) -> str:
    """Describe how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
