"""Places in the forecast that are kept for refused requests: when each opens, how long it is kept, and its owner.

A refused request may get a place: room from a stated time on. Until the place is taken or lapses, the forecast contains
it, so that no new request of the same or a lower priority takes its room. A place is taken once, after it has opened,
by a request of the same owner that is no larger and no more important than the refused one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Literal, NamedTuple, get_args

from admission.forecast.bookings import BookedRequest, Booking, ExpectedArrivals
from admission.forecast.forecast import MAX_RETRY_SECONDS, Forecast, ForecastCheck

KEPT_SECONDS = 2.0  # a place is kept for this long after it has opened
_MIN_SECONDS = 0.1  # the least time until a place opens
_SPARE = 1.15  # a place has room for this many times the expected work, because the forecast changes until it opens
_MAX_TRIES = 3  # checks to find a place
_MOST_HIGHER = 0.9  # if higher priorities take this share of the time, there is no place
_DRIFT = 0.1  # by how much of the time until a place opens the forecast is usually wrong
_LOST_SHARE = 0.1  # the share of places that may be lost to work that was not expected
_FIRST_CAUTION, _MAX_CAUTION = 0.2, 4.0
_CAUTION_STEP = 0.3  # how fast it changes with a place that is taken or lost
_CAUTION_DROP = 0.003  # by how much it falls when no place is found, so that some are tried
_FIRST_OWN = 2.0  # the places of an owner that has taken one
_KEPT_AFTER_LAPSE = 0.25
_RECOVERY_SECONDS = 60.0  # an allowance of no place grows to one place in this time
_MOST_STRANGERS = 4.0
_MAX_OWNERS = 256  # how many recent owners are remembered
_FAILED_SECONDS = 0.25  # after a failed search, requests that could not do better are not searched for
PlaceEnd = Literal["taken", "lapsed", "lost", "released"]
"""taken: its owner came back and was admitted; lapsed: the owner did not come back in time; lost: the owner came back
in time and was refused; released: it was not needed, because the request was answered or refused elsewhere."""


@dataclass(frozen=True, slots=True)
class PlaceLimits:
    total: int = 16
    per_owner: int = 12


@dataclass(frozen=True, slots=True)
class Place:
    key: str  # unguessable
    owner: str
    booking: Booking  # the refused request
    opens: float
    expires: float

    def fits(self, booking: Booking) -> bool:
        """Whether the request has the same owner, and is no larger and no more important than the refused one."""
        mine = self.booking
        return (
            not booking.shadow
            and booking.owner == self.owner
            and booking.priority <= mine.priority
            and booking.prompt_tokens <= mine.prompt_tokens
            and booking.max_tokens <= mine.max_tokens
        )


class Allowances:
    """How many places each owner may keep at one time: one more for each place that it takes, and a quarter of them
    after one that lapses. All owners that have taken none share one allowance, which starts at a single place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: dict[str, float] = {}
        self._strangers = 1.0
        self._since = 0.0  # when the strangers' allowance was last cut

    def group(self, owner: str) -> str:
        """The owner itself if it has an allowance of its own, else the empty string."""
        return owner if owner in self._own else ""

    def of(self, group: str, now: float) -> float:
        if group:
            return min(self._own[group], self._most)
        recovered = min(1.0, self._strangers + (now - self._since) / _RECOVERY_SECONDS)
        return min(max(self._strangers, recovered), self._most)

    def taken(self, owner: str) -> None:
        if owner not in self._own:
            self._strangers = min(_MOST_STRANGERS, max(1.0, self._strangers) + 1)
        self._own[owner] = min(float(self._most), self._own.pop(owner, _FIRST_OWN - 1) + 1)
        if len(self._own) > _MAX_OWNERS:
            del self._own[next(iter(self._own))]

    def lapsed(self, owner: str, now: float) -> None:
        if owner not in self._own:
            self._strangers, self._since = self.of("", now) * _KEPT_AFTER_LAPSE, now
            return
        self._own[owner] *= _KEPT_AFTER_LAPSE
        if self._own[owner] < 1:
            del self._own[owner]


class FailedSearch(NamedTuple):
    """A search for a place that found none."""

    at: float
    priority: int
    patience: float  # seconds in which the request had to be done

    def rules_out(self, priority: int, patience: float, now: float) -> bool:
        is_recent = 0 <= now - self.at < _FAILED_SECONDS
        return is_recent and priority <= self.priority and patience <= self.patience


