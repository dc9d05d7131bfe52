"""What the desk knows of a request before it lets it in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Booking:
    key: str
    priority: int
    """Higher is served first."""
    arrival: float
    deadline: float | None
    """Of the whole answer."""
    prompt_tokens: int
    hit_tokens: int
    """Prompt tokens that need not be computed, as far as one can tell."""
    max_tokens: int
    exact: bool = False
    """The answer has `max_tokens` tokens and cannot end before."""
    shadow: bool = False
    adapters: tuple[str, ...] = ()
    shared_tokens: int = 0
    """Of the hit, those in blocks that somebody holds: they take no more room."""
    caller: str = ""
    """The same for whoever only asks again; empty where that is not known."""
    first_deadline: float | None = None
    """Of the first token."""
