"""The counts in a time window, including those from other routers, equal a direct computation."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import Counts
from admission.demand import DemandClass
from router.control.demand import DemandOutcome, DemandWindows
from router.control.state import CORRECTNESS
from router.control.windows import OutcomeWindows
from router.store.rows import CountBucket

SPAN = 100.0
START = 1_700_000_000
KIND = DemandClass(5, 60)
Place: TypeAlias = tuple[str, int, bool]
"""The key with the specialist and the intent, the start of the bucket, and whether the request was accepted."""


class SharedCounts:
    """A store that records the counts that a router writes."""

    def __init__(self) -> None:
        self.counted: list[CountBucket] = []
        self.usual: list[CountBucket] = []

    def count(self, bucket: CountBucket) -> None:
        if bucket.series != "usual":
            self.counted.append(bucket)
        else:
            self.usual.append(bucket)


requests = st.lists(st.tuples(st.integers(0, 80), st.sampled_from(["algo", "stl"]), st.booleans()), max_size=30)


def stored_counts(shared: SharedCounts, specialist: str, now: float) -> Counts:
    """Return the sum of the recorded counts of the last SPAN seconds, as a store would compute it."""
    key = f"{specialist}|codegen|5|60"
    there = [each for each in shared.counted if each.key == key and each.start >= now - SPAN]
    return sum((Counts(each.good, each.bad) for each in there), Counts())


def outcome_of(*, served: bool) -> DemandOutcome:
    return "accepted" if served else "refused"


def counts_of(demand: DemandWindows, specialist: str, now: float) -> Counts:
    totals = [each.total for each in demand.view(specialist, now).values()]
    return sum((Counts(each.accepted, each.refused) for each in totals), Counts())


@given(requests)
def test_demand_is_shared_completely_and_only_while_a_router_refuses(
    requests: list[tuple[int, str, bool]],
) -> None:
    shared: Any = SharedCounts()
    demand, now, refused_at = DemandWindows(shared, SPAN), float(START), dict[str, float]()
    for pause, specialist, served in requests:
        now += pause
        before = len(shared.counted)
        demand.add(specialist, "codegen", KIND, outcome_of(served=served), now)
        if not served:
            refused_at[specialist] = now
        if now - refused_at.get(specialist, 0.0) <= SPAN:
            assert stored_counts(shared, specialist, now) == counts_of(demand, specialist, now)
        else:
            assert len(shared.counted) == before


def test_requests_before_the_first_refusal_count_after_the_stores_sums_arrive() -> None:
    """Regression test for seed 47 of the simulation: the store's sums replaced local counts of accepted requests."""
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    for _ in range(9):
        demand.add("algo", "codegen", KIND, "accepted", START)
    demand.add("algo", "codegen", KIND, "refused", START)
    sums = stored_counts(shared, "algo", START)
    demand.put([CountBucket("demand", "algo|codegen|5|60", START, sums.good, sums.bad)], START)
    assert counts_of(demand, "algo", START) == Counts(9, 1)


def test_refusals_of_another_router_make_this_one_share_its_accepted_requests() -> None:
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    demand.add("algo", "codegen", KIND, "accepted", START)
    demand.put([CountBucket("demand", "algo|codegen|5|60", START, 5, 0)], START)
    demand.add("algo", "codegen", KIND, "accepted", START + 1)
    assert not shared.counted
    demand.put([CountBucket("demand", "algo|review|5|60", START, 0, 3)], START)
    demand.add("algo", "codegen", KIND, "accepted", START + 2)
    demand.add("stl", "codegen", KIND, "accepted", START + 2)
    assert [(each.key, each.start - START) for each in shared.counted] == [("algo|codegen|5|60", at) for at in range(3)]
    assert counts_of(demand, "algo", START + 2) == Counts(8, 3)