class HigherWork(NamedTuple):
    """The work that requests of higher priority bring, in seconds per second."""

    mean: float = 0.0
    variance: float = 0.0

    def delay(self, seconds: float, ahead: float, caution: float) -> float:
        """By how much work that comes in the next `seconds` may delay a request that comes then: `caution` times the
        mean and a standard deviation. `ahead`: seconds of known work that is served before the request. When that is
        done, the replica keeps up with the mean, and forgets a burst in about variance / (1 - mean)**2 seconds."""
        idle = 1 - self.mean
        mean = self.mean * min(seconds, ahead / idle)
        variance = self.variance * min(seconds, self.variance / idle**2) + (_DRIFT * seconds) ** 2
        return caution * (mean + sqrt(variance))


class Places:
    """The places that are kept. Used by one thread; bounded in all and by owner."""

    def __init__(self, draw_key: Callable[[], str], limits: PlaceLimits | None = None) -> None:
        """`draw_key` returns a random, unguessable string."""
        self._draw_key = draw_key
        self.limits = limits or PlaceLimits()
        self._kept: dict[str, Place] = {}
        self._allowances = Allowances(self.limits.per_owner)
        self._failed: dict[str, FailedSearch] = {}  # the last one of each group that shares an allowance
        self._caution = _FIRST_CAUTION
        """How much work of others a place has time for (see `HigherWork.delay`). Follows the share of lost places."""
        self.ended: Counter[PlaceEnd] = Counter(dict.fromkeys(get_args(PlaceEnd), 0))

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def expire(self, now: float) -> None:
        for key in [key for key, each in self._kept.items() if each.expires < now]:
            self._allowances.lapsed(self._kept[key].owner, now)
            self.end(key, "lapsed")

    def find(self, booking: Booking) -> Place | None:
        """Return the place that the request may take; None if it names none, or one that is not for such a request."""
        place = self._kept.get(booking.place)
        return place if place is not None and place.fits(booking) else None

    def opened(self, booking: Booking, now: float) -> Place | None:
        """Return the place that the request may take now."""
        place = self.find(booking)
        return place if place is not None and place.opens <= now else None

    def may_add(self, owner: str, priority: int, patience: float, now: float) -> bool:
        """Whether to search for a place for a request that must be done in `patience` seconds."""
        group = self._allowances.group(owner)
        failed = self._failed.get(group)
        if failed is not None and failed.rules_out(priority, patience, now):
            return False
        num_beside = sum(self._allowances.group(each.owner) == group for each in self._kept.values())
        has_room = num_beside + 1 <= self._allowances.of(group, now)
        return bool(owner) and len(self._kept) < self.limits.total and has_room

    def may_serve(self, owner: str, key: str, priority: int, patience: float, now: float) -> bool:
        """Whether a request for which the queue has no slot may have a place, or get one."""
        return key in self._kept or self.may_add(owner, priority, patience, now)

    def end(self, key: str, end: PlaceEnd) -> None:
        place = self._kept.pop(key, None)
        if place is None:
            return
        self.ended[end] += 1
        if end == "taken":
            self._allowances.taken(place.owner)
        if end in ("taken", "lost"):
            change = _CAUTION_STEP * ((end == "lost") - _LOST_SHARE)
            self._caution = min(_MAX_CAUTION, max(0.0, self._caution + change))

    def num_beside(self, booking: Booking) -> int:
        """The number of places that the request must leave free: those of the same or a higher priority."""
        own = self.find(booking)
        return sum(each.booking.priority >= booking.priority and each is not own for each in self._kept.values())

    def beside(
        self, request: BookedRequest, now: float, new_request: Callable[[Booking], BookedRequest]
    ) -> list[BookedRequest]:
        """Return the places whose room the request must leave. A request whose place has opened need leave no room: its
        own place is all it takes."""
        own = self.find(request.booking)
        if own is not None and own.opens <= now:
            return []
        kept = [each for each in self._kept.values() if each.booking.priority >= request.priority and each is not own]
        moved = [new_request(move_to_place(each.booking, max(now, each.opens))) for each in kept]
        return [_enlarge(place, number) for number, place in enumerate(moved, start=1)]

    def own(
        self, request: BookedRequest, now: float, new_request: Callable[[Booking], BookedRequest]
    ) -> BookedRequest | None:
        """Return the request's own place if it has opened."""
        place = self.opened(request.booking, now)
        return None if place is None else _enlarge(new_request(move_to_place(place.booking, now)), 1)

    def promise(
        self,
        request: BookedRequest,
        forecast: Forecast,
        check: ForecastCheck | None,
        arrivals: ExpectedArrivals,
        new_request: Callable[[Booking], BookedRequest],
        higher: HigherWork,
        work: Callable[[BookedRequest], float],
    ) -> Place | None:
        """Return the place that the refused request keeps or gets. A request that is refused after its place has
        opened loses that place and may get another. `check` is None if the queue is full. `work` returns the seconds of
        work of a request."""
        booking, now = request.booking, forecast.now
        kept = self.find(booking)
        if kept is not None and now < kept.opens:
            return kept
        if kept is not None:
            self.end(kept.key, "lost")
        wants_none = booking.waits is None or booking.shadow
        patience = patience_of(booking, now)
        if wants_none or higher.mean > _MOST_HIGHER or not self.may_add(booking.owner, booking.priority, patience, now):
            return None
        least = _MIN_SECONDS if check is None else max(_MIN_SECONDS, check.own_late)
        if check is None:
            ends = sorted(forecast.unchanged[each].finish_at for each in forecast.bookings.active)
            num_beside = self.num_beside(booking)
            least = max(least, ends[num_beside] if num_beside < len(ends) else inf)
        seconds = find_opening(request, forecast, least, arrivals, new_request, higher, self._caution, work)
        if seconds is None:
            self._caution = max(0.0, self._caution - _CAUTION_DROP)
            self._remember_failure(booking, patience, now)
            return None
        place = Place(self._draw_key(), booking.owner, booking, now + seconds, now + seconds + KEPT_SECONDS)
        self._kept[place.key] = place
        return place

    def _remember_failure(self, booking: Booking, patience: float, now: float) -> None:
        group = self._allowances.group(booking.owner)
        self._failed.pop(group, None)
        self._failed[group] = FailedSearch(now, booking.priority, patience)
        if len(self._failed) > _MAX_OWNERS:
            del self._failed[next(iter(self._failed))]


