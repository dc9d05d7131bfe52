"""Places for the refused: each is kept for its owner, admits from its opening on, is taken once, and ends in time."""

from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from admission.forecast import places
from admission.forecast.bookings import Admit, Booking, Refuse
from admission.forecast.controller import AdmissionController
from admission.forecast.estimates import Estimator, StepPace
from admission.forecast.forecast import MAX_RETRY_SECONDS
from admission.forecast.places import KEPT_SECONDS, Allowances, HigherWork, PlaceLimits, Places
from tests.admission.forecast.builders import PRICES, ROOM, admit_all, booking, run_at_once

LIMITS = PlaceLimits(total=5, per_owner=3)
ASKED = booking("b", max_tokens=100, deadline=2.0, owner="me", waits=30.0)


def controller_with_places(limits: PlaceLimits = LIMITS, **room: Any) -> AdmissionController:
    keys = count()
    kept = Places(lambda: f"key {next(keys)}", limits)
    return AdmissionController(replace(ROOM, **room), Estimator(PRICES), StepPace(32), places=kept)


def busy_controller(limits: PlaceLimits = LIMITS) -> AdmissionController:
    """Return a controller whose only slot is taken for 3.2 seconds."""
    controller = controller_with_places(limits, max_running=1)
    admit_all(controller, booking("a", max_tokens=500))
    run_at_once(controller, "a")
    return controller


def at(now: float, asked: Booking = ASKED, **fields: Any) -> Booking:
    """Return the same request as if it arrived at `now`."""
    return replace(asked, arrival=now, deadline=now + 2.0, **fields)


def kept_for(controller: AdmissionController, asked: Booking = ASKED, now: float = 0.0) -> Refuse:
    verdict = controller.decide(asked, now)
    assert isinstance(verdict, Refuse) and verdict.place and verdict.retry_after is not None, verdict
    return verdict


def half_done(controller: AdmissionController) -> None:
    controller.report_tokens("a", 499, 0.0)


def test_a_place_opens_when_its_request_would_be_admitted() -> None:
    controller = busy_controller()
    first = kept_for(controller)
    assert first.retry_after is not None and 1.0 < first.retry_after < 3.3
    back = first.retry_after
    half_done(controller)
    verdict = controller.decide(at(back, place=first.place), back)
    assert isinstance(verdict, Admit) and verdict.reserved
    controller.book(at(back, place=first.place), verdict, back)
    assert not len(controller.places)


def test_a_new_request_does_not_take_the_room_of_a_place_but_a_more_important_one_does() -> None:
    controller = busy_controller()
    place = kept_for(controller)
    assert place.retry_after is not None
    half_done(controller)
    now = place.retry_after
    controller.report_ended("a", whole=True, cut=False, now=now)
    admit_all(controller, booking("running", max_tokens=20), now=now)
    rival = at(now, key="rival", max_tokens=190, owner="")
    verdict = controller.decide(rival, now)
    assert isinstance(verdict, Refuse) and not verdict.place, "with the place, the rival would be late"
    assert isinstance(controller.decide(replace(rival, priority=1), now), Admit)
    holder = controller.decide(at(now, place=place.place), now)
    assert isinstance(holder, Admit) and holder.reserved
    controller.places.expire(now + KEPT_SECONDS + 0.1)
    assert isinstance(controller.decide(rival, now), Admit), "the room of a place that has lapsed is free again"


@given(st.floats(0.0, 1.0), st.booleans())
def test_a_place_admits_from_its_opening_on(share: float, has_room: bool) -> None:
    """A caller that comes before keeps its place and is told the time that is left, even if there is room."""
    controller = busy_controller()
    first = kept_for(controller)
    assert first.retry_after is not None
    now = share * first.retry_after
    if has_room:
        half_done(controller)
    again = controller.decide(at(now, place=first.place), now)
    if now < first.retry_after:
        assert isinstance(again, Refuse) and again.place == first.place
        assert again.retry_after == pytest.approx(first.retry_after - now) and "opens in" in again.arithmetic
    elif has_room:
        assert isinstance(again, Admit) and again.reserved
    assert len(controller.places) == 1


def test_a_caller_need_not_wait_for_its_place_at_an_idle_replica() -> None:
    controller = busy_controller()
    first = kept_for(controller)
    controller.report_ended("a", whole=True, cut=False, now=0.1)
    again = controller.decide(at(0.1, place=first.place), 0.1)
    assert isinstance(again, Admit) and again.reserved


