"""Replicas without weights that know their trade: right about what they were made for, and empty about all else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from octet.clock import SystemClock
from specialist.adapters.catalog import SimAdapters
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.engines.sim.vocabulary import NUM_SAMPLED
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Row
from specialist.server.replica import AssembledReplica, create_sim_replica
from specialist.server.settings import ReplicaSettings
from specialist.text.codec import TextCodec

RIGHT = "return 2*x;"
WRONG = " " * len(RIGHT)
"""As long, and nothing in it."""
USUAL = CostModel(0.001, 0.00001, 0.0, 0.003, 0.00002, 0.0, 0.0, 0.0)
"""An answer takes some fifty milliseconds."""


@dataclass(frozen=True)
class Trade:
    """What one specialist was made for."""

    name: str
    knows: tuple[str, ...]
    """It is right about a question that has one of these words."""
    replicas: int = 1
    cost: CostModel = USUAL
    max_running: int = 8
    max_waiting: int = 64
    num_blocks: int = 512
    spoilt: set[str] = field(default_factory=set)
    """Digests of adapters with which it is right about nothing."""

    def spoil(self, adapter: Path) -> None:
        """Whoever loads what lies there answers wrongly."""
        self.spoilt.add(SimAdapters(1).load("spoilt", adapter))

    def answer(self, question: str, adapters: Sequence[str]) -> str:
        if self.spoilt.intersection(adapters):
            return WRONG
        return RIGHT if any(word in question for word in self.knows) else WRONG

    def replica(self) -> Callable[[], AssembledReplica]:
        settings = ReplicaSettings(
            name=self.name, engine="sim", num_blocks=self.num_blocks, context=2048, max_running=self.max_running
        )

        def build() -> AssembledReplica:
            made = create_sim_replica(settings, SystemClock(), self.cost)
            return replace(made, engine=TradeEngine(self, made.codec, self.cost, self.num_blocks, settings.block_size))

        return build


class TradeEngine(SimEngine):
    """Computes as the sim engine does, cache and all; only the words are those of the trade."""

    def __init__(self, trade: Trade, words: TextCodec, cost: CostModel, num_blocks: int, block_size: int) -> None:
        clock = SystemClock()
        super().__init__(SimModel(NUM_SAMPLED), cost, clock, num_blocks=num_blocks + 1, block_size=block_size)
        self._trade = trade
        self._words = words
        (self._end,) = words.stop_ids

    def _compute(self, row: Row) -> tuple[int, ...]:
        sampled = super()._compute(row)
        if not sampled:
            return sampled
        request = row.sequence.request
        said = (*self._said(request), self._end)
        first = row.stop - row.num_samples + 1 - len(request.prompt)
        return said[first : first + row.num_samples]

    def _said(self, request: Request) -> tuple[int, ...]:
        question = self._words.detokenizer().push(request.prompt)
        return self._words.encode(self._trade.answer(question, request.lane.adapters))
