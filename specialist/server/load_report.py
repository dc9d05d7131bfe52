"""Counters, measured rates and load of a replica, published to every watcher."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import inf
from typing import Any, NamedTuple, get_args

from admission.forecast.bookings import AdmissionDecision, Admit, RefuseReason
from admission.forecast.controller import AdmissionController
from octet.clock import Clock
from octet.fault_points import fault_injected
from octet.rpc.refusal import queue_full
from octet.telemetry import distributions
from octet.telemetry.distributions import Histogram
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.scheduler import Scheduler
from specialist.scheduling.sequence import DraftSource, FinishReason
from specialist.scheduling.step import Admitted, Finished, Mode, PreemptionCause, Step
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import RequestUsage
from specialist.server.settings import ServiceSettings

MODES: tuple[Mode, ...] = get_args(Mode)


def _zeroed(literal: Any, *more: str) -> Counter[str]:
    """Return a counter with all labels at 0: if a series started at 1, Prometheus would miss the first increase."""
    return Counter(dict.fromkeys((*get_args(literal), *more), 0))


class EngineCounters:
    """Counters of the engine. Written by the engine's thread, read by any thread."""

    def __init__(self) -> None:
        self.step_seconds = {mode: Histogram(distributions.STEP_SECONDS_BOUNDS) for mode in MODES}
        self.step_rows = {mode: Histogram(distributions.ROWS_BOUNDS) for mode in MODES}
        self.step_tokens = dict.fromkeys(MODES, 0)  # computed by prefill steps, emitted by the others
        self.queued = Histogram(distributions.TTFT_SECONDS_BOUNDS)
        self.prefill = Histogram(distributions.TTFT_SECONDS_BOUNDS)
        self.finished: Counter[str] = _zeroed(FinishReason)
        self.preempted: Counter[str] = _zeroed(PreemptionCause)
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.drafted: Counter[str] = _zeroed(DraftSource)  # tokens that steps guessed ahead, by source
        self.accepted: Counter[str] = _zeroed(DraftSource)  # how many of them were right
        self.adapter_switches = 0
        self._adapters: tuple[str, ...] = ()

    def count_step(self, step: Step, num_emitted: int, seconds: float) -> None:
        mode = step.mode
        self.step_seconds[mode].add(seconds)
        self.step_rows[mode].add(len(step.rows))
        self.step_tokens[mode] += step.num_tokens if mode == "prefill" else num_emitted
        if step.adapters != self._adapters:
            self._adapters = step.adapters
            self.adapter_switches += 1

    def count_drafts(self, event: Finished) -> None:
        for source, num_drafted, num_accepted in event.drafts:
            self.drafted[source] += num_drafted
            self.accepted[source] += num_accepted

    def count_end(self, usage: RequestUsage) -> None:
        self.finished[usage.reason] += 1
        if usage.queued is None:
            return  # the request never ran
        self.queued.add(usage.queued)
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cache_hit_tokens
        self.completion_tokens += usage.completion_tokens
        if usage.prefill is not None:
            self.prefill.add(usage.prefill)


class AdmissionCounters:
    """Counters of admission decisions. Used only on the event loop."""

    def __init__(self) -> None:
        self.decisions: Counter[str] = _zeroed(RefuseReason, "admitted")  # without shadow requests
        self.shadow_decisions: Counter[str] = _zeroed(RefuseReason, "admitted")
        self.displaced = self.suspended = 0

    def count(self, decision: AdmissionDecision, *, shadow: bool) -> None:
        label = "admitted" if isinstance(decision, Admit) else decision.reason
        (self.shadow_decisions if shadow else self.decisions)[label] += 1
        if isinstance(decision, Admit):
            self.displaced += len(decision.displaced)
            self.suspended += len(decision.suspended)


class DecayingRate:
    """A rate: the ratio of two decaying sums. Each new sample multiplies the older ones by `keep`."""

    def __init__(self, keep: float = 0.9) -> None:
        self._keep = keep
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = self._amount * self._keep + amount
        self._seconds = self._seconds * self._keep + seconds

    @property
    def value(self) -> float | None:
        return self._amount / self._seconds if self._seconds > 0 else None


