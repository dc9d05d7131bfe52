"""Child process of a custom verifier: a supervisor. It forks a worker, which runs the verifier. When the worker ends,
the supervisor kills all processes that the worker has left behind.

Standard input and output carry messages as lines of JSON. What the verifier prints goes to standard error.
"""

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
_MOST_CHARACTERS = 4000
_libc = ctypes.CDLL(None)


def main() -> None:
    order = json.loads(sys.argv[1])
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children of this process
    if os.getppid() != order["parent"]:
        sys.exit(1)
    supervisor = os.getpid()
    worker = os.fork()
    if worker:
        _supervise(worker, signals)
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    _serve(order)


def _supervise(worker: int, signals: set[signal.Signals]) -> NoReturn:
    """Wait until the worker ends or SIGTERM arrives, then kill all descendants."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    while signal.sigwait(signals) == signal.SIGCHLD and not _has_ended(worker):
        pass
    with suppress(ChildProcessError):
        while True:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
    os._exit(0)


def _has_ended(worker: int) -> bool:
    """Return whether the worker has ended. Other children that have ended are reaped."""
    while True:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended in (0, worker):
            return ended == worker


def _serve(order: dict[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.path[:0] = order["paths"]
    try:
        verify = load_verifier(order["module"], order["name"])
    except BaseException as error:
        _reply(replies, {"trouble": describe_error(error)})
        sys.exit(1)
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        message = json.loads(line)
        _reply(replies, run_verifier(verify, message["question"], message["answer"]))


def load_verifier(module: str, name: str) -> Callable[[str, str], Any]:
    """Return the named function, or the `verify` method of the named object; a class is instantiated."""
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        found = found()
    verify = getattr(found, "verify", found)
    if not callable(verify):
        raise TypeError(f"{module}:{name} is not a function and has no method `verify`")
    return verify  # type: ignore[no-any-return]


def run_verifier(verify: Callable[[str, str], Any], question: str, answer: str) -> dict[str, str]:
    try:
        verdict = verify(question, answer)
        if inspect.isawaitable(verdict):
            verdict = asyncio.run(_awaited(verdict))
        return _verdict_to_reply(verdict)
    except BaseException as error:
        return {"outcome": "unavailable", "why": describe_error(error)}


async def _awaited(verdict: Any) -> Any:
    return await verdict


def _verdict_to_reply(verdict: Any) -> dict[str, str]:
    if isinstance(verdict, bool):
        return {"outcome": "passed" if verdict else "failed", "why": ""}
    outcome = getattr(verdict, "outcome", None)
    if outcome not in ("passed", "failed", "skipped", "unavailable"):
        return {"outcome": "unavailable", "why": f"it returned {type(verdict).__name__}, not a Verdict or a bool"}
    return {"outcome": outcome, "why": str(getattr(verdict, "why", ""))[:_MOST_CHARACTERS]}


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
