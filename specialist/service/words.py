"""What a service needs of a model's vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from specialist.text.message import Message
from specialist.tools.calling import Calling
from specialist.tools.tool import Offer, Tool


class Detokenizer(Protocol):
    """One a request."""

    def push(self, tokens: Sequence[int]) -> str:
        """Whole characters only."""

    def finish(self) -> str: ...

    def spell(self, token: int) -> bytes:
        """What it writes by itself; nothing for a control token."""


class Words(Protocol):
    """Safe to use from several threads at once."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the model ends a text."""

    @property
    def vocab_size(self) -> int: ...

    def prompt(self, text: str) -> tuple[int, ...]:
        """Raises ValueError for text that this vocabulary cannot write."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Raises TemplateRefused."""

    def calling(self, offer: Offer) -> Calling:
        """How the model calls these tools. Raises NoTools, TemplateRefused."""

    def detokenizer(self, spoken: Mapping[int, str] | None = None) -> Detokenizer:
        """`spoken` are control tokens that write something after all."""

    def warm_up(self) -> None:
        """Do now what would be slow the first time."""

    def close(self) -> None: ...
