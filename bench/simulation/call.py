"""One call between two processes, with both of its ends: the caller's, and the context that a handler sees."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import copy_context
from math import inf
from typing import Any, TypeAlias

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from bench.simulation.heap_loop import HeapLoop
from bench.simulation.link import Link
from bench.simulation.port import Port
from bench.simulation.process import PROCESS, Process

Pairs: TypeAlias = tuple[tuple[str, str | bytes], ...]
WINDOW_BYTES = 64 << 10
"""What may be on its way or unread before a handler's writes wait."""
_LOSS_SECONDS = 1e-3
_OK = grpc.StatusCode.OK


class Aborted(Exception):
    """The handler has ended its call with a status."""


class OverAlready(Exception):
    """Nothing can be written to a call that is over."""


class Call:
    """Ends once: with a status from the other side, at its deadline, when the connection is lost, or when the caller
    cancels it. Whoever reads behind its end is told how it ended."""

    def __init__(
        self,
        loop: HeapLoop,
        link: Link,
        timeout: float | None,
        read_as: Callable[[bytes], Any] | None,
        gone: Callable[["Call"], None],
    ) -> None:
        """`gone` is called at its end."""
        self._loop = loop
        self._link = link
        self._process = PROCESS.get() or _nobody()
        self._read_as = read_as
        self._gone = gone
        self.deadline = inf if timeout is None else loop.time() + timeout
        self._messages: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._status: tuple[grpc.StatusCode, str, Pairs] | None = None
        self._cancelled = False
        self.handling: Handling | None = None
        self._timer = None if timeout is None else loop.call_later(max(0.0, timeout), self._expire)

    @property
    def is_over(self) -> bool:
        return self._status is not None or self._cancelled

    def begin(self, port: Port, process: Process, method: str, raw: bytes, metadata: Pairs) -> None:
        """It is sent."""
        self.handling = Handling(self._loop, self._link, self, process, self.deadline, metadata)
        self._link.send(process, lambda: self._handle(port, method, raw), back=False)

    def _handle(self, port: Port, method: str, raw: bytes) -> None:
        if self.handling is not None:
            self.handling.begin(port, method, raw)

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """From this side: the connection is lost, or there was none."""
        self.end(code, details, ())

    def arrived(self, raw: bytes) -> None:
        if not self.is_over:
            self._messages.append(raw)
            self._stir()

    def end(self, code: grpc.StatusCode, details: str, trailing: Pairs) -> None:
        if self.is_over:
            return
        self._status = (code, details, trailing)
        self._leave()

    def cancel(self) -> bool:
        if self.is_over:
            return False
        self._cancelled = True
        self._messages.clear()
        self._withdraw()
        self._leave()
        return True

    def _expire(self) -> None:
        self._withdraw()
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

    def _withdraw(self) -> None:
        """The other side hears that nobody waits any more."""
        if self.handling is not None and not self.is_ended:
            self._link.send(self.handling.process, self.handling.withdraw, back=False)

    @property
    def is_ended(self) -> bool:
        return self._status is not None

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._gone(self)
        self._stir()

    def _stir(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def read(self) -> Any:
        """Raises AioRpcError, CancelledError."""
        while not self._messages:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._status is not None:
                if self._status[0] is _OK:
                    return EOF
                raise self._error()
            self._wake = self._loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                self.cancel()
                raise
        raw = self._messages.popleft()
        if self.handling is not None:
            self.handling.taken(len(raw))
        return raw if self._read_as is None else self._read_as(raw)

    def _error(self) -> AioRpcError:
        code, details, trailing = self._status or (grpc.StatusCode.UNKNOWN, "", ())
        return AioRpcError(code, Metadata(), Metadata(*trailing), details=details)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def __await__(self) -> Generator[Any, None, Any]:
        return self._whole().__await__()

    async def _whole(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="no answer")
        if await self.read() is not EOF:
            raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="two answers")
        return answer


class Handling:
    """The other end: what a handler is given as its grpc.aio.ServicerContext."""

    def __init__(
        self, loop: HeapLoop, link: Link, call: Call, process: Process, deadline: float, metadata: Pairs
    ) -> None:
        self._loop = loop
        self._link = link
        self._call = call
        self._caller = PROCESS.get() or _nobody()
        self.process = process
        self._deadline = deadline
        self._metadata = metadata
        self._serialize: Callable[[Any], bytes] | None = None
        self._unread = 0
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def begin(self, port: Port, method: str, raw: bytes) -> None:
        if self._over:
            return
        handler = port.find(method)
        if handler is None:
            self._end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ())
            return
        self._serialize = handler.response_serializer
        if self._deadline < inf:
            self._timer = self._loop.call_at(self._deadline, self.withdraw)
        context = copy_context()
        self._task = self._loop.create_task(self._serve(handler, raw), name=method, context=context)

    def withdraw(self) -> None:
        """The caller is gone: the handler is cancelled wherever it waits."""
        self._over = True
        if self._task is not None:
            self._task.cancel()

    def lost(self) -> None:
        """The connection is gone: whoever handles it hears that a moment later."""
        self._loop.call_later(_LOSS_SECONDS, self.withdraw, context=self.process.context)

    async def _serve(self, handler: Any, raw: bytes) -> None:
        ask = raw if handler.request_deserializer is None else handler.request_deserializer(raw)
        try:
            if handler.response_streaming:
                await handler.unary_stream(ask, self)
            else:
                await self.write(await handler.unary_unary(ask, self))
        except (Aborted, asyncio.CancelledError):
            self._over = True
        except Exception as error:
            self._end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        else:
            self._end(_OK, "", ())
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, code: grpc.StatusCode, details: str, trailing: Pairs) -> None:
        if not self._over:
            self._over = True
            self._link.send(self._caller, lambda: self._call.end(code, details, trailing), back=True)

    def time_remaining(self) -> float | None:
        return None if self._deadline == inf else max(0.0, self._deadline - self._loop.time())

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    async def send_initial_metadata(self, metadata: Pairs) -> None:
        """Nobody in here looks at it."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Pairs = ()) -> None:
        self._end(code, details, tuple(trailing_metadata))
        raise Aborted

    async def write(self, message: Any) -> None:
        if self._over:
            raise OverAlready
        raw = message if self._serialize is None else self._serialize(message)
        while self._unread and self._unread + len(raw) > WINDOW_BYTES:
            self._room = self._loop.create_future()
            await self._room
        self._unread += len(raw)
        self._link.send(self._caller, lambda: self._call.arrived(raw), back=True)

    def taken(self, num_bytes: int) -> None:
        """The caller has read so much. Windows are told at once."""
        self._unread -= num_bytes
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


_NOBODY: list[Process] = []


def _nobody() -> Process:
    """Whoever calls from outside of every process is always up."""
    if not _NOBODY:
        _NOBODY.append(Process("nobody"))
    return _NOBODY[0]
