"""The near end of the pipe: a process that loads a model, then answers one JSON line with one JSON line.

Runs inside a peer's own environment, so it needs nothing but the standard library.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TextIO

Prompts = Sequence[Sequence[int]]
Call = Callable[..., Any]

_PR_SET_PDEATHSIG = 1


class Generated(NamedTuple):
    tokens: list[list[int]]  # of each answer
    times: list[list[float]]  # of each token, in seconds


class Loaded(NamedTuple):
    settings: str  # versions, number format, threads
    calls: Mapping[str, Call]  # by name; arguments and results are JSON


class Stopwatch:
    def __init__(self, num_prompts: int) -> None:
        self._generated = Generated([[] for _ in range(num_prompts)], [[] for _ in range(num_prompts)])
        self._start = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._start

    def arrived(self, prompt: int, tokens: Sequence[int]) -> None:
        seconds = self.seconds
        self._generated.tokens[prompt].extend(tokens)
        self._generated.times[prompt].extend([seconds] * len(tokens))

    def result(self) -> dict[str, Any]:
        return self._generated._asdict()


def serve(load: Callable[[Sequence[str]], Loaded]) -> None:
    out = _claim_stdout()
    _die_with_parent()
    loaded = _try(lambda: load(sys.argv[1:]))
    if isinstance(loaded, _Failed):
        _say(out, {"error": loaded.why})
        sys.exit(1)
    _say(out, {"ready": loaded.settings, "calls": sorted(loaded.calls)})
    for line in sys.stdin:
        _say(out, _answer(loaded.calls, json.loads(line)))


def _answer(calls: Mapping[str, Call], question: dict[str, Any]) -> dict[str, Any]:
    name = question.pop("call")
    if name not in calls:
        return {"error": f"no call named {name!r}"}
    result = _try(lambda: calls[name](**question))
    return {"error": result.why} if isinstance(result, _Failed) else {"result": result}


class _Failed(NamedTuple):
    why: str


def _try(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return _Failed(f"{type(error).__name__}: {error}")


def _say(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _claim_stdout() -> TextIO:
    """Output of libraries goes to stderr, so that it does not mix with answers."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _die_with_parent() -> None:
    """A paused process would otherwise outlive a killed bench."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
