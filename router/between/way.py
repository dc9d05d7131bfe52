"""Where a request may go: a specialist on one of its lanes."""

from collections.abc import Container
from dataclasses import dataclass

from router.between.standing import LaneStanding, Standing
from router.decide.tuning import at_most
from router.reception.ask import Ask


@dataclass(frozen=True, slots=True)
class Way:
    specialist: str
    adapters: tuple[str, ...] = ()
    """As replicas call them."""
    names: tuple[str, ...] = ()
    """The same as callers call them."""
    lane_id: str = ""
    """What the answer counts for; empty where the caller chose the adapters: then it counts for nobody."""
    revision: str = ""
    """Only replicas of this model revision; empty: any."""
    fresh: bool = False
    shut: frozenset[str] = frozenset()
    """Names of replicas that are not to be asked."""

    def fits(self, replica: str, revision: str, adapters: Container[str]) -> bool:
        """Whether a replica that runs this model revision and holds these adapters may be asked. What it has not said
        yet is no obstacle, and an adapter that the caller chose is the replica's to refuse."""
        if replica in self.shut or (self.revision and revision and revision != self.revision):
            return False
        return not self.lane_id or all(adapter in adapters for adapter in self.adapters)


def way_of(standing: Standing, specialist: str, lane: LaneStanding, ask: Ask) -> Way:
    """The caller's adapters where it names some, else the lane's; never more than it allows."""
    shut = standing.cordoned | lane.unfit
    if ask.adapters:
        names = at_most(ask.adapters, ask.max_experts)
        loads = tuple(standing.of(specialist).load_name(name) for name in names)
        return Way(specialist, loads, names, revision=lane.revision, shut=shut)
    names = at_most(lane.names, ask.max_experts)
    loads = at_most(lane.load_names, ask.max_experts)
    is_whole = len(names) == len(lane.adapters)
    identity = lane.lane_id if is_whole else ""
    return Way(specialist, loads, names, identity, lane.revision, lane.fresh and is_whole, shut)
