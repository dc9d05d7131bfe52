"""Simulates a trace with given numbers of replicas and checks the objectives of the specialists."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import median
from time import monotonic, process_time
from typing import Self

import grpc

from octet.client.errors import error_from_rpc
from octet.config.ensemble import Ensemble, SloTargets
from octet.v1.inference_pb2 import InferEvent, InferRequest
from simulation.cluster import BusyTimes, SimulatedCluster, TimedEngine
from simulation.replica import ReplicaSpec
from simulation.results import BenchRecord, percentile, summary
from simulation.traces import TraceRequest

_PAUSE_SECONDS = 1e-3  # simulated seconds to wait after the last request
_MOST_SHARE = 0.7  # the share of a core that a router may use; bursts and uncounted work need the rest
_LEAST_SECONDS = 1.0  # simulated seconds below which the share of a core says nothing about a router
_MOST_ALONE = 200  # requests of a specialist that are simulated alone
_CHECK_SECONDS, _PROGRESS_SECONDS = 0.05, 20.0  # simulated seconds between checks, real seconds between progress lines
_GENERATE = "/octet.v1.Inference/Generate"
_REFUSED = frozenset((grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """How one request ended; times in seconds."""

    specialist: str
    ttft: float | None  # None if there was no token
    gaps: tuple[float, ...]  # between its tokens
    refused: bool
    failed: bool
    from_admission: float | None  # seconds from the replica's acceptance to the first token
    reason: str = ""  # why it was refused or failed, such as "queue_full"


@dataclass(frozen=True, slots=True)
class Miss:
    """A missed objective: a target of the specialist's slo, in seconds, or "answered", a share of its requests."""

    objective: str
    found: float
    target: float
    reason: str = ""  # the most frequent reason of unanswered requests

    def __str__(self) -> str:
        if self.objective != "answered":
            return f"{self.objective} {self.found:.3g} s, target {self.target:.3g} s"
        reason = f" (mostly {self.reason})" if self.reason else ""
        return f"{100 * (1 - self.found):.1f} % not answered{reason}, allowed {100 * (1 - self.target):.1f} %"


@dataclass(frozen=True, slots=True)
class SpecialistFigures:
    """Figures for one specialist over a whole trace. The times are the 50th, 95th and 99th percentiles, in seconds."""

    specialist: str
    replicas: int
    requests: int
    refused: int
    failed: int
    ttft: tuple[float, float, float]
    itl: tuple[float, float, float]
    busy: float  # average share of the time during which its engines computed
    misses: tuple[Miss, ...]
    is_promising: bool = True  # whether the specialist has objectives

    def format_misses(self) -> str:
        if not self.requests:
            return "no requests"
        return "; ".join(map(str, self.misses)) or ("met" if self.is_promising else "no objectives")

    def records(self) -> list[BenchRecord]:
        """Return the figures as records of a single run."""
        found = [(name, "", float(getattr(self, name))) for name in ("replicas", "requests", "refused", "failed")]
        times = zip(("TTFT p50", "TTFT p95", "TTFT p99", "ITL p95"), (*self.ttft, self.itl[1]), strict=True)
        found += [(metric, "ms", 1000 * seconds) for metric, seconds in times]
        found.append(("engines busy", "%", 100 * self.busy))
        return [summary([value], "simulate", self.specialist, metric, unit, "octet") for metric, unit, value in found]


