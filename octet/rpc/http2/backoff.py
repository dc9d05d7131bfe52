"""How long it is until the next dial, after so many that have failed."""

from random import uniform

_FIRST_SECONDS = 0.1
_MOST_SECONDS = 0.5
_FACTOR = 1.6
_JITTER = 0.2


class Backoff:
    """Somebody who is back is noticed before those who wait for it give up."""

    def __init__(self) -> None:
        self._seconds = _FIRST_SECONDS

    def next(self) -> float:
        seconds = self._seconds
        self._seconds = min(seconds * _FACTOR, _MOST_SECONDS)
        return seconds * uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        self._seconds = _FIRST_SECONDS
