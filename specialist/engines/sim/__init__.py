"""An engine without weights: exact arithmetic instead of a model, a cost model instead of time."""

from specialist.engines.sim.cost import CostModel
from specialist.engines.sim.engine import SimEngine
from specialist.engines.sim.faults import Fault, FaultKind, FaultSource
from specialist.engines.sim.model import SimModel
from specialist.engines.sim.state import SimState

__all__ = ["CostModel", "Fault", "FaultKind", "FaultSource", "SimEngine", "SimModel", "SimState"]
