"""SLO measurements and the published figures of every specialist. There are no figures for the whole ensemble."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from octet.clock import Clock
from octet.config.ensemble import Ensemble, SloConfig, SloTargets
from octet.telemetry.distributions import DEFAULT_PARTS, RELATIVE_ERROR, Sketch, SlidingWindow, TimeSlice
from octet.telemetry.outcomes import error_reasons, responsible_specialist
from octet.v1 import control_pb2, error_pb2, inference_pb2
from octet.v1 import slo_pb2 as wire
from router.control.audit import unknown_name
from router.observe.observers import RequestObserver, TokenGap
from router.request import Request

SLO_HEADER = "octet-slo"  # HTTP header, and gRPC metadata key
CACHE_SECONDS = 0.5  # figures are not recomputed more often than this
PEERS_STALE_SECONDS = 15.0  # other routers' measurements stop counting when the store has not answered for this long
MOST_BURN_RATE = 1000.0  # the maximum, for objectives that allow no breach at all
MOST_WRITERS = 64  # per slice; further writers, such as a router that restarts repeatedly, are not summed up
SHORT_SERIES, LONG_SERIES = "slo.short", "slo.long"  # slices with sketches, and slices with counts only
CORRECTNESS_OBJECTIVE = "correctness"
_HEADER_QUANTILES = {"ttft": ("p50", "p95", "p99"), "itl": ("p50", "p95", "p99"), "first-token": ("p95",)}

ObjectiveKey = tuple[str, float]  # an objective's name and target
SampleCounts = tuple[int, int]  # samples, and those of them that breached the objective
SliceKey = tuple[str, TimeSlice]  # series and slice of time
BreakerSource = Callable[[], Sequence[control_pb2.BreakerInfo]]

# No capacity, no replica, or a failure: the caller did nothing wrong and got no answer.
_SERVICE_FAILURES = error_reasons(
    "QUEUE_FULL WOULD_DELAY_OTHERS SHED DRAINING NOT_READY NO_REPLICA REPLICA_LOST REPLICA_FAILED ENGINE_FAILED "
    "INTERNAL"
)
# The deadline passed or the caller left: a breach if the caller had waited longer than the target. Any other reason
# is no fault of the specialist.
_COUNT_BY_WAIT = error_reasons("UNSPECIFIED DEADLINE DEADLINE_UNREACHABLE CANCELLED CALLER_STALLED")


@dataclass(slots=True)
class SloObjective:
    """One objective: its target, and the counts of samples since the last `SloMeter.settle`."""

    name: str
    measure: str
    share: float  # the share of samples that must meet the target
    target: float
    samples: int = 0
    breached: int = 0

    @property
    def key(self) -> ObjectiveKey:
        """The name and the target: counts against different targets must not be combined."""
        return self.name, self.target

    def add(self, seconds: float, count: int = 1) -> None:
        self.samples += count
        if seconds > self.target:
            self.breached += count


class MissedFirstToken(NamedTuple):
    """A request that ended without a first token. Times are seconds since its arrival. An objective counts it only if
    the request breaches the objective."""

    reason: int
    waited: float
    given: float  # seconds until the deadline of the request or of its first token
    accepted: float | None = None  # seconds until a replica accepted it; None if no replica did

    def breaches(self, target: float) -> bool:
        if self.reason in _SERVICE_FAILURES or (self.waited > target and self.reason in _COUNT_BY_WAIT):
            return True
        return self.reason == error_pb2.ERROR_REASON_DEADLINE_UNREACHABLE and self.given >= target


@dataclass(slots=True)
class SloSlice:
    """Measurements in one slice of time. All are sums, so that slices can be merged."""

    ttft: Sketch = field(default_factory=Sketch)
    itl: Sketch = field(default_factory=Sketch)
    admission: Sketch = field(default_factory=Sketch)
    answered: int = 0
    preempted: int = 0
    counts: dict[ObjectiveKey, SampleCounts] = field(default_factory=dict)

    def merge(self, other: "SloSlice") -> None:
        self.ttft.merge(other.ttft)
        self.itl.merge(other.itl)
        self.admission.merge(other.admission)
        self.answered += other.answered
        self.preempted += other.preempted
        for key, counts in other.counts.items():
            self.count(key, *counts)

    def count(self, key: ObjectiveKey, samples: int, breached: int) -> None:
        before = self.counts.get(key, (0, 0))
        self.counts[key] = (before[0] + samples, before[1] + breached)


class SloWindows:
    """A short and a long sliding window of measurements. Times are Unix seconds."""

    def __init__(self, slo: SloConfig) -> None:
        self.by_series: dict[str, SlidingWindow[SloSlice]] = {
            SHORT_SERIES: SlidingWindow(slo.window, SloSlice),
            LONG_SERIES: SlidingWindow(slo.long_window, SloSlice, 6 * DEFAULT_PARTS),
        }

    def resize(self, slo: SloConfig) -> None:
        self.by_series[SHORT_SERIES].resize(slo.window)
        self.by_series[LONG_SERIES].resize(slo.long_window)

    def totals(self, now: float) -> tuple[SloSlice, SloSlice]:
        return self.by_series[SHORT_SERIES].total(now), self.by_series[LONG_SERIES].total(now)

    def slices(self) -> list[SliceKey]:
        return [(series, each) for series, window in self.by_series.items() for each in window.slices]

    def slice_at(self, key: SliceKey) -> SloSlice | None:
        """Return the measurements in the slice; None if it has expired."""
        return self.by_series[key[0]].slices.get(key[1])


class PeerWindows(SloWindows):
    """Measurements of one specialist by other routers, and by this one before its restart."""

    def __init__(self, slo: SloConfig) -> None:
        super().__init__(slo)
        self._by_writer: dict[SliceKey, dict[str, SloSlice]] = {}

    def put(self, writer: str, key: SliceKey, content: SloSlice) -> None:
        writers = self._by_writer.setdefault(key, {})
        if writer in writers or len(writers) < MOST_WRITERS:
            writers[writer] = content

    def sum_up(self, changed: Iterable[SliceKey], now: float) -> None:
        """Add up the measurements of all writers in each of the `changed` slices, and forget expired slices."""
        for key in changed:
            total = SloSlice()
            for each in self._by_writer.get(key, {}).values():
                total.merge(each)
            self.by_series[key[0]].put(key[1], total)
        for window in self.by_series.values():
            window.expire(now)
        held = set(self.slices())
        self._by_writer = {key: each for key, each in self._by_writer.items() if key in held}

    def num_routers(self, now: float) -> int:
        """Return the number of writers with measurements in the short window."""
        window = self.by_series[SHORT_SERIES]
        counted = [
            writers
            for (series, slice_of_time), writers in self._by_writer.items()
            if series == SHORT_SERIES and window.counts(slice_of_time, now)
        ]
        return len(set().union(*counted))


class SloMeter(SloWindows):
    """Measures one specialist at this router. `settle` adds the counts since its last call to the current slices."""

    def __init__(self, slo: SloConfig, targets: SloTargets) -> None:
        super().__init__(slo)
        self.changed: set[SliceKey] = set()  # slices that changed since this set was last emptied
        self.since_start: dict[str, SampleCounts] = {}
        self.objectives: tuple[SloObjective, ...] = ()
        self._fresh = SloSlice()  # counts since the last `settle`
        self._short, self._long = SloSlice(), SloSlice()
        self._filling: set[SliceKey] = set()
        self._is_touched = False
        self._begins = self._ends = 0.0
        self.set_targets(targets)

    def set_targets(self, targets: SloTargets) -> None:
        """Set new targets. Earlier counts stay with the earlier targets."""
        self.settle()
        found = []
        for each in fields(targets):
            target, (measure, _, percent) = getattr(targets, each.name), each.name.rpartition("_p")
            if target is not None:
                found.append(SloObjective(each.name, measure, int(percent) / 100, target))
        self.objectives = tuple(found)
        self._ttft, self._itl, self._admission = (
            [each for each in self.objectives if each.measure == measure]
            for measure in ("ttft", "itl", "admission_to_first_token")
        )
        for objective in self.objectives:
            self.since_start.setdefault(objective.name, (0, 0))

    def resize(self, slo: SloConfig) -> None:
        self.settle()
        super().resize(slo)
        self._begins = self._ends = 0.0

    def gaps(self, now: float, gaps: Sequence[TokenGap]) -> None:
        self._touch(now)
        add = self._short.itl.add
        for seconds, count in gaps:
            add(seconds, count)
            for objective in self._itl:
                objective.add(seconds, count)

    def began(self, now: float, ttft: float, admission: float) -> None:
        """Record a first token. `ttft` and `admission` are the seconds since the request's arrival and admission."""
        self._touch(now)
        self._short.ttft.add(ttft)
        self._short.admission.add(admission)
        for objective in self._ttft:
            objective.add(ttft)
        for objective in self._admission:
            objective.add(admission)

    def missed(self, now: float, missed: MissedFirstToken) -> None:
        breached = [each for each in self._ttft if missed.breaches(each.target)]
        if missed.accepted is not None:
            waited, given = missed.waited - missed.accepted, missed.given - missed.accepted
            since_admission = MissedFirstToken(missed.reason, waited, given)
            breached += [each for each in self._admission if since_admission.breaches(each.target)]
        if breached:
            self._touch(now)
        for objective in breached:
            objective.samples += 1
            objective.breached += 1

    def answered(self, now: float, *, preempted: bool) -> None:
        self._touch(now)
        self._fresh.answered += 1
        self._fresh.preempted += preempted

    def settle(self) -> None:
        if not self._is_touched:
            return
        self._is_touched = False
        for each in self.objectives:
            if each.samples:
                before = self.since_start[each.name]
                self.since_start[each.name] = (before[0] + each.samples, before[1] + each.breached)
                self._fresh.count(each.key, each.samples, each.breached)
                each.samples = each.breached = 0
        self._short.merge(self._fresh)
        self._long.merge(self._fresh)
        self.changed |= self._filling
        self._fresh = SloSlice()

    def _touch(self, now: float) -> None:
        if not self._begins <= now < self._ends:
            self._turn(now)
        self._is_touched = True

    def _turn(self, now: float) -> None:
        self.settle()
        self._short, self._long = (window.current(now) for window in self.by_series.values())
        filling = {series: window.filling for series, window in self.by_series.items()}
        self._filling = {(series, each) for series, each in filling.items() if each is not None}
        self._begins = max(window.begins for window in self.by_series.values())
        self._ends = min(window.ends for window in self.by_series.values())
        self.changed.intersection_update(self.slices())


