"""Places for the refused: each is kept for its owner, taken once, bounded in number, and lost if it is not taken."""

from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from admission.forecast.bookings import Admit, Booking, Refuse
from admission.forecast.controller import AdmissionController
from admission.forecast.estimates import Estimator, StepPace
from admission.forecast.forecast import MAX_RETRY_SECONDS
from admission.forecast.reservations import KEPT_SECONDS, ReservationLimits, Reservations
from tests.admission.forecast.builders import PRICES, ROOM, admit_all, booking, run_at_once

LIMITS = ReservationLimits(total=5, per_owner=3)
ASKED = booking("b", max_tokens=100, deadline=2.0, owner="me")


def controller_with_places(limits: ReservationLimits = LIMITS, **room: Any) -> AdmissionController:
    keys = count()
    places = Reservations(lambda: f"key {next(keys)}", limits)
    return AdmissionController(replace(ROOM, **room), Estimator(PRICES), StepPace(32), reservations=places)


def busy_controller(limits: ReservationLimits = LIMITS) -> AdmissionController:
    """Return a controller whose only slot is taken for 3.2 seconds."""
    controller = controller_with_places(limits, max_running=1)
    admit_all(controller, booking("a", max_tokens=500))
    run_at_once(controller, "a")
    return controller


def at(now: float, asked: Booking = ASKED, **fields: Any) -> Booking:
    """Return the same request as if it arrived at `now`."""
    return replace(asked, arrival=now, deadline=now + 2.0, **fields)


def promised(controller: AdmissionController, asked: Booking = ASKED, now: float = 0.0) -> Refuse:
    verdict = controller.decide(asked, now)
    assert isinstance(verdict, Refuse) and verdict.reservation and verdict.retry_after is not None, verdict
    return verdict


def half_done(controller: AdmissionController) -> None:
    controller.report_tokens("a", 499, 0.0)


def test_a_place_opens_when_its_request_would_be_admitted() -> None:
    controller = busy_controller()
    first = promised(controller)
    assert first.retry_after is not None and 1.0 < first.retry_after < 3.3
    back = first.retry_after
    half_done(controller)
    verdict = controller.decide(at(back, reservation=first.reservation), back)
    assert isinstance(verdict, Admit) and verdict.reserved
    controller.book(at(back, reservation=first.reservation), verdict, back)
    assert not len(controller.reservations)


def test_a_new_request_does_not_take_the_room_of_a_place_but_a_more_important_one_does() -> None:
    controller = busy_controller()
    place = promised(controller)
    assert place.retry_after is not None
    half_done(controller)
    now = place.retry_after
    controller.report_ended("a", whole=True, cut=False, now=now)
    admit_all(controller, booking("running", max_tokens=20), now=now)
    rival = at(now, key="rival", max_tokens=190, owner="")
    verdict = controller.decide(rival, now)
    assert isinstance(verdict, Refuse) and not verdict.reservation, "with the place, the rival would be late"
    assert isinstance(controller.decide(replace(rival, priority=1), now), Admit)
    holder = controller.decide(at(now, reservation=place.reservation), now)
    assert isinstance(holder, Admit) and holder.reserved
    controller.reservations.expire(now + KEPT_SECONDS + 0.1)
    assert isinstance(controller.decide(rival, now), Admit), "the room of a place that has lapsed is free again"


def test_a_caller_that_comes_early_keeps_its_place() -> None:
    controller = busy_controller()
    first = promised(controller)
    assert first.retry_after is not None
    early = 0.5
    again = promised(controller, at(early, reservation=first.reservation), early)
    assert again.reservation == first.reservation and len(controller.reservations) == 1
    assert again.retry_after == first.retry_after - early


@given(
    st.sampled_from(
        [
            {"reservation": "key 1"},
            {"reservation": "key 0", "owner": "thief"},
            {"reservation": "key 0", "prompt_tokens": 11},
            {"reservation": "key 0", "max_tokens": 101},
            {"reservation": "key 0", "priority": 1},
            {"reservation": "key 0", "shadow": True},
            {"reservation": ""},
        ]
    ),
    st.floats(0.0, 4.0),
)
def test_a_place_is_only_for_its_owner_and_its_request(change: dict[str, Any], now: float) -> None:
    controller = busy_controller()
    assert promised(controller).reservation == "key 0"
    half_done(controller)
    verdict = controller.decide(at(now, key="c", **change), now)
    assert not isinstance(verdict, Admit) or not verdict.reserved
    assert isinstance(verdict, Admit) or verdict.reservation != "key 0"


