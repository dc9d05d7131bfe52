"""Where an answer waits to be judged."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    verifier: str
    """By its name."""
    specialist: str
    """Whose answers are judged, and whose time it takes."""
