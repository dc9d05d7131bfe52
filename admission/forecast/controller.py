"""The admission controller: admits or refuses a request, with the calculation behind the decision."""

from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf

from admission.forecast.bookings import (
    NO_ARRIVALS,
    AdmissionDecision,
    Admit,
    BookedRequest,
    BookedRequests,
    Booking,
    ExpectedArrivals,
    ExpectedDemand,
    Outlook,
    Refuse,
    ReplicaCapacity,
)
from admission.forecast.estimates import (
    AnswerEstimate,
    EstimateAccuracy,
    EstimateBound,
    EstimateErrors,
    Estimator,
    StepInFlight,
    StepPace,
    StepPrices,
    StepShape,
)
from admission.forecast.forecast import (
    MAX_RETRY_SECONDS,
    Displacement,
    Forecast,
    ForecastCheck,
    ForecastTimes,
    Margins,
    add_jitter,
    estimate_bound,
    estimate_retry_seconds,
    remaining_shadows,
    shadows_to_displace,
    split_departures,
)
from admission.forecast.lateness import explain_delay, explain_early, explain_lateness
from admission.forecast.lengths import AnswerLengths
from admission.forecast.places import HigherWork, Place, PlaceLimits, Places, move_booking
from admission.forecast.sweep import MAX_RESUMED, SWEEP_SECONDS, QueueSweep, is_hopeless, sweep_queue

REFUSING_SECONDS = 1.0  # a replica counts as refusing for this long after it refused a request for lack of capacity
FULL_DEMAND = 1.5  # seconds of work (`_work_seconds`) per second; if higher priorities demand more, others wait longer
SHARED_RETRY_SECONDS = 0.1  # requests of the same kind that are shed within this time get the same retry hint
_MAX_RETRY_KINDS = 512
_MAX_CALLERS = 512  # how many recent callers are remembered
_KEPT_FOR_HIGHER = 0.5
"""Of the time that higher priorities usually take, the share that is reserved for them when a lower one is admitted."""
_OWN_MARGIN = 0.5  # the share of the safety margin that is kept when a request takes its place
_STALE_SECONDS = 5.0  # a measurement older than this may no longer be true


