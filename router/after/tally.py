"""How many answers were looked at again, since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    handed: int = 0
    judged: int = 0
    """Answers of which a verifier could tell whether they are right."""
    undecided: int = 0
    """Verifiers that had nothing to judge, or could not."""
    compared: int = 0
    unread: int = 0
    """Too long, or there was no room to keep them."""
    shed: int = 0
    """They waited, and newer ones came."""
    shed_shadows: int = 0
    """Those of them that a shadow had answered too."""
    failed: int = 0
    """A mistake of ours."""