def patience_of(booking: Booking, now: float) -> float:
    """Return the seconds in which the request must be done: the time left, and the time that it waits for a place."""
    left = inf if booking.deadline is None else booking.deadline - now
    return left + (booking.waits or 0.0)


def move_booking(booking: Booking, arrival: float) -> Booking:
    """Return the same request as if it arrived at `arrival`, with its original time limits."""
    return _move(booking, arrival, arrival - booking.arrival)


def move_to_place(booking: Booking, arrival: float) -> Booking:
    """Return the request as its caller sends it at `arrival`: its time limits count from then, but at most from the end
    of the time for which the caller waits for a place."""
    return _move(booking, arrival, min(arrival - booking.arrival, booking.waits or 0.0))


def _move(booking: Booking, arrival: float, later: float) -> Booking:
    deadline, first = (None if each is None else each + later for each in (booking.deadline, booking.first_deadline))
    return replace(booking, arrival=arrival, deadline=deadline, first_deadline=first)


def _enlarge(place: BookedRequest, number: int) -> BookedRequest:
    """Add spare work to a place."""
    place.is_place, place.not_before = True, place.booking.arrival
    place.rank = (*place.rank[:3], place.rank[3] + number)  # no two requests of a simulation have the same rank
    place.prompt_left = max(1, round(place.prompt_left * _SPARE))
    place.expected_left *= _SPARE
    place.long_left *= _SPARE
    return place


def find_opening(
    request: BookedRequest,
    forecast: Forecast,
    least: float,
    arrivals: ExpectedArrivals,
    new_request: Callable[[Booking], BookedRequest],
    higher: HigherWork,
    caution: float,
    work: Callable[[BookedRequest], float],
) -> float | None:
    """Return when a refused request would be admitted, at least `least` seconds from now; None if no such time was
    found, or if it is too far away. The forecast contains the places of others. Until a place opens, work of higher
    priorities may come: the request must have time for that."""
    if forecast.slack_alone(request) < 0:
        return None
    booking, seconds = request.booking, least
    for _ in range(_MAX_TRIES):
        if seconds > MAX_RETRY_SECONDS:
            return None
        moved = new_request(move_to_place(booking, forecast.now + seconds))
        moved.not_before = moved.booking.arrival
        found = forecast.check(moved, (), arrivals)
        ahead = sum(work(each) for each in forecast.bookings.active if each.rank < moved.rank)
        late = found.own_late + higher.delay(seconds, ahead, caution)
        if late > 0 and seconds >= (booking.waits or 0.0):
            return None  # its deadline does not move any further
        if late <= 0 and not found.delayed:
            return seconds
        step = max(_MIN_SECONDS, late)
        if found.delayed:
            ends = min(found.timeline.long_finish(each.request) for each in found.delayed)
            step = max(step, found.worst_delay, ends - seconds)
        seconds += step
    return None
