"""The verifier interface. `Verdict` is public: custom verifiers import it from here."""

from dataclasses import dataclass
from typing import Literal, Protocol

Outcome = Literal["passed", "failed", "skipped", "unavailable"]
"""skipped: the answer has nothing to verify. unavailable: the verifier could not run; the answer may still be right."""

MOST_WHY = 300  # characters


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    why: str = ""  # the reason, one line of at most `MOST_WHY` characters
    seconds: float = 0.0  # wall-clock duration, without waiting for a turn


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    cpu_seconds: float
    clock_seconds: float
    answer_bytes: int


class Verifier(Protocol):
    @property
    def name(self) -> str:
        """The name in the configuration."""

    async def verify(self, question: str, answer: str) -> Verdict:
        """Verify an answer. Raises no exception but CancelledError."""

    async def close(self) -> None:
        """End running processes. The verifier can be used again."""


def length_error(answer: str, most_bytes: int) -> str:
    """Return why the answer is too long to verify; empty if it is not too long."""
    return f"the answer exceeds {most_bytes} bytes" if len(answer.encode("utf-8", "replace")) > most_bytes else ""


def one_line(text: str) -> str:
    """Return the text as one printable line of at most `MOST_WHY` characters."""
    plain = " ".join(text[: 4 * MOST_WHY].split())
    printable = "".join(character if character.isprintable() else "?" for character in plain)
    return printable if len(printable) <= MOST_WHY else printable[: MOST_WHY - 1] + "…"
