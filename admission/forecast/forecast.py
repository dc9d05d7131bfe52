"""Forecasts the times of all booked requests if a request is admitted or displaced, and finds requests to displace."""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from math import ceil, inf
from operator import attrgetter
from typing import NamedTuple

from admission.forecast.bookings import (
    NO_ARRIVALS,
    BookedRequest,
    BookedRequests,
    DeadlineKind,
    ExpectedArrivals,
    ReplicaCapacity,
    SimulationStart,
)
from admission.forecast.estimates import EstimateBound, StepInFlight, StepPace, StepPrices
from admission.forecast.simulation import Simulation
from admission.policy import get_rank, prefill_tokens

_NO_DELAY = 1e-4  # seconds that count as no delay


class DelayedRequest(NamedTuple):
    request: BookedRequest
    late: float  # seconds, including the margin


class ForecastTimes(NamedTuple):
    """Seconds from now."""

    first: float  # until the first token
    end: float


class Margins(NamedTuple):
    """What forecasts keep in reserve for deadlines."""

    share: float  # of the forecast time
    stall: float = 0.0  # seconds that one slow step may take longer


class ForecastCheck(NamedTuple):
    """The consequences of admitting a request."""

    own_late: float  # seconds past its own deadline, including the margin; not positive if it is on time
    missed: DeadlineKind  # of its two deadlines, the one missed by more
    delayed: list[DelayedRequest]  # requests that would miss their deadlines because of it
    timeline: Simulation
    wait: float  # seconds until it begins
    due: float  # seconds until the event by which its own deadline is judged
    quiet: EstimateBound | None = None  # the bound if no other request arrives; None if that was not simulated

    @property
    def is_fine(self) -> bool:
        return self.own_late <= 0 and not self.delayed

    @property
    def worst_delay(self) -> float:
        return max([self.own_late, *(each.late for each in self.delayed)])


