"""Sweeps: changes to the bookings between two decisions, when steps took longer than forecast."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from admission.forecast.bookings import BookedRequest, BookedRequests
from admission.forecast.forecast import Forecast, ForecastTimes, find_top, long_times, split_departures
from admission.forecast.simulation import Simulation
from admission.policy import get_rank

SWEEP_SECONDS = 0.1  # between two sweeps of the waiting requests
MAX_RESUMED = 4  # suspended requests that one sweep tries to resume: each costs a decision
RECHECK_SECONDS = 1.0  # maximum seconds between two checks whether a suspended request can still meet its deadline
_MAX_RESCUED = 4  # late requests that a sweep tries to rescue: each costs some simulations
_MAX_SUCCESSIONS = 4  # attempts to find which requests would take the slots of displaced ones


class QueueSweep(NamedTuple):
    """Changes to the bookings between two admission decisions."""

    shed: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()  # suspended in the bookings already
    beneficiary: str = ""  # the request for which others are shed or suspended
    resumed: tuple[str, ...] = ()  # resumed in the bookings already
    hopeless: frozenset[str] = frozenset()
    """Requests that seem unable to meet their deadlines. A step may have stalled, so they are shed one sweep later."""


def sweep_queue(
    forecast: Forecast, bookings: BookedRequests, least_factor: float, hopeless_before: frozenset[str]
) -> QueueSweep:
    """Return the changes that rescue the best-ranked late request that can be helped. If no request can be helped,
    return the waiting requests to shed: those that are hopeless and already were at the previous sweep. A request is
    hopeless if it would miss a deadline even with all times multiplied by `least_factor`."""
    rescue = find_rescue(forecast, bookings)
    if rescue is not None:
        beneficiary, displaced = rescue
        return QueueSweep(*split_departures(displaced, bookings, forecast), beneficiary)
    timeline, hopeless = forecast.unchanged, []
    for request in bookings.line:
        outcome = timeline[request]
        # If the answer's length is not known exactly, the time of the first token is used instead of the end.
        end = outcome.finish_at if request.booking.exact else outcome.first_at
        if forecast.slack(request, ForecastTimes(outcome.first_at * least_factor, end * least_factor)) < 0:
            hopeless.append(request.booking.key)
    return QueueSweep(shed=tuple(key for key in hopeless if key in hopeless_before), hopeless=frozenset(hopeless))


def is_hopeless(request: BookedRequest, forecast: Forecast) -> bool:
    """Whether a suspended request can no longer meet its deadline. A request with time to spare is not checked at every
    sweep, because checking many requests would take most of the sweep's time. Until the next check, return False."""
    if forecast.now < request.recheck_at:
        return False
    slack = forecast.slack_alone(request, SWEEP_SECONDS)
    request.recheck_at = forecast.now + min(slack / 2, RECHECK_SECONDS)
    return slack < 0


def find_rescue(forecast: Forecast, bookings: BookedRequests) -> tuple[str, tuple[str, ...]] | None:
    """Return the best-ranked request that would be late with a long answer (see `Forecast.secured_times`) and can be
    helped, and the requests to displace so that it meets its deadline. Return None if no request can be helped."""
    timeline, top = forecast.unchanged, find_top(each.priority for each in bookings.active)
    late = [each for each in bookings.active if forecast.late_by(each, forecast.secured_times(timeline, each, top)) > 0]
    above = [each for each in sorted(late, key=get_rank) if any(other.yields_to(each) for other in bookings.active)]
    for request in above[:_MAX_RESCUED]:
        lower = [each for each in bookings.active if each.yields_to(request)]
        keys = _fewest_to_rescue(forecast, request, _requests_beside(forecast, request, lower, top), top)
        if keys:
            return request.booking.key, tuple(keys)
    return None


def _requests_beside(
    forecast: Forecast, request: BookedRequest, lower: list[BookedRequest], top: int | None
) -> list[str]:
    """Return the keys of those in `lower` that begin before `request` ends, then of those that take their slots."""
    keys: list[str] = []
    for _ in range(_MAX_SUCCESSIONS):
        timeline = forecast.simulate(without=frozenset(keys))
        end = max(timeline[request].finish_at, forecast.secured_times(timeline, request, top).end)
        beside = [each for each in lower if timeline[each].begun_at < end]
        lower = [each for each in lower if timeline[each].begun_at >= end]
        keys += [each.booking.key for each in sorted(beside, key=attrgetter("shed_order"))]
        if not beside or not lower:
            return keys
    return keys + [each.booking.key for each in lower]


TimesOf = Callable[[Simulation, BookedRequest], ForecastTimes]


def _expected_times(timeline: Simulation, request: BookedRequest) -> ForecastTimes:
    """Times for an answer of expected length."""
    outcome = timeline[request]
    return ForecastTimes(outcome.first_at, outcome.finish_at)


def _fewest_to_rescue(forecast: Forecast, request: BookedRequest, keys: list[str], top: int | None) -> list[str]:
    """Return the first of `keys` that must be displaced so that even a long answer meets the deadline or, if that is
    impossible, so that an answer of expected length does. If that is impossible, too, return all: an answer of unknown
    length may end at any token."""

    def secured_times(timeline: Simulation, request: BookedRequest) -> ForecastTimes:
        return forecast.secured_times(timeline, request, top)

    for times_of in (secured_times, long_times, _expected_times):

        def late_without(count: int, times_of: TimesOf = times_of) -> float:
            return forecast.late_by(request, times_of(forecast.simulate(without=frozenset(keys[:count])), request))

        if late_without(len(keys)) > 0:
            times, least = times_of(forecast.simulate(without=frozenset(keys)), request), 1 - forecast.margin
            if forecast.slack(request, ForecastTimes(times.first * least, times.end * least)) < 0:
                continue
            return keys  # steps may be faster than forecast: then it still meets its deadline
        if late_without(0) <= 0:
            return []
        count = 1
        while count < len(keys) and late_without(count) > 0:
            count *= 2
        return keys[:count]
    return [] if request.booking.exact or not request.is_running else keys
