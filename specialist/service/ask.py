"""A request that has been checked: every value is in range, nothing has been looked up or tokenised yet."""

from dataclasses import dataclass
from typing import NamedTuple

from specialist.guide.structure import Structure
from specialist.sampling import Sampling
from specialist.text.message import Message
from specialist.tools.tool import NOTHING, Offer, Tool


class TokenPrompt(NamedTuple):
    ids: tuple[int, ...]


class ChatPrompt(NamedTuple):
    messages: tuple[Message, ...]
    offer: Offer = NOTHING

    @property
    def shown(self) -> tuple[Tool, ...]:
        """Tools that the model is told of."""
        return self.offer.tools if self.offer.is_open else ()

    @property
    def speaks_of_tools(self) -> bool:
        """The model's template has to carry them."""
        return self.offer.is_open or any(turn.tool_calls or turn.tool_call_id for turn in self.messages)


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
    first_timeout: float | None
    """Seconds to the first token."""
    tenant_salt: bytes
    session_key: bytes = b""
    shadow: bool = False
    """Nobody waits for the answer."""
    structure: Structure | None = None
