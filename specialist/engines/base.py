"""The interface between scheduling and computing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Outcome, Rollback, RowFault, Step


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


class TurnEngine(Engine, Protocol):
    """An engine that computes several decode steps in turn without waiting for their tokens."""

    @property
    def most_in_turn(self) -> int:
        """The most rows of such a step."""

    def draws_in_turn(self, request: Request) -> bool:
        """Whether it can draw for such a request before the tokens before are known."""

    def draw_in_turn(self, step: Step, counts: Sequence[int]) -> Iterator[list[int | RowFault]]:
        """Compute the step, in which every row has one sample, and then decode steps of the same rows: row i draws
        `counts[i]` tokens in all, and the blocks for them are there. Yield what each step draws, for the rows that draw
        so many; before asking for more, the caller appends it to their sequences. What a row draws after a fault means
        nothing."""

    def wait(self) -> None:
        """Wait until all that was launched has run."""
