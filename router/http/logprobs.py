"""Log probabilities as JSON can have them."""

from typing import Any

_IMPOSSIBLE = -9999.0
"""JSON has no infinity; OpenAI writes what cannot be as this."""


def finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)


def shown(piece: bytes) -> str:
    """A token may be a part of a character."""
    return piece.decode(errors="replace")


def token_told(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(piece), "logprob": finite(logprob)}
