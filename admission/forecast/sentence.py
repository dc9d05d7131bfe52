"""A refusal's arithmetic, in words."""

from math import inf

from admission.forecast.verdict import Deadline


def own_part(tokens: float, *, first: bool) -> str:
    """What has to be done before the deadline, and its verb."""
    return "its first token takes" if first else f"its own {tokens:.0f} tokens take"


def unreachable(wait: float, own: float, what: str, due: str, *, alone: bool) -> str:
    if alone:
        return f"{what} {_seconds(own)} even alone; {due}"
    return f"{_seconds(wait)} of work are before it and {what} {_seconds(own)}; {due}"


def due_in(left: float, deadline: Deadline) -> str:
    if deadline == "first":
        return f"that is due in {_seconds(left)}" if left > 0 else "that was due before now"
    return f"its deadline is in {_seconds(left)}" if left > 0 else "its deadline has passed"


def would_delay(num_hurt: int, late: float) -> str:
    if num_hurt == 1:
        return f"1 request that was let in before would miss its deadline by {_seconds(late)}"
    return f"{num_hurt} requests that were let in before would miss their deadlines, the worst by {_seconds(late)}"


def _seconds(value: float) -> str:
    if value == inf:
        return "no end of time"
    return f"{value:.1f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"
