"""How many requests came of late, and what became of them, by specialist."""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from octet.clock import Clock
from octet.telemetry.outcome import asked_first, outcome_of
from octet.v1 import inference_pb2 as wire
from octet.v1 import overview_pb2 as overview
from router.reception.ask import Ask
from router.view.buckets import Buckets
from router.view.fate import lacked_anybody, lacked_room
from router.view.receipt_line import line_of

WINDOW_SECONDS = 60.0
_GRAIN_SECONDS = 1.0
MOST_LINES = 50
_FIGURES = 10
_REQUESTS, _ANSWERED, _REFUSED, _UNSERVED, _FAILED, _SPILLED, _SHADOWED, _TOKENS, _DECISIONS, _CONFIDENCE = range(
    _FIGURES
)
_CAME, _UNROUTED, _NOBODY, _NO_ROOM = range(4)


@dataclass(frozen=True, slots=True)
class Minute:
    """Of one specialist, in the last minute."""

    requests: int = 0
    answered: int = 0
    refused: int = 0
    unserved: int = 0
    """Of the refused, those that nobody was left to answer."""
    failed: int = 0
    spilled: int = 0
    shadowed: int = 0
    completion_tokens: int = 0
    decisions: int = 0
    """Of the classifier, for it."""
    confidence: float | None = None
    """Their mean."""


@dataclass(frozen=True, slots=True)
class Door:
    """Of the router itself, in the last minute."""

    requests: int = 0
    """All that came."""
    unrouted: int = 0
    """Of them, those that belong to no specialist."""
    nobodys: int = 0
    """Of those, the ones that nobody should answer."""
    no_room: int = 0
    """And the ones that the router itself had no room for."""


class Traffic:
    """An observer. Belongs to the event loop. It remembers nothing of what was before its process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._by_specialist: dict[str, Buckets] = {}
        self._door = Buckets(4, WINDOW_SECONDS, _GRAIN_SECONDS)
        self._ended: deque[wire.Receipt] = deque(maxlen=MOST_LINES)
        """Since the last look."""
        self._lines: deque[overview.ReceiptLine] = deque(maxlen=MOST_LINES)

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        """Whoever publishes latencies minds it."""

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        """Whoever publishes latencies minds it."""

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        now = self._clock.now()
        self._ended.append(receipt)
        first = asked_first(receipt)
        door = self._door.at(now)
        door[_CAME] += 1
        if not first:
            door[_UNROUTED] += 1
            door[_NOBODY] += receipt.error.reason == wire.ERROR_REASON_NO_SPECIALIST
            return
        self._count(receipt, first, now)
        decision = receipt.decision
        if decision.source == wire.DECISION_SOURCE_CLASSIFIER and decision.HasField("confidence"):
            named = self._of(decision.primary).at(now)
            named[_DECISIONS] += 1
            named[_CONFIDENCE] += decision.confidence

    def turned_away(self, error: wire.Error) -> None:
        door = self._door.at(self._clock.now())
        door[_CAME] += 1
        door[_UNROUTED] += 1
        door[_NO_ROOM] += error.reason == wire.ERROR_REASON_QUEUE_FULL

    def minute(self, specialist: str) -> Minute:
        buckets = self._by_specialist.get(specialist)
        if buckets is None:
            return Minute()
        sums = self._sums(buckets)
        decisions = round(sums[_DECISIONS])
        return Minute(
            requests=round(sums[_REQUESTS]),
            answered=round(sums[_ANSWERED]),
            refused=round(sums[_REFUSED]),
            unserved=round(sums[_UNSERVED]),
            failed=round(sums[_FAILED]),
            spilled=round(sums[_SPILLED]),
            shadowed=round(sums[_SHADOWED]),
            completion_tokens=round(sums[_TOKENS]),
            decisions=decisions,
            confidence=sums[_CONFIDENCE] / decisions if decisions else None,
        )

    def door(self) -> Door:
        return Door(*(round(each) for each in self._sums(self._door)))

    def seconds(self) -> float:
        """That the figures of the last minute are of: less at the beginning."""
        return min(WINDOW_SECONDS, max(_GRAIN_SECONDS, self._clock.now() - self._began))

    def lines(self) -> list[overview.ReceiptLine]:
        """Newest first."""
        while self._ended:
            self._lines.appendleft(line_of(self._ended.popleft()))
        return list(self._lines)

    def forget_all_but(self, specialists: Container[str]) -> None:
        """Those that are there no more."""
        for name in [name for name in self._by_specialist if name not in specialists]:
            del self._by_specialist[name]

    def _count(self, receipt: wire.Receipt, first: str, now: float) -> None:
        owner = receipt.specialist or first
        if receipt.between.spilled and owner != first:
            passed_on = self._of(first).at(now)
            passed_on[_REQUESTS] += 1
            passed_on[_SPILLED] += 1
        figures, outcome = self._of(owner).at(now), outcome_of(receipt)
        figures[_REQUESTS] += 1
        figures[_ANSWERED] += outcome == "answered"
        figures[_UNSERVED] += lacked_anybody(receipt)
        is_refused = lacked_anybody(receipt) or lacked_room(receipt)
        figures[_REFUSED] += is_refused  # in the middle of an answer too: it is room that was lacking
        figures[_FAILED] += outcome == "failed" and not is_refused
        figures[_SHADOWED] += receipt.between.HasField("shadow")
        figures[_TOKENS] += receipt.usage.completion_tokens

    def _of(self, specialist: str) -> Buckets:
        found = self._by_specialist.get(specialist)
        if found is None:
            found = Buckets(_FIGURES, WINDOW_SECONDS, _GRAIN_SECONDS)
            self._by_specialist[specialist] = found
        return found

    def _sums(self, buckets: Buckets) -> list[float]:
        now = self._clock.now()
        return buckets.sums(now - WINDOW_SECONDS, now)


def rates_of(minute: Minute, seconds: float) -> overview.Rates:
    rates = overview.Rates(
        requests=minute.requests / seconds,
        answered=minute.answered / seconds,
        refused=minute.refused / seconds,
        unserved=minute.unserved / seconds,
        failed=minute.failed / seconds,
        spilled=minute.spilled / seconds,
        shadowed=minute.shadowed / seconds,
        completion_tokens=minute.completion_tokens / seconds,
    )
    if minute.confidence is not None:
        rates.confidence = minute.confidence
    return rates
