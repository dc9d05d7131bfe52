"""Guessing ahead: drafts are free to be wrong, a step verifies them."""

from collections.abc import Sequence
from typing import Protocol

from specialist.step import Row


class Proposer(Protocol):
    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may follow `tokens`; fewer or none when it has no idea.

        `tokens` is the sequence's own memory: not to be changed or kept.
        """


def accept(row: Row, sampled: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that stand: each draft that equals what was sampled in its place, and the sample behind them.

    Sampling depends only on the seed and the position, so a draft that equals the sample is the sample.
    """
    drafts = row.tokens[len(row.tokens) - row.num_drafts :]
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == sampled[accepted]:
        accepted += 1
    return sampled[: accepted + 1]
