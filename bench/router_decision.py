"""What a decision costs, from the message to the plan: in one process, beside nobody else."""

import asyncio
from collections.abc import Callable
from itertools import count
from time import perf_counter

import uvloop

from bench.measure import percentile, summary
from bench.record import Record
from octet.clock import SystemClock
from octet.config.default import default_ensemble
from octet.v1 import inference_pb2 as wire
from router.decide.decider import Decider
from router.decide.policy import Policy
from router.reception.reception import Reception
from router.reception.trace import Tracer
from router.service.opinions import open_opinions

_PAUSES = {"a decision": 0.0, "a decision after a pause": 0.002}
"""Seconds before each: one after the other, and with caches that have cooled."""
_DECISIONS = 200
_QUESTION = "is a relaxed atomic load enough to see what the other thread wrote under the mutex"
_LINKER = "main.cpp:(.text+0x1f): undefined reference to `vtable for Shape'\ncollect2: error: ld returned 1 exit status"
_LONG = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];\n" * 2500


def decision_records(runs: int) -> list[Record]:
    numbers = count()
    cases: dict[str, Callable[[], str]] = {
        "by the classifier": lambda: f"{_QUESTION} (case {next(numbers)})",
        "by the classifier, 200 KB": lambda: f"{_LONG} (case {next(numbers)})",
        "from the cache": lambda: _QUESTION,
        "by rule": lambda: f"{_LINKER} (case {next(numbers)})",
    }
    samples = uvloop.run(_rounds(cases, runs))
    return [summary(each, "router", case, f"{name}, p50", "ms", "octet") for (case, name), each in samples.items()]


async def _rounds(cases: dict[str, Callable[[], str]], runs: int) -> dict[tuple[str, str], list[float]]:
    ensemble = default_ensemble()
    clock = SystemClock()
    policy = Policy(ensemble)
    reception = Reception(clock, lambda: "bench", Tracer(bytes), default_timeout=60.0)
    samples: dict[tuple[str, str], list[float]] = {(when, name): [] for when in _PAUSES for name in cases}
    async with open_opinions(ensemble, clock) as opinions:
        decider = Decider(opinions)

        async def decide(prompt: str) -> float:
            message = wire.InferRequest(prompt=prompt)
            start = perf_counter()
            await decider.decide(reception.receive(message, None, None), policy)
            return (perf_counter() - start) * 1e3

        await decide(_QUESTION)
        for _ in range(runs):
            for when, name in samples:
                taken = []
                for _ in range(_DECISIONS):
                    await asyncio.sleep(_PAUSES[when])
                    taken.append(await decide(cases[name]()))
                samples[when, name].append(percentile(taken, 50))
    return samples