class AdmissionController:
    """Keeps the bookings of all live requests and decides on each new one. Used by one thread; reads no clock.

    A request is admitted if it would meet its own deadline and make no booked request late. Otherwise, requests of
    lower priority may be displaced: as few as possible, and only if that is enough. A displaced request is shed, or
    suspended if it has time to spare. A suspended request is resumed when it would no longer delay others."""

    def __init__(
        self,
        capacity: ReplicaCapacity,
        estimator: Estimator,
        pace: StepPace,
        *,
        jitter: Callable[[], float] = lambda: 0.0,
        places: Places | None = None,
    ) -> None:
        """`jitter` returns a random number in [0, 1). Without `places`, none is kept for the refused."""
        self.capacity = capacity
        self.places = Places(str, PlaceLimits(0, 0)) if places is None else places
        self.bookings = BookedRequests(capacity.age_bound)
        self.estimator = estimator
        self.lengths = AnswerLengths()
        self.demand = ExpectedDemand()
        self.accuracy = EstimateAccuracy()
        self.in_flight: StepInFlight | None = None  # the step that is being computed; must be set before each decision
        self._pace = pace
        self._jitter = jitter
        self._measured_at: float | None = None
        self._refused_at = -inf
        self._has_suspended = False  # whether a request was suspended since the last sweep
        self._hopeless: frozenset[str] = frozenset()  # requests that seemed hopeless at the last sweep
        self._callers: dict[str, None] = {}  # recent callers: a repeated attempt by the same caller is not new demand
        self._retry_hints: dict[tuple[int, bool], tuple[float, float | None]] = {}
        """The time and the seconds of the last hint, by (priority, whether the request has a deadline)."""

    # Decisions

    def decide(self, booking: Booking, now: float) -> AdmissionDecision:
        """Decide without booking. Only the record of demand and refusals changes, and the places that are kept."""
        request = self._new_request(booking)
        self.places.expire(now)
        decision = self._decide(request, now)
        caller = booking.caller or booking.key
        if not booking.shadow and caller not in self._callers:
            self.demand.add_asked(now, booking.priority, self._work_seconds(request))
            self._callers[caller] = None
            if len(self._callers) > _MAX_CALLERS:
                del self._callers[next(iter(self._callers))]
        if isinstance(decision, Refuse) and not booking.shadow and not decision.is_hopeless:
            self._refused_at = now
        return decision

    def book(self, booking: Booking, decision: Admit, now: float) -> None:
        """Book the request, and shed or suspend others as decided."""
        self._displace(decision)
        request = self._new_request(booking)
        request.estimate = decision.estimate
        if decision.reserved:
            self.places.end(booking.place, "taken")
        if not booking.shadow:
            self.demand.add_admitted(now, booking.priority, self._work_seconds(request))
        for other in self.bookings.active:
            other.num_higher += other.priority < booking.priority
        self.bookings.add(request)

    def refuse_if_full(self, priority: int, now: float, *, shadow: bool) -> Refuse | None:
        """Return a refusal if all slots and the queue are full and no booked request yields to this priority."""
        if self.bookings.num_live < self.capacity.max_booked:
            return None
        request = self._new_request(Booking("", priority, now, None, 1, 0, 1, exact=True, shadow=shadow))
        if any(other.yields_to(request) for other in self._live()):
            return None
        if not shadow:
            self._refused_at = now
        return self._queue_full(now, priority)

    def retry_after(self, booking: Booking, now: float) -> float | None:
        """Seconds until a shed request should be retried; None if unknown, or if waiting would not help."""
        kind = (booking.priority, booking.deadline is not None or booking.first_deadline is not None)
        hint = self._retry_hints.get(kind)
        if hint is None or not 0 <= now - hint[0] < SHARED_RETRY_SECONDS:
            if len(self._retry_hints) >= _MAX_RETRY_KINDS:
                self._retry_hints.clear()
            hint = self._retry_hints[kind] = now, self._seconds_after_shedding(booking, now)
        return self._spread(hint[1])

    def forecast(
        self,
        now: float,
        bookings: BookedRequests | None = None,
        prices: StepPrices | None = None,
        newcomer: BookedRequest | None = None,
    ) -> Forecast | None:
        """Return the forecast for the bookings, and for the places that the newcomer must leave free; None until prices
        are known."""
        prices = prices or self.estimator.prices
        if prices is None:
            return None
        bookings = self.bookings if bookings is None else bookings
        margins, kept, own = Margins(self.estimator.margin, self.estimator.stall), list[BookedRequest](), None
        if newcomer is not None:
            kept = self.places.beside(newcomer, now, self._new_request)
            own = self.places.own(newcomer, now, self._new_request)
        if own is not None:
            margins = Margins(_OWN_MARGIN * margins.share)
        step = self.in_flight
        busy_for = 0.0 if step is None else self.estimator.seconds_left(step, now, prices)
        return Forecast(bookings, self.capacity, prices, self._pace, margins, now, step, busy_for, kept, own)

    def _new_request(self, booking: Booking) -> BookedRequest:
        request = self.bookings.new_request(booking)
        request.estimate_length(self.lengths)
        return request

    def _decide(self, request: BookedRequest, now: float) -> AdmissionDecision:
        is_shadow = request.booking.shadow
        if is_shadow and not self._has_room(request):
            sentence = "a shadow does not wait, and too many requests run or too few blocks are free"
            return Refuse("would_delay_others", "room for another running request", sentence, None)
        early = self.places.find(request.booking)
        if early is not None and now < early.opens and len(self.bookings):
            return explain_early(early.key, early.opens - now)
        crowded_out: tuple[str, ...] = ()
        if self.bookings.num_live + self.places.num_beside(request.booking) >= self.capacity.max_booked:
            lower = [other for other in self._live() if other.yields_to(request)]
            if not lower:
                return self._queue_full(now, request.priority, request)
            crowded_out = (min(lower, key=lambda other: other.shed_order).booking.key,)
        # A shadow delays no caller: a caller is admitted as if there were no shadows.
        bookings = self.bookings if is_shadow else self.bookings.without_shadows()
        forecast = self.forecast(now, bookings, newcomer=request)
        if forecast is None:
            return Admit(None, crowded_out)
        found = self._evaluate(request, forecast, crowded_out)
        if not isinstance(found, Admit):
            return self._refuse(request, forecast, found)
        return replace(found, reserved=self.places.find(request.booking) is not None)

    def _live(self) -> list[BookedRequest]:
        return [*self.bookings.active, *self.bookings.suspended]

    def _has_room(self, request: BookedRequest) -> bool:
        """Whether all booked requests and this one can run at the same time, with enough blocks."""
        if self.bookings.num_live > len(self.bookings):
            return False
        slots = sum(other.slots for other in self.bookings.active) + request.slots
        return len(self.bookings) < self.capacity.max_running and slots <= self.capacity.entry_slots

    def _evaluate(
        self, request: BookedRequest, forecast: Forecast, crowded_out: tuple[str, ...]
    ) -> Admit | ForecastCheck:
        arrivals = self._expected_arrivals(request, forecast)
        check = forecast.check(request, crowded_out, arrivals)
        if check.is_fine:
            displaced: tuple[str, ...] | None = crowded_out
        else:
            displaced = Displacement(request, forecast, arrivals, crowded_out, check).find()
        if displaced is None:
            if not self._is_worth_a_try(request, forecast):
                return check
            shed = crowded_out + remaining_shadows(crowded_out, self.bookings)
            return self._admit(request, forecast, shed)
        quiet = check.quiet if displaced == crowded_out else None
        shadows = self._shadows_in_the_way(request, forecast, arrivals, displaced)
        chosen = tuple(key for key in displaced if key not in crowded_out)
        shed, suspended = split_departures(chosen, self.bookings, forecast)
        return self._admit(request, forecast, crowded_out + shed + shadows, suspended, quiet)

    def _expected_arrivals(self, request: BookedRequest, forecast: Forecast) -> ExpectedArrivals:
        """Return the arrivals to expect when the request's deadline is checked: none if the replica is idle, those of
        the request's own priority if there is no demand at a higher one. Otherwise, they are only the steady arrivals
        of higher priorities: a burst may end soon."""
        if not len(forecast.bookings) or self.places.opened(request.booking, forecast.now) is not None:
            return NO_ARRIVALS  # a place is kept with room for arrivals
        if self.demand.is_topmost(forecast.now, request.priority):
            return self.demand.arrivals(forecast.now, request.priority)
        share = self.demand.steady_share_above(forecast.now, request.priority)
        return ExpectedArrivals(higher=_KEPT_FOR_HIGHER * share)

    def _is_worth_a_try(self, request: BookedRequest, forecast: Forecast) -> bool:
        """Whether to admit a request only to measure prices again: a replica that refuses all requests runs no steps.
        The replica must be idle, the last measurement old, and the request on time at the cheapest prices."""
        best = self.estimator.cheapest
        if len(forecast.bookings) or self._measured_at is None or best is None:
            return False
        if forecast.now - self._measured_at < _STALE_SECONDS:
            return False
        hopeful = self.forecast(forecast.now, forecast.bookings, best)
        return hopeful is not None and hopeful.slack_alone(request) >= 0

    def _shadows_in_the_way(
        self, request: BookedRequest, forecast: Forecast, arrivals: ExpectedArrivals, displaced: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the shadows to shed so that the request can run. If the remaining shadows would still make a request
        late, return all shadows."""
        if not self.bookings.num_shadows or request.booking.shadow:
            return ()
        keys = shadows_to_displace(request, displaced, self.bookings, self.capacity)
        beside = self.forecast(forecast.now)
        if beside is None or not (request.has_deadline or forecast.has_deadlines):
            return keys
        if beside.check(request, displaced + keys, arrivals).is_fine:
            return keys
        return remaining_shadows(displaced, self.bookings)

    def _admit(
        self,
        request: BookedRequest,
        forecast: Forecast,
        shed: tuple[str, ...],
        suspended: tuple[str, ...] = (),
        quiet: EstimateBound | None = None,
    ) -> Admit:
        """`quiet` is the estimate without further arrivals, if it was computed before."""
        now, leaving = forecast.now, shed + suspended
        if (prices := self.estimator.stated_prices) is not None:  # deadlines do not count on drafts, the outlook does
            forecast, quiet = self.forecast(now, forecast.bookings, prices, request) or forecast, None
        if quiet is None:
            quiet = estimate_bound(forecast.simulate(request, leaving, until=request), request)
        busy = forecast.simulate(request, leaving, self.demand.usual_arrivals(now), until=request)
        num_expected = request.expected_left
        share = self.accuracy.correction.share(quiet.total(num_expected))
        estimate = AnswerEstimate(now, quiet, estimate_bound(busy, request), share, num_expected)
        total = estimate.total(num_expected)
        slack = forecast.slack(request, ForecastTimes(estimate.first, total)) if request.has_deadline else None
        return Admit(Outlook(estimate.wait, estimate.first, total, slack), shed, suspended, estimate)

    def _refuse(self, request: BookedRequest, forecast: Forecast, check: ForecastCheck) -> Refuse:
        place = self._keep_place(request, forecast, check)
        if place is not None:
            return replace(self._explain(request, forecast, check, place.opens - forecast.now), place=place.key)
        seconds = self._retry_seconds(request, forecast, check)
        return self._explain(request, forecast, check, self._spread(seconds))

    def _keep_place(self, request: BookedRequest, forecast: Forecast, check: ForecastCheck | None) -> Place | None:
        """Return the place that the refused request keeps or gets; None if it gets none."""
        arrivals, now = self._expected_arrivals(request, forecast), forecast.now
        higher = HigherWork(*self.demand.work_above(now, request.priority))
        return self.places.promise(request, forecast, check, arrivals, self._new_request, higher, self._work_seconds)

    def _explain(
        self, request: BookedRequest, forecast: Forecast, check: ForecastCheck, retry_after: float | None
    ) -> Refuse:
        if check.own_late > 0:
            return explain_lateness(
                request, forecast, check, retry_after, is_late_alone=forecast.slack_alone(request) < 0
            )
        return explain_delay(check, retry_after)

    def _queue_full(self, now: float, priority: int, request: BookedRequest | None = None) -> Refuse:
        """Refuse for lack of a slot in the queue. `request` may get a place."""
        forecast = self.forecast(now, None if request is None else self.bookings.without_shadows(), newcomer=request)
        most, place = self.capacity.max_waiting, None
        if request is not None and forecast is not None:
            place = self._keep_place(request, forecast, None)
        sentence = f"{most} requests are already waiting"
        if place is not None:
            return Refuse("queue_full", f"at most {most} requests", sentence, place.opens - now, place=place.key)
        seconds = None if forecast is None else self._lengthen(forecast.seconds_to_first_end(), now, priority)
        return Refuse("queue_full", f"at most {most} requests", sentence, self._spread(seconds))

    def _seconds_after_shedding(self, booking: Booking, now: float) -> float | None:
        """Seconds until a displaced request may be retried with its original time limit. If all slots and the queue
        are full, the retry also waits until a request ends."""
        forecast = self.forecast(now, None if booking.shadow else self.bookings.without_shadows())
        if forecast is None:
            return None
        request = self._new_request(move_booking(booking, now))
        check = forecast.check(request, (), self._expected_arrivals(request, forecast))
        seconds = self._retry_seconds(request, forecast, check)
        if seconds is None or self.bookings.num_live < self.capacity.max_booked:
            return seconds
        return max(seconds, forecast.seconds_to_first_end())

    def _retry_seconds(self, request: BookedRequest, forecast: Forecast, check: ForecastCheck) -> float | None:
        seconds = estimate_retry_seconds(request, forecast, check)
        return None if seconds is None else self._lengthen(seconds, forecast.now, request.priority)

    def _lengthen(self, seconds: float, now: float, priority: int) -> float:
        """Lengthen the time until a retry if higher priorities demand more work than a replica can do."""
        above = self.demand.load(now, priority + 1)
        return min(seconds * max(1.0, above / FULL_DEMAND), MAX_RETRY_SECONDS)

    def _spread(self, seconds: float | None) -> float | None:
        return add_jitter(seconds, self._jitter())

    def _work_seconds(self, request: BookedRequest) -> float:
        """Seconds for which the request keeps the replica busy; 0 until prices are known."""
        prices = self.estimator.prices
        if prices is None:
            return 0.0
        num_rows = max(1, sum(not other.booking.shadow for other in self.bookings.running))
        prompt = request.prompt_left * (prices.prefill_token + prices.prefill_step / self._pace.chunk)
        return prompt + request.expected_left * (prices.decode_token + prices.decode_step / num_rows)

    def _displace(self, decision: Admit) -> None:
        for key in decision.displaced:
            self.bookings.remove(key)
        for key in decision.suspended:
            self.bookings.suspend(key)
        self._has_suspended = self._has_suspended or bool(decision.suspended)

    # Reports from the scheduler. A report on a request that is no longer booked changes nothing.

    def report_started(self, key: str, num_tokens: int, hit_tokens: int) -> None:
        request = self.bookings.get(key)
        if request is not None:
            request.start(num_tokens, hit_tokens)
            self.bookings.start(request)

    def report_turn(self, keys: Collection[str]) -> None:
        """Record that a step computed prompt tokens of these requests."""
        self.bookings.take_turn(keys)

    def report_prompt_left(self, key: str, num_left: int) -> None:
        request = self.bookings.get(key)
        if request is not None and request.is_running:
            request.prompt_left = num_left

    def report_tokens(self, key: str, num_tokens: int, now: float) -> None:
        request = self.bookings.get(key)
        if request is not None:
            self.bookings.prompts.discard(request)
            request.grow(num_tokens, now)
            request.estimate_length(self.lengths)

    def report_preempted(self, key: str) -> None:
        request = self.bookings.get(key)
        if request is not None:
            self.bookings.preempt(request)
            request.preempt()

    def report_ended(self, key: str, *, whole: bool, cut: bool, now: float) -> None:
        """Remove the request and learn from its answer. `whole`: generation ran to its end, by a stop or at
        `max_tokens`. `cut`: the model did not stop by itself, so the answer could have been longer."""
        request = self.bookings.remove(key)
        if request is None:
            return
        if whole and request.estimate is not None and not request.booking.shadow:
            self.demand.add_ended(now - request.estimate.made_at)
        if request.generated and not request.booking.exact:
            self.lengths.add(request.generated, cut=cut or not whole)
        if whole and request.estimate is not None and request.first_at is not None and not request.num_higher:
            self.accuracy.compare(request.estimate, request.generated, request.first_at, now)

    def forget(self, key: str) -> None:
        """Remove a request that ended in an unknown way."""
        self.bookings.remove(key)

    def report_step(
        self, shape: StepShape, seconds: float, num_rows: int, pace: StepPace, now: float, kept: float | None = None
    ) -> None:
        """`seconds` counts from the end of the previous step or, after a pause, from the start of this step. `kept` is
        the mean number of tokens that answers gained; None if none did."""
        self.estimator.add(shape, seconds)
        if kept is not None and not shape.prefill:
            self.estimator.add_drafts(shape.tokens / num_rows, kept)
        self._measured_at = now
        self._pace = pace
        self.demand.add_step(now, is_prefill=shape.prefill, num_rows=num_rows, seconds=seconds)

    # Sweeps

    @property
    def is_sweep_due(self) -> bool:
        """Whether the next sweep should run early, because a request has just been suspended or only suspended requests
        are left."""
        return self._has_suspended or (not len(self.bookings) and self.bookings.num_live > 0)

    def sweep(self, now: float) -> QueueSweep:
        """Return the changes that are due. Preempted shadows are shed. Requests that make a more important one late are
        shed or suspended; if there are none, waiting requests that cannot meet their deadlines are shed. If no deadline
        requires a change, suspended requests are resumed. The bookings already reflect suspensions and resumptions."""
        self._has_suspended = False
        preempted = tuple(each.booking.key for each in self.bookings.line if each.booking.shadow and each.was_preempted)
        forecast = self.forecast(now)
        if forecast is None:
            return QueueSweep(shed=preempted)
        sweep = QueueSweep()
        if forecast.has_deadlines:
            sweep = sweep_queue(forecast, self.bookings, 1 - self.estimator.margin, self._hopeless)
        self._hopeless = sweep.hopeless
        for key in sweep.suspended:
            self.bookings.suspend(key)
        if not sweep.shed and not sweep.suspended and self.bookings.suspended:
            sweep = self._resume(forecast)
        return sweep._replace(shed=preempted + sweep.shed)

    def _resume(self, forecast: Forecast) -> QueueSweep:
        """Resume suspended requests that would be admitted now, best rank first, and shed those that can no longer meet
        their deadlines."""
        shed = tuple(each.booking.key for each in self.bookings.suspended if is_hopeless(each, forecast))
        resumed: tuple[str, ...] = ()
        num_tried, only_timed = 0, False
        for request in [each for each in self.bookings.suspended if each.booking.key not in shed]:
            if num_tried == MAX_RESUMED:
                break
            if only_timed and not request.has_deadline:
                continue
            num_tried += 1
            key = request.booking.key
            current = self.forecast(forecast.now) if resumed else forecast
            found = None if current is None else self._evaluate(request, current, ())
            if isinstance(found, ForecastCheck):
                if forecast.slack_alone(request, SWEEP_SECONDS) < 0:
                    shed += (key,)
                    continue
                if request.has_deadline:
                    break
                only_timed = True  # later requests with a deadline are still tried
                continue
            if found is not None and (found.displaced or found.suspended):
                self._displace(found)
                self.bookings.resume(key)
                return QueueSweep(shed + found.displaced, found.suspended, key, (*resumed, key))
            self.bookings.resume(key)
            resumed += (key,)
        return QueueSweep(shed=shed, resumed=resumed)

    # Load

    def usual_wait(self, now: float) -> float | None:
        """Seconds that a request of default priority would wait before its first step; None until prices are known."""
        if self.estimator.prices is None:
            return None
        bookings = self.bookings.without_shadows()
        if not bookings.line and len(bookings.running) < self.capacity.max_running:
            return 0.0
        forecast = self.forecast(now, bookings)
        if forecast is None:
            return None
        request = self._new_request(Booking("", 0, now, None, 1, 0, 1, exact=True))
        return forecast.simulate(request, until=request)[request].begun_at

    def is_refusing(self, now: float) -> bool:
        return now - self._refused_at < REFUSING_SECONDS

    def errors(self) -> EstimateErrors | None:
        return self.accuracy.errors(self.estimator)
