"""A trace played through a simulated ensemble."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from time import monotonic, process_time
from typing import NamedTuple, Self

import grpc

from bench.capacity.demand import Ask
from bench.capacity.promise import Answer, Figures, judged
from bench.capacity.site import Site, Spent
from bench.capacity.timed_engine import timed_engine
from bench.measure import summary
from bench.record import Record
from bench.simulation.replica import ReplicaSpec
from octet.config.ensemble import Ensemble
from octet.v1.inference_pb2 import InferEvent, InferRequest

_MOMENT = 1e-3
"""After the last request: also where there is only one, some time has passed."""
_MOST_SHARE = 0.7
"""Of a core, that a router may take: bursts, and what is not counted, need the rest."""
_LOOK_SECONDS, _TELL_SECONDS = 0.05, 20.0
"""Simulated: how often is looked whether there is something to tell; real: how often it is told."""
Say = Callable[[str], None]
_GENERATE = "/octet.v1.Inference/Generate"
_REFUSED = frozenset((grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))


@dataclass(frozen=True, slots=True)
class Stage:
    """What stays the same however many replicas there are."""

    ensemble: Ensemble
    specs: Mapping[str, ReplicaSpec]
    routers: int
    seed: int
    most_refused: float

    @classmethod
    def of(cls, ensemble: Ensemble, routers: int, seed: int, most_refused: float) -> Self:
        """Raises OSError and CalibrationInvalid."""
        judged_by_nobody = tuple(replace(specialist, verify="none") for specialist in ensemble.specialists)
        ensemble = replace(ensemble, specialists=judged_by_nobody)
        specs = {
            specialist.name: replace(ReplicaSpec.of(specialist), engine=timed_engine)
            for specialist in ensemble.specialists
        }
        return cls(ensemble, specs, routers, seed, most_refused)

    @property
    def contexts(self) -> dict[str, int]:
        return {name: min(spec.context, spec.num_blocks * spec.block_size) for name, spec in self.specs.items()}


@dataclass(frozen=True, slots=True)
class Played:
    figures: Mapping[str, Figures]
    seconds: float
    """Simulated: from the first request to the last."""
    cpu_seconds: float
    """Of this computer."""
    num_events: int
    router_shares: tuple[float, ...]
    """Of a core like this computer's, for each router: what its callbacks took, over the simulated time."""

    @property
    def misses(self) -> tuple[str, ...]:
        """What no replica can mend."""
        if max(self.router_shares) <= _MOST_SHARE:
            return ()
        count = len(self.router_shares)
        share = f"the busiest takes {100 * max(self.router_shares):.0f} % of a core"
        return (f"routers: {count} {'is' if count == 1 else 'are'} too few, {share}",)

    @property
    def words(self) -> str:
        most, usual = (100 * look(self.router_shares) for look in (max, median))
        busiest = f"busiest router {most:.0f} % of a core (median {usual:.0f} %)"
        return f"{self.seconds:,.1f} s simulated in {self.cpu_seconds:,.1f} s, {self.num_events:,} events, {busiest}"

    def records(self) -> list[Record]:
        """Of one run: no spread."""
        found = [record for figures in self.figures.values() for record in figures.records()]
        whole = (
            ("busiest router", "% of a core", 100 * max(self.router_shares)),
            ("router, median", "% of a core", 100 * median(self.router_shares)),
            ("simulated", "s", self.seconds),
            ("took", "s of CPU", self.cpu_seconds),
            ("events", "", float(self.num_events)),
        )
        return [*found, *(summary([value], "simulate", "all", what, unit, "octet") for what, unit, value in whole)]


class _Course(NamedTuple):
    answers: list[Answer]
    first: Spent
    last: Spent
    """When the last request came."""


def play(stage: Stage, asks: Sequence[Ask], replicas: Mapping[str, int], say: Say = lambda line: None) -> Played:
    """Says every now and then how far it is."""
    before = process_time()
    with Site(stage.ensemble, stage.specs, replicas, routers=stage.routers, seed=stage.seed) as site:
        course = site.run(_play(site, asks, say))
        seconds = course.last.time - course.first.time
        spent = zip(course.first.routers, course.last.routers, strict=True)
        shares = tuple((last - first) / seconds for first, last in spent)
        return Played(
            _figures(stage, course, replicas, seconds), seconds, process_time() - before, site.loop.num_events, shares
        )


def _figures(stage: Stage, course: _Course, replicas: Mapping[str, int], seconds: float) -> dict[str, Figures]:
    by_name: dict[str, list[Answer]] = defaultdict(list)
    for answer in course.answers:
        by_name[answer.specialist].append(answer)
    figures = {}
    for specialist in stage.ensemble.specialists:
        name = specialist.name
        busy = (course.last.engines[name] - course.first.engines[name]) / replicas[name] / seconds
        figures[name] = judged(name, replicas[name], by_name[name], specialist.slo, busy, stage.most_refused)
    return figures


async def _play(site: Site, asks: Sequence[Ask], say: Say) -> _Course:
    """Callers do not wait for each other."""
    await site.start()
    loop = asyncio.get_running_loop()
    first = site.spent()
    tasks: list[asyncio.Task[Answer]] = []
    telling = loop.create_task(_tell(tasks, asks, say))
    for number, ask in enumerate(asks):
        await asyncio.sleep(first.time + ask.at - loop.time())
        tasks.append(loop.create_task(_caller(site, number, ask)))
    await asyncio.sleep(_MOMENT)
    last = site.spent()
    answers = [await task for task in tasks]
    telling.cancel()
    await site.stop()
    return _Course(answers, first, last)


async def _tell(tasks: "Sequence[asyncio.Task[Answer]]", asks: Sequence[Ask], say: Say) -> None:
    told = monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if monotonic() - told >= _TELL_SECONDS:
            told = monotonic()
            say(f"{len(tasks):,} of {len(asks):,} have asked, {sum(task.done() for task in tasks):,} are answered")


async def _caller(site: Site, number: int, ask: Ask) -> Answer:
    loop = asyncio.get_running_loop()
    asked, taken, times = loop.time(), 0.0, list[float]()
    generate = site.callers[number % len(site.callers)].unary_stream(
        _GENERATE, InferRequest.SerializeToString, InferEvent.FromString
    )
    request = InferRequest(
        request_id=f"r{number}",
        prompt=ask.text(),
        force_specialists=[ask.specialist],
        max_tokens=ask.answer_tokens,
        ignore_eos=True,
    )
    try:
        async for event in generate(request):
            if event.HasField("routed"):
                taken = loop.time()
            elif event.HasField("chunk") and event.chunk.text:
                times += [loop.time()] * len(event.chunk.text)
    except grpc.aio.AioRpcError as error:
        refused = error.code() in _REFUSED and not times
        return Answer(ask.specialist, _first(times, asked), (), refused, not refused, None)
    gaps = tuple(after - before for before, after in pairwise(times))
    return Answer(ask.specialist, _first(times, asked), gaps, False, not times, _first(times, taken))


def _first(times: Sequence[float], asked: float) -> float | None:
    return times[0] - asked if times else None
