"""Verifiers that need nobody's help."""

from router.verify.verdict import Verdict


class NonEmptyVerifier:
    """Something must have been said."""

    name = "non_empty"

    async def verify(self, question: str, answer: str) -> Verdict:
        is_said = any(character.isprintable() and not character.isspace() for character in answer)
        return Verdict("passed") if is_said else Verdict("failed", "there is nothing in it")

    async def close(self) -> None:
        """Nothing to end."""


class NoVerifier:
    """Nobody judges."""

    name = "none"

    async def verify(self, question: str, answer: str) -> Verdict:
        return Verdict("skipped", "its answers are not judged")

    async def close(self) -> None:
        """Nothing to end."""


class UnavailableVerifier:
    """Stands in for one that cannot work here, and says why."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    async def verify(self, question: str, answer: str) -> Verdict:
        return Verdict("unavailable", self._why)

    async def close(self) -> None:
        """Nothing to end."""
