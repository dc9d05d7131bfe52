"""One call, as its caller has it in hand."""

import asyncio
import logging
from collections.abc import Callable, Generator
from math import inf
from typing import Any, Protocol, Self

import grpc
from grpc.aio import EOF, AioRpcError

from octet.rpc.http2 import header_block
from octet.rpc.http2.inbox import Inbox
from octet.rpc.http2.static_table import Headers
from octet.rpc.http2.status import OK, PAST_DEADLINE, Status

_log = logging.getLogger(__name__)
_UNREADABLE = Status(grpc.StatusCode.INTERNAL, "the answer cannot be read")
_NO_ANSWER = Status(grpc.StatusCode.INTERNAL, "it ended well, and without an answer")
_TWO_ANSWERS = Status(grpc.StatusCode.INTERNAL, "there is more than one answer")


class Home(Protocol):
    """Where a call is: in line, or on a connection."""

    def leave(self, call: "Call") -> None:
        """Its caller wants no more of it."""

    def widen(self, call: "Call") -> None:
        """Its caller waits, and the other side may not send enough."""


class Call:
    """Ends once: with a status from the other side, at its deadline, when the connection is lost, or when its caller
    cancels it. What has come before its end is read before its end is told, but for a caller who has cancelled it.

    Whoever makes one reads to the end or cancels it: nobody else does. One task reads at a time."""

    __slots__ = (
        "_block",
        "_cancelled",
        "_deadline",
        "_home",
        "_loop",
        "_low",
        "_message",
        "_parse",
        "_status",
        "_timer",
        "_wake",
        "credit",
        "inbox",
        "initial",
        "lookahead",
        "num_refused",
        "stream",
        "unsent",
        "window",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        block: bytes,
        message: bytes,
        timeout: float | None,
        parse: Callable[[bytes], Any] | None,
        most_message: int,
        lookahead: int,
    ) -> None:
        """`block` has its headers, but for the deadline; `message` is framed. `lookahead` is how much the other side
        may send before somebody waits for it."""
        self._loop = loop
        self._block = block
        self._parse = parse
        self._home: Home | None = None
        self._status: Status | None = None
        self._cancelled = False
        self._wake: asyncio.Future[None] | None = None
        self.stream = 0
        """0 until it is on a connection."""
        self._message = message
        self.unsent: bytes | memoryview = message
        self.credit = 0
        """What the other side lets it send beyond a call that begins; less than nothing once it has sent more."""
        self.num_refused = 0
        """How often the other side would not begin it."""
        self.inbox = Inbox(most_message)
        self.lookahead = self.window = lookahead
        """What the other side may still send."""
        self._low = lookahead // 2
        self.initial: Headers | None = None
        self._deadline = inf
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._deadline = loop.time() + timeout
            self._timer = loop.call_later(max(0.0, timeout), self._expire)

    @property
    def is_over(self) -> bool:
        return self._status is not None or self._cancelled

    def headers(self) -> bytes:
        """As they are now."""
        if self._timer is None:
            return self._block
        return self._block + header_block.deadline(self._deadline - self._loop.time())

    def settle(self, home: Home) -> None:
        self._home = home

    def greeted(self, headers: Headers) -> None:
        """The other side has begun it."""
        self.initial = headers
        self._message = b""

    def put_back(self) -> None:
        """As if it had never been sent."""
        self.num_refused += 1
        self.stream = 0
        self.window = self.lookahead
        self.credit = 0
        self.unsent = self._message

    def arrived(self) -> None:
        """Its inbox or its window has changed."""
        wake = self._wake
        if wake is None:
            return
        if self.inbox.messages:
            self._wake = None
            if not wake.done():
                wake.set_result(None)
        else:
            self._ask_for_enough()

    def end(self, status: Status) -> None:
        """Where it was, it is no more."""
        if not self.is_over:
            self._status = status
            self._over()

    def cancel(self) -> bool:
        """False when it was over already."""
        if self.is_over:
            return False
        self._cancelled = True
        self.inbox.messages.clear()
        self._withdraw()
        self._over()
        return True

    def _expire(self) -> None:
        if not self.is_over:
            self._status = PAST_DEADLINE
            self._withdraw()
            self._over()

    def _withdraw(self) -> None:
        if self._home is not None:
            self._home.leave(self)

    def _over(self) -> None:
        self._home = None
        self.unsent = self._message = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def read(self) -> Any:
        """The next message, or EOF behind the last one. Raises AioRpcError, CancelledError."""
        messages = self.inbox.messages
        while not messages:
            if self._status is not None or self._cancelled:
                return self._told_end()
            self._ask_for_enough()
            wake = self._wake = self._loop.create_future()
            try:
                await wake
            except asyncio.CancelledError:
                self._wake = None
                self.cancel()
                raise
        raw = messages.popleft()
        return self._parsed(raw)

    def _ask_for_enough(self) -> None:
        """For somebody who waits: of a message that is longer, all of it."""
        if (self.window < self._low or self.window < self.inbox.num_missing) and self._home is not None:
            self._home.widen(self)

    def _told_end(self) -> Any:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._status is OK:
            return EOF
        raise self._error(self._status or _NO_ANSWER)

    def _parsed(self, raw: bytes) -> Any:
        if self._parse is None:
            return raw
        try:
            return self._parse(raw)
        except Exception:
            _log.warning("an answer of %d bytes cannot be read", len(raw), exc_info=True)
            self.cancel()
            raise self._error(_UNREADABLE) from None

    def _error(self, status: Status) -> AioRpcError:
        return status.error(self.initial or ())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message


class UnaryCall(Call):
    """With one answer, which is awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            raise self._error(_NO_ANSWER)
        if await self.read() is not EOF:
            self.cancel()
            raise self._error(_TWO_ANSWERS)
        return answer
