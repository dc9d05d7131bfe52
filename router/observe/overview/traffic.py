"""Recent traffic and cache reuse by specialist, for this process only."""

from collections import defaultdict, deque
from collections.abc import Container
from dataclasses import dataclass, fields
from functools import partial

from octet.clock import Clock
from octet.telemetry.outcomes import CAPACITY_REASONS, first_asked, request_outcome, responsible_specialist
from octet.v1 import inference_pb2 as wire
from octet.v1 import overview_pb2 as overview_wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.observe.observers import RequestObserver
from router.request import Request

WINDOW_SECONDS = 60.0
RECENT_SECONDS = 300.0
USUAL_SECONDS = 3600.0
MOST_LINES = 50
_GRAIN_SECONDS = 1.0
_RECENT_STEPS = 20
CAPACITY_OR_FLOOR_REASONS = CAPACITY_REASONS | {wire.ERROR_REASON_BELOW_FLOOR}
# the request was valid and there was capacity, but its specialist is not serving
UNSERVED_REASONS = frozenset({wire.ERROR_REASON_DEMOTED, wire.ERROR_REASON_DRAINING, wire.ERROR_REASON_NOT_READY})
Counts = defaultdict[str, float]
_RATES = ("requests", "answered", "refused", "unserved", "failed", "spilled", "shadowed", "completion_tokens")


class TimeBuckets:
    """Holds counts in buckets of `grain` seconds, which are dropped after `span` seconds. `now` must not decrease."""

    def __init__(self, span: float, grain: float) -> None:
        self._span = span
        self._grain = grain
        self._buckets: deque[tuple[float, Counts]] = deque()

    def at(self, now: float) -> Counts:
        start = now // self._grain * self._grain
        if not self._buckets or self._buckets[-1][0] < start:
            while self._buckets and self._buckets[0][0] <= now - self._span:
                self._buckets.popleft()
            self._buckets.append((start, defaultdict(float)))
        return self._buckets[-1][1]

    def sums(self, after: float, until: float) -> Counts:
        """Sum the buckets that began in (after, until]."""
        total: Counts = defaultdict(float)
        for start, counts in self._buckets:
            if after < start <= until:
                for name, count in counts.items():
                    total[name] += count
        return total


@dataclass(frozen=True, slots=True)
class SpecialistTraffic:
    requests: int = 0
    answered: int = 0
    refused: int = 0
    unserved: int = 0  # refused requests whose specialist was not serving
    failed: int = 0
    spilled: int = 0
    shadowed: int = 0
    completion_tokens: int = 0
    decisions: int = 0  # decisions of the classifier for this specialist
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class RouterTraffic:
    requests: int = 0
    unrouted: int = 0
    unroutable: int = 0  # unrouted requests that no specialist should answer
    no_room: int = 0  # unrouted requests that arrived when the router was full


class Traffic(RequestObserver):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._by_specialist = defaultdict[str, TimeBuckets](partial(TimeBuckets, WINDOW_SECONDS, _GRAIN_SECONDS))
        self._router = TimeBuckets(WINDOW_SECONDS, _GRAIN_SECONDS)
        self._ended: deque[wire.Receipt] = deque(maxlen=MOST_LINES)
        self._lines: deque[overview_wire.ReceiptLine] = deque(maxlen=MOST_LINES)

    def ended(self, request: Request, receipt: wire.Receipt) -> None:
        now = self._clock.now()
        self._ended.append(receipt)
        first = first_asked(receipt)
        router = self._router.at(now)
        router["requests"] += 1
        if not first:
            router["unrouted"] += 1
            router["unroutable"] += receipt.error.reason == wire.ERROR_REASON_NO_SPECIALIST
            return
        owner, decision = receipt.specialist or first, receipt.decision
        if receipt.between.spilled and owner != first:
            spilled = self._by_specialist[first].at(now)
            spilled["requests"] += 1
            spilled["spilled"] += 1
        counts, outcome = self._by_specialist[owner].at(now), request_outcome(receipt)
        reason = receipt.error.reason if receipt.HasField("error") else None
        is_unserved = reason in UNSERVED_REASONS
        is_refused = is_unserved or reason in CAPACITY_OR_FLOOR_REASONS  # including refusals in the middle of an answer
        counts["requests"] += 1
        counts["answered"] += outcome == "answered"
        counts["unserved"] += is_unserved
        counts["refused"] += is_refused
        counts["failed"] += outcome == "failed" and not is_refused
        counts["shadowed"] += bool(receipt.between.shadow.replica)
        counts["completion_tokens"] += receipt.usage.completion_tokens
        if decision.source == wire.DECISION_SOURCE_CLASSIFIER and decision.HasField("confidence"):
            chosen = self._by_specialist[decision.primary].at(now)
            chosen["decisions"] += 1
            chosen["confidence"] += decision.confidence

    def rejected(self, error: wire.Error) -> None:
        router = self._router.at(self._clock.now())
        router["requests"] += 1
        router["unrouted"] += 1
        router["no_room"] += error.reason == wire.ERROR_REASON_QUEUE_FULL

    def of_specialist(self, specialist: str) -> SpecialistTraffic:
        buckets = self._by_specialist.get(specialist)
        if buckets is None:
            return SpecialistTraffic()
        sums = self._sums(buckets)
        confidence = sums.pop("confidence") / sums["decisions"] if sums["decisions"] else None
        return SpecialistTraffic(**{name: round(count) for name, count in sums.items()}, confidence=confidence)

    def of_router(self) -> RouterTraffic:
        sums = self._sums(self._router)
        return RouterTraffic(**{name: round(count) for name, count in sums.items()})

    def seconds(self) -> float:
        return min(WINDOW_SECONDS, max(_GRAIN_SECONDS, self._clock.now() - self._began))

    def lines(self) -> list[overview_wire.ReceiptLine]:
        while self._ended:
            self._lines.appendleft(receipt_to_line(self._ended.popleft()))
        return list(self._lines)

    def forget_all_but(self, specialists: Container[str]) -> None:
        for name in [name for name in self._by_specialist if name not in specialists]:
            del self._by_specialist[name]

    def _sums(self, buckets: TimeBuckets) -> Counts:
        now = self._clock.now()
        return buckets.sums(now - WINDOW_SECONDS, now)


