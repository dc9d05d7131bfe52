"""Ejection always leaves at least one replica."""

from hypothesis import given
from hypothesis import strategies as st

from admission.breakers import filter_ejected

REPLICAS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8)


@given(REPLICAS)
def test_all_replicas_of_the_best_available_kind_stay(replicas: list[tuple[bool, bool]]) -> None:
    chosen = filter_ejected(replicas, is_closed=lambda each: each[0], is_broken=lambda each: each[1])
    assert bool(chosen) == bool(replicas)
    ranks = [2 if closed else int(broken) for closed, broken in replicas]
    best = min(ranks, default=0)
    assert chosen == [each for each, rank in zip(replicas, ranks, strict=True) if rank == best]
