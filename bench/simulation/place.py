"""Where a request stands in line, said once for all laws, and not as the product says it."""

from specialist.request import Request

LONGEST = 30.0
"""Seconds after which equals who come later stand behind it, whatever their hurry."""


def place_of(request: Request, index: int) -> tuple[float, ...]:
    """Class, then hurry, then arrival, then order of submission. Smaller is served first."""
    due = request.arrival + LONGEST
    for deadline in (request.deadline, request.first_deadline):
        if deadline is not None and deadline < due:
            due = deadline
    return (-request.priority, due, request.arrival, index)
