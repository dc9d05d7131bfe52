"""Who changes something, and why: nothing is changed without."""

from dataclasses import dataclass

from octet.rpc.refusal import invalid, shorten

MOST_WHO = 64
MOST_WHY = 500
MACHINES = frozenset({"breaker", "escalation", "lanes", "configuration", "octet"})
"""Who changes things without being asked: nobody else signs so."""


@dataclass(frozen=True, slots=True)
class Signed:
    who: str
    why: str


def signed(who: str, why: str) -> Signed:
    """Raises Refusal."""
    name = _checked("change.who", who, MOST_WHO)
    if name.casefold() in MACHINES:
        raise invalid("change.who", f"a person's or a program's name, not one of {', '.join(sorted(MACHINES))}", name)
    return Signed(name, _checked("change.why", why, MOST_WHY))


def _checked(field: str, text: str, most: int) -> str:
    text = text.strip()
    if not 0 < len(text) <= most or not text.isprintable():
        raise invalid(field, f"1 to {most} printable characters", shorten(text))
    return text
