"""Conversations that keep their history between turns."""

import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from octet.client.answer import Answer, StreamBase
from octet.client.options import MessageDict, Options
from octet.client.receipts import Receipt

if TYPE_CHECKING:
    from octet.client.clients import AsyncStream, Stream  # noqa: F401  # named in quotes

_NOT_ALLOWED = {
    "messages": "a conversation has its own messages; add() appends a turn",
    "session": "a conversation has one session_id, which is set when it is created",
    "tools": "a conversation keeps only text; with tools, keep the messages yourself and pass them to infer()",
}
_StreamT = TypeVar("_StreamT", bound=StreamBase)


class ConversationBase(Generic[_StreamT]):
    """A conversation: each turn is sent with all turns before it. Run one turn at a time. A turn is kept once its
    answer is complete. A turn that fails or is cancelled is discarded; `add` can keep its partial answer. The history
    is never shortened, so the router refuses it once it is too long."""

    def __init__(
        self, client: Any, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> None:
        self._client = client
        self.session_id = os.urandom(16).hex() if session_id is None else session_id
        """The router prefers the replica that has earlier turns of this session in its cache."""
        self.system = system  # can be changed between turns
        self.options = _check_options(options)  # for all turns; a turn's own options override them
        self.receipt: Receipt | None = None  # the receipt of the last turn that was kept
        self._turns: list[MessageDict] = []

    @property
    def messages(self) -> tuple[MessageDict, ...]:
        """Return the whole history, starting with the system message if there is one."""
        first = () if self.system is None else (MessageDict(role="system", content=self.system),)
        return (*first, *self._turns)

    @property
    def num_turns(self) -> int:
        return len(self._turns) // 2

    def add(self, text: str, answer: str) -> None:
        """Append a turn from another source, or a turn with a partial answer."""
        self._turns += [MessageDict(role="user", content=text), MessageDict(role="assistant", content=answer)]

    def reset(self) -> None:
        """Start a new session with the same system message and options."""
        self._turns.clear()
        self.receipt = None
        self.session_id = os.urandom(16).hex()

    def _turn_options(self, text: str, options: Options) -> Options:
        messages = [*self.messages, MessageDict(role="user", content=text)]
        own = _check_options(options)
        return cast(Options, {**self.options, **own, "messages": messages, "session": self.session_id})

    def _keep(self, text: str, answer: str, receipt: Receipt) -> None:
        self.add(text, answer)
        self.receipt = receipt

    def stream(self, text: str, **options: Unpack[Options]) -> _StreamT:
        """Stream the answer; the turn is kept once the stream has been read to its end."""
        stream: _StreamT = self._client.stream(None, **self._turn_options(text, options))
        stream.on_complete(lambda answer, receipt: self._keep(text, answer, receipt))
        return stream


class Conversation(ConversationBase["Stream"]):
    """A conversation on a blocking client: `client.conversation(system="be brief").send("...")`, turn after turn."""

    def send(self, text: str, **options: Unpack[Options]) -> Answer:
        answer: Answer = self._client.infer(None, **self._turn_options(text, options))
        self._keep(text, answer.text, answer.receipt)
        return answer


class AsyncConversation(ConversationBase["AsyncStream"]):
    """Like `Conversation`, for asyncio."""

    async def send(self, text: str, **options: Unpack[Options]) -> Answer:
        answer: Answer = await self._client.infer(None, **self._turn_options(text, options))
        self._keep(text, answer.text, answer.receipt)
        return answer


def _check_options(options: Options) -> Options:
    for name, problem in _NOT_ALLOWED.items():
        if options.get(name) is not None:
            raise TypeError(f"{name} cannot be set here: {problem}")
    return options
