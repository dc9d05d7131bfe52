"""Stands where a grpc.aio.Channel would: calls to one place, over one connection at a time."""

import asyncio
import logging
import ssl
from dataclasses import dataclass

from grpc.aio import UsageError

from octet.rpc.http2.backoff import Backoff
from octet.rpc.http2.call import Call, UnaryCall
from octet.rpc.http2.connection import Connection
from octet.rpc.http2.dial import Unreachable, dial
from octet.rpc.http2.header_block import opening
from octet.rpc.http2.method import Method, Parse, Serialize
from octet.rpc.http2.place import Place
from octet.rpc.http2.status import unavailable

_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """What is taken of answers."""

    most_message: int
    """Bytes of one. A longer one ends its call as RESOURCE_EXHAUSTED."""
    lookahead: int
    """Bytes that the other side may send before somebody waits for them."""


class Channel:
    """Dials when it is first used, and again when it is used after its connection went away. While dialling has failed,
    calls fail at once, but for those that wait for it. Belongs to the event loop."""

    def __init__(self, address: str, reading: Reading, tls: ssl.SSLContext | None = None, authority: str = "") -> None:
        """`authority` is whose certificate is expected, where that is not plain from the address. Raises ValueError."""
        self._place = Place.of(address)
        self._reading = reading
        self._tls = tls
        self._name = authority or self._place.host
        self._authority = authority or (self._place.host if self._place.path else address)
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        """The one, and those that only finish what they have."""
        self._line: dict[Call, bool] = {}
        """Calls before there is a connection, and whether they stay when it cannot be had."""
        self._dialling: asyncio.Task[None] | None = None
        self._redial: asyncio.TimerHandle | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._down: str | None = None
        """Why the last dial failed, until one succeeds or is asked for anew."""
        self._closed = False

    def unary_stream(
        self, method: str, request_serializer: Serialize | None = None, response_deserializer: Parse | None = None
    ) -> Method:
        return self._method(Call, method, request_serializer, response_deserializer)

    def unary_unary(
        self, method: str, request_serializer: Serialize | None = None, response_deserializer: Parse | None = None
    ) -> Method:
        return self._method(UnaryCall, method, request_serializer, response_deserializer)

    def _method(self, kind: type[Call], path: str, serialize: Serialize | None, parse: Parse | None) -> Method:
        block = opening("http" if self._tls is None else "https", self._authority, path)
        return Method(self._start, kind, block, serialize, parse, self._reading.most_message, self._reading.lookahead)

    async def close(self) -> None:
        """Whoever still waits is cancelled."""
        self._closed = True
        for call in [*self._line]:
            call.cancel()
        await self._stop_dialling()
        closing = [*self._connections]
        for connection in closing:
            connection.close()
        if closing:
            await asyncio.wait([connection.closed for connection in closing], timeout=_CLOSING_SECONDS)

    async def _stop_dialling(self) -> None:
        if self._redial is not None:
            self._redial.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)

    def _start(self, call: Call, waits: bool) -> None:
        if self._closed:
            call.cancel()
            raise UsageError("the channel is closed")
        if self._connection is not None:
            self._connection.begin(call)
        elif not waits and self._is_down():
            call.end(unavailable(self._down or ""))
        else:
            self._line[call] = waits
            call.settle(self)
            self._dial_when_due()

    def _is_down(self) -> bool:
        """Who comes when nobody dials and it may be tried again, tries it again and waits for what comes of it."""
        if self._down is None:
            return False
        if self._dialling is None and asyncio.get_running_loop().time() >= self._not_before:
            self._down = None
            return False
        return True

    def leave(self, call: Call) -> None:
        self._line.pop(call, None)
        if not self._line and self._redial is not None:
            self._redial.cancel()
            self._redial = None

    def widen(self, call: Call) -> None:
        """Nothing comes to a call in line."""

    def _dial_when_due(self) -> None:
        if self._dialling is not None or self._redial is not None:
            return
        loop = asyncio.get_running_loop()
        seconds = self._not_before - loop.time()
        if seconds > 0:
            self._redial = loop.call_later(seconds, self._dial_now)
        else:
            self._dial_now()

    def _dial_now(self) -> None:
        self._redial = None
        self._dialling = asyncio.get_running_loop().create_task(self._dial(), name=f"dialling {self._authority}")

    async def _dial(self) -> None:
        try:
            connection = await dial(self._place, self._tls, self._name, self._make)
        except Exception as error:
            if not isinstance(error, Unreachable):
                _log.error("dialling %s failed", self._authority, exc_info=True)
            self._dialling = None
            self._failed(str(error))
        else:
            self._dialling = None
            self._made(connection)

    def _make(self) -> Connection:
        return Connection(asyncio.get_running_loop(), self._reading.lookahead, self._gone)

    def _made(self, connection: Connection) -> None:
        self._down = None
        self._not_before = 0.0
        self._backoff.reset()
        self._connection = connection
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        line, self._line = self._line, {}
        for call in line:
            connection.begin(call)

    def _failed(self, why: str) -> None:
        self._down = why
        self._not_before = asyncio.get_running_loop().time() + self._backoff.next()
        for call in [call for call, waits in self._line.items() if not waits]:
            del self._line[call]
            call.end(unavailable(why))
        if self._line:
            self._dial_when_due()

    def _gone(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
