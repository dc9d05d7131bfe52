"""Engines: one interface, several implementations."""

from specialist.engines.base import Completion, Engine, EngineFault

__all__ = ["Completion", "Engine", "EngineFault"]
