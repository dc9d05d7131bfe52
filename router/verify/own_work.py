"""Runs somebody's own verifier: one question after another, in a process that may hang or die, and beside it one that
ends whatever it leaves behind.

Standard input and output carry messages of our own, a line of JSON each; what the verifier prints goes to standard
error."""

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def main() -> None:
    order = json.loads(sys.argv[1])
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != order["parent"]:
        sys.exit(1)
    keeper = os.getpid()
    worker = os.fork()
    if worker:
        _keep(worker, signals)
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    _work(order)


def _keep(worker: int, signals: set[signal.Signals]) -> NoReturn:
    """Until it ends, or is to end. Whoever loses their parent below here becomes a child of this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while signal.sigwait(signals) == signal.SIGCHLD and not _has_ended(worker):
        pass
    with suppress(ChildProcessError):
        while True:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
    os._exit(0)


def _has_ended(worker: int) -> bool:
    """Buries everybody else on the way."""
    while True:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended in (0, worker):
            return ended == worker


def _work(order: dict[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.path[:0] = order["paths"]
    try:
        judge = loaded(order["module"], order["name"])
    except BaseException as error:
        _reply(replies, {"trouble": said(error)})
        sys.exit(1)
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        _reply(replies, answered(judge, asked["question"], asked["answer"]))


def loaded(module: str, name: str) -> Callable[[str, str], Any]:
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        found = found()
    judge = getattr(found, "verify", found)
    if not callable(judge):
        raise TypeError(f"{module}:{name} is neither a function nor has it a method `verify`")
    return judge  # type: ignore[no-any-return]


def answered(judge: Callable[[str, str], Any], question: str, answer: str) -> dict[str, str]:
    try:
        verdict = judge(question, answer)
        if inspect.isawaitable(verdict):
            verdict = asyncio.run(_awaited(verdict))
        return _plain(verdict)
    except BaseException as error:
        return {"outcome": "unavailable", "why": said(error)}


async def _awaited(verdict: Any) -> Any:
    return await verdict


def _plain(verdict: Any) -> dict[str, str]:
    if isinstance(verdict, bool):
        return {"outcome": "passed" if verdict else "failed", "why": ""}
    outcome = getattr(verdict, "outcome", None)
    if outcome not in ("passed", "failed", "skipped", "unavailable"):
        return {"outcome": "unavailable", "why": f"it gave {type(verdict).__name__}, and a Verdict or a bool is wanted"}
    return {"outcome": outcome, "why": str(getattr(verdict, "why", ""))[:4000]}


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:4000]


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