class SloTracker(RequestObserver):
    """Measures the SLOs of all specialists from observed requests. Used only on the event loop."""

    def __init__(self, ensemble: Ensemble, breakers: BreakerSource, clock: Clock, wall: Callable[[], float]) -> None:
        """`breakers` returns the breakers of all lanes, those of serving lanes first. `wall` returns Unix seconds."""
        self._ensemble = ensemble
        self._breakers = breakers
        self._clock = clock
        self._wall = wall
        self.meters = {each.name: SloMeter(ensemble.slo, each.slo) for each in ensemble.specialists}
        self._peers = {name: PeerWindows(ensemble.slo) for name in ensemble.names}
        self._received_at: float | None = None
        self._cache: dict[str, tuple[float, wire.Slo, str]] = {}  # time of computation, figures and header
        self._breaker_cache: tuple[float, Mapping[str, control_pb2.BreakerInfo]] = (0.0, {})

    @property
    def config(self) -> SloConfig:
        return self._ensemble.slo

    def gaps(self, specialist: str, gaps: Sequence[TokenGap]) -> None:
        meter = self.meters.get(specialist)
        if meter is not None:
            meter.gaps(self._wall(), gaps)

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        meter = self.meters.get(specialist)
        if meter is not None:
            meter.began(self._wall(), ttft, admission)

    def ended(self, request: Request, receipt: inference_pb2.Receipt) -> None:
        """Record a request's end. If it had a first token, its latencies were already counted by `began`."""
        meter = self.meters.get(responsible_specialist(receipt))
        if meter is None:
            return
        timings = receipt.timings
        if not receipt.HasField("error"):
            meter.answered(self._wall(), preempted=receipt.usage.times_preempted > 0)
        elif not timings.HasField("first_chunk"):
            accepted = timings.accepted if timings.HasField("accepted") else None
            given = request.first_token_by - request.arrival
            meter.missed(self._wall(), MissedFirstToken(receipt.error.reason, timings.total, given, accepted))

    def verified(self, specialist: str, *, passed: bool) -> None:
        """Add a verdict on the serving lane to the totals of `counts`. The pass rate comes from the lane's breaker."""
        if specialist in self.meters:
            since_start = self.meters[specialist].since_start
            samples, breached = since_start.get(CORRECTNESS_OBJECTIVE, (0, 0))
            since_start[CORRECTNESS_OBJECTIVE] = (samples + 1, breached + (not passed))

    def of(self, specialist: str) -> wire.Slo:
        """Return the specialist's SLOs, which callers must not modify. Raises Refusal for an unknown name."""
        if specialist not in self.meters:
            raise unknown_name("specialist", specialist, self._ensemble.names)
        return self._figures(specialist)[1]

    def all(self) -> list[wire.Slo]:
        """Return the SLOs in the configuration's order. Callers must not modify them."""
        return [self.of(name) for name in self._ensemble.names]

    def header(self, specialist: str) -> str:
        """Return the value of the SLO header; empty for an unknown name."""
        return self._figures(specialist)[2] if specialist in self.meters else ""

    def counts(self, specialist: str) -> Mapping[str, SampleCounts]:
        """Return counts by objective since this router started. Raises KeyError for an unknown name."""
        meter = self.meters[specialist]
        meter.settle()
        return dict(meter.since_start)

    def reload(self, ensemble: Ensemble) -> None:
        """Apply a new configuration. New targets apply from now on, and resized windows keep their content."""
        before, self._ensemble = self._ensemble, ensemble
        for each in ensemble.specialists:
            if each.slo != before.specialist(each.name).slo:
                self.meters[each.name].set_targets(each.slo)
        if ensemble.slo != before.slo:
            for windows in (*self.meters.values(), *self._peers.values()):
                windows.resize(ensemble.slo)
        self._cache.clear()

    def receive(self, slices: Iterable[tuple[str, str, SliceKey, SloSlice]], *, whole: bool) -> None:
        """Accept other routers' measurements: specialist, writer, key and content of each slice. If `whole`, discard
        those received earlier."""
        if whole:
            self._peers = {name: PeerWindows(self.config) for name in self._peers}
        changed: dict[str, set[SliceKey]] = {name: set() for name in self._peers}
        for specialist, writer, key, content in slices:
            self._peers[specialist].put(writer, key, content)
            changed[specialist].add(key)
        for name, windows in self._peers.items():
            windows.sum_up(changed[name], self._wall())
        self._received_at = self._clock.now()

    def _figures(self, specialist: str) -> tuple[float, wire.Slo, str]:
        now = self._clock.now()
        cached = self._cache.get(specialist)
        if cached is None or now - cached[0] >= CACHE_SECONDS:
            slo = self._compute(specialist, now)
            cached = self._cache[specialist] = (now, slo, format_slo_header(slo))
        return cached

    def _compute(self, specialist: str, now: float) -> wire.Slo:
        meter, wall = self.meters[specialist], self._wall()
        meter.settle()
        short, long = meter.totals(wall)
        num_routers = 1
        if self._received_at is not None and now - self._received_at < PEERS_STALE_SECONDS:
            peers = self._peers[specialist]
            for own, other in zip((short, long), peers.totals(wall), strict=True):
                own.merge(other)
            num_routers += peers.num_routers(wall)
        breaker = self._breaker(specialist, now)
        slo = wire.Slo(
            specialist=specialist,
            window_seconds=self.config.window,
            ttft=_latency_to_wire(short.ttft),
            itl=_latency_to_wire(short.itl),
            admission_to_first_token=_latency_to_wire(short.admission),
            judged=breaker.samples,
            correctness_window_seconds=breaker.window_seconds,
            answered=short.answered,
            relative_error=RELATIVE_ERROR,
            routers=num_routers,
        )
        counts = ((self.config.window, short.counts), (self.config.long_window, long.counts))
        slo.objectives.extend(_objective_to_wire(each, slo, counts) for each in meter.objectives)
        if breaker.HasField("pass_rate"):
            slo.pass_rate = breaker.pass_rate
        if breaker.HasField("floor"):
            slo.floor, slo.floor_learned = breaker.floor, breaker.floor_learned
            slo.objectives.append(_correctness_to_wire(breaker))
        if short.answered:
            slo.preempted_once = short.preempted / short.answered
        return slo

    def _breaker(self, specialist: str, now: float) -> control_pb2.BreakerInfo:
        """Return the breaker of the specialist's serving lane."""
        at, known = self._breaker_cache
        if not known or now - at >= CACHE_SECONDS:
            known = {each.specialist: each for each in reversed(self._breakers())}  # the first of a specialist wins
            self._breaker_cache = (now, known)
        return known.get(specialist) or control_pb2.BreakerInfo(specialist=specialist)


