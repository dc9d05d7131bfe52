"""A bounded pool of child processes with time and output limits, shared fairly."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

_ROOT = Path(__file__).parents[2]
_PACKAGES = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
_TERM_SECONDS = 2.0  # from SIGTERM until the whole process group is killed
_CHUNK = 1 << 16

TaskEnding = Literal["exited", "out_of_time", "flood"]
_Stream = TypeVar("_Stream", asyncio.StreamReader, asyncio.StreamWriter)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PoolTask:
    command: Sequence[str]
    stdin: bytes
    seconds: float
    most_output: int = 1 << 16  # bytes; a process that writes more on standard output or standard error is ended
    owner: str = ""  # owners take fair turns


@dataclass(frozen=True, slots=True)
class TaskResult:
    ending: TaskEnding
    code: int  # as in `subprocess`, negative for a signal; meaningless unless the process exited
    stdout: bytes
    stderr: bytes
    seconds: float


def isolated_command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs `main` of an Octet module in a Python that ignores the environment and `site`."""
    boot = (
        f"import sys; sys.path.insert(0, {str(_ROOT)!r}); sys.path.extend({_PACKAGES!r}); "
        f"from {module} import main; main()"
    )
    return [sys.executable, "-I", "-S", "-c", boot, *arguments]


class _OutputFlood(Exception):
    """The process writes more than its task allows."""


class FairQueue(Generic[_Item]):
    """Waiting items by owner. The owner that has used the least time is next. When an owner without items gets one, its
    time is raised to that of the owner chosen last, so that it gains nothing by a pause."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[_Item]] = {}  # by owner; no deque is empty
        self._used: defaultdict[str, float] = defaultdict(float)
        self._level = 0.0

    def put(self, owner: str, item: _Item) -> None:
        if owner not in self.waiting:
            self._used[owner] = max(self._used[owner], self._level)
            self.waiting[owner] = deque()
        self.waiting[owner].append(item)

    def pop(self) -> tuple[str, _Item]:
        """Return the first item of the next owner. The queue must not be empty."""
        owner = min(self.waiting, key=self._used.__getitem__)
        self._level = self._used[owner]
        item = self.waiting[owner][0]
        self.remove(owner, item)
        return owner, item

    def remove(self, owner: str, item: _Item) -> None:
        """Remove the item if it is waiting."""
        queue = self.waiting.get(owner, deque())
        if item in queue:
            queue.remove(item)
        if not queue:
            self.waiting.pop(owner, None)

    def charge(self, owner: str, seconds: float) -> None:
        self._used[owner] += seconds


class VerifierPool:
    """Runs up to `width` processes concurrently. Others wait for a turn."""

    def __init__(self, width: int = 1) -> None:
        self._num_free = width
        self._queue = FairQueue[asyncio.Future[None]]()

    async def run(self, task: PoolTask) -> TaskResult:
        """Run the task in its turn, within its limits. Leaves no process behind, even if cancelled. Raises OSError."""
        async with self._turn(task.owner):
            return await _run_task(task)

    @asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(owner, turn)
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            self._num_free += not turn.cancelled()
            self._queue.remove(owner, turn)
            self._start_next()
            raise
        started = time.monotonic()
        try:
            yield
        finally:
            self._queue.charge(owner, time.monotonic() - started)
            self._num_free += 1
            self._start_next()

    def _start_next(self) -> None:
        while self._num_free and self._queue.waiting:
            _, turn = self._queue.pop()
            if not turn.done():
                self._num_free -= 1
                turn.set_result(None)


async def _run_task(task: PoolTask) -> TaskResult:
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *task.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, env={}, cwd="/"
    )
    out, err = bytearray(), bytearray()
    ending: TaskEnding = "exited"
    try:
        async with asyncio.timeout(task.seconds):
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(process, task.stdin))
                for stream, buffer in ((process.stdout, out), (process.stderr, err)):
                    group.create_task(_read(require_pipe(stream), buffer, task.most_output))
            await process.wait()
    except* _OutputFlood:
        ending = "flood"
    except* TimeoutError:
        ending = "out_of_time"
    finally:
        await asyncio.shield(end_process(process))
    code = process.returncode if process.returncode is not None else 0
    return TaskResult(ending, code, bytes(out), bytes(err), time.monotonic() - started)


async def _feed(process: Process, data: bytes) -> None:
    stdin = require_pipe(process.stdin)
    with suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()


async def _read(stream: asyncio.StreamReader, buffer: bytearray, most: int) -> None:
    while chunk := await stream.read(_CHUNK):
        buffer += chunk[: most - len(buffer)]
        if len(buffer) >= most:
            raise _OutputFlood


def require_pipe(stream: _Stream | None) -> _Stream:
    if stream is None:
        raise RuntimeError("the process was started without pipes")
    return stream


async def end_process(process: Process) -> None:
    """Terminate the process, so that it can end its children first. Then kill what is left of its process group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
