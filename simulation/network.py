"""The simulated network: links between processes, the ports that accept calls, and gRPC calls over them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, TypeAlias

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from simulation.event_loop import PROCESS, HeapLoop, Process

Arrive: TypeAlias = Callable[[], None]
Pairs: TypeAlias = tuple[tuple[str, str | bytes], ...]
Parse: TypeAlias = Callable[[bytes], Any]
KEEPALIVE_SECONDS = 15.0  # seconds after which both ends give up a cut connection
WINDOW_BYTES = 64 << 10  # bytes in flight or unread beyond which a handler's writes wait
_LOSS_SECONDS = 1e-3
_REFUSED_SECONDS = 1e-3
_FIRST_BACKOFF, _MOST_BACKOFF = 0.1, 0.5  # as configured for the router's channels
_OK = grpc.StatusCode.OK
_OUTSIDE = Process("outside")  # for callers that belong to no process: it is always up


@dataclass(frozen=True, slots=True)
class Delays:
    """One-way delays in seconds."""

    least: float = 2e-4
    most: float = 1.5e-3


class Link:
    """A connection that delivers messages in order in each direction."""

    def __init__(self, loop: HeapLoop, random: Random, delays: Delays | None = None) -> None:
        self._loop = loop
        self._random = random
        self._delays = delays or Delays()
        self.factor = 1.0  # factor on every delay
        self._cut: dict[bool, list[tuple[Process, Arrive]]] = {}  # messages sent while a direction is cut, by direction
        self._last = {False: 0.0, True: 0.0}
        self._giving_up: asyncio.TimerHandle | None = None
        self.on_loss: list[Callable[[], None]] = []  # called when the connection is given up

    @property
    def is_whole(self) -> bool:
        return not self._cut

    def send(self, to: Process, arrive: Arrive, *, back: bool) -> None:
        """Call `arrive` in the process `to` after a delay; while this direction is cut, keep the message."""
        if back in self._cut:
            self._cut[back].append((to, arrive))
            return
        seconds = self._random.uniform(self._delays.least, self._delays.most) * self.factor
        self._last[back] = max(self._loop.time() + seconds, self._last[back])
        self._loop.call_at(self._last[back], arrive, context=to.context)

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """Interrupt the link in the given directions. Messages in flight still arrive. The connection is lost after
        KEEPALIVE_SECONDS."""
        for direction, is_cut in ((False, there), (True, back)):
            if is_cut:
                self._cut.setdefault(direction, [])
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(KEEPALIVE_SECONDS, self._give_up)

    def mend(self) -> None:
        """Restore the link. Messages sent meanwhile arrive after the usual delay, unless the connection was lost."""
        held, self._cut = self._cut, {}
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        for back, sent in held.items():
            for to, arrive in sent:
                self.send(to, arrive, back=back)

    def lose(self) -> None:
        """Close the connection immediately and drop the messages that a cut has kept back."""
        for sent in self._cut.values():
            sent.clear()
        for lost in tuple(self.on_loss):
            lost()

    def _give_up(self) -> None:
        self._giving_up = None
        self.lose()


class Port:
    """Takes the place of a grpc.aio.Server."""

    def __init__(self) -> None:
        self._generic: list[Any] = []
        self._known: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Does nothing: `add_generic_rpc_handlers` gets the same handlers."""

    def find(self, method: str) -> Any:
        """Return the grpc.RpcMethodHandler; None if the method is not served."""
        if method not in self._known:
            details = SimpleNamespace(method=method, invocation_metadata=())
            found = (handler.service(details) for handler in self._generic)
            self._known[method] = next((each for each in found if each is not None), None)
        return self._known[method]


