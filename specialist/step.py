"""One step of work for the engine, and what came of it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvpool import BlockTable
from specialist.sampling import TokenLogprobs
from specialist.sequence import Sequence

Mode = Literal["prefill", "decode", "spec_verify"]


class Row(NamedTuple):
    """One sequence's share of a step: compute `tokens` at positions [start, start + len(tokens))."""

    sequence: Sequence
    table: BlockTable
    start: int
    tokens: tuple[int, ...]
    num_drafts: int
    """Trailing tokens that are guesses, to be verified by what is sampled before them."""
    num_samples: int
    """Tokens to sample, one behind each of the last positions: 0 for a chunk that ends inside the prompt,
    else one more than there are drafts."""

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    number: int
    adapters: tuple[str, ...]
    """The one adapter stack of every row."""
    rows: tuple[Row, ...]
    num_preempted: int
    """Sequences preempted to make this step possible."""
    started_at: float

    @property
    def mode(self) -> Mode:
        if all(len(row.tokens) == 1 for row in self.rows):
            return "decode"
        if all(len(row.tokens) == 1 + row.num_drafts for row in self.rows):
            return "spec_verify"
        return "prefill"

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowFault:
    """The engine could not compute this row; the others stand."""

    error: str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    sampled: tuple[tuple[int, ...] | RowFault, ...]
    """For each row, `num_samples` tokens."""
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """For each row, one for each token, or none; empty when no row asked for them."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Nothing of the step counts. Without a culprit, its rows are run one by one until it is found."""

    error: str
    culprit: str | None = None
    """The request that is to blame, when the engine can tell."""


Outcome = StepOutcome | StepFailure


class Rollback(NamedTuple):
    """Positions a step wrote that turned out not to count; the engine zeroes their slots."""

    table: BlockTable
    start: int
    stop: int
