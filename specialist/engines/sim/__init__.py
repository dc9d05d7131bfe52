"""An engine without weights."""

from specialist.engines.sim.engine import (
    CostModel,
    FaultKind,
    FaultSource,
    InjectedFault,
    SimEngine,
    SimModel,
    SimState,
)

__all__ = ["CostModel", "FaultKind", "FaultSource", "InjectedFault", "SimEngine", "SimModel", "SimState"]
