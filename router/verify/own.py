"""Somebody's own verifier, in a process beside the router: kept from answer to answer, killed when it hangs."""

import asyncio
import importlib.util
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, get_args

from router.verify.verdict import Outcome, Verdict, one_line, too_long
from router.verify.workshop import end, piped

_START_SECONDS = 60.0
"""For its imports."""
_TRY_AGAIN_SECONDS = 30.0
"""After one that could not be started."""
_MOST_REPLY = 1 << 16
_ROOT = Path(__file__).parents[2]


class _Strange(Exception):
    """What its process writes is no reply of ours."""


class OwnVerifier:
    def __init__(
        self, name: str, module: str, attribute: str, base: Path | None, seconds: float, answer_bytes: int
    ) -> None:
        """`seconds` by the clock for one answer."""
        self.name = name
        self._order = {"module": module, "name": attribute, "paths": _paths(base)}
        self._seconds = seconds
        self._answer_bytes = answer_bytes
        self._process: Process | None = None
        self._trouble = ""
        self._try_again = 0.0
        self._turn = asyncio.Lock()

    async def verify(self, question: str, answer: str) -> Verdict:
        if why := too_long(answer, self._answer_bytes):
            return Verdict("skipped", why)
        async with self._turn:
            started = time.monotonic()
            outcome, why = await self._judged(question, answer)
            return Verdict(outcome, one_line(why), time.monotonic() - started)

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _judged(self, question: str, answer: str) -> tuple[Outcome, str]:
        done = False
        try:
            if trouble := await self._started():
                return "unavailable", trouble
            async with asyncio.timeout(self._seconds):
                reply = await self._asked({"question": question, "answer": answer})
            outcome = _outcome(reply)
            done = True
            return outcome, str(reply.get("why", ""))
        except TimeoutError:
            return "unavailable", f"it took longer than {self._seconds:g} s, and was killed"
        except _Strange as error:
            return "unavailable", f"{error}, and was killed"
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            return "unavailable", f"its process ended: {error}"
        finally:
            if not done:
                await asyncio.shield(self._end())

    async def _started(self) -> str:
        """Empty, or why it cannot be."""
        if self._process is not None and self._process.returncode is None:
            return ""
        if self._trouble and time.monotonic() < self._try_again:
            return self._trouble
        await self._end()
        self._trouble = await self._start()
        self._try_again = time.monotonic() + _TRY_AGAIN_SECONDS
        return self._trouble

    async def _start(self) -> str:
        boot = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from router.verify.own_work import main; main()"
        order = json.dumps({**self._order, "parent": os.getpid()})
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", boot, order),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            limit=_MOST_REPLY,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                return str((await self._reply()).get("trouble", ""))
        except TimeoutError:
            return f"it could not be loaded within {_START_SECONDS:g} s"
        except (EOFError, ValueError, _Strange) as error:
            return f"it could not be loaded: {error}"

    async def _asked(self, message: dict[str, str]) -> dict[str, Any]:
        stdin = piped(self._running().stdin)
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()
        return await self._reply()

    async def _reply(self) -> dict[str, Any]:
        line = await piped(self._running().stdout).readline()
        if not line.endswith(b"\n"):
            raise EOFError("it said nothing")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _Strange("it wrote something else than its verdict") from error
        if not isinstance(reply, dict):
            raise _Strange("it wrote something else than its verdict")
        return reply

    def _running(self) -> Process:
        if self._process is None:
            raise EOFError("it is not there")
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        await end(process)


def _outcome(reply: dict[str, Any]) -> Outcome:
    outcome = reply.get("outcome")
    for known in get_args(Outcome):
        if outcome == known:
            return known  # type: ignore[no-any-return]
    raise _Strange("it wrote something else than its verdict")


def _paths(base: Path | None) -> list[str]:
    return [] if base is None else [str(base.absolute())]


def check_own(module: str, attribute: str, base: Path | None) -> None:
    """Raises ValueError for what cannot be there. Nothing is imported here: that is for the other process."""
    for word in (*module.split("."), *attribute.split(".")):
        if not word.isidentifier():
            raise ValueError(f"{module}:{attribute} names no verifier: {word!r} is no Python name")
    first = module.split(".")[0]
    if base is not None and ((base / f"{first}.py").is_file() or (base / first).is_dir()):
        return
    if first not in sys.modules and importlib.util.find_spec(first) is None:
        where = f" in {base} nor" if base is not None else ""
        raise ValueError(f"there is no module {first!r}{where} on Python's path")