@dataclass(slots=True, eq=False)
class Address:
    """A network address. The process that listens there may end, and another may replace it."""

    process: Process | None = None
    port: Port | None = None

    def listen(self, process: Process, port: Port) -> None:
        self.process, self.port = process, port

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted. A stopped process still accepts them."""
        return self.process is not None and self.process.state != "dead"


class Aborted(Exception):
    """The handler has ended its call with a status."""


class CallEnded(Exception):
    """The call has ended, so nothing can be written to it."""


class Call:
    """A call that ends exactly once: with a status from the server, at its deadline, when the connection is lost, or
    when the caller cancels it. Later reads report the same end."""

    def __init__(
        self, loop: HeapLoop, link: Link, timeout: float | None, parse: Parse | None, on_end: Callable[["Call"], None]
    ) -> None:
        self._loop = loop
        self._link = link
        self._parse = parse
        self._on_end = on_end
        self._deadline = inf if timeout is None else loop.time() + timeout
        self._messages: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._status: tuple[grpc.StatusCode, str, Pairs] | None = None
        self._cancelled = False
        self.handling: Handling | None = None
        self._timer = None if timeout is None else loop.call_later(max(0.0, timeout), self._expire)

    @property
    def has_ended(self) -> bool:
        return self._status is not None or self._cancelled

    def begin(self, port: Port, process: Process, method: str, raw: bytes, metadata: Pairs) -> None:
        self.handling = handling = Handling(self._loop, self._link, self, process, self._deadline, metadata)
        self._link.send(process, lambda: handling.begin(port, method, raw), back=False)

    def receive(self, raw: bytes) -> None:
        if not self.has_ended:
            self._messages.append(raw)
            self._wake_reader()

    def end(self, code: grpc.StatusCode, details: str, trailing: Pairs = ()) -> None:
        if not self.has_ended:
            self._status = (code, details, trailing)
            self._leave()

    def cancel(self) -> bool:
        if self.has_ended:
            return False
        self._cancelled = True
        self._messages.clear()
        self._withdraw()
        self._leave()
        return True

    def _expire(self) -> None:
        self._withdraw()
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _withdraw(self) -> None:
        """Inform the server that the caller no longer waits."""
        if self.handling is not None and self._status is None:
            self._link.send(self.handling.process, self.handling.withdraw, back=False)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(self)
        self._wake_reader()

    def _wake_reader(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def read(self) -> Any:
        """Return the next message, or EOF. Raises AioRpcError or CancelledError if the call failed or was cancelled."""
        while not self._messages:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._status is not None:
                code, details, trailing = self._status
                if code is _OK:
                    return EOF
                raise AioRpcError(code, Metadata(), Metadata(*trailing), details=details)
            self._wake = self._loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                self.cancel()
                raise
        raw = self._messages.popleft()
        if self.handling is not None:
            self.handling.open_window(len(raw))
        return raw if self._parse is None else self._parse(raw)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def __await__(self) -> Generator[Any, None, Any]:
        return self._read_only_message().__await__()

    async def _read_only_message(self) -> Any:
        answer = await self.read()
        if answer is EOF:
            raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="no answer")
        if await self.read() is not EOF:
            raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="two answers")
        return answer


class Handling:
    """The server's end of a call: the grpc.aio.ServicerContext of a handler."""

    def __init__(
        self, loop: HeapLoop, link: Link, call: Call, process: Process, deadline: float, metadata: Pairs
    ) -> None:
        self._loop = loop
        self._link = link
        self._call = call
        self._caller = PROCESS.get() or _OUTSIDE
        self.process = process
        self._deadline = deadline
        self._metadata = metadata
        self._serialize: Callable[[Any], bytes] | None = None
        self._unread = 0
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def begin(self, port: Port, method: str, raw: bytes) -> None:
        if self._has_ended:
            return
        handler = port.find(method)
        if handler is None:
            self._end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self._serialize = handler.response_serializer
        if self._deadline < inf:
            self._timer = self._loop.call_at(self._deadline, self.withdraw)
        self._task = self._loop.create_task(self._serve(handler, raw), name=method, context=copy_context())

    def withdraw(self) -> None:
        """Cancel the handler, because the caller no longer waits."""
        self._has_ended = True
        if self._task is not None:
            self._task.cancel()

    def lose(self) -> None:
        """Cancel the handler soon, because the connection is gone."""
        self._loop.call_later(_LOSS_SECONDS, self.withdraw, context=self.process.context)

    async def _serve(self, handler: Any, raw: bytes) -> None:
        request = raw if handler.request_deserializer is None else handler.request_deserializer(raw)
        try:
            if handler.response_streaming:
                await handler.unary_stream(request, self)
            else:
                await self.write(await handler.unary_unary(request, self))
        except (Aborted, asyncio.CancelledError):
            self._has_ended = True
        except Exception as error:
            self._end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
        else:
            self._end(_OK, "")
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, code: grpc.StatusCode, details: str, trailing: Pairs = ()) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._link.send(self._caller, lambda: self._call.end(code, details, trailing), back=True)

    def time_remaining(self) -> float | None:
        return None if self._deadline == inf else max(0.0, self._deadline - self._loop.time())

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    async def send_initial_metadata(self, metadata: Pairs) -> None:
        """Does nothing: not used in a simulation."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Pairs = ()) -> None:
        self._end(code, details, tuple(trailing_metadata))
        raise Aborted

    async def write(self, message: Any) -> None:
        if self._has_ended:
            raise CallEnded
        raw = message if self._serialize is None else self._serialize(message)
        while self._unread and self._unread + len(raw) > WINDOW_BYTES:
            self._room = self._loop.create_future()
            await self._room
        self._unread += len(raw)
        self._link.send(self._caller, lambda: self._call.receive(raw), back=True)

    def open_window(self, num_bytes: int) -> None:
        """Record that the caller has read this many bytes, which opens the flow-control window immediately."""
        self._unread -= num_bytes
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


class Channel:
    def __init__(self, loop: HeapLoop, link: Link, address: Address, random: Random) -> None:
        self._loop = loop
        self._link = link
        self._address = address
        self._random = random
        self._open: dict[Call, None] = {}
        self._waiting: dict[Call, Callable[[], None]] = {}  # calls that wait for a connection
        self._dialling: asyncio.TimerHandle | None = None
        self._backoff = _FIRST_BACKOFF
        self._closed = False
        link.on_loss.append(self._lost)

    def stream(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        wait_for_ready: bool = False,
        parse: Parse | None = None,
    ) -> Call:
        call, pairs = Call(self._loop, self._link, timeout, parse, self._ended), tuple(metadata)
        self._open[call] = None
        if self._is_connected():
            self._send(call, method, request, pairs)
        elif wait_for_ready:
            self._waiting[call] = lambda: self._send(call, method, request, pairs)
            self._dial_later()
        else:
            self._loop.call_later(_REFUSED_SECONDS, call.end, grpc.StatusCode.UNAVAILABLE, "failed to connect")
        return call

    call = stream

    async def close(self) -> None:
        self._closed = True
        self._link.on_loss.remove(self._lost)
        for call in tuple(self._open):
            call.cancel()
        if self._dialling is not None:
            self._dialling.cancel()

    def _is_connected(self) -> bool:
        return self._address.is_open and self._link.is_whole

    def _send(self, call: Call, method: str, raw: bytes, metadata: Pairs) -> None:
        process, port = self._address.process, self._address.port
        if process is None or port is None:
            raise RuntimeError("no process listens at this address")
        call.begin(port, process, method, raw, metadata)

    def _dial_later(self) -> None:
        if self._dialling is None and not self._closed:
            seconds = self._backoff * (0.8 + 0.4 * self._random.random())
            self._dialling = self._loop.call_later(seconds, self._dial)

    def _dial(self) -> None:
        self._dialling = None
        if not self._is_connected():
            self._backoff = min(2 * self._backoff, _MOST_BACKOFF)
            if self._waiting:
                self._dial_later()
            return
        self._backoff = _FIRST_BACKOFF
        waiting, self._waiting = self._waiting, {}
        for send in waiting.values():
            send()

    def _ended(self, call: Call) -> None:
        self._open.pop(call, None)
        self._waiting.pop(call, None)

    def _lost(self) -> None:
        """Handle the loss of the connection: soon end the calls that were sent and cancel their handlers."""
        for call in tuple(self._open):
            if call.handling is not None:
                call.handling.lose()
                self._loop.call_later(
                    _REFUSED_SECONDS, call.end, grpc.StatusCode.UNAVAILABLE, "the connection was lost"
                )