def test_refusals_of_another_router_keep_the_accepted_requests_of_this_one() -> None:
    """Regression test: the store's sum replaced the local count of accepted requests, so every request seemed to be
    refused."""
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    for _ in range(9):
        demand.add("algo", "codegen", KIND, "accepted", START)
    demand.put([CountBucket("demand", "algo|codegen|5|60", START, 0, 3)], START)
    assert counts_of(demand, "algo", START) == Counts(9, 3)
    assert shared.counted == [CountBucket("demand", "algo|codegen|5|60", START, 9, 0)]
    demand.put([CountBucket("demand", "algo|codegen|5|60", START, 9, 3)], START)
    assert counts_of(demand, "algo", START) == Counts(9, 3) and len(shared.counted) == 1


class Router:
    """One of two routers that share a store. The sums that it receives contain the committed counts of both routers and
    its own uncommitted counts."""

    def __init__(self, sums: Counter[Place]) -> None:
        self._sums = sums
        self._held: Counter[Place] = Counter()
        self._committed: Counter[Place] = Counter()
        self.own: Counter[Place] = Counter()
        self._theirs: Counter[Place] = Counter()
        store: Any = self
        self.demand = DemandWindows(store, SPAN)

    def count(self, bucket: CountBucket) -> None:
        if bucket.series == "usual":
            return
        self._held[bucket.key, bucket.start, True] += bucket.good
        self._held[bucket.key, bucket.start, False] += bucket.bad

    def asked(self, intent: str, now: int, *, served: bool) -> None:
        self.demand.add("algo", intent, KIND, outcome_of(served=served), now)
        self.own[f"algo|{intent}|5|60", now, served] += 1

    def commit(self) -> None:
        self._sums.update(self._held)
        self._committed.update(self._held)
        self._held.clear()

    def receive(self, now: int) -> None:
        sums = self._sums + self._held
        places = sorted({place[:2] for place in sums})
        self.demand.put((CountBucket("demand", *at, sums[(*at, True)], sums[(*at, False)]) for at in places), now)
        self._theirs = self._sums - self._committed

    def knows(self, now: int) -> Counts:
        """Return the expected counts: the router's own requests, and the other router's requests that were reported to
        it."""
        return counted(self.own + self._theirs, now)


def counted(requests: Counter[Place], now: int) -> Counts:
    there = [(served, number) for (_, start, served), number in requests.items() if start >= now - SPAN]
    good = sum(number for served, number in there if served)
    return Counts(good, sum(number for _, number in there) - good)


actions = st.sampled_from(["served", "served", "refused", "commit", "receive"])


@given(st.lists(st.tuples(st.integers(0, 1), actions, st.sampled_from(["codegen", "review"]), st.integers(0, 40))))
def test_two_routers_know_their_own_counts_and_finally_the_same(
    history: list[tuple[int, str, str, int]],
) -> None:
    sums: Counter[Place] = Counter()
    routers, now = (Router(sums), Router(sums)), START
    for index, action, intent, pause in history:
        router, now = routers[index], now + pause
        if action == "commit":
            router.commit()
        elif action == "receive":
            router.receive(now)
        else:
            router.asked(intent, now, served=action == "served")
        assert [counts_of(each.demand, "algo", now) for each in routers] == [each.knows(now) for each in routers]
    routers[0].asked("codegen", now, served=False)
    for router in (*routers, *routers):
        router.commit()
        for each in routers:
            each.receive(now)
    truth = counted(routers[0].own + routers[1].own, now)
    assert [counts_of(each.demand, "algo", now) for each in routers] == [truth, truth]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.sampled_from(("", "cpp", "json:a|b"))), max_size=30),
    st.integers(0, 300),
)
def test_a_lane_is_judged_by_answers_since_its_start_within_the_window(
    answers: list[tuple[int, bool, str]], since: int
) -> None:
    shared: Any = SharedCounts()
    judged, now, came = OutcomeWindows(shared, SPAN, CORRECTNESS), START, list[tuple[int, bool]]()
    for pause, passed, verifier in answers:
        now += pause
        judged.add("s|1|lane", verifier, now, passed=passed)
        came.append((now, passed))
    counted = [passed for at, passed in came if at >= now - SPAN and at >= START + since]
    assert judged.counts("s|1|lane", now, START + since) == Counts(sum(counted), len(counted) - sum(counted))
    assert len(shared.counted) == len(came) and judged.counts("another", now) == Counts()


