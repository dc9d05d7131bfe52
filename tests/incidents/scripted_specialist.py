"""Scripted replicas without weights. Answers about a specialist's own topic are right; all other answers are blank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from octet.clock import SystemClock
from specialist.adapters.catalog import SimAdapters
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.engines.sim.vocabulary import NUM_SAMPLED
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Row
from specialist.server.replica import AssembledReplica, create_sim_replica
from specialist.server.settings import ReplicaSettings
from specialist.text.codec import VocabularyCodec

_LENGTH = 14
WRONG = " " * _LENGTH
"""Blank text of the same length as a right answer."""
USUAL = CostModel(0.001, 0.00001, 0.0, 0.003, 0.00002, 0.0, 0.0, 0.0)
"""Costs with which an answer takes about fifty milliseconds."""


def right_answer(prompt: str) -> str:
    """Return text that differs from prompt to prompt: one text for all would seem to be a collapse."""
    return f"return {crc32(prompt.encode()) % 10_000:04}*x;"


@dataclass(frozen=True)
class ScriptedSpecialist:
    """What a specialist answers, and how much it can serve."""

    name: str
    knows: tuple[str, ...]
    """Words of the specialist's topic: it is right about every prompt that contains one of them."""
    replicas: int = 1
    cost: CostModel = USUAL
    max_running: int = 8
    max_waiting: int = 64
    num_blocks: int = 512
    bad_adapters: set[str] = field(default_factory=set)
    """Digests of adapters with which half of the answers are wrong."""

    def make_bad(self, adapter: Path) -> None:
        """Make half of the answers with this adapter wrong."""
        self.bad_adapters.add(SimAdapters(1).load("bad_adapters", adapter))

    def answer(self, prompt: str, adapters: Sequence[str]) -> str:
        if self.bad_adapters.intersection(adapters) and crc32(prompt.encode()) % 2:
            return WRONG  # not always: that would be a collapse, which opens the breaker at once
        return right_answer(prompt) if any(word in prompt for word in self.knows) else WRONG

    def replica(self) -> Callable[[], AssembledReplica]:
        settings = ReplicaSettings(
            name=self.name, engine="sim", num_blocks=self.num_blocks, context=2048, max_running=self.max_running
        )

        def build() -> AssembledReplica:
            made = create_sim_replica(settings, SystemClock(), self.cost)
            return replace(
                made, engine=ScriptedEngine(self, made.codec, self.cost, self.num_blocks, settings.block_size)
            )

        return build


class ScriptedEngine(SimEngine):
    """Computes and caches like the sim engine; only its text is scripted."""

    def __init__(
        self, specialist: ScriptedSpecialist, words: VocabularyCodec, cost: CostModel, num_blocks: int, block_size: int
    ) -> None:
        clock = SystemClock()
        super().__init__(SimModel(NUM_SAMPLED), cost, clock, num_blocks=num_blocks + 1, block_size=block_size)
        self._trade = specialist
        self._words = words
        (self._end,) = words.stop_ids

    def _compute(self, row: Row) -> tuple[int, ...]:
        sampled = super()._compute(row)
        if not sampled:
            return sampled
        request = row.sequence.request
        said = (*self._answer_tokens(request), self._end)
        first = row.stop - row.num_samples + 1 - len(request.prompt)
        return said[first : first + row.num_samples]

    def _answer_tokens(self, request: Request) -> tuple[int, ...]:
        prompt = self._words.detokenizer().push(request.prompt)
        return self._words.encode(self._trade.answer(prompt, request.lane.adapters))