def test_a_place_is_taken_once_and_lapses_after_its_time() -> None:
    controller = busy_controller()
    place = promised(controller)
    assert place.retry_after is not None
    half_done(controller)
    back = at(place.retry_after, reservation=place.reservation)
    verdict = controller.decide(back, place.retry_after)
    assert isinstance(verdict, Admit)
    controller.book(back, verdict, place.retry_after)
    replayed = controller.decide(replace(back, key="replayed"), place.retry_after)
    assert not isinstance(replayed, Admit) or not replayed.reserved
    late = busy_controller()
    place = promised(late)
    assert place.retry_after is not None
    after = place.retry_after + KEPT_SECONDS + 0.01
    half_done(late)
    verdict = late.decide(at(after, reservation=place.reservation), after)
    assert not isinstance(verdict, Admit) or not verdict.reserved


def test_without_an_owner_a_refusal_promises_nothing() -> None:
    controller = busy_controller()
    verdict = controller.decide(replace(ASKED, owner=""), 0.0)
    assert isinstance(verdict, Refuse) and not verdict.reservation and verdict.retry_after is not None


class Callers(RuleBasedStateMachine):
    """Callers that come, come back, forge and wait, while the replica works."""

    @initialize()
    def start(self) -> None:
        self.controller = controller_with_places(max_running=2)
        self.now = 0.0
        self.names = count()
        self.tickets: dict[str, tuple[Booking, float]] = {}  # by key, with the opening time
        self.used: set[str] = set()

    @rule(
        owner=st.sampled_from(["", "x", "y"]),
        priority=st.integers(0, 1),
        tokens=st.integers(1, 200),
        patience=st.floats(0.2, 5.0),
    )
    def ask(self, owner: str, priority: int, tokens: int, patience: float) -> None:
        name = f"r{next(self.names)}"
        deadline = self.now + patience
        self.submit(
            booking(name, priority=priority, max_tokens=tokens, arrival=self.now, deadline=deadline, owner=owner)
        )

    @rule(data=st.data(), more=st.integers(0, 1), thief=st.booleans())
    def come_back(self, data: st.DataObject, more: int, thief: bool) -> None:
        if not self.tickets and not self.used:
            return
        key = data.draw(st.sampled_from(sorted({*self.tickets, *self.used})))
        refused, _ = self.tickets.get(key, (booking("unknown", deadline=1.0, owner="x"), 0.0))
        deadline = None if refused.deadline is None else self.now + refused.deadline - refused.arrival
        owner = "thief" if thief else refused.owner
        changed = replace(refused, key=f"r{next(self.names)}", max_tokens=refused.max_tokens + more, owner=owner)
        self.submit(replace(changed, arrival=self.now, deadline=deadline, reservation=key), honest=not (more or thief))

    def submit(self, asked: Booking, *, honest: bool = True) -> None:
        key = asked.reservation
        verdict = self.controller.decide(asked, self.now)
        if isinstance(verdict, Refuse):
            if verdict.reservation:
                assert asked.owner and verdict.retry_after is not None
                assert 0 < verdict.retry_after <= MAX_RETRY_SECONDS
                self.tickets[verdict.reservation] = asked, self.now + verdict.retry_after
            return
        if verdict.reserved:
            assert honest and key in self.tickets and key not in self.used
            assert self.now <= self.tickets[key][1] + KEPT_SECONDS
            self.used.add(key)
            del self.tickets[key]
        self.controller.book(asked, verdict, self.now)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def finish_one(self) -> None:
        live = [each.booking.key for each in (*self.controller.bookings.active, *self.controller.bookings.suspended)]
        if live:
            run_at_once(self.controller, live[0])
            self.controller.report_ended(live[0], whole=True, cut=False, now=self.now)

    @invariant()
    def bounded(self) -> None:
        kept = self.controller.reservations._kept.values()
        assert len(kept) <= LIMITS.total
        assert all(sum(each.owner == owner for each in kept) <= LIMITS.per_owner for owner in ("x", "y", "thief"))
        assert all(0 <= share <= 1 for share in self.controller.reservations._taken.values())


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
