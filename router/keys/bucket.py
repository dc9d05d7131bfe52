"""So much a minute, and as much at once."""

_MINUTE = 60.0
_NOTHING = 1e-6
"""Sums of floats may miss what they are to be by less."""


class Bucket:
    """Holds what may be had now. It may be overdrawn: who took more than there was waits until it is paid back."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Below 0 for a debt."""
        filled = self._level + (now - self._at) * self._per_minute / _MINUTE
        return min(float(self._per_minute), filled)

    def wait(self, now: float) -> float:
        """Seconds until there is one to be had; 0 where there is."""
        lacking = 1.0 - self.level(now)
        return lacking * _MINUTE / self._per_minute if lacking > _NOTHING else 0.0

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount
        self._at = now

    def resized(self, per_minute: int, now: float) -> "Bucket":
        """What has been had already counts on."""
        other = Bucket(per_minute, now)
        other.take(self._per_minute - self.level(now), now)
        return other
