"""Desks and bookings with everything a test does not care about filled in."""

from dataclasses import replace
from typing import Any

from admission.forecast import Admit, Booking, Desk, Estimator, Prices, Room

PRICES = Prices(0.002, 0.003, 0.0, 0.004, 0.0025, 0.0)
ROOM = Room(max_running=4, max_waiting=8, num_blocks=512, block_size=16, headroom=25)
_PLAIN = Booking("plain", 0, 0.0, None, prompt_tokens=10, hit_tokens=0, max_tokens=20, exact=True)


def booking(key: str, **fields: Any) -> Booking:
    return replace(_PLAIN, key=key, **fields)


def new_desk(prices: Prices | None = PRICES, **room: Any) -> Desk:
    return Desk(replace(ROOM, **room), Estimator(prices), chunk=32)


def let_in(desk: Desk, *bookings: Booking, now: float = 0.0) -> None:
    for each in bookings:
        verdict = desk.ask(each, now)
        assert isinstance(verdict, Admit), verdict
        desk.enter(each, verdict, now)


def run_at_once(desk: Desk, *keys: str) -> None:
    """They have their seats, and their first token."""
    for key in keys:
        entry = desk.books.get(key)
        assert entry is not None
        desk.started(key, entry.booking.prompt_tokens, 0)
        desk.progressed(key, 1)
