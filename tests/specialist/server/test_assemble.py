"""A simulated replica uses the measured cost model that its settings name."""

from dataclasses import replace
from pathlib import Path

import pytest

from octet.clock import ManualClock
from specialist.engines.sim.engine import CalibrationInvalid, CostModel, SimEngine, cost_model_to_json
from specialist.server.replica import assemble_replica
from specialist.server.settings import ReplicaSettings

SIM = ReplicaSettings(engine="sim", num_blocks=16)


def test_a_measured_cost_model_is_used(tmp_path: Path) -> None:
    measured = replace(CostModel(), decode_step=0.25)
    (tmp_path / "cost.json").write_text(cost_model_to_json(measured, {}))
    engine = assemble_replica(replace(SIM, cost_model=tmp_path / "cost.json"), ManualClock()).engine
    assert isinstance(engine, SimEngine)
    assert engine.cost == measured


def test_an_invalid_cost_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(CalibrationInvalid, match="the cost model must have an object named cost"):
        assemble_replica(replace(SIM, cost_model=tmp_path / "cost.json"), ManualClock())
