"""Where processes are run that may hang, flood or die: so many at a time, each with an end."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from router.verify.turns import Turns

_ROOT = Path(__file__).parents[2]
_GENTLE_SECONDS = 2.0
"""From asking a process to end what it started until its whole group is killed."""
_CHUNK = 1 << 16

Ending = Literal["exited", "out_of_time", "flood"]
_Stream = TypeVar("_Stream", asyncio.StreamReader, asyncio.StreamWriter)


@dataclass(frozen=True, slots=True)
class Done:
    ending: Ending
    code: int
    """As `subprocess` has it: negative for a signal. Of no meaning unless it exited."""
    out: bytes
    said: bytes
    """On standard error."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    command: Sequence[str]
    given: bytes
    """On standard input."""
    seconds: float
    """By the clock."""
    most_said: int = 1 << 16
    """Bytes on either output; more, and it is ended."""
    environment: Mapping[str, str] | None = None
    by: str = ""
    """Who wants it done: turns are fair between those who do."""


def isolated(module: str, *arguments: str) -> list[str]:
    """A Python of its own that runs `main` of one of our modules, and sees nothing of anybody's environment."""
    boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", boot, *arguments]


class Workshop:
    """`width` processes at once; the others wait for their turn. Next is one of whoever has had the least time: who
    takes long waits long."""

    def __init__(self, width: int = 1) -> None:
        self._num_free = width
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns = Turns()

    async def run(self, job: Job) -> Done:
        """Ends soon after the job's time, and leaves no process behind, also when it is cancelled. Raises OSError."""
        async with self._turn(job.by):
            return await _run(job)

    @asynccontextmanager
    async def _turn(self, by: str) -> AsyncIterator[None]:
        await self._wait(by)
        started = time.monotonic()
        try:
            yield
        finally:
            self._turns.charge(by, time.monotonic() - started)
            self._num_free += 1
            self._call_next()

    async def _wait(self, by: str) -> None:
        called = asyncio.get_running_loop().create_future()
        if by not in self._waiting:
            self._turns.ask(by)
        self._waiting.setdefault(by, deque()).append(called)
        self._call_next()
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._num_free += 1
            else:
                self._leave(by, called)
            self._call_next()
            raise

    def _call_next(self) -> None:
        while self._num_free and self._waiting:
            by = self._turns.call(self._waiting)
            called = self._waiting[by][0]
            self._leave(by, called)
            if not called.done():
                self._num_free -= 1
                called.set_result(None)

    def _leave(self, by: str, called: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(by, deque())
        with suppress(ValueError):
            queue.remove(called)
        if not queue:
            self._waiting.pop(by, None)


async def _run(job: Job) -> Done:
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *job.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
        env=dict(job.environment or {}),
        cwd="/",
    )
    out, said = bytearray(), bytearray()
    ending: Ending = "exited"
    try:
        async with asyncio.timeout(job.seconds):
            floods = await _exchange(process, job, out, said)
        ending = "flood" if floods else "exited"
        if not floods:
            async with asyncio.timeout(max(0.0, started + job.seconds - time.monotonic())):
                await process.wait()
    except TimeoutError:
        ending = "out_of_time"
    finally:
        await asyncio.shield(end(process))
    code = process.returncode if process.returncode is not None else 0
    return Done(ending, code, bytes(out), bytes(said), time.monotonic() - started)


async def _exchange(process: Process, job: Job, out: bytearray, said: bytearray) -> bool:
    """Until both outputs have ended; True as soon as one has grown too long."""
    stdout, stderr = piped(process.stdout), piped(process.stderr)
    feeding = asyncio.ensure_future(_feed(process, job.given))
    reading = [
        asyncio.ensure_future(_read(stdout, out, job.most_said)),
        asyncio.ensure_future(_read(stderr, said, job.most_said)),
    ]
    try:
        for read in asyncio.as_completed(reading):
            if await read:
                return True
        return False
    finally:
        for task in (feeding, *reading):
            task.cancel()
        await asyncio.gather(feeding, *reading, return_exceptions=True)


async def _feed(process: Process, given: bytes) -> None:
    stdin = piped(process.stdin)
    with suppress(ConnectionError):
        stdin.write(given)
        await stdin.drain()
    stdin.close()


async def _read(stream: asyncio.StreamReader, kept: bytearray, most: int) -> bool:
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: most - len(kept)]
        if len(kept) >= most:
            return True
    return False


def piped(stream: _Stream | None) -> _Stream:
    """Of a process that was started with a pipe there."""
    if stream is None:
        raise RuntimeError("a process started with pipes has none")
    return stream


async def end(process: Process) -> None:
    """Whatever it started goes with it: asked first, so that nothing is left for others to bury."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GENTLE_SECONDS):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    _close(process)


def _close(process: Process) -> None:
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