def evaluate_specialist(
    specialist: str,
    replicas: int,
    answers: Sequence[SimulatedAnswer],
    targets: SloTargets,
    busy: float,
    most_refused: float,
) -> SpecialistFigures:
    """Return the figures of the answers and the targets that they miss. `most_refused` is the allowed share of
    unanswered requests."""
    seen = {
        "ttft": [answer.ttft for answer in answers if answer.ttft is not None],
        "itl": [gap for answer in answers for gap in answer.gaps],
        "admission_to_first_token": [each.from_admission for each in answers if each.from_admission is not None],
    }
    misses = []
    named = {field.name: getattr(targets, field.name) for field in fields(targets)}
    for name, target in named.items():
        measure, _, percent = name.rpartition("_p")
        if target is not None and seen[measure] and (found := percentile(seen[measure], int(percent))) > target:
            misses.append(Miss(name, found, target))
    refused, failed = sum(answer.refused for answer in answers), sum(answer.failed for answer in answers)
    if refused + failed > most_refused * len(answers):
        ((reason, _),) = Counter(answer.reason for answer in answers if answer.refused or answer.failed).most_common(1)
        misses.append(Miss("answered", 1 - (refused + failed) / len(answers), 1 - most_refused, reason))
    ttft, itl = _percentiles(seen["ttft"]), _percentiles(seen["itl"])
    has_targets = any(target is not None for target in named.values())
    return SpecialistFigures(
        specialist, replicas, len(answers), refused, failed, ttft, itl, busy, tuple(misses), has_targets
    )


def _percentiles(samples: Sequence[float]) -> tuple[float, float, float]:
    if not samples:
        return 0.0, 0.0, 0.0
    return percentile(samples, 50), percentile(samples, 95), percentile(samples, 99)


Figures = Mapping[str, SpecialistFigures]


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """The part of a simulation that does not depend on the number of replicas."""

    ensemble: Ensemble
    specs: Mapping[str, ReplicaSpec]
    routers: int
    seed: int
    most_refused: float

    @classmethod
    def from_config(cls, ensemble: Ensemble, routers: int, seed: int, most_refused: float) -> Self:
        """Build the setup for an ensemble; answers are not verified. Raises OSError or CalibrationInvalid."""
        unverified = tuple(replace(specialist, verify="none") for specialist in ensemble.specialists)
        specs = {each.name: replace(ReplicaSpec.from_config(each), engine=TimedEngine) for each in unverified}
        return cls(replace(ensemble, specialists=unverified), specs, routers, seed, most_refused)

    @property
    def contexts(self) -> dict[str, int]:
        return {name: min(spec.context, spec.num_blocks * spec.block_size) for name, spec in self.specs.items()}


@dataclass(frozen=True, slots=True)
class SimulationRun:
    figures: Figures
    seconds: float  # simulated seconds from the first request to the last
    cpu_seconds: float  # CPU seconds of this computer
    num_events: int
    router_shares: tuple[float, ...]  # CPU of each router, as a share of one core of this computer

    @property
    def misses(self) -> tuple[str, ...]:
        """Missed limits that more replicas cannot fix."""
        if max(self.router_shares) <= _MOST_SHARE or self.seconds < _LEAST_SECONDS:
            return ()
        count = len(self.router_shares)
        share = f"the busiest takes {100 * max(self.router_shares):.0f} % of a core"
        return (f"routers: {count} {'is' if count == 1 else 'are'} too few, {share}",)

    def format_summary(self) -> str:
        most, usual = (100 * look(self.router_shares) for look in (max, median))
        busiest = f"busiest router {most:.0f} % of a core (median {usual:.0f} %)"
        return f"{self.seconds:,.1f} s simulated in {self.cpu_seconds:,.1f} s, {self.num_events:,} events, {busiest}"

    def records(self) -> list[BenchRecord]:
        """Return the figures as records of a single run."""
        found = [record for figures in self.figures.values() for record in figures.records()]
        whole = (
            ("busiest router", "% of a core", 100 * max(self.router_shares)),
            ("router, median", "% of a core", 100 * median(self.router_shares)),
            ("simulated", "s", self.seconds),
            ("took", "s of CPU", self.cpu_seconds),
            ("events", "", float(self.num_events)),
        )
        return [*found, *(summary([value], "simulate", "all", metric, unit, "octet") for metric, unit, value in whole)]


