"""A replica with nothing better to do."""

from collections.abc import Callable, Mapping
from random import Random

from router.between.way import Way
from router.replicas.lane import Lane
from router.replicas.replica import Replica


def free_replica(
    lane: Lane, way: Way, sent: Mapping[Replica, int], may_answer: Callable[[Replica], bool], random: Random
) -> Replica | None:
    """The one with most room of those that have a seat free, hold the adapters and refuse nobody. `sent` are shadows of
    ours that are there already. None where there is none: a shadow never waits for one."""
    found = [
        (share, random.random(), replica)
        for replica in lane.replicas.values()
        if (share := _share(replica, lane.dispatch.stale_seconds, sent.get(replica, 0))) < 1
        and _is_fit(replica, way)
        and may_answer(replica)
    ]
    return min(found, key=lambda each: each[:2])[2] if found else None


def _share(replica: Replica, stale_seconds: float, num_sent: int) -> float:
    """Of its seats, how many are taken, shadows and all."""
    load, candidate = replica.load, replica.candidate(stale_seconds)
    if load is None:
        return 1.0
    return (candidate.depth + max(load.shadows, num_sent)) / candidate.max_running


def _is_fit(replica: Replica, way: Way) -> bool:
    """A breaker that is not closed needs its probe for a request that somebody waits for."""
    load = replica.load
    return (
        load is not None
        and replica.usable
        and replica.breaker.state == "closed"
        and not load.refusing
        and not load.preempting
        and load.adapters.issuperset(way.adapters)
        and (not way.revision or load.revision == way.revision)
    )
