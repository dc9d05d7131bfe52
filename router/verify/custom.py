"""Custom verifiers: user code in a child process that is reused between answers and killed if it hangs."""

import asyncio
import importlib.util
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, get_args

from router.verify.pool import end_process, require_pipe
from router.verify.verdict import Outcome, Verdict, VerifierLimits, length_error, one_line

_START_SECONDS = 60.0  # the limit for the imports of the user's module
_RESTART_SECONDS = 30.0  # the pause after a failed start
_MOST_REPLY_BYTES = 1 << 16
_ROOT = Path(__file__).parents[2]


class _ProtocolError(Exception):
    def __init__(self) -> None:
        super().__init__("it wrote something other than its verdict")


class CustomVerifier:
    def __init__(self, name: str, module: str, attribute: str, base: Path | None, limits: VerifierLimits) -> None:
        self.name = name
        paths = [] if base is None else [str(base.absolute())]
        self._order = {"module": module, "name": attribute, "paths": paths}
        self._limits = limits
        self._process: Process | None = None
        self._start_error = ""
        self._restart_at = 0.0
        self._lock = asyncio.Lock()

    async def verify(self, question: str, answer: str) -> Verdict:
        if why := length_error(answer, self._limits.answer_bytes):
            return Verdict("skipped", why)
        async with self._lock:
            started = time.monotonic()
            outcome, why = await self._judge(question, answer)
            return Verdict(outcome, one_line(why), time.monotonic() - started)

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _judge(self, question: str, answer: str) -> tuple[Outcome, str]:
        """Return the verdict of the process. A process that gives no valid verdict is ended."""
        is_done = False
        seconds = self._limits.clock_seconds
        try:
            if error := await self._ensure_started():
                return "unavailable", error
            stdin = require_pipe(self._running().stdin)
            async with asyncio.timeout(seconds):
                stdin.write(json.dumps({"question": question, "answer": answer}).encode() + b"\n")
                await stdin.drain()
                reply = await self._read_reply()
            if reply.get("outcome") not in get_args(Outcome):
                raise _ProtocolError
            is_done = True
            return reply["outcome"], str(reply.get("why", ""))
        except TimeoutError:
            return "unavailable", f"it took longer than {seconds:g} s and was killed"
        except _ProtocolError as error:
            return "unavailable", f"{error} and was killed"
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            return "unavailable", f"no verdict: {error}"
        finally:
            if not is_done:
                await asyncio.shield(self._end())

    async def _ensure_started(self) -> str:
        """Start the process if necessary. Return "", or the reason why it cannot be started."""
        if self._process is not None and self._process.returncode is None:
            return ""
        if self._start_error and time.monotonic() < self._restart_at:
            return self._start_error
        await self._end()
        self._start_error = await self._start()
        self._restart_at = time.monotonic() + _RESTART_SECONDS
        return self._start_error

    async def _start(self) -> str:
        boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from router.verify.custom_child import main; main()"
        order = json.dumps({**self._order, "parent": os.getpid()})
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", boot, order),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            limit=_MOST_REPLY_BYTES,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                return str((await self._read_reply()).get("trouble", ""))
        except TimeoutError:
            return f"it could not be loaded within {_START_SECONDS:g} s"
        except (EOFError, ValueError, _ProtocolError) as error:
            return f"it could not be loaded: {error}"

    async def _read_reply(self) -> dict[str, Any]:
        line = await require_pipe(self._running().stdout).readline()
        if not line.endswith(b"\n"):
            raise EOFError("the verifier process ended without a complete reply")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _ProtocolError from error
        if not isinstance(reply, dict):
            raise _ProtocolError
        return reply

    def _running(self) -> Process:
        if self._process is None:
            raise EOFError("the process is not running")
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await end_process(process)


def check_custom_spec(module: str, attribute: str, base: Path | None) -> None:
    """Raise ValueError for an invalid name or a missing module, without importing the module."""
    for word in (*module.split("."), *attribute.split(".")):
        if not word.isidentifier():
            raise ValueError(f"{module}:{attribute} is not a valid verifier name: {word!r} is not a Python name")
    first = module.split(".")[0]
    if base is not None and ((base / f"{first}.py").is_file() or (base / first).is_dir()):
        return
    if first not in sys.modules and importlib.util.find_spec(first) is None:
        where = f" in {base} or" if base is not None else ""
        raise ValueError(f"there is no module {first!r}{where} on Python's path")
