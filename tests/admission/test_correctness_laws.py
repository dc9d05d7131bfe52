"""The exact conditions under which a breaker changes its state. A pass rate equal to the floor meets the floor."""

from hypothesis import given
from hypothesis import strategies as st

from admission.breakers import BreakerRecord, CorrectnessRules, advance_breaker
from admission.budgets import Counts

WINDOW, BREACH, NOW = 60.0, 10.0, 1_000_000.0
floors = st.sampled_from([0.25, 0.5, 0.75, 1.0])
"""These floors are exact in binary, so that a rate can equal them."""
counted = st.builds(Counts, st.integers(0, 40), st.integers(0, 40))


@given(counts=counted, floor=floors, min_samples=st.integers(1, 40))
def test_from_shadow_only_it_recovers_where_the_floor_is_reached(
    counts: Counts, floor: float, min_samples: int
) -> None:
    rules = CorrectnessRules(floor, min_samples, WINDOW, BREACH)
    standing = BreakerRecord("shadow_only", since=NOW - WINDOW, transition_at=NOW - WINDOW)
    _, transition = advance_breaker(standing, counts, NOW, rules)
    reached = counts.total >= min_samples and counts.good >= floor * counts.total
    assert (transition is not None and transition.after == "recovering") == reached


@given(counts=counted, floor=floors, min_samples=st.integers(1, 40), late=st.floats(-1, 1))
def test_from_closed_it_trips_where_the_floor_was_missed_for_the_whole_breach(
    counts: Counts, floor: float, min_samples: int, late: float
) -> None:
    rules = CorrectnessRules(floor, min_samples, WINDOW, BREACH)
    standing = BreakerRecord("closed", since=0.0, below_since=NOW - BREACH - late)
    _, transition = advance_breaker(standing, counts, NOW, rules)
    missed = counts.total >= min_samples and counts.good < floor * counts.total
    assert (transition is not None) == (missed and NOW - standing_below(standing) >= BREACH)


def standing_below(standing: BreakerRecord) -> float:
    assert standing.below_since is not None
    return standing.below_since
