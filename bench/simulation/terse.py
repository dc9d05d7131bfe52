"""A model that comes to an end soon: only answers that end by themselves are judged."""

from dataclasses import dataclass

from bench.simulation.words import END_ID, NUM_SAMPLED
from specialist.engines.sim import SimModel

_OFTEN = 3


@dataclass(frozen=True, slots=True)
class TerseModel(SimModel):
    """One token in so many is the last."""

    vocab_size: int = NUM_SAMPLED

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        token = SimModel.sample(self, context, state, seed, position, allowed)
        return END_ID if allowed is None and token % _OFTEN == 0 else token


TERSE = TerseModel()
