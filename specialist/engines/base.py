"""The interface between scheduling and computing."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from specialist.scheduling.step import Outcome, Rollback, Step


class EngineFault(RuntimeError):
    """A step failed. `culprit` names the request that caused it, if the engine knows it."""

    def __init__(self, error: str, culprit: str | None = None) -> None:
        super().__init__(error)
        self.culprit = culprit


class Completion(NamedTuple):
    step: Step
    outcome: Outcome


class Engine(Protocol):
    def run(self, step: Step) -> Iterable[Completion]:
        """Compute the tokens of every row, write their KV to the blocks of the row's table, and sample. Return the
        completions that have arrived, usually that of this step only. If this method raises, all that the step wrote is
        ignored. The step's blocks may then go to another request, so the engine must not write to them any more."""

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        """Zero the slots of tokens that were rolled back."""