def burn_rate(counts: SampleCounts, share: float) -> float | None:
    """Return the share of breaches divided by the share that the objective allows; None without samples."""
    samples, breached = counts
    if not samples:
        return None
    budget = 1 - share
    return min(MOST_BURN_RATE, breached / samples / budget) if budget > 0 else MOST_BURN_RATE if breached else 0.0


def _latency_to_wire(sketch: Sketch) -> wire.Latency:
    p50, p95, p99 = sketch.quantiles((0.5, 0.95, 0.99))
    return wire.Latency(samples=sketch.count, p50=p50, p95=p95, p99=p99)


def _objective_to_wire(
    objective: SloObjective, slo: wire.Slo, counts: Iterable[tuple[float, Mapping[ObjectiveKey, SampleCounts]]]
) -> wire.Objective:
    """Convert an objective. `slo` holds its quantiles. `counts` holds the length and the counts of each window."""
    latency: wire.Latency = getattr(slo, objective.measure)
    quantile = objective.name.rpartition("_")[2]
    current = getattr(latency, quantile) if latency.HasField(quantile) else None
    found = [(seconds, each.get(objective.key, (0, 0))) for seconds, each in counts]
    rate = burn_rate(found[0][1], objective.share)
    return wire.Objective(
        name=objective.name,
        target=objective.target,
        share=objective.share,
        current=current,
        met=rate <= 1 if rate is not None else current is None or current <= objective.target,
        burns=[
            wire.Burn(window_seconds=seconds, samples=each[0], rate=burn_rate(each, objective.share))
            for seconds, each in found
        ],
    )


