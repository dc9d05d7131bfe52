"""One specialist at this router: what it measures, in the slices that the others may read."""

from collections.abc import Sequence
from dataclasses import dataclass

from octet.config.ensemble import SloConfig, SloTargets
from octet.telemetry.window import PARTS, Place, Window
from router.slo.breach import Missed
from router.slo.promise import ADMISSION, ITL, TTFT, Promise, promises_of
from router.slo.slice import Counts, Slice, Tally

LONG_PARTS = 6 * PARTS
SHORT, LONG = "slo.short", "slo.long"
"""Series of slices: those with sketches, and those that only count."""
Changed = tuple[str, Place]


@dataclass(slots=True)
class Meter:
    """Since the last settling."""

    promise: Promise
    samples: int = 0
    breached: int = 0

    def hold(self, seconds: float) -> None:
        self.samples += 1
        if seconds > self.promise.target:
            self.breached += 1


class Measured:
    """Times are Unix seconds."""

    def __init__(self, slo: SloConfig, targets: SloTargets) -> None:
        self.short: Window[Slice] = Window(slo.window, Slice)
        self.long: Window[Tally] = Window(slo.long_window, Tally, LONG_PARTS)
        self.changed: set[Changed] = set()
        """Slices that are not as they were when this was last emptied."""
        self.since_start: dict[str, Counts] = {}
        """By the promise's name."""
        self._fresh = Tally()
        """What was counted since the last settling belongs to the slice that is being filled."""
        self._slice = Slice()
        self._long = Tally()
        self._filling: set[Changed] = set()
        self._is_touched = False
        self._begins = self._ends = 0.0
        self.promise(targets)

    def promise(self, targets: SloTargets) -> None:
        """From now on that; what was counted against another target stays with it."""
        self.settle()
        self.promises = promises_of(targets)
        self._meters = [Meter(each) for each in self.promises]
        self._first = [each for each in self._meters if each.promise.measure == TTFT]
        self._gaps = [each for each in self._meters if each.promise.measure == ITL]
        self._admissions = [each for each in self._meters if each.promise.measure == ADMISSION]
        for each in self.promises:
            self.since_start.setdefault(each.name, (0, 0))

    def resize(self, slo: SloConfig) -> None:
        self.settle()
        self.short.resize(slo.window)
        self.long.resize(slo.long_window)
        self._begins = self._ends = 0.0

    def gaps(self, now: float, seconds: Sequence[float]) -> None:
        self._touch(now)
        add = self._slice.itl.add
        for each in seconds:
            add(each)
            for meter in self._gaps:
                meter.hold(each)

    def began(self, now: float, ttft: float, admission: float) -> None:
        """A request had its first token after so long, and so long after it was admitted."""
        self._touch(now)
        self._slice.ttft.add(ttft)
        self._slice.admission.add(admission)
        for meter in self._first:
            meter.hold(ttft)
        for meter in self._admissions:
            meter.hold(admission)

    def missed(self, now: float, missed: Missed) -> None:
        """A request ended before its first token."""
        admitted = missed.since_admission
        broken = [each for each in self._first if missed.breaks(each.promise.target)]
        if admitted is not None:
            broken += [each for each in self._admissions if admitted.breaks(each.promise.target)]
        if broken:
            self._touch(now)
        for meter in broken:
            meter.samples += 1
            meter.breached += 1

    def answered(self, now: float, *, preempted: bool) -> None:
        self._touch(now)
        self._fresh.answered += 1
        self._fresh.preempted += preempted

    def judged(self, name: str, *, passed: bool) -> None:
        """Counted since the start, and in no window: those are kept elsewhere."""
        samples, breached = self.since_start.get(name, (0, 0))
        self.since_start[name] = (samples + 1, breached + (not passed))

    def settle(self) -> None:
        """Everything that came is in its slice."""
        if not self._is_touched:
            return
        self._is_touched = False
        self._fresh.count({each.promise.key: (each.samples, each.breached) for each in self._meters if each.samples})
        for (name, _), (samples, breached) in self._fresh.counts.items():
            had = self.since_start.get(name, (0, 0))
            self.since_start[name] = (had[0] + samples, had[1] + breached)
        self._slice.tally.merge(self._fresh)
        self._long.merge(self._fresh)
        self.changed |= self._filling
        self._fresh = Tally()
        for meter in self._meters:
            meter.samples = meter.breached = 0

    def slices(self) -> list[Changed]:
        """All that are kept."""
        return [*((SHORT, place) for place in self.short.slices), *((LONG, place) for place in self.long.slices)]

    def slice_at(self, where: Changed) -> Slice | Tally | None:
        """None where it was forgotten."""
        series, place = where
        return self.short.slices.get(place) if series == SHORT else self.long.slices.get(place)

    def _touch(self, now: float) -> None:
        if not self._begins <= now < self._ends:
            self._turn(now)
        self._is_touched = True

    def _turn(self, now: float) -> None:
        """Another slice of either window begins."""
        self.settle()
        self._slice, self._long = self.short.current(now), self.long.current(now)
        filling = ((SHORT, self.short.filling), (LONG, self.long.filling))
        self._filling = {(series, place) for series, place in filling if place is not None}
        self._begins = max(self.short.begins, self.long.begins)
        self._ends = min(self.short.ends, self.long.ends)
        self.changed.intersection_update(self.slices())