@given(st.floats(0.2, 12.0), st.floats(0.0, 6.0), st.integers(10, 400))
def test_a_place_can_be_used_by_a_caller_that_returns_with_the_time_that_is_left(
    patience: float, waits: float, tokens: int
) -> None:
    """The time limits of the retry move with it, but by no more than the time for which its caller waits."""
    controller = busy_controller()
    asked = booking("b", max_tokens=tokens, deadline=patience, owner="me", waits=waits)
    verdict = controller.decide(asked, 0.0)
    if isinstance(verdict, Admit) or not verdict.place:
        return
    opens = verdict.retry_after
    assert opens is not None
    half_done(controller)
    back = replace(asked, arrival=opens, deadline=patience + min(opens, waits), place=verdict.place)
    assert isinstance(controller.decide(back, opens), Admit)


def test_only_a_caller_that_waits_longer_gets_a_place_that_its_own_deadline_rules_out() -> None:
    for waits, gets_one in ((0.0, False), (30.0, True), (None, False)):
        verdict = busy_controller().decide(replace(ASKED, waits=waits), 0.0)
        assert isinstance(verdict, Refuse) and verdict.reason == "deadline_unreachable"
        assert bool(verdict.place) == gets_one


def full_controller() -> AdmissionController:
    """Return a controller whose only slot is taken for 3.2 seconds, with room for one waiting request."""
    controller = controller_with_places(max_running=1, max_waiting=1)
    admit_all(controller, booking("a", max_tokens=500))
    run_at_once(controller, "a")
    return controller


def test_a_place_uses_a_slot_of_the_queue() -> None:
    controller = full_controller()
    first = kept_for(controller)
    assert first.retry_after is not None
    newcomer = booking("q", max_tokens=10, deadline=100.0, owner="other")
    verdict = controller.decide(newcomer, 0.1)
    assert isinstance(verdict, Refuse) and verdict.reason == "queue_full"
    assert isinstance(controller.decide(replace(newcomer, priority=1), 0.1), Admit), "higher priorities go first"
    half_done(controller)
    holder = controller.decide(at(first.retry_after, place=first.place), first.retry_after)
    assert isinstance(holder, Admit) and holder.reserved


def test_a_full_queue_keeps_places_too() -> None:
    controller = full_controller()
    admit_all(controller, booking("q", max_tokens=10, deadline=100.0))
    verdict = kept_for(controller, replace(ASKED, deadline=20.0))
    assert verdict.reason == "queue_full" and verdict.retry_after is not None and verdict.retry_after > 3
    now = verdict.retry_after
    controller.report_ended("a", whole=True, cut=False, now=now)
    back = controller.decide(at(now, replace(ASKED, deadline=20.0), place=verdict.place), now)
    assert isinstance(back, Admit) and back.reserved


def test_after_a_failed_search_only_requests_that_could_do_better_are_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, num_searches = busy_controller(), count()
    search = places.find_opening

    def counted(*given: Any) -> float | None:
        next(num_searches)
        return search(*given)

    monkeypatch.setattr(places, "find_opening", counted)

    def has_searched(now: float, **fields: Any) -> bool:
        before = next(num_searches)
        assert isinstance(controller.decide(at(now, replace(ASKED, **{"waits": 0.0, **fields})), now), Refuse)
        return next(num_searches) > before + 1

    assert has_searched(0.0)
    assert not has_searched(0.0, key="c") and not has_searched(0.2, key="d", owner="other stranger")
    assert has_searched(0.2, key="e", waits=0.1), "it has more time"
    assert has_searched(0.5, key="g"), "the failure is forgotten"


def test_a_place_whose_caller_came_in_time_and_was_refused_is_lost() -> None:
    controller = busy_controller()
    first = kept_for(controller)
    assert first.retry_after is not None
    again = controller.decide(at(first.retry_after, place=first.place), first.retry_after)
    assert isinstance(again, Refuse) and again.place != first.place
    assert +controller.places.ended == {"lost": 1}


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), st.floats(0.0, 5.0)), min_size=1, max_size=200))
def test_owners_that_never_return_get_few_places(asked: list[tuple[str, float]]) -> None:
    """One at first, and then about one a minute, however many owners they are."""
    allowances, now, kept = Allowances(12), 0.0, list[str]()
    num_given = 0
    for owner, gap in asked:
        now += gap
        for each in kept:
            allowances.lapsed(each, now)
        kept.clear()
        if allowances.of(allowances.group(owner), now) >= 1:
            kept.append(owner)
            num_given += 1
    assert num_given <= 1 + now / 45