def _correctness_to_wire(breaker: control_pb2.BreakerInfo) -> wire.Objective:
    """Return correctness as an objective over the breaker's window, without rates if there are too few samples."""
    is_known = breaker.HasField("pass_rate") and breaker.samples >= breaker.min_samples
    rate = breaker.pass_rate if is_known else None
    failed = 0 if rate is None else breaker.samples - round(rate * breaker.samples)
    burn = None if rate is None else burn_rate((breaker.samples, failed), breaker.floor)
    return wire.Objective(
        name=CORRECTNESS_OBJECTIVE,
        target=breaker.floor,
        share=breaker.floor,
        current=rate,
        met=rate is None or rate >= breaker.floor,
        burns=[wire.Burn(window_seconds=breaker.window_seconds, samples=breaker.samples, rate=burn)],
        learned=breaker.floor_learned,
    )


def format_slo_header(slo: wire.Slo) -> str:
    """Return the header's value: an RFC 9651 list. Numbers have at most three decimal places."""
    members = []
    measures = (("ttft", slo.ttft), ("itl", slo.itl), ("first-token", slo.admission_to_first_token))
    for name, latency in measures:
        if latency.samples:
            values = "".join(f";{each}={_format_number(getattr(latency, each))}" for each in _HEADER_QUANTILES[name])
            members.append(f"{name}{values};n={latency.samples}")
    if slo.HasField("pass_rate"):
        learned = ";learned" if slo.floor_learned else ""
        floor = f";floor={_format_number(slo.floor)}{learned}" if slo.HasField("floor") else ""
        members.append(f"correctness;rate={_format_number(slo.pass_rate)}{floor};n={slo.judged}")
    if slo.answered:
        members.append(f"preempted;share={_format_number(slo.preempted_once)};n={slo.answered}")
    return ", ".join((*members, f"window;s={_format_number(slo.window_seconds)}"))


def _format_number(value: float) -> str:
    """Format with at most three decimal places: 300, 0.081, 0.2."""
    return f"{value:.3f}".rstrip("0").removesuffix(".")
