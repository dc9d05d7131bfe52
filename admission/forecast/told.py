"""What those of one class who were shed were told last."""

from typing import NamedTuple

from admission.forecast.booking import Booking

_MOST_KINDS = 512


class _Telling(NamedTuple):
    at: float
    seconds: float | None


class Told:
    """When to come back. Of too many classes all are forgotten."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, bool], _Telling] = {}

    def since(self, booking: Booking, now: float, within: float) -> _Telling | None:
        """None where nobody like it was told anything in the last `within` seconds."""
        last = self._last.get(_kind(booking))
        return last if last is not None and 0 <= now - last.at < within else None

    def note(self, booking: Booking, now: float, seconds: float | None) -> None:
        if len(self._last) >= _MOST_KINDS:
            self._last.clear()
        self._last[_kind(booking)] = _Telling(now, seconds)


def _kind(booking: Booking) -> tuple[int, bool]:
    return booking.priority, booking.deadline is not None or booking.first_deadline is not None
