"""A conversation with the ensemble: what was said is kept here, and said again with every turn."""

import os
from typing import TYPE_CHECKING, Unpack, cast

from octet.sdk.answer import Answer, Heard
from octet.sdk.options import Message, Options
from octet.sdk.receipt import Receipt

if TYPE_CHECKING:
    from octet.sdk.async_client import AsyncClient, AsyncStream
    from octet.sdk.client import Client, Stream

_NOT_HERE = {
    "messages": "a conversation has its own messages; add() puts a turn into it",
    "session": "a conversation has one session_id, which it is made with",
    "tools": "a conversation keeps words only; with tools, keep the messages yourself and give them to infer()",
}


class Talk:
    """What sync and async do alike. One turn at a time: a turn knows those that had ended when it began.

    A turn is kept when its answer is whole, and only then: one that fails, is cancelled or is left early leaves no
    trace, and can be asked again. Who wants to keep what came of it says so: `add(text, answer.text)`. It grows with
    every turn, until the router refuses it by name and limit.
    """

    def __init__(self, session_id: str | None, system: str | None, options: Options) -> None:
        self.session_id = os.urandom(16).hex() if session_id is None else session_id
        """Made once: the router sends every turn where the beginning is still in memory."""
        self.system = system
        """May be changed between turns."""
        self.options = _checked(options)
        """Of every turn; one turn's own come on top."""
        self.receipt: Receipt | None = None
        """Of the last turn that was kept."""
        self._turns: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of it, the system message first where there is one."""
        first = () if self.system is None else (Message(role="system", content=self.system),)
        return (*first, *self._turns)

    @property
    def num_turns(self) -> int:
        return len(self._turns) // 2

    def add(self, text: str, answer: str) -> None:
        """A turn that was said elsewhere, or one whose answer was cut short."""
        self._turns += [Message(role="user", content=text), Message(role="assistant", content=answer)]

    def reset(self) -> None:
        """A conversation of its own from here on, with the same system message and options."""
        self._turns.clear()
        self.receipt = None
        self.session_id = os.urandom(16).hex()

    def _asking(self, text: str, options: Options) -> Options:
        messages = [*self.messages, Message(role="user", content=text)]
        return cast(Options, {**self.options, **_checked(options), "messages": messages, "session": self.session_id})

    def _keep(self, text: str, answer: str, receipt: Receipt) -> None:
        self.add(text, answer)
        self.receipt = receipt

    def _keeping(self, text: str, answer: Heard) -> None:
        answer.when_whole(lambda whole: self._keep(text, whole.text, whole.receipt))


class Conversation(Talk):
    """`conversation = client.conversation(system="be brief")`, then `conversation.send("...")`, turn after turn."""

    def __init__(
        self, client: "Client", session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(session_id, system, options)
        self._client = client

    def send(self, text: str, **options: Unpack[Options]) -> Answer:
        """The whole answer at once."""
        answer = self._client.infer(None, **self._asking(text, options))
        self._keep(text, answer.text, answer.receipt)
        return answer

    def stream(self, text: str, **options: Unpack[Options]) -> "Stream":
        """The answer as it comes; read to its end, the turn is kept."""
        answer = self._client.stream(None, **self._asking(text, options))
        self._keeping(text, answer)
        return answer


class AsyncConversation(Talk):
    """The same, from a coroutine."""

    def __init__(
        self,
        client: "AsyncClient",
        session_id: str | None = None,
        system: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(session_id, system, options)
        self._client = client

    async def send(self, text: str, **options: Unpack[Options]) -> Answer:
        """The whole answer at once."""
        answer = await self._client.infer(None, **self._asking(text, options))
        self._keep(text, answer.text, answer.receipt)
        return answer

    def stream(self, text: str, **options: Unpack[Options]) -> "AsyncStream":
        """The answer as it comes; read to its end, the turn is kept."""
        answer = self._client.stream(None, **self._asking(text, options))
        self._keeping(text, answer)
        return answer


def _checked(options: Options) -> Options:
    for name, why in _NOT_HERE.items():
        if options.get(name) is not None:
            raise TypeError(f"{name}: {why}")
    return options
