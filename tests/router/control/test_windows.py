"""What is counted here and what of it is shared, said again plainly."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from admission.window import Counts
from octet.store import Bucket
from router.control.windows import Demand, Judged

SPAN = 100.0
START = 1_700_000_000


class Shared:
    """A store that is only told."""

    def __init__(self) -> None:
        self.told: list[Bucket] = []

    def count(self, bucket: Bucket) -> None:
        self.told.append(bucket)


requests = st.lists(st.tuples(st.integers(0, 80), st.sampled_from(["algo", "stl"]), st.booleans()), max_size=30)


def told_of(shared: Shared, specialist: str, now: float) -> Counts:
    """What a store would have of the span."""
    there = [each for each in shared.told if each.key == f"{specialist}|codegen" and each.start >= now - SPAN]
    return sum((Counts(each.good, each.bad) for each in there), Counts())


@given(requests)
def test_of_demand_nothing_is_shared_but_while_somebody_refuses_and_then_all(
    requests: list[tuple[int, str, bool]],
) -> None:
    shared: Any = Shared()
    demand, now, refused_at = Demand(shared, SPAN), float(START), dict[str, float]()
    for pause, specialist, served in requests:
        now += pause
        before = len(shared.told)
        demand.add(specialist, "codegen", now, served=served)
        if not served:
            refused_at[specialist] = now
        if now - refused_at.get(specialist, 0.0) <= SPAN:
            assert told_of(shared, specialist, now) == demand.counts(specialist, now)
        else:
            assert len(shared.told) == before


def test_requests_served_before_the_first_refusal_count_after_the_store_has_told_its_sums() -> None:
    """Found by seed 47 of the simulation: the store's sums took their place, and the share of refusals was all."""
    shared: Any = Shared()
    demand = Demand(shared, SPAN)
    for _ in range(9):
        demand.add("algo", "codegen", START, served=True)
    demand.add("algo", "codegen", START, served=False)
    sums = told_of(shared, "algo", START)
    demand.put([Bucket("demand", "algo|codegen", START, sums.good, sums.bad)], START)
    assert demand.counts("algo", START) == Counts(9, 1)


def test_what_another_router_refuses_makes_this_one_share_what_it_takes() -> None:
    shared: Any = Shared()
    demand = Demand(shared, SPAN)
    demand.add("algo", "codegen", START, served=True)
    demand.put([Bucket("demand", "algo|codegen", START, 5, 0)], START)
    demand.add("algo", "codegen", START + 1, served=True)
    assert not shared.told
    demand.put([Bucket("demand", "algo|review", START, 0, 3)], START)
    demand.add("algo", "codegen", START + 2, served=True)
    demand.add("stl", "codegen", START + 2, served=True)
    assert [(each.key, each.start - START) for each in shared.told] == [("algo|codegen", at) for at in range(3)]
    assert demand.counts("algo", START + 2) == Counts(7, 3)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30), st.integers(0, 300))
def test_a_lane_is_judged_by_what_came_since_and_within_the_window(answers: list[tuple[int, bool]], since: int) -> None:
    """To the second: the window's grain."""
    shared: Any = Shared()
    judged, now, came = Judged(shared, SPAN), START, list[tuple[int, bool]]()
    for pause, passed in answers:
        now += pause
        judged.add("lane", now, passed=passed)
        came.append((now, passed))
    counted = [passed for at, passed in came if at >= now - SPAN and at >= START + since]
    assert judged.counts("lane", now, START + since) == Counts(sum(counted), len(counted) - sum(counted))
    assert len(shared.told) == len(came) and judged.counts("another", now) == Counts()
