"""How many prompt tokens a step may take before those who are decoding have waited long enough."""

from math import inf
from typing import Protocol


class PrefillBudget(Protocol):
    def tokens(self) -> int:
        """At least 1."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A prefill step of `num_tokens` took `seconds`."""


class FixedBudget:
    """A number of tokens."""

    def __init__(self, num_tokens: int) -> None:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
        self._num_tokens = num_tokens

    def tokens(self) -> int:
        return self._num_tokens

    def observe(self, num_tokens: int, seconds: float) -> None:
        pass


class TimedBudget:
    """As many tokens as fit into `seconds`, found by trying: each step moves the number by a factor of 2 at most.

    Cost is not proportional, since a step has a price of its own, so a rate learnt from small steps would keep them
    small; and one step that stalls says little about the next.
    """

    MOST_CHANGE = 2.0

    def __init__(self, seconds: float, first_guess: int, most: int) -> None:
        """`first_guess` tokens are taken until a step has been measured, `most` at any time."""
        if not 0 < seconds < inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds}")
        if not 1 <= first_guess <= most:
            raise ValueError(f"first_guess must be in [1, {most}], got {first_guess}")
        self._seconds = seconds
        self._most = most
        self._tokens = float(first_guess)

    def tokens(self) -> int:
        return int(self._tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        if num_tokens < self.tokens() and seconds <= self._seconds:
            return  # a small step that was in time says nothing about larger ones
        expected = seconds * min(1.0, self._tokens / num_tokens)
        ratio = self._seconds / expected if expected > 0 else inf
        # A larger step spreads its own price over more tokens: it can show that fewer fit, never that more do.
        most = 1.0 if num_tokens > self._tokens else self.MOST_CHANGE
        change = min(max(ratio, 1 / self.MOST_CHANGE), most)
        self._tokens = min(max(self._tokens * change, 1.0), self._most)