class Forecast:
    """All simulations of one decision, with the same bookings, prices and time. Deadlines are checked with a margin."""

    def __init__(
        self,
        bookings: BookedRequests,
        capacity: ReplicaCapacity,
        prices: StepPrices,
        pace: StepPace,
        margins: Margins,
        now: float,
        in_flight: StepInFlight | None = None,
        busy_for: float = 0.0,
        reserved: Sequence[BookedRequest] = (),
        own_place: BookedRequest | None = None,
    ) -> None:
        """The step in flight ends in `busy_for` seconds. `reserved` are the places that must stay free for requests to
        come. `own_place` is that of the request that is being decided on: what its place would delay, the request
        itself does not delay."""
        self._own_place = own_place
        self.bookings, self.margin, self.now = bookings, margins.share, now
        self._capacity, self._prices, self._pace = capacity, prices, pace
        self._start = SimulationStart(now, slowdown=1 + self.margin)
        if in_flight is not None:
            self._start = self._start._replace(
                delay=busy_for,
                tokens=in_flight.tokens,
                num_chunked=in_flight.shape.tokens if in_flight.shape.prefill else 0,
            )
        prompts, line, begun = bookings.prompts, bookings.line, self._start.tokens
        running = {each: prompts.passed_over(each) if each.prompt_left else 0 for each in bookings.running}
        if begun and line:  # a request in the step in flight runs, even if that was not reported yet
            running |= {each: 0 for each in line if each.booking.key in begun}
            line = [each for each in line if each.booking.key not in begun]
        if reserved:
            line = sorted([*line, *reserved], key=get_rank)
        self._running, self._line = running, line
        # The duration of one turn (a chunk of a prompt and the round after it), in which a step may stall.
        self.grace = margins.stall + prices.prefill_step + pace.chunk * prices.prefill_token + self._round_seconds()
        self._timed = [request for request in (*bookings.active, *reserved) if request.has_deadline]
        self.has_deadlines = bool(self._timed)
        self._simulations: dict[tuple[BookedRequest | None, frozenset[str], tuple[float, ...]], Simulation] = {}
        self.num_simulations = 0

    def simulate(
        self,
        extra: BookedRequest | None = None,
        without: Collection[str] = (),
        arrivals: ExpectedArrivals = NO_ARRIVALS,
        until: BookedRequest | None = None,
    ) -> Simulation:
        """Simulate the bookings, with `extra` added and `without` left out, until the outcome of `until` (None: every
        outcome) is known. An earlier simulation of the same requests is continued."""
        without = frozenset(without)
        key = (extra, without, arrivals[:-1])
        if key in self._simulations:
            return self._simulations[key].run(until)
        self.num_simulations += 1
        running, line = self._running, self._line
        if without:
            running = {request: turns for request, turns in running.items() if request.booking.key not in without}
            line = [request for request in line if request.booking.key not in without]
        if extra is not None:
            line = list(line)
            insort(line, extra, key=get_rank)
        simulation = Simulation(self._capacity, self._prices, self._pace, running, line, self._start, arrivals)
        self._simulations[key] = simulation
        return simulation.run(until)

    @cached_property
    def unchanged(self) -> Simulation:
        """The simulation of all booked requests without a new one, except for its place."""
        return self.simulate(self._own_place)

    def slack_alone(self, request: BookedRequest, since: float = 0.0) -> float:
        """Seconds to spare before the request's deadline if it has the replica to itself after `since` seconds;
        negative if it is late even then."""
        if not request.has_deadline:
            return inf
        return self.slack(request, self.times_alone(request, 1 + self.margin)) - since

    def times_alone(self, request: BookedRequest, factor: float) -> ForecastTimes:
        """Return the times of the request if it has the replica to itself, multiplied by `factor`. If the answer's
        length is not known exactly, `end` equals `first`."""
        pace, booking = self._pace, request.booking
        most, holds = self._capacity.max_step_tokens, pace.hold is not None
        tokens = prefill_tokens(pace.chunk, 0, most, decodes=False, holds=holds)
        step, token, pair = self._prices.prefill
        left, num_known = request.prompt_left, booking.prompt_tokens + request.generated
        first = max(1, ceil(left / tokens)) * step + left * (token + pair * (num_known - left / 2))
        end = first
        if booking.exact:
            step, token, pair = self._prices.decode
            num_rounds = max(0.0, request.long_left - 1)
            end += num_rounds * (step + token + pair * (num_known + 1 + num_rounds / 2))
        return ForecastTimes(first * factor, end * factor)

    def _own_times(self, timeline: Simulation, request: BookedRequest, higher: float) -> ForecastTimes:
        """Return the new request's times with the margin. `higher` is the share of time that higher priorities take."""
        factor = (1 + self.margin) / (1 - higher)
        grace = self.grace if len(self.bookings) else 0.0
        first = timeline[request].first_at
        end = first if self.is_judged_by_first_token(request) else timeline.long_finish(request)
        return ForecastTimes(*(_lengthen(request, at, factor, self.now) + grace for at in (first, end)))

    def is_judged_by_first_token(self, request: BookedRequest) -> bool:
        """Whether only the first token must meet the deadline of the whole answer. This holds if the length is unknown,
        or if no other request is booked and the answer may be short: a refusal would then help no other request."""
        return request.is_unsure or (not len(self.bookings) and not request.booking.exact)

    def slack(self, request: BookedRequest, times: ForecastTimes) -> float:
        """Seconds to spare before the deadline of the request; of two deadlines, before the tighter one."""
        return min(self.left(request.first_deadline, times.first), self.left(request.booking.deadline, times.end))

    def left(self, deadline: float | None, at: float = 0.0) -> float:
        """Return the seconds from `at` (in seconds from now) to the deadline; infinite without a deadline."""
        return inf if deadline is None else deadline - self.now - at

    def _delayed(self, timeline: Simulation, newcomer: BookedRequest, without: Collection[str]) -> list[DelayedRequest]:
        """Return the requests that the new one pushes past their deadlines. A request that is certainly late anyway is
        left out; a request that may be late anyway, within the margin, is included if it is delayed further."""
        staying = [each for each in self.bookings.active if each.booking.key not in without]
        top = find_top(each.priority for each in (*staying, newcomer))
        delayed = []
        for request in [each for each in self._timed if each.booking.key not in without]:
            times = self.secured_times(timeline, request, top)
            late = self.late_by(request, times)
            if late > 0 and self._is_pushed(request, times, newcomer, top):
                delayed.append(DelayedRequest(request, late))
        return delayed

    def secured_times(self, timeline: Simulation, request: BookedRequest, top: int | None) -> ForecastTimes:
        """Return the times by which deadlines are held: those of an answer among the longest or, at the priority `top`,
        of nearly the longest, as far as it would be in time alone."""
        times, deadline = long_times(timeline, request), request.booking.deadline
        if request.priority != top or deadline is None or request.secured_left <= request.long_left:
            return times
        num_left = min(request.secured_left, self._reach_alone(request, deadline))
        return times._replace(end=timeline.long_finish(request, num_left)) if num_left > request.long_left else times

    def _reach_alone(self, request: BookedRequest, deadline: float) -> float:
        """How many tokens of the answer would be in time, with the margin, if the request had the replica to itself."""
        step, token, pair = self._prices.decode
        num_known = request.booking.prompt_tokens + request.generated
        a_round = step + token + pair * (num_known + request.secured_left / 2)
        seconds = (self.left(deadline) - self.grace) / (1 + self.margin) - self.times_alone(request, 1.0).first
        if a_round <= 0:  # no price was learnt for rounds yet
            return inf if seconds > 0 else 0.0
        return 1 + seconds / a_round

    def late_by(self, request: BookedRequest, times: ForecastTimes) -> float:
        """Seconds past the deadline of the request, including the margin; not positive if it is on time."""
        late = self._past(request, request.booking.deadline, times.end)
        if request.first_deadline is None:
            return late
        return max(late, self._past(request, request.first_deadline, times.first))

    def _past(self, request: BookedRequest, deadline: float | None, at: float) -> float:
        if deadline is None:
            return -inf
        return self.now + _lengthen(request, at, 1 + self.margin, self.now) + self.grace - deadline

    def _is_pushed(
        self, request: BookedRequest, times: ForecastTimes, newcomer: BookedRequest, top: int | None
    ) -> bool:
        before = self.secured_times(self.unchanged, request, top)
        # An answer of unknown length may end at any token: for a lower priority, it is not given up.
        may_end = request.generated and not request.booking.exact and newcomer.yields_to(request)
        earliest = before._replace(end=0.0) if may_end else before
        by_end = self._is_pushed_past(request, request.booking.deadline, times.end, before.end, earliest.end)
        first = request.first_deadline
        return by_end or self._is_pushed_past(request, first, times.first, before.first, earliest.first)

    def _is_pushed_past(
        self, request: BookedRequest, deadline: float | None, at: float, before: float, earliest: float
    ) -> bool:
        if deadline is None or self._past(request, deadline, at) <= 0:
            return False
        is_late_anyway = self.now + earliest * (1 - self.margin) - self.grace > deadline
        return not is_late_anyway and (self._past(request, deadline, before) <= 0 or at > before + _NO_DELAY)

    def _round_seconds(self) -> float:
        return self._prices.decode_step + max(1, len(self.bookings.running)) * self._prices.decode_token

    def seconds_to_first_end(self) -> float:
        """A rough estimate of the seconds until the first booked request has ended."""
        token, a_round = self._prices.prefill_token, self._round_seconds()
        ends = [each.prompt_left * token + each.expected_left * a_round for each in self.bookings.active]
        return min(ends, default=0.0)

    def work(self, request: BookedRequest) -> float:
        """Seconds of work that are saved if the request is displaced."""
        return request.prompt_left * self._prices.prefill_token + request.expected_left * self._prices.decode_token

    def check(self, request: BookedRequest, without: Collection[str], arrivals: ExpectedArrivals) -> ForecastCheck:
        """Check the new request's deadline with the expected arrivals, and the deadlines of booked requests without
        them: each booked request was admitted with room for arrivals, and the new request is such an arrival."""
        without = frozenset(without)
        own_late = -inf
        missed: DeadlineKind = "end"
        if request.has_deadline:
            timeline = self.simulate(request, without, arrivals, until=request)
            own = self._own_times(timeline, request, arrivals.higher)
            own_late = -self.slack(request, own)
            if -own_late < self.left(request.booking.deadline, own.end):
                missed = "first"
        delayed: list[DelayedRequest] = []
        quiet = None
        if own_late <= 0 and (self.has_deadlines or not request.has_deadline):
            timeline = self.simulate(request, without, until=None if self.has_deadlines else request)
            delayed = self._delayed(timeline, request, without)
            quiet = estimate_bound(timeline, request)
        outcome = timeline[request]
        by_first = missed == "first" or self.is_judged_by_first_token(request)
        due = outcome.first_at if by_first else outcome.finish_at
        return ForecastCheck(own_late, missed, delayed, timeline, outcome.begun_at, due, quiet)