def play(
    setup: SimulationSetup,
    requests: Sequence[TraceRequest],
    replicas: Mapping[str, int],
    report: Report = lambda line: None,
    *,
    alone: bool = False,
) -> SimulationRun:
    """Simulate the trace; if `alone`, send each request after the end of the previous one. `report` receives progress
    messages."""
    before = process_time()
    with SimulatedCluster(setup.ensemble, setup.specs, replicas, routers=setup.routers, seed=setup.seed) as cluster:
        answers, first, last = cluster.run(_play(cluster, requests, report, alone))
        seconds = last.time - first.time
        by_name: dict[str, list[SimulatedAnswer]] = defaultdict(list)
        for answer in answers:
            by_name[answer.specialist].append(answer)
        figures = {}
        for each in setup.ensemble.specialists:
            name, count = each.name, replicas[each.name]
            busy = (last.engines[name] - first.engines[name]) / count / seconds
            figures[name] = evaluate_specialist(name, count, by_name[name], each.slo, busy, setup.most_refused)
        shares = tuple((end - start) / seconds for start, end in zip(first.routers, last.routers, strict=True))
        return SimulationRun(figures, seconds, process_time() - before, cluster.loop.num_events, shares)


def play_alone(
    setup: SimulationSetup, requests: Sequence[TraceRequest], name: str, report: Report
) -> SpecialistFigures:
    """Return the figures that a specialist has if no request waits for another: the least that its requests take, with
    any number of replicas."""
    mine = [request for request in requests if request.specialist == name][:_MOST_ALONE]
    return play(setup, mine, dict.fromkeys(setup.specs, 1), report, alone=True).figures[name]


async def _play(
    cluster: SimulatedCluster, requests: Sequence[TraceRequest], report: Report, alone: bool
) -> tuple[list[SimulatedAnswer], BusyTimes, BusyTimes]:
    """Send each request at its time, whether or not earlier ones were answered, or each alone. Return the answers, and
    the busy times just before the first and just after the last request is sent."""
    await cluster.start()
    loop = asyncio.get_running_loop()
    first = cluster.busy_times()
    tasks: list[asyncio.Task[SimulatedAnswer]] = []
    reporting = loop.create_task(_report_progress(tasks, len(requests), report))
    for number, request in enumerate(requests):
        if not alone:
            await asyncio.sleep(first.time + request.at - loop.time())
        tasks.append(loop.create_task(_call(cluster, number, request)))
        if alone:
            await tasks[-1]
    await asyncio.sleep(_PAUSE_SECONDS)
    last = cluster.busy_times()
    answers = [await task for task in tasks]
    reporting.cancel()
    await cluster.stop()
    return answers, first, last


async def _report_progress(tasks: "Sequence[asyncio.Task[SimulatedAnswer]]", total: int, report: Report) -> None:
    reported_at = monotonic()
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        if monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at = monotonic()
            report(f"{len(tasks):,} of {total:,} requests sent, {sum(task.done() for task in tasks):,} answered")


async def _call(cluster: SimulatedCluster, number: int, request: TraceRequest) -> SimulatedAnswer:
    loop = asyncio.get_running_loop()
    started, accepted, times = loop.time(), 0.0, list[float]()
    channel = cluster.callers[number % len(cluster.callers)]
    message = InferRequest(
        request_id=f"r{number}",
        prompt=request.text(),
        force_specialists=[request.specialist],
        max_tokens=request.answer_tokens,
        ignore_eos=True,
    )
    try:
        async for event in channel.stream(_GENERATE, message.SerializeToString(), parse=InferEvent.FromString):
            if event.HasField("routed"):
                accepted = loop.time()
            elif event.HasField("chunk") and event.chunk.text:
                times += [loop.time()] * len(event.chunk.text)
    except grpc.aio.AioRpcError as error:
        refused, ttft = error.code() in _REFUSED and not times, times[0] - started if times else None
        reason = error_from_rpc(error, address="router").reason or error.code().name.lower()
        return SimulatedAnswer(request.specialist, ttft, (), refused, not refused, None, reason)
    if not times:
        return SimulatedAnswer(request.specialist, None, (), False, True, None, "no token")
    gaps = tuple(after - before for before, after in pairwise(times))
    return SimulatedAnswer(request.specialist, times[0] - started, gaps, False, False, times[0] - accepted)
