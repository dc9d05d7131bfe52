"""Regression tests for bugs that seeds have found."""

from pathlib import Path

import pytest

from octet.clock import ManualClock
from octet.fault_points import inject_faults
from specialist.engines.sim.engine import CostModel
from specialist.scheduling.scheduler import StepLoop
from specialist.server.replica import create_sim_replica
from specialist.server.server import WarmUpFailed, warm_up
from specialist.server.settings import ReplicaSettings
from tests.simulation.run import run_script
from tests.simulation.script import Script


def test_a_replica_is_not_warm_while_its_first_requests_wait() -> None:
    """Seed 564: a brief shortage of blocks left warm-up requests waiting, and the replica served as if it were warm."""
    replica = create_sim_replica(ReplicaSettings("cold", "sim", num_blocks=32), ManualClock(), CostModel())
    with inject_faults(lambda point: point == "pool.shortage"), pytest.raises(WarmUpFailed, match="did not start"):
        warm_up(replica, StepLoop(replica.scheduler, replica.engine))
    again = create_sim_replica(ReplicaSettings("warm", "sim", num_blocks=32), ManualClock(), CostModel())
    assert warm_up(again, StepLoop(again.scheduler, again.engine))
    assert not again.scheduler.ledger.live


def test_an_admitted_request_is_in_time_beside_other_adapters() -> None:
    """Seed 616 of an earlier generator, shrunk: requests that were admitted later made a request of the highest
    priority late."""
    script = Path(__file__).with_name("late_beside_adapters.json").read_text()
    assert not run_script(Script.from_json(script)).broken
