"""A runner of one engine: it loads a model, then answers each line of JSON with a line of JSON. It runs inside a peer's
own environment, so it uses only the standard library."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter, sleep
from typing import Any, NamedTuple, TextIO

Prompts = Sequence[Sequence[int]]
Call = Callable[..., Any]


class Loaded(NamedTuple):
    settings: str  # versions, number format, threads
    calls: Mapping[str, Call]  # by name; arguments and results are JSON


class Stopwatch:
    """The tokens of each answer, and the arrival of each token in seconds since the start."""

    def __init__(self, num_prompts: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(num_prompts)]
        self._times: list[list[float]] = [[] for _ in range(num_prompts)]
        self._start = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._start

    def arrived(self, prompt: int, tokens: Sequence[int]) -> None:
        self._tokens[prompt].extend(tokens)
        self._times[prompt].extend([self.seconds] * len(tokens))

    def result(self) -> dict[str, Any]:
        return {"tokens": self._tokens, "times": self._times}


class SteppedEngine(ABC):
    """An engine that computes step by step, so that the time of each token is known."""

    @abstractmethod
    def submit(self, prompt: Sequence[int], new_tokens: int, adapter: Any = None) -> str:
        """Submit a request. Return its name."""

    @abstractmethod
    def step(self) -> Iterable[tuple[str, Sequence[int]]] | None:
        """Take a step. Return the new tokens by request; None if there is nothing to compute."""

    def generate(self, prompts: Prompts, new_tokens: int, adapters: Sequence[Any] = (None,)) -> dict[str, Any]:
        """Submit all prompts at once. The adapters are assigned to the prompts in turn."""
        return self.arrive(prompts, [new_tokens] * len(prompts), [0.0] * len(prompts), adapters)

    def arrive(
        self, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float], adapters: Sequence[Any] = (None,)
    ) -> dict[str, Any]:
        """Submit each prompt at its time, in seconds. Return the tokens and their times."""
        stopwatch, prompt_of = Stopwatch(len(prompts)), dict[str, int]()
        while True:
            while (i := len(prompt_of)) < len(at) and at[i] <= stopwatch.seconds:
                prompt_of[self.submit(prompts[i], new_tokens[i], adapters[i % len(adapters)])] = i
            emitted = self.step()
            if emitted is not None:
                for name, tokens in emitted:
                    stopwatch.arrived(prompt_of[name], tokens)
            elif i == len(at):
                return stopwatch.result()
            else:
                sleep(max(0.0, at[i] - stopwatch.seconds))


def serve(load: Callable[[Sequence[str]], Loaded]) -> None:
    out = _claim_stdout()
    try:
        loaded = load(sys.argv[1:])
    except Exception as error:
        _write(out, _failure(error))
        sys.exit(1)
    _write(out, {"ready": loaded.settings, "calls": sorted(loaded.calls)})
    for line in sys.stdin:
        _write(out, _answer(loaded.calls, json.loads(line)))


def _answer(calls: Mapping[str, Call], question: dict[str, Any]) -> dict[str, Any]:
    name = question.pop("call")
    if name not in calls:
        return {"error": f"no call named {name!r}"}
    try:
        return {"result": calls[name](**question)}
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"}


def _write(out: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=out, flush=True)


def _claim_stdout() -> TextIO:
    """Return a stream to stdout for answers only: what libraries print goes to stderr from now on."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own