class StepMeter:
    """Measures how fast the replica computes tokens and finishes requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.prefill, self.decode, self.drain = DecayingRate(), DecayingRate(), DecayingRate()  # per second
        self._busy_since: float | None = None
        self.preempted_at: float | None = None
        self.times_preempted = 0
        self.prompt_tokens = 0
        self.cache_hit_tokens = 0  # how many of the prompt tokens were hits
        self.drafted_tokens = 0
        self.accepted_tokens = 0  # how many of the drafted tokens were right

    def record_step(self, step: Step, num_emitted: int, seconds: float) -> None:
        """Record a committed step. A row that failed adds time, but no tokens."""
        if self._busy_since is None:
            self._busy_since = step.started_at
        if step.mode == "prefill":
            # Prompt tokens that were computed and kept, or that led to an answer that has ended since.
            committed = [
                len(row.tokens)
                for row in step.rows
                if row.sequence.num_computed >= row.stop or row.sequence.finish_reason in ("stop", "length")
            ]
            self.prefill.add(sum(committed), seconds)
        else:
            self.decode.add(num_emitted, seconds)

    def record_admission(self, event: Admitted) -> None:
        if not event.times_preempted:
            self.prompt_tokens += event.num_tokens
            self.cache_hit_tokens += event.num_hit_tokens

    def record_preemption(self) -> None:
        self.times_preempted += 1
        self.preempted_at = self._clock.now()

    def record_end(self, event: Finished) -> None:
        """Record the end of a request. The drain rate is the number of requests that end per second of busy time."""
        self.drafted_tokens += event.num_drafted
        self.accepted_tokens += event.num_accepted
        now = self._clock.now()
        if self._busy_since is not None:
            self.drain.add(1, now - self._busy_since)
            self._busy_since = now

    def record_idle(self) -> None:
        self._busy_since = None


PREEMPTING_SECONDS = 1.0  # how long a replica counts as preempting after a preemption
_FORECAST_SECONDS = 0.05  # how long the admission controller's figures are reused: computing them takes a while


class LoadSnapshot(NamedTuple):
    report: wire.LoadReport  # the part that only the engine's thread can measure
    preempted_at: float | None  # the time of the last preemption


def measure_load(scheduler: Scheduler, meter: StepMeter) -> LoadSnapshot:
    """Measure the load. Call this only between steps, on the thread that runs them."""
    pool = scheduler.pool
    # All cached blocks are in the index; counting those that are held takes less time than looking at each of them.
    held = {block_id for table in pool.tables.values() for block_id in table.block_ids}
    cached = len(pool.index) - sum(pool.blocks[block_id].key is not None for block_id in held)
    free = pool.num_free - cached
    report = wire.LoadReport(
        waiting=len(scheduler.waiting) + sum(seq not in scheduler.running for seq in scheduler.ledger.suspended),
        running=len(scheduler.running),
        blocks=wire.Blocks(total=pool.capacity, free=free, cached=cached, used=pool.num_used),
        times_preempted=meter.times_preempted,
        prefill_rate=meter.prefill.value,
        decode_rate=meter.decode.value,
        drain_rate=meter.drain.value,
        prompt_tokens=meter.prompt_tokens,
        cache_hit_tokens=meter.cache_hit_tokens,
        evicted_blocks=pool.counters.evictions,
        drafted_tokens=meter.drafted_tokens,
        accepted_tokens=meter.accepted_tokens,
    )
    return LoadSnapshot(report, meter.preempted_at)


class LoadPublisher:
    """Publishes load reports to watchers. Used only on the event loop."""

    def __init__(self, replica: AssembledReplica, settings: ServiceSettings, controller: AdmissionController) -> None:
        self._replica = replica
        self._settings = settings
        self.controller = controller
        self._forecast: wire.LoadReport | None = None
        self._forecast_at = -inf
        self._load = measure_load(replica.scheduler, StepMeter(replica.clock))
        self.process = wire.LoadReport()  # the part that identifies this process and tells how its predecessor ended
        self.watchers: set[asyncio.Event] = set()
        self.is_draining = False
        self.closed = asyncio.Event()  # set once the load no longer changes

    def close(self) -> None:
        self.closed.set()
        self.notify()

    def publish(self, load: LoadSnapshot) -> None:
        self._load = load
        self.notify()

    def notify(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    async def watch(self, heartbeat: float = inf) -> AsyncGenerator[wire.LoadReport]:
        """Yield a report now and after every change, until the publisher is closed; a slow watcher gets several changes
        in one report. After `heartbeat` seconds without a change, the same report is sent again. Raises Refusal if
        there are too many watchers, because they must not use up the call slots of requests."""
        if len(self.watchers) >= self._settings.max_watchers:
            raise queue_full("watching", self._settings.max_watchers, None)
        now, changed = asyncio.get_running_loop().time, asyncio.Event()
        self.watchers.add(changed)
        last: wire.LoadReport | None = None
        due = 0.0
        try:
            while True:
                while (report := self.report()) == last:
                    if self.closed.is_set():
                        return
                    if now() >= due:
                        break
                    # `preempting` and `refusing` expire without an event.
                    expires = report.preempting or report.refusing
                    await _wait(changed, min(due - now(), PREEMPTING_SECONDS if expires else inf))
                if last is not None and fault_injected("report.stale"):
                    report = last
                last, due = report, now() + heartbeat
                yield report
        finally:
            self.watchers.discard(changed)

    def report(self) -> wire.LoadReport:
        load, now = self._load, self._replica.clock.now()
        report = wire.LoadReport(
            revision=self._replica.lane.revision,
            preempting=load.preempted_at is not None and now - load.preempted_at < PREEMPTING_SECONDS,
            adapters=adapters_to_wire(self._replica.adapters.names()),
            draining=self.is_draining,
            max_running=self._replica.scheduler.config.max_running,
            max_waiting=self._settings.max_waiting,
        )
        report.MergeFrom(self.process)
        report.MergeFrom(load.report)
        if self._forecast is None or now - self._forecast_at >= _FORECAST_SECONDS:
            self._forecast, self._forecast_at = self._read_controller(now), now
        report.MergeFrom(self._forecast)
        return report

    def _read_controller(self, now: float) -> wire.LoadReport:
        errors = self.controller.errors()
        return wire.LoadReport(
            refusing=self.controller.is_refusing(now),
            shadows=self.controller.bookings.num_shadows,
            usual_wait=self.controller.usual_wait(now),
            estimate_error=None if errors is None else wire.EstimateError(**asdict(errors)),
        )


def adapters_to_wire(names: Mapping[str, str]) -> list[wire.ResidentAdapter]:
    return [wire.ResidentAdapter(name=name, digest=digest) for name, digest in sorted(names.items())]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, then clear it; give up after `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == inf else seconds):
            await event.wait()
            event.clear()