@given(st.integers(1, 30), st.integers(0, 30))
def test_an_owner_that_returns_gets_more_places_and_loses_them_fast(num_taken: int, num_lapsed: int) -> None:
    allowances = Allowances(12)
    for _ in range(num_taken):
        allowances.taken("x")
    before = allowances.of(allowances.group("x"), 0.0)
    assert before == min(12, num_taken + 1)
    for _ in range(num_lapsed):
        allowances.lapsed("x", 0.0)
    after = allowances.of(allowances.group("x"), 0.0)
    assert after <= max(before / 4, 4.0) if num_lapsed else after == before
    assert num_lapsed < 4 or allowances.group("x") == "", "it counts as a stranger again"


@given(st.floats(0, 0.9), st.floats(0, 4), st.floats(0, 30), st.floats(0, 30), st.floats(0, 4))
def test_more_work_of_others_delays_a_place_more(
    mean: float, variance: float, seconds: float, ahead: float, caution: float
) -> None:
    delay = HigherWork(mean, variance).delay(seconds, ahead, caution)
    assert 0 <= delay < inf
    assert delay <= HigherWork(mean, variance).delay(seconds, ahead, caution + 1)
    assert delay <= HigherWork(mean, variance).delay(seconds, ahead + 1, caution)
    assert delay <= HigherWork(mean, variance).delay(seconds + 1, ahead, caution)


@given(
    st.sampled_from(
        [
            {"place": "key 1"},
            {"place": "key 0", "owner": "thief"},
            {"place": "key 0", "prompt_tokens": 11},
            {"place": "key 0", "max_tokens": 101},
            {"place": "key 0", "priority": 1},
            {"place": "key 0", "shadow": True},
            {"place": ""},
        ]
    ),
    st.floats(0.0, 4.0),
)
def test_a_place_is_only_for_its_owner_and_its_request(change: dict[str, Any], now: float) -> None:
    controller = busy_controller()
    assert kept_for(controller).place == "key 0"
    half_done(controller)
    verdict = controller.decide(at(now, key="c", **change), now)
    assert not isinstance(verdict, Admit) or not verdict.reserved
    assert isinstance(verdict, Admit) or verdict.place != "key 0"


def test_a_place_is_taken_once_and_lapses_after_its_time() -> None:
    controller = busy_controller()
    place = kept_for(controller)
    assert place.retry_after is not None
    half_done(controller)
    back = at(place.retry_after, place=place.place)
    verdict = controller.decide(back, place.retry_after)
    assert isinstance(verdict, Admit)
    controller.book(back, verdict, place.retry_after)
    replayed = controller.decide(replace(back, key="replayed"), place.retry_after)
    assert not isinstance(replayed, Admit) or not replayed.reserved
    late = busy_controller()
    place = kept_for(late)
    assert place.retry_after is not None
    after = place.retry_after + KEPT_SECONDS + 0.01
    half_done(late)
    verdict = late.decide(at(after, place=place.place), after)
    assert not isinstance(verdict, Admit) or not verdict.reserved


def test_without_an_owner_a_refusal_promises_nothing() -> None:
    controller = busy_controller()
    verdict = controller.decide(replace(ASKED, owner=""), 0.0)
    assert isinstance(verdict, Refuse) and not verdict.place and verdict.retry_after is not None


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
        fields = {"priority": priority, "max_tokens": tokens, "owner": owner, "waits": 30.0}
        self.submit(booking(name, arrival=self.now, deadline=deadline, **fields))

    @rule(data=st.data(), more=st.integers(0, 1), thief=st.booleans())
    def come_back(self, data: st.DataObject, more: int, thief: bool) -> None:
        if not self.tickets and not self.used:
            return
        key = data.draw(st.sampled_from(sorted({*self.tickets, *self.used})))
        refused, _ = self.tickets.get(key, (booking("unknown", deadline=1.0, owner="x"), 0.0))
        deadline = None if refused.deadline is None else self.now + refused.deadline - refused.arrival
        owner = "thief" if thief else refused.owner
        changed = replace(refused, key=f"r{next(self.names)}", max_tokens=refused.max_tokens + more, owner=owner)
        self.submit(replace(changed, arrival=self.now, deadline=deadline, place=key), honest=not (more or thief))

    def submit(self, asked: Booking, *, honest: bool = True) -> None:
        key = asked.place
        verdict = self.controller.decide(asked, self.now)
        if isinstance(verdict, Refuse):
            if verdict.place:
                assert asked.owner and verdict.retry_after is not None
                assert 0 < verdict.retry_after <= MAX_RETRY_SECONDS
                self.tickets[verdict.place] = asked, self.now + verdict.retry_after
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
        kept = self.controller.places._kept.values()
        assert len(kept) <= LIMITS.total
        assert all(sum(each.owner == owner for each in kept) <= LIMITS.per_owner for owner in ("x", "y", "thief"))


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