def rates_to_wire(traffic: SpecialistTraffic, seconds: float) -> overview_wire.Rates:
    rates = {name: getattr(traffic, name) / seconds for name in _RATES}
    return overview_wire.Rates(**rates, confidence=traffic.confidence)


def receipt_to_line(receipt: wire.Receipt) -> overview_wire.ReceiptLine:
    decision, timings, usage, between = receipt.decision, receipt.timings, receipt.usage, receipt.between
    return overview_wire.ReceiptLine(
        request_id=receipt.request_id,
        tenant=receipt.tenant,
        at_unix_ms=receipt.created_unix_ms,
        specialist=responsible_specialist(receipt),
        primary=decision.primary,
        replica=receipt.replica,
        intent=decision.intent,
        outcome=request_outcome(receipt),
        reason=receipt.error.reason,
        total=timings.total,
        ttft=timings.first_chunk if timings.HasField("first_chunk") else None,
        completion_tokens=usage.completion_tokens,
        cache_hit_tokens=usage.cache_hit_tokens,
        prompt_tokens=usage.prompt_tokens or receipt.accepted.prompt_tokens,
        times_preempted=usage.times_preempted,
        confidence=decision.confidence if decision.HasField("confidence") else None,
        spilled=between.spilled,
        instead_of=between.instead_of,
        shadow=between.shadow.specialist if between.shadow.replica else "",
        attempts=len(receipt.attempts),
    )


@dataclass(frozen=True, slots=True)
class CacheReuse:
    """The reuse of the replicas' caches over one period."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0

    @property
    def share(self) -> float | None:
        return min(1.0, self.hit_tokens / self.prompt_tokens) if self.prompt_tokens > 0 else None


class CacheReuseTracker:
    """Sums, by specialist, the increases of the cache counters that its replicas report."""

    def __init__(self, clock: Clock, recent: float = RECENT_SECONDS, usual: float = USUAL_SECONDS) -> None:
        """`recent` is the length of the last period in seconds, `usual` that of the period before it."""
        self._clock = clock
        self._recent = recent
        self._usual = usual
        self._last: dict[str, CacheReuse] = {}
        self._by_specialist = defaultdict[str, TimeBuckets](
            partial(TimeBuckets, recent + usual, recent / _RECENT_STEPS)
        )

    def sample(self, specialist: str, replica: str, report: specialist_wire.LoadReport) -> None:
        current = CacheReuse(report.prompt_tokens, report.cache_hit_tokens, report.evicted_blocks)
        before = self._last.get(replica)
        self._last[replica] = current
        if before is None or current == before:
            return
        if current.prompt_tokens < before.prompt_tokens:  # the replica has restarted, and counts from 0
            before = CacheReuse()
        counts = self._by_specialist[specialist].at(self._clock.now())
        for each in fields(CacheReuse):
            counts[each.name] += max(0, getattr(current, each.name) - getattr(before, each.name))

    def recent(self, specialist: str) -> CacheReuse:
        now = self._clock.now()
        return self._sum(specialist, now - self._recent, now)

    def usual(self, specialist: str) -> CacheReuse:
        until = self._clock.now() - self._recent
        return self._sum(specialist, until - self._usual, until)

    def forget_all_but(self, specialists: Container[str], replicas: Container[str]) -> None:
        for name in [name for name in self._by_specialist if name not in specialists]:
            del self._by_specialist[name]
        for name in [name for name in self._last if name not in replicas]:
            del self._last[name]

    def _sum(self, specialist: str, after: float, until: float) -> CacheReuse:
        buckets = self._by_specialist.get(specialist)
        if buckets is None:
            return CacheReuse()
        sums = buckets.sums(after, until)
        return CacheReuse(**{name: round(count) for name, count in sums.items()})
