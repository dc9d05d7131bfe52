"""The last seconds of something that can be summed up, in slices of time. The wall clock cuts them, so that those of
several processes have the same ends."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

PARTS = 10
"""Slices of a window, unless it is said otherwise."""
MOST_AHEAD = 60.0
"""Seconds: a slice that lies further ahead is not counted until its time has come; somebody's clock is wrong."""
_SPARE = 2
"""Slices: the one that is being filled, and the oldest, of which only a part still counts."""


class Sum(Protocol):
    def merge(self, other: Self, /) -> None: ...


SumT = TypeVar("SumT", bound=Sum)


class Place(NamedTuple):
    """A slice of time. Milliseconds since 1970, and how many from there."""

    start: int
    span: int

    @property
    def end(self) -> int:
        return self.start + self.span


class Window(Generic[SumT]):
    """What came in the last `seconds` is in it; of what came before, at most one slice, which goes as a whole. There
    are never more than `_SPARE` slices beyond its parts, and twice as many while its length changes."""

    def __init__(self, seconds: float, make: Callable[[], SumT], parts: int = PARTS) -> None:
        self._make = make
        self._parts = parts
        self._slices: dict[Place, SumT] = {}
        self._closed: tuple[tuple[Place, ...], SumT] = ((), make())
        """The sum of those slices: all that count but those that may still change."""
        self.resize(seconds)

    def resize(self, seconds: float) -> None:
        """From now on it is so long. Slices that are there stay as they are."""
        self.seconds = seconds
        self._span = max(1, round(seconds * 1000 / self._parts))
        self._current: SumT | None = None
        self.filling: Place | None = None
        """The slice that `current` gave last."""
        self.begins = self.ends = 0.0
        """Of that slice, in Unix seconds."""

    def __len__(self) -> int:
        """Slices that are kept."""
        return len(self._slices)

    @property
    def slices(self) -> Mapping[Place, SumT]:
        return self._slices

    def place(self, now: float) -> Place:
        """Of the slice that `now` belongs to."""
        return Place(int(now * 1000) // self._span * self._span, self._span)

    def current(self, now: float) -> SumT:
        """The slice for what comes now. `now` is in Unix seconds, here and everywhere."""
        if self._current is not None and self.begins <= now < self.ends:
            return self._current
        self.expire(now)
        self._forget_ahead(now)
        self.filling = place = self.place(now)
        self._current = self._slices.setdefault(place, self._make())
        self.begins, self.ends = place.start / 1000, place.end / 1000
        self._bound()
        return self._current

    def put(self, place: Place, content: SumT) -> None:
        """The slice holds just that, whatever was known of it."""
        self._slices[place] = content
        self._closed = ((), self._make())
        self._bound()

    def drop(self, place: Place) -> None:
        self._slices.pop(place, None)
        self._closed = ((), self._make())

    def counts(self, place: Place, now: float) -> bool:
        """Whether anything of it came in the last `seconds`."""
        return place.end > (now - self.seconds) * 1000 and place.start <= (now + MOST_AHEAD) * 1000

    def total(self, now: float) -> SumT:
        """Of all that counts. Belongs to whoever asks."""
        counted = [place for place in self._slices if self.counts(place, now)]
        still_open = (self.place(now), self.filling)
        closed = tuple(place for place in counted if place not in still_open)
        if self._closed[0] != closed:
            self._closed = (closed, self._sum(closed))
        total = self._sum(place for place in counted if place in still_open)
        total.merge(self._closed[1])
        return total

    def expire(self, now: float) -> None:
        """What does not count any more takes no room."""
        for place in [place for place in self._slices if place.end <= (now - self.seconds) * 1000]:
            del self._slices[place]

    def _forget_ahead(self, now: float) -> None:
        """What this process filled while its own clock was wrong would come to count as new when its time comes."""
        for place in [place for place in self._slices if place.start > (now + MOST_AHEAD) * 1000]:
            del self._slices[place]

    def _sum(self, places: Iterable[Place]) -> SumT:
        total = self._make()
        for place in places:
            total.merge(self._slices[place])
        return total

    def _bound(self) -> None:
        """The oldest go where there are too many: a clock has jumped, or slices of several lengths are there."""
        number = len(self._slices) - 2 * (self._parts + _SPARE)
        for place in sorted(self._slices)[:number] if number > 0 else ():
            if place != self.filling:
                del self._slices[place]
