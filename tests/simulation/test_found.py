"""Mistakes of the product that seeds have found, each by itself."""

import pytest

from octet.clock import ManualClock
from octet.mishap import installed
from specialist.engines.sim import CostModel
from specialist.loop import StepLoop
from specialist.service.settings import ReplicaSettings
from specialist.service.sim_replica import sim_replica
from specialist.service.warm import NotWarm, warm_up


def test_a_replica_is_not_warm_while_its_first_requests_wait() -> None:
    """Seed 564: blocks that could not be had for a moment left the warm-up's requests in the line, and the replica
    served as if it were warm."""
    replica = sim_replica(ReplicaSettings("cold", "sim", num_blocks=32), ManualClock(), CostModel())
    with installed(lambda point: point == "pool.shortage"), pytest.raises(NotWarm, match="did not take up"):
        warm_up(replica, StepLoop(replica.scheduler, replica.engine))
    again = sim_replica(ReplicaSettings("warm", "sim", num_blocks=32), ManualClock(), CostModel())
    assert warm_up(again, StepLoop(again.scheduler, again.engine))
    assert not again.scheduler.ledger.live
