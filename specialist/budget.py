"""How many prompt tokens a step may take before those who are decoding have waited long enough."""

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
    """As many tokens as fit into `seconds` at the measured rate, which follows the recent steps."""

    SMOOTHING = 0.25

    def __init__(self, seconds: float, first_guess: int, most: int) -> None:
        """`first_guess` tokens are taken until a step has been measured, `most` at any time."""
        if seconds <= 0:
            raise ValueError(f"seconds must be positive, got {seconds}")
        if not 1 <= first_guess <= most:
            raise ValueError(f"first_guess must be in [1, {most}], got {first_guess}")
        self._seconds = seconds
        self._first_guess = first_guess
        self._most = most
        self._seconds_per_token: float | None = None

    def tokens(self) -> int:
        if self._seconds_per_token is None:
            return self._first_guess
        return max(1, int(min(self._most, self._seconds / self._seconds_per_token)))

    def observe(self, num_tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        measured = seconds / num_tokens
        if self._seconds_per_token is None:
            self._seconds_per_token = measured
        else:
            self._seconds_per_token += self.SMOOTHING * (measured - self._seconds_per_token)
