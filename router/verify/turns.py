"""Whose turn it is, where several want the same thing and not all of them take equally long."""

from collections import defaultdict
from collections.abc import Iterable


class Turns:
    """Next is whoever has had the least time: who takes long waits long."""

    def __init__(self) -> None:
        self._had: defaultdict[str, float] = defaultdict(float)
        """Seconds."""
        self._level = 0.0
        """What the last to get a turn had had: nobody saves up time by not asking for it."""

    def ask(self, by: str) -> None:
        """Begins to wait, and did not before."""
        self._had[by] = max(self._had[by], self._level)

    def call(self, waiting: Iterable[str]) -> str:
        """One of those who wait; there is one. Of equals the first."""
        by = min(waiting, key=self._had.__getitem__)
        self._level = self._had[by]
        return by

    def charge(self, by: str, seconds: float) -> None:
        """So long was its turn."""
        self._had[by] += seconds
