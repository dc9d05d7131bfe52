"""When a caller that found no place should try again."""

from collections.abc import Callable

MOST_SECONDS = 30.0
_SPREAD = 0.5
"""Those who were refused together come back spread over so much more than the time itself."""


def retry_after(drain_rate: float | None, jitter: Callable[[], float]) -> float | None:
    """Seconds until a place should be free; None where nothing was measured. `jitter` draws from [0, 1)."""
    if drain_rate is None or drain_rate <= 0:
        return None
    return min(1 / drain_rate, MOST_SECONDS / (1 + _SPREAD)) * (1 + _SPREAD * jitter())
