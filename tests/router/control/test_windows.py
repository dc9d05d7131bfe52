"""The counts in a time window, including those from other routers, equal a direct computation."""

from collections import Counter
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import Counts
from router.control.state import CorrectnessWindows, DemandWindows
from router.store.rows import CountBucket

SPAN = 100.0
START = 1_700_000_000
Place: TypeAlias = tuple[str, int, bool]
"""The key with the specialist and the intent, the start of the bucket, and whether the request was accepted."""


class SharedCounts:
    """A store that records the counts that a router writes."""

    def __init__(self) -> None:
        self.counted: list[CountBucket] = []

    def count(self, bucket: CountBucket) -> None:
        self.counted.append(bucket)


requests = st.lists(st.tuples(st.integers(0, 80), st.sampled_from(["algo", "stl"]), st.booleans()), max_size=30)


def stored_counts(shared: SharedCounts, specialist: str, now: float) -> Counts:
    """Return the sum of the recorded counts of the last SPAN seconds, as a store would compute it."""
    there = [each for each in shared.counted if each.key == f"{specialist}|codegen" and each.start >= now - SPAN]
    return sum((Counts(each.good, each.bad) for each in there), Counts())


@given(requests)
def test_demand_is_shared_completely_and_only_while_a_router_refuses(
    requests: list[tuple[int, str, bool]],
) -> None:
    shared: Any = SharedCounts()
    demand, now, refused_at = DemandWindows(shared, SPAN), float(START), dict[str, float]()
    for pause, specialist, served in requests:
        now += pause
        before = len(shared.counted)
        demand.add(specialist, "codegen", now, accepted=served)
        if not served:
            refused_at[specialist] = now
        if now - refused_at.get(specialist, 0.0) <= SPAN:
            assert stored_counts(shared, specialist, now) == demand.counts(specialist, now)
        else:
            assert len(shared.counted) == before


def test_requests_before_the_first_refusal_count_after_the_stores_sums_arrive() -> None:
    """Regression test for seed 47 of the simulation: the store's sums replaced local counts of accepted requests."""
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    for _ in range(9):
        demand.add("algo", "codegen", START, accepted=True)
    demand.add("algo", "codegen", START, accepted=False)
    sums = stored_counts(shared, "algo", START)
    demand.put([CountBucket("demand", "algo|codegen", START, sums.good, sums.bad)], START)
    assert demand.counts("algo", START) == Counts(9, 1)


def test_refusals_of_another_router_make_this_one_share_its_accepted_requests() -> None:
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    demand.add("algo", "codegen", START, accepted=True)
    demand.put([CountBucket("demand", "algo|codegen", START, 5, 0)], START)
    demand.add("algo", "codegen", START + 1, accepted=True)
    assert not shared.counted
    demand.put([CountBucket("demand", "algo|review", START, 0, 3)], START)
    demand.add("algo", "codegen", START + 2, accepted=True)
    demand.add("stl", "codegen", START + 2, accepted=True)
    assert [(each.key, each.start - START) for each in shared.counted] == [("algo|codegen", at) for at in range(3)]
    assert demand.counts("algo", START + 2) == Counts(8, 3)


def test_refusals_of_another_router_keep_the_accepted_requests_of_this_one() -> None:
    """Regression test: the store's sum replaced the local count of accepted requests, so every request seemed to be
    refused."""
    shared: Any = SharedCounts()
    demand = DemandWindows(shared, SPAN)
    for _ in range(9):
        demand.add("algo", "codegen", START, accepted=True)
    demand.put([CountBucket("demand", "algo|codegen", START, 0, 3)], START)
    assert demand.counts("algo", START) == Counts(9, 3)
    assert shared.counted == [CountBucket("demand", "algo|codegen", START, 9, 0)]
    demand.put([CountBucket("demand", "algo|codegen", START, 9, 3)], START)
    assert demand.counts("algo", START) == Counts(9, 3) and len(shared.counted) == 1


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
        self._held[bucket.key, bucket.start, True] += bucket.good
        self._held[bucket.key, bucket.start, False] += bucket.bad

    def asked(self, intent: str, now: int, *, served: bool) -> None:
        self.demand.add("algo", intent, now, accepted=served)
        self.own[f"algo|{intent}", now, served] += 1

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
        assert [each.demand.counts("algo", now) for each in routers] == [each.knows(now) for each in routers]
    routers[0].asked("codegen", now, served=False)
    for router in (*routers, *routers):
        router.commit()
        for each in routers:
            each.receive(now)
    truth = counted(routers[0].own + routers[1].own, now)
    assert [each.demand.counts("algo", now) for each in routers] == [truth, truth]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30), st.integers(0, 300))
def test_a_lane_is_judged_by_answers_since_its_start_within_the_window(
    answers: list[tuple[int, bool]], since: int
) -> None:
    shared: Any = SharedCounts()
    judged, now, came = CorrectnessWindows(shared, SPAN), START, list[tuple[int, bool]]()
    for pause, passed in answers:
        now += pause
        judged.add("lane", now, passed=passed)
        came.append((now, passed))
    counted = [passed for at, passed in came if at >= now - SPAN and at >= START + since]
    assert judged.counts("lane", now, START + since) == Counts(sum(counted), len(counted) - sum(counted))
    assert len(shared.counted) == len(came) and judged.counts("another", now) == Counts()