def _lengthen(request: BookedRequest, at: float, factor: float, now: float) -> float:
    """Multiply the time until `at` by the factor, but not the time before a request to come can begin."""
    start = max(0.0, request.not_before - now)
    return start + (at - start) * factor


def find_top(priorities: Iterable[int]) -> int | None:
    """The highest of several priorities; None if there is only one."""
    found = set(priorities)
    return max(found) if len(found) > 1 else None


def long_times(timeline: Simulation, request: BookedRequest) -> ForecastTimes:
    """Times for an answer among the longest."""
    return ForecastTimes(timeline[request].first_at, timeline.long_finish(request))


def estimate_bound(timeline: Simulation, request: BookedRequest) -> EstimateBound:
    outcome = timeline[request]
    num_tokens = request.expected_left - 1
    pace = (outcome.finish_at - outcome.first_at) / num_tokens if num_tokens > 0 else 0.0
    return EstimateBound(outcome.begun_at, outcome.first_at, pace)


MAX_RETRY_SECONDS = 30.0
_MIN_RETRY_SECONDS = 0.05
_RETRY_SPREAD = 0.25  # the retries of requests refused together are spread over this share of the retry time


def estimate_retry_seconds(request: BookedRequest, forecast: Forecast, check: ForecastCheck) -> float | None:
    """Seconds until a refused request should be retried; None if it would be late even alone.

    A request that would delay others waits until the last of them has ended. A request that would itself be late waits
    until a fraction of the others has ended: its lateness divided by the delay that they cause. Simulating later
    moments instead would take longer than the rest of a decision (docs/performance.md)."""
    spare = forecast.slack_alone(request)
    if spare < 0:
        return None
    if check.own_late > 0:
        held_up = check.own_late + spare - forecast.grace
        part = min(1.0, (1 + forecast.margin) * check.own_late / held_up) if held_up > 0 else 1.0
        seconds = _seconds_until_gone(part, forecast, in_line=check.wait >= check.own_late)
    else:
        timeline = forecast.unchanged
        seconds = max((timeline.long_finish(each.request) for each in check.delayed), default=0.0)
    return min(max(seconds, _MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)


def _seconds_until_gone(part: float, forecast: Forecast, *, in_line: bool) -> float:
    """Seconds until the fraction `part` of the booked requests has ended. A request that waits `in_line` is delayed by
    their total work: return `part` of the time until all have ended. A running request is delayed by their number."""
    timeline = forecast.unchanged
    ends = sorted(timeline.long_finish(request) for request in forecast.bookings.active)
    if not ends:
        return 0.0
    return part * ends[-1] if in_line else ends[max(0, ceil(part * len(ends)) - 1)]


def add_jitter(seconds: float | None, draw: float) -> float | None:
    """Lengthen the time by up to `_RETRY_SPREAD` of it; `draw` is a random number in [0, 1)."""
    if seconds is None:
        return None
    return min(seconds, MAX_RETRY_SECONDS / (1 + _RETRY_SPREAD)) * (1 + _RETRY_SPREAD * draw)


SUSPEND_SLACK_FACTOR = 3.0  # a request that has this many times the time it needs alone can wait for others
_MAX_SIMULATIONS = 14
_MIN_SIMULATIONS = 7
_MAX_SIMULATED = 2000  # requests simulated for one decision: a limit on the time that the decision takes
_HASTE = 6.0  # with few simulations allowed, each attempt displaces this many times as much work as the one before


class Displacement(NamedTuple):
    """Finds as few requests as possible to displace for a new one."""

    request: BookedRequest
    forecast: Forecast
    arrivals: ExpectedArrivals
    already: tuple[str, ...]  # requests that are displaced in any case
    check: ForecastCheck  # the consequences if no other request is displaced

    def find(self) -> tuple[str, ...] | None:
        """Return the keys of the requests to displace; None if displacing all candidates would not be enough."""
        lower = [each for each in self.forecast.bookings.active if each.yields_to(self.request)]
        lower.sort(key=_shed_order)
        everyone = tuple(each.booking.key for each in lower)
        if not lower or not self._is_enough(everyone):
            return None
        most = max(_MIN_SIMULATIONS, min(_MAX_SIMULATIONS, _MAX_SIMULATED // (1 + len(self.forecast.bookings))))
        chosen = self._find_enough(lower, most)
        return everyone if chosen is None else self._drop_unneeded(chosen, most)

    def _is_enough(self, keys: tuple[str, ...]) -> bool:
        return self.forecast.check(self.request, keys, self.arrivals).is_fine

    def _find_enough(self, lower: list[BookedRequest], most: int) -> tuple[str, ...] | None:
        """Return the keys of requests whose displacement is enough; None if `most` simulations did not find them."""
        chosen, check, effort = self.already, self.check, 1.0
        while not check.is_fine:
            if self.forecast.num_simulations >= most:
                return None
            seconds = effort * check.worst_delay
            for each in self._candidates(check, [each for each in lower if each.booking.key not in chosen]):
                chosen += (each.booking.key,)
                seconds -= self.forecast.work(each)
                if seconds <= 0:
                    break
            if most < _MAX_SIMULATIONS:
                effort *= _HASTE
            check = self.forecast.check(self.request, chosen, self.arrivals)
        return chosen

    def _candidates(self, check: ForecastCheck, lower: list[BookedRequest]) -> list[BookedRequest]:
        """Return the requests to displace next. If the only obstacle is that some of `lower` would be late, return
        those; otherwise, return those that begin before the new request is done."""
        late = {each.request for each in check.delayed if each.request.yields_to(self.request)}
        if check.own_late <= 0 and len(late) == len(check.delayed):
            return [each for each in lower if each in late] or lower
        return [each for each in lower if check.timeline[each].begun_at < check.due] or lower

    def _drop_unneeded(self, chosen: tuple[str, ...], most: int) -> tuple[str, ...]:
        """Return the chosen requests without those that need not be displaced. The most valuable are spared first."""
        for key in reversed(chosen):
            if key in self.already or self.forecast.num_simulations >= most:
                continue
            fewer = tuple(each for each in chosen if each != key)
            if self._is_enough(fewer):
                chosen = fewer
        return chosen


_shed_order = attrgetter("shed_order")


def remaining_shadows(displaced: tuple[str, ...], bookings: BookedRequests) -> tuple[str, ...]:
    shadows = [each.booking.key for each in bookings.active if each.booking.shadow]
    return tuple(key for key in shadows if key not in displaced)


def shadows_to_displace(
    request: BookedRequest, displaced: tuple[str, ...], bookings: BookedRequests, capacity: ReplicaCapacity
) -> tuple[str, ...]:
    """Return the shadows that must be shed, besides the displaced requests, so that the request can run."""
    staying = [each for each in bookings.active if each.booking.key not in displaced]
    num_free = capacity.max_running - len(staying)
    slots = capacity.entry_slots - sum(each.slots for each in staying)
    keys: list[str] = []
    for each in sorted(staying, key=_shed_order):
        if not each.booking.shadow or (num_free > 0 and slots >= request.slots):
            break
        keys.append(each.booking.key)
        num_free, slots = num_free + 1, slots + each.slots
    return tuple(keys)


def split_departures(
    keys: tuple[str, ...], bookings: BookedRequests, forecast: Forecast
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys to shed and the keys to suspend. Shadows, and requests that cannot afford to wait, are shed."""

    def can_wait(request: BookedRequest | None) -> bool:
        if request is None or request.booking.shadow:
            return False
        return forecast.slack(request, forecast.times_alone(request, SUSPEND_SLACK_FACTOR)) > 0

    suspended = tuple(key for key in keys if can_wait(bookings.get(key)))
    return tuple(key for key in keys if key not in suspended), suspended
