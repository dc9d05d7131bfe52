"""One request of a load, as its caller means it."""

from dataclasses import dataclass

from specialist.engines.sim import CostModel


@dataclass(frozen=True, slots=True)
class Offer:
    number: int
    at: float
    """Seconds since the load began."""
    priority: int
    prompt_tokens: int
    answer_tokens: int
    """Where the answer ends by itself."""
    max_tokens: int
    """What the caller allows: all that the replica is told."""
    patience: float
    """Seconds from arrival to the deadline."""
    work: float
    """Seconds the replica would take if it had nothing else to do."""

    @property
    def deadline(self) -> float:
        return self.at + self.patience

    @property
    def exact(self) -> bool:
        """Whether the answer cannot end before its limit, and the replica knows."""
        return self.max_tokens == self.answer_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


def lone_seconds(cost: CostModel, prompt_tokens: int, answer_tokens: int) -> float:
    """On an idle replica: the prompt in one chunk, which brings the first token, then a step for each other one."""
    first = cost.prefill_step + cost.prefill_token * prompt_tokens + cost.prefill_pair * prompt_tokens**2
    steps = answer_tokens - 1
    looked_at = steps * (prompt_tokens + 1) + steps * (steps - 1) // 2
    return first + steps * (cost.decode_step + cost.decode_token) + cost.decode_pair * looked_at
