"""A simulation takes as long as what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from octet.clock import ManualClock
from specialist.engines.sim import CostModel, SimEngine
from specialist.engines.sim.calibration import CalibrationInvalid, cost_model_to_json
from specialist.service.assemble import assemble
from specialist.service.settings import ReplicaSettings

SIM = ReplicaSettings(engine="sim", num_blocks=16)


def test_a_measured_cost_model_is_used(tmp_path: Path) -> None:
    measured = replace(CostModel(), decode_step=0.25)
    (tmp_path / "cost.json").write_text(cost_model_to_json(measured, {}))
    engine = assemble(replace(SIM, cost_model=tmp_path / "cost.json"), ManualClock()).engine
    assert isinstance(engine, SimEngine)
    assert engine.cost == measured


def test_one_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(CalibrationInvalid, match="cost: must be an object"):
        assemble(replace(SIM, cost_model=tmp_path / "cost.json"), ManualClock())
