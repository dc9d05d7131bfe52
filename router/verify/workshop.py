"""Where processes are run that may hang, flood or die: so many at a time, each with an end."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_ROOT = Path(__file__).parents[2]
_GENTLE_SECONDS = 2.0
"""From asking a process to end what it started until its whole group is killed."""
_CHUNK = 1 << 16

Ending = Literal["exited", "out_of_time", "flood"]


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


def isolated(module: str, *arguments: str) -> list[str]:
    """A Python of its own that runs `main` of one of our modules, and sees nothing of anybody's environment."""
    boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", boot, *arguments]


class Workshop:
    """`width` processes at once; the others wait for their turn."""

    def __init__(self, width: int = 1) -> None:
        self._turns = asyncio.Semaphore(width)

    async def run(self, job: Job) -> Done:
        """Ends soon after the job's time, and leaves no process behind, also when it is cancelled. Raises OSError."""
        async with self._turns:
            return await _run(job)


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
        await asyncio.shield(_end(process))
    code = process.returncode if process.returncode is not None else 0
    return Done(ending, code, bytes(out), bytes(said), time.monotonic() - started)


async def _exchange(process: Process, job: Job, out: bytearray, said: bytearray) -> bool:
    """Until both outputs have ended; True as soon as one has grown too long."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101
    feeding = asyncio.ensure_future(_feed(process, job.given))
    reading = [
        asyncio.ensure_future(_read(process.stdout, out, job.most_said)),
        asyncio.ensure_future(_read(process.stderr, said, job.most_said)),
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
    assert process.stdin is not None  # noqa: S101
    with suppress(ConnectionError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader, kept: bytearray, most: int) -> bool:
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: most - len(kept)]
        if len(kept) >= most:
            return True
    return False


async def _end(process: Process) -> None:
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
