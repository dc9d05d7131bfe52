"""Where a request stands in line, said once for all laws, and not as the product says it."""

from specialist.request import Request

LONGEST = 30.0
"""Seconds after which equals who come later stand behind it, whatever their hurry."""


def place_of(request: Request, index: int) -> tuple[float, ...]:
    """Class, then hurry, then arrival, then order of submission. Smaller is served first."""
    due = request.arrival + LONGEST
    if request.deadline is not None and request.deadline < due:
        due = request.deadline
    return (-request.priority, due, request.arrival, index)
