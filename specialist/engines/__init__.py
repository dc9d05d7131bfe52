"""What can run a step: one interface, several engines."""

from specialist.engines.base import Completion, Engine, EngineFault

__all__ = ["Completion", "Engine", "EngineFault"]