def test_usual_demand_leaves_out_minutes_with_refusals() -> None:
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, 10.0)
    minute = START // 60 * 60
    for number in range(6):
        for second in range(60):
            now = minute + 60 * number + second
            demand.add("algo", "codegen", KIND, "accepted", now)
            if number == 2:
                demand.add("algo", "review", KIND, "refused", now)
            if number == 4:
                demand.add("algo", "codegen", KIND, "withheld", now)
    view = demand.view("algo", minute + 360)
    assert view["codegen"].usual == 10.0 and "review" not in view, "one request a second, in windows of ten seconds"
    assert [(each.key, each.start - minute, each.good) for each in shared.usual] == [
        ("algo|codegen", 60 * number, 60) for number in (0, 1, 3, 5)
    ]
    other = DemandWindows(shared, 10.0)
    other.usual.put(shared.usual, minute + 360)
    assert other.usual.rates("algo", minute + 360) == {"codegen": 1.0}
    assert other.usual.rates("algo", minute + 60 * 80) == {"codegen": 1.0}


def ask_for_minutes(demand: DemandWindows, minutes: range, outcomes: Mapping[str, DemandOutcome]) -> None:
    """Send one request of each intent per second, with these outcomes."""
    for second in range(60 * minutes.start, 60 * minutes.stop):
        for intent, outcome in outcomes.items():
            demand.add("algo", intent, KIND, outcome, START // 60 * 60 + second)


@pytest.mark.parametrize("pressure", ["refused", "withheld"])
def test_usual_demand_is_kept_while_the_specialist_refuses_and_replaced_by_sixty_later_minutes(
    pressure: DemandOutcome,
) -> None:
    shared: Any = SharedCounts()
    demand, minute = DemandWindows(shared, SPAN), START // 60 * 60
    ask_for_minutes(demand, range(20), {"codegen": "accepted"})
    ask_for_minutes(demand, range(20, 200), {"codegen": "accepted", "review": pressure})
    restarted = DemandWindows(shared, SPAN)
    restarted.usual.put(shared.usual, minute + 60 * 200)
    for each in (demand, restarted):
        assert each.usual.rates("algo", minute + 60 * 200) == {"codegen": 1.0}, "three hours of overload change nothing"
    ask_for_minutes(demand, range(200, 250), {"review": "accepted"})
    assert demand.usual.rates("algo", minute + 60 * 250) == pytest.approx({"codegen": 1 / 6, "review": 5 / 6})
    ask_for_minutes(demand, range(250, 260), {"review": "accepted"})
    assert demand.usual.rates("algo", minute + 60 * 260) == {"review": 1.0}


def test_minutes_of_a_clock_that_was_wrong_are_forgotten() -> None:
    demand, minute = DemandWindows(SharedCounts(), SPAN), START // 60 * 60  # type: ignore[arg-type]
    ask_for_minutes(demand, range(10_000, 10_100), {"review": "accepted"})
    ask_for_minutes(demand, range(2), {"codegen": "accepted"})
    assert demand.usual.rates("algo", minute + 120) == {"codegen": 1.0}


def test_withheld_requests_are_shared_and_counted_apart() -> None:
    shared: Any = SharedCounts()
    one, other = DemandWindows(shared, SPAN), DemandWindows(SharedCounts(), SPAN)  # type: ignore[arg-type]
    one.add("algo", "codegen", KIND, "accepted", START)
    other.add("algo", "codegen", KIND, "accepted", START)
    one.add("algo", "codegen", DemandClass(2), "withheld", START)
    other.put(shared.counted, START)
    for demand in (one, other):
        total = demand.view("algo", START)["codegen"].total
        assert (total.refused, total.withheld) == (0, 1)
    assert other.view("algo", START)["codegen"].total.accepted == 2


@pytest.mark.parametrize(
    "key", ["algo|codegen", "algo|codegen|5|x", "algo|codegen|10|5", "algo|codegen|5|101", "a|b|-5|1"]
)
def test_counts_of_other_versions_are_ignored(key: str) -> None:
    demand = DemandWindows(SharedCounts(), SPAN)  # type: ignore[arg-type]
    demand.put([CountBucket("demand", key, START, 1, 5)], START)
    assert not demand.view("algo", START)
