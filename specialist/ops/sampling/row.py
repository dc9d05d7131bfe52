"""What is asked of one draw, and what came of it."""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from specialist.sampling import Sampling, TokenLogprobs
from specialist.steering import Steering


class SampleRow(NamedTuple):
    sampling: Sampling
    seed: int
    tokens: Sequence[int]
    """Prompt and generated so far; an array without a copy. Not kept."""
    num_prompt: int
    stop_ids: frozenset[int] = frozenset()
    guide: Steering | None = None
    num_guessed: int = 0
    """Trailing tokens that are drafts."""

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def bans_stops(self) -> bool:
        return bool(self.stop_ids) and self.num_generated < self.sampling.min_tokens

    def allowed(self) -> bytes | None:
        """One bit a token; None where every token may be drawn. Raises NothingFits."""
        if self.guide is None:
            return None
        known = len(self.tokens) - self.num_guessed
        return self.guide.allowed(self.tokens[self.num_prompt : known], self.tokens[known:])

    def takes(self, token: int) -> bool:
        """Whether the structure certainly lets it be drawn."""
        if self.guide is None:
            return True
        known = len(self.tokens) - self.num_guessed
        return self.guide.takes(self.tokens[self.num_prompt : known], self.tokens[known:], token)

    @property
    def is_plain_greedy(self) -> bool:
        """The most likely token of the model's own distribution, and nothing else."""
        want = self.sampling
        return (
            want.temperature == 0.0
            and want.num_logprobs is None
            and not want.logit_bias
            and want.repetition_penalty == 1.0
            and want.presence_penalty == 0.0
            and want.frequency_penalty == 0.0
            and not self.bans_stops
            and self.guide is None
        )


class Drawn(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None


def uniform(seed: int, position: int) -> float:
    """In [0, 1), a function of the two alone."""
    digest = sha256(f"{seed}:{position}".encode()).digest()
    return (int.from_bytes(digest[:8]) >> 11) / (1 << 53)
