"""What was counted in the last seconds, counted anew from the beginning every time."""


class Counted:
    """Whole seconds: one counts from its beginning on until it lies a span behind."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._all: list[tuple[int, bool]] = []

    def add(self, now: float, *, good: bool) -> None:
        self._all.append((int(now), good))

    def at(self, now: float) -> tuple[int, int]:
        """How many of them were good, and how many there were."""
        found = [good for second, good in self._all if now - self._span <= second <= now + self._span]
        return sum(found), len(found)
