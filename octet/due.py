"""Who is in a greater hurry: the order in which equals are served."""

MOST_SECONDS = 30.0
"""Nobody is overtaken by equals who come so much later: not who has more time, and not who has set no deadline."""


def earliest(*deadlines: float | None) -> float | None:
    """None where there is none."""
    return min((each for each in deadlines if each is not None), default=None)


def due(arrival: float, deadline: float | None) -> float:
    """When it counts as due. Among those without a deadline it is the order of arrival."""
    latest = arrival + MOST_SECONDS
    return latest if deadline is None else min(deadline, latest)


def is_pressed(arrival: float, deadline: float | None) -> bool:
    """Whether it came with so little time that it takes no turns with equals: in turns all of them would be late. A
    deadline that only bounds how long somebody hangs on presses nobody."""
    return deadline is not None and deadline < arrival + MOST_SECONDS
