"""What became of one ask."""

from dataclasses import dataclass
from typing import Literal, Protocol

from bench.serving.asks import Ask

End = Literal["answered", "refused", "expired", "failed"]
"""Refused: told that there is no room. Expired: ended at its deadline, by the endpoint or by the caller."""


@dataclass(frozen=True, slots=True)
class Answer:
    ask: Ask
    end: End
    pieces: tuple[float, ...] = ()
    """When each piece of text came, in seconds since the ask was due."""
    total: float = 0.0
    """Seconds since it was due, when its end was known."""
    tokens: int = 0
    """As the endpoint counts them; where it does not, the pieces."""
    prompt_tokens: int | None = None
    why: str = ""
    retry_after: bool = False
    """Whether the refusal said when to come again."""
    behind: float = 0.0
    """Seconds after it was due that the load generator got to it."""

    @property
    def ttft(self) -> float | None:
        return self.pieces[0] if self.pieces else None

    @property
    def good(self) -> bool:
        """Whole, and within both deadlines of its class."""
        caller = self.ask.caller
        ttft = self.ttft
        return self.end == "answered" and ttft is not None and ttft <= caller.ttft and self.total <= caller.total


class Caller(Protocol):
    """Asks an endpoint. Belongs to the event loop."""

    async def ask(self, ask: Ask, due: float) -> Answer:
        """`due` is on the performance counter. Whatever goes wrong is an answer that failed."""
        ...

    async def check(self) -> str:
        """Asks once before anything is measured, and learns how tokens are counted. What is to be noted of it.

        Raises ServeMistake where no load would make sense."""
        ...

    async def close(self) -> None: ...
