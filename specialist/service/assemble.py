"""From settings to a replica, whatever engine it runs on."""

from typing import TYPE_CHECKING

from octet.clock import Clock
from specialist.engines.sim import CostModel
from specialist.engines.sim.calibration import cost_model_from_json
from specialist.models.progress import Progress, silent
from specialist.service.replica import Replica
from specialist.service.settings import ReplicaSettings
from specialist.service.sim_replica import sim_replica

if TYPE_CHECKING:
    from specialist.service.native_replica import SharedModel


def assemble(
    settings: ReplicaSettings, clock: Clock, progress: Progress = silent, shared: "SharedModel | None" = None
) -> Replica:
    """Raises ModelRefused, AdapterRefused, CalibrationInvalid, OSError or MemoryError, each saying what to do."""
    replica = _without_adapters(settings, clock, progress, shared)
    for name, directory in settings.adapters.items():
        replica.adapters.load(name, directory, settings.adapter_digests.get(name, ""))
    return replica


def _without_adapters(
    settings: ReplicaSettings, clock: Clock, progress: Progress, shared: "SharedModel | None"
) -> Replica:
    if settings.engine == "sim":
        return sim_replica(settings, clock, _cost_model(settings))
    from specialist.service.native_replica import native_replica  # loads a compiler's worth of machinery

    return native_replica(settings, clock, progress, shared)


def _cost_model(settings: ReplicaSettings) -> CostModel:
    """Raises CalibrationInvalid."""
    if settings.cost_model is None:
        return CostModel()
    return cost_model_from_json(settings.cost_model.read_text())
