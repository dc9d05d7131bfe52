"""Every specialist's figures: filled by what becomes of requests, told to whoever asks. There are none for all of them
together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.store import SliceRow
from octet.telemetry.outcome import specialist_of
from octet.telemetry.window import MOST_AHEAD, Place
from octet.v1 import control_pb2, slo_pb2
from octet.v1 import inference_pb2 as wire
from router.control.refusals import unknown_name
from router.reception.ask import Ask
from router.slo.breach import Missed
from router.slo.header import header_of
from router.slo.measured import SHORT, Measured
from router.slo.others import Others
from router.slo.promise import CORRECTNESS
from router.slo.slice import Counts, Slice, Tally
from router.slo.telling import Known, slo_of

FRESH_SECONDS = 0.5
"""What was told of a specialist is told again for so long: many ask, and little changes."""
STALE_SECONDS = 15.0
"""What others have measured counts until nothing was heard of them for so long."""
Breakers = Callable[[], Sequence[control_pb2.BreakerInfo]]


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    slo: slo_pb2.Slo
    header: str


class Slos:
    """An observer of requests. Belongs to the event loop."""

    def __init__(self, ensemble: Ensemble, breakers: Breakers, clock: Clock, wall: Callable[[], float]) -> None:
        """`breakers` tells those of the lanes that serve before any others. `wall` tells Unix seconds."""
        self._ensemble = ensemble
        self._breakers = breakers
        self._clock = clock
        self._wall = wall
        self.measured = {each.name: Measured(ensemble.slo, each.slo) for each in ensemble.specialists}
        """At this router, by specialist."""
        self._others = Others(ensemble.slo, ensemble.names)
        self._heard_at: float | None = None
        self._told: dict[str, _Told] = {}
        self._known_breakers: tuple[float, Mapping[str, control_pb2.BreakerInfo]] = (0.0, {})

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        measured = self.measured.get(specialist)
        if measured is not None:
            measured.gaps(self._wall(), seconds)

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        measured = self.measured.get(specialist)
        if measured is not None:
            measured.began(self._wall(), ttft, admission)

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        """What had begun was counted when it did."""
        measured = self.measured.get(specialist_of(receipt))
        if measured is None:
            return
        if not receipt.HasField("error"):
            measured.answered(self._wall(), preempted=receipt.usage.times_preempted > 0)
        elif not receipt.timings.HasField("first_chunk"):
            measured.missed(self._wall(), _missed(ask, receipt))

    def turned_away(self, error: wire.Error) -> None:
        """It belongs to no specialist."""

    def judged(self, specialist: str, *, passed: bool) -> None:
        """An answer of the lane that serves."""
        measured = self.measured.get(specialist)
        if measured is not None:
            measured.judged(CORRECTNESS, passed=passed)

    def of(self, specialist: str) -> slo_pb2.Slo:
        """Not to be changed. Raises Refusal for a name that nobody has."""
        return self._tell(specialist).slo

    def all(self) -> list[slo_pb2.Slo]:
        """In the configuration's order. Not to be changed."""
        return [self.of(name) for name in self._ensemble.names]

    def header(self, specialist: str) -> str:
        """The same in one line; empty for a name that nobody has."""
        return self._tell(specialist).header if specialist in self.measured else ""

    def counted(self, specialist: str) -> Mapping[str, Counts]:
        """By objective: samples since this router began, and those that broke it. Raises KeyError."""
        measured = self.measured[specialist]
        measured.settle()
        return dict(measured.since_start)

    def reload(self, ensemble: Ensemble) -> None:
        """Other targets count from now on; windows of another length keep what they hold."""
        before, self._ensemble = self._ensemble, ensemble
        for each in ensemble.specialists:
            if each.slo != before.specialist(each.name).slo:
                self.measured[each.name].promise(each.slo)
            if ensemble.slo != before.slo:
                self.measured[each.name].resize(ensemble.slo)
        if ensemble.slo != before.slo:
            self._others.resize(ensemble.slo)
        self._told.clear()

    def heard(self, rows: Sequence[SliceRow], *, whole: bool) -> None:
        """The store has answered: what others have measured, as far as it is new."""
        if whole:
            self._others.forget(self._ensemble.slo)
        self._others.take(rows, self._wall())
        self._heard_at = self._clock.now()

    def until_ms(self, series: str, place: Place) -> int:
        """When nobody wants to know a slice any more."""
        window = self._ensemble.slo.window if series == SHORT else self._ensemble.slo.long_window
        return place.end + round((window + MOST_AHEAD) * 1000)

    def _tell(self, specialist: str) -> _Told:
        if specialist not in self.measured:
            raise unknown_name("specialist", specialist, self._ensemble.names)
        now = self._clock.now()
        told = self._told.get(specialist)
        if told is None or now - told.at >= FRESH_SECONDS:
            slo = slo_of(self._known(specialist, now))
            told = self._told[specialist] = _Told(now, slo, header_of(slo))
        return told

    def _known(self, specialist: str, now: float) -> Known:
        measured, wall = self.measured[specialist], self._wall()
        measured.settle()
        short: Slice = measured.short.total(wall)
        long: Tally = measured.long.total(wall)
        routers = 1
        if self._heard_at is not None and now - self._heard_at < STALE_SECONDS:
            others = self._others.of(specialist)
            short.merge(others.short.total(wall))
            long.merge(others.long.total(wall))
            routers += others.routers(wall)
        breaker = self._breaker(specialist, now)
        return Known(specialist, self._ensemble.slo, measured.promises, short, long, breaker, routers)

    def _breaker(self, specialist: str, now: float) -> control_pb2.BreakerInfo:
        """Of the lane that serves: the first of its name."""
        at, known = self._known_breakers
        if not known or now - at >= FRESH_SECONDS:
            known = {each.specialist: each for each in reversed(self._breakers())}
            self._known_breakers = (now, known)
        return known.get(specialist) or control_pb2.BreakerInfo(specialist=specialist)


def _missed(ask: Ask, receipt: wire.Receipt) -> Missed:
    timings = receipt.timings
    accepted = timings.accepted if timings.HasField("accepted") else None
    return Missed(receipt.error.reason, timings.total, ask.first_token_by - ask.arrival, accepted)
