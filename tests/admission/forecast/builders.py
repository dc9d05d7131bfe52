"""Admission controllers and bookings with defaults for every field that a test does not set."""

from dataclasses import replace
from typing import Any

from admission.forecast.bookings import Admit, Booking, ReplicaCapacity
from admission.forecast.controller import AdmissionController
from admission.forecast.estimates import Estimator, StepPace, StepPrices

PRICES = StepPrices(0.002, 0.003, 0.0, 0.004, 0.0025, 0.0)
ROOM = ReplicaCapacity(max_running=4, max_waiting=8, num_blocks=512, block_size=16, headroom=25)
_PLAIN = Booking("plain", 0, 0.0, None, prompt_tokens=10, hit_tokens=0, max_tokens=20, exact=True)


def booking(key: str, **fields: Any) -> Booking:
    return replace(_PLAIN, key=key, **fields)


def new_controller(prices: StepPrices | None = PRICES, **room: Any) -> AdmissionController:
    return AdmissionController(replace(ROOM, **room), Estimator(prices), StepPace(32))


def admit_all(controller: AdmissionController, *bookings: Booking, now: float = 0.0) -> None:
    for each in bookings:
        verdict = controller.decide(each, now)
        assert isinstance(verdict, Admit), verdict
        controller.book(each, verdict, now)


def run_at_once(controller: AdmissionController, *keys: str) -> None:
    """Report to the controller that the requests have started and generated their first token."""
    for key in keys:
        entry = controller.bookings.get(key)
        assert entry is not None
        controller.report_started(key, entry.booking.prompt_tokens, 0)
        controller.report_tokens(key, 1, 0.0)
