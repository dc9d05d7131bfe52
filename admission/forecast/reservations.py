"""Places in the forecast that are reserved for refused requests: when each opens, how long it is kept, and its owner.

A refused request may get a place: room from a stated time on. Until the place is taken or lapses, the forecast contains
it, so that no new request of the same or a lower priority takes its room. A place is taken once, by a request of the
same owner that is no larger and no more important than the refused one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from admission.forecast.bookings import BookedRequest, Booking, ExpectedArrivals
from admission.forecast.forecast import MAX_RETRY_SECONDS, Forecast, ForecastCheck
from octet.clock import earliest

KEPT_SECONDS = 2.0  # a place is kept for this long after it has opened
_MIN_SECONDS = 0.1  # the least time until a place opens
_SPARE = 1.15  # a place has room for this many times the expected work, because the forecast changes until it opens
_HIGHER_FACTOR = 2.0  # more time is kept for higher priorities than when a request is admitted: more of them may come
_MOST_HIGHER = 0.9
_MAX_TRIES = 2  # simulations to find a place
_LEAST_SHARE = 0.05  # the least share of an owner's places that is expected to be taken
_SHARE_WEIGHT = 0.05  # the weight of the latest place in that share
_MAX_OWNERS = 256  # how many recent owners are remembered
PlaceEnd = Literal["taken", "lapsed", "released"]
"""taken: its owner came back in time; released: it was not needed, because the router chose another."""


@dataclass(frozen=True, slots=True)
class ReservationLimits:
    total: int = 16
    per_owner: int = 12


@dataclass(frozen=True, slots=True)
class Reservation:
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


class Reservations:
    """The places that are kept. Used by one thread; bounded in all and by owner."""

    def __init__(self, draw_key: Callable[[], str], limits: ReservationLimits | None = None) -> None:
        """`draw_key` returns a random, unguessable string."""
        self._draw_key = draw_key
        self.limits = limits or ReservationLimits()
        self._kept: dict[str, Reservation] = {}
        self._taken: dict[str, float] = {}
        """The share of its places that each owner has taken lately. An unknown owner is expected to take all."""
        self.ended: Counter[PlaceEnd] = Counter(dict.fromkeys(get_args(PlaceEnd), 0))

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def expire(self, now: float) -> None:
        for key in [key for key, each in self._kept.items() if each.expires < now]:
            self.end(key, "lapsed")

    def find(self, booking: Booking) -> Reservation | None:
        """Return the place that the request may take; None if it names none, or one that is not for such a request."""
        place = self._kept.get(booking.reservation)
        return place if place is not None and place.fits(booking) else None

    def opened(self, booking: Booking, now: float) -> Reservation | None:
        """Return the place that the request may take now."""
        place = self.find(booking)
        return place if place is not None and place.opens <= now else None

    def _has_room(self, owner: str) -> bool:
        num_own = sum(each.owner == owner for each in self._kept.values())
        return bool(owner) and len(self._kept) < self.limits.total and num_own < self.limits.per_owner

    def _add(self, booking: Booking, opens: float) -> Reservation:
        place = Reservation(self._draw_key(), booking.owner, booking, opens, opens + KEPT_SECONDS)
        self._kept[place.key] = place
        return place

    def end(self, key: str, end: PlaceEnd) -> None:
        """Remove a place, and learn from it whether its owner comes back."""
        place = self._kept.pop(key, None)
        if place is None:
            return
        self.ended[end] += 1
        if end != "released":
            share = self._taken.pop(place.owner, 1.0)
            self._taken[place.owner] = share + _SHARE_WEIGHT * ((end == "taken") - share)
            if len(self._taken) > _MAX_OWNERS:
                del self._taken[next(iter(self._taken))]

    def beside(
        self, request: BookedRequest, now: float, new_request: Callable[[Booking], BookedRequest]
    ) -> list[BookedRequest]:
        """Return the places whose room the request must leave: those of the same or a higher priority. A request whose
        place has opened need leave no room: its own place is all it takes."""
        own = self.find(request.booking)
        if own is not None and own.opens <= now:
            return []
        kept = [each for each in self._kept.values() if each.booking.priority >= request.priority and each is not own]
        moved = [new_request(move_booking(each.booking, max(now, each.opens))) for each in kept]
        return [self._weigh(place, number) for number, place in enumerate(moved, start=1)]

    def own(
        self, request: BookedRequest, now: float, new_request: Callable[[Booking], BookedRequest]
    ) -> BookedRequest | None:
        """Return the request's own place if it has opened."""
        place = self.opened(request.booking, now)
        return None if place is None else self._weigh(new_request(move_booking(place.booking, now)), 1)

    def _weigh(self, place: BookedRequest, number: int) -> BookedRequest:
        """Scale the work of a place by the share of its owner's places that are taken."""
        weight = max(_LEAST_SHARE, self._taken.get(place.booking.owner, 1.0)) * _SPARE
        place.is_place, place.not_before = True, place.booking.arrival
        place.rank = (*place.rank[:3], place.rank[3] + number)  # no two requests of a simulation have the same rank
        place.prompt_left = max(1, round(place.prompt_left * weight))
        place.expected_left *= weight
        place.long_left *= weight
        return place

    def promise(
        self,
        request: BookedRequest,
        forecast: Forecast,
        check: ForecastCheck,
        arrivals: ExpectedArrivals,
        new_request: Callable[[Booking], BookedRequest],
        *,
        may_add: bool,
    ) -> Reservation | None:
        """Return the place that the refused request keeps or, if `may_add`, gets. A request that is refused after its
        place has opened loses that place and gets another."""
        booking, now = request.booking, forecast.now
        kept = self.find(booking)
        if kept is not None and now < kept.opens:
            return kept
        if kept is not None:
            self.end(kept.key, "taken")
        if booking.shadow or not may_add or not self._has_room(booking.owner):
            return None
        seconds = find_opening(request, forecast, check, arrivals, new_request)
        return None if seconds is None else self._add(booking, now + seconds)


def move_booking(booking: Booking, arrival: float) -> Booking:
    """Return the same request as if it arrived at `arrival`, with its original time limits."""
    later = arrival - booking.arrival
    deadline, first = (None if each is None else each + later for each in (booking.deadline, booking.first_deadline))
    return replace(booking, arrival=arrival, deadline=deadline, first_deadline=first)


def find_opening(
    request: BookedRequest,
    forecast: Forecast,
    check: ForecastCheck,
    arrivals: ExpectedArrivals,
    new_request: Callable[[Booking], BookedRequest],
) -> float | None:
    """Return when a refused request would be admitted, in seconds from now; None if no such time was found, or if it
    is too far away. The forecast contains the places of others."""
    if forecast.slack_alone(request) < 0 or earliest(request.booking.deadline, request.booking.first_deadline) is None:
        return None
    arrivals = arrivals._replace(higher=min(_MOST_HIGHER, arrivals.higher * _HIGHER_FACTOR))
    seconds = max(_MIN_SECONDS, check.own_late)
    for _ in range(_MAX_TRIES):
        if seconds > MAX_RETRY_SECONDS:
            return None
        moved = new_request(move_booking(request.booking, forecast.now + seconds))
        moved.not_before = moved.booking.arrival
        found = forecast.check(moved, (), arrivals)
        if found.is_fine:
            return seconds
        seconds += max(_MIN_SECONDS, found.worst_delay)
    return None
