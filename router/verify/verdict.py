"""What a verifier says of an answer, and what a verifier is."""

from dataclasses import dataclass
from typing import Literal, Protocol

Outcome = Literal["passed", "failed", "skipped", "unavailable"]
"""skipped: there is nothing in the answer to judge. unavailable: nobody could judge it, which says nothing about it."""

MOST_WHY = 300
"""Characters."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    why: str = ""
    """In a line, for people; at most `MOST_WHY` characters."""
    seconds: float = 0.0
    """By the clock, waiting for a turn not counted."""


class Verifier(Protocol):
    @property
    def name(self) -> str:
        """As the configuration has it."""
        ...

    async def verify(self, question: str, answer: str) -> Verdict:
        """Never raises but when it is cancelled, and always ends."""
        ...

    async def close(self) -> None:
        """Ends what it has running. It can be used again."""
        ...


def too_long(answer: str, most_bytes: int) -> str:
    """Why it is not judged; empty where it is."""
    return f"longer than {most_bytes} bytes" if len(answer.encode("utf-8", "replace")) > most_bytes else ""


def one_line(text: str) -> str:
    """Printable, and no longer than a `why` may be."""
    plain = " ".join(text[: 4 * MOST_WHY].split())
    printable = "".join(character if character.isprintable() else "?" for character in plain)
    return printable if len(printable) <= MOST_WHY else printable[: MOST_WHY - 1] + "…"
