"""Mistakes of the product that seeds have found, each by itself."""

from pathlib import Path

import pytest

from bench.simulation.run import live
from bench.simulation.script import Script
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


def test_whoever_is_let_in_is_in_time_beside_other_adapters() -> None:
    """Seed 616 of an earlier draw, shrunk: lower ones are let in beside one of the highest priority, and it is late."""
    script = Path(__file__).with_name("late_beside_adapters.json").read_text()
    assert not live(Script.from_json(script)).broken
