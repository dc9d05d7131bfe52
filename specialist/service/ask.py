"""A request that has been checked: every value is in range, nothing has been looked up or tokenised yet."""

from dataclasses import dataclass
from typing import NamedTuple

from specialist.guide.structure import Structure
from specialist.sampling import Sampling
from specialist.text.message import Message


class TokenPrompt(NamedTuple):
    ids: tuple[int, ...]


class ChatPrompt(NamedTuple):
    messages: tuple[Message, ...]


Prompt = str | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Ask:
    request_id: str
    """The caller's; may be empty."""
    prompt: Prompt
    adapters: tuple[str, ...]
    sampling: Sampling
    seed: int | None
    max_tokens: int
    context: int
    """Tokens, prompt and answer together."""
    stop: tuple[str, ...]
    ignore_eos: bool
    priority: int
    timeout: float | None
    """Seconds."""
    tenant_salt: bytes
    session_key: bytes = b""
    shadow: bool = False
    """Nobody waits for the answer."""
    structure: Structure | None = None
