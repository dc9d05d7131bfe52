"""All choices of one order, asked for at once: all of them are answered, or none."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from octet.rpc.calls import CallerGone
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.dispatch.relay import Write
from router.http.choice import Choice, partials
from router.http.connection import gone
from router.http.fault import Fault, fault_of
from router.http.order import Order
from router.reception.trace import HEADER, STATE
from router.service.service import TraceHeaders

_ResultT = TypeVar("_ResultT")
_WATCH_AFTER = 0.01
"""Seconds. Beginning to watch takes time that the request itself needs first, and who is gone stays gone."""
Told = Callable[[Choice, wire.InferEvent], Awaitable[None]]
"""Hears every event of every choice, which has heard it before."""


class Service(Protocol):
    """Where all requests go, whatever door they come through."""

    def answer(
        self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders, write: Write
    ) -> Coroutine[Any, Any, None]: ...

    def count(
        self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders
    ) -> Coroutine[Any, Any, wire.CountResponse]: ...


def trace_of(request: Request) -> TraceHeaders:
    return request.headers.get(HEADER), ",".join(request.headers.getlist(STATE))


async def ask_all(service: Service, order: Order, choices: Sequence[Choice], trace: TraceHeaders, told: Told) -> None:
    """Returns when all have ended well. Raises CallerGone, and Fault for the first that has not; the others end."""
    if len(order.requests) == 1:
        with _as_fault(order, choices):
            await _ask(service, order.requests[0], choices[0], trace, told)
        return
    tasks = [
        asyncio.create_task(_ask(service, request, choice, trace, told))
        for request, choice in zip(order.requests, choices, strict=True)
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        with _as_fault(order, choices):
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        await _end(tasks)


async def ask_count(service: Service, order: Order, trace: TraceHeaders) -> wire.CountResponse:
    """Of an order for one choice: the tokens of its prompt. Raises CallerGone, Fault."""
    (request,) = order.requests
    with _as_fault(order, ()):
        return await service.count(request, None, trace)


async def while_there(receive: Receive, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """What the work returns or raises. It ends when the caller goes: CallerGone."""
    watch = _Watch(receive)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.is_gone and watch.is_alone:
            raise CallerGone from None
        raise
    finally:
        watch.end()


class _Watch:
    """Over the caller of the task that begins it: the task is cancelled when the caller goes."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered by a task")
        self._task: asyncio.Task[Any] = task
        self._num_cancels = task.cancelling()
        self.is_gone = False
        self._watching: asyncio.Task[None] | None = None
        self._beginning = asyncio.get_running_loop().call_later(_WATCH_AFTER, self._begin, receive)

    @property
    def is_alone(self) -> bool:
        """Nobody else wants the task to end."""
        return self._task.cancelling() == self._num_cancels + 1

    def end(self) -> None:
        self._beginning.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self.is_gone:
            self._task.uncancel()

    def _begin(self, receive: Receive) -> None:
        self._watching = asyncio.create_task(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        await gone(receive)
        self.is_gone = True
        self._task.cancel()


async def _ask(service: Service, request: wire.InferRequest, choice: Choice, trace: TraceHeaders, told: Told) -> None:
    await service.answer(request, None, trace, partial(_hear, choice, told))


async def _hear(choice: Choice, told: Told, raw: bytes) -> None:
    event = wire.InferEvent.FromString(raw)
    kind = event.WhichOneof("event")
    if kind == "chunk":
        choice.hear(event.chunk)
    elif kind == "routed":
        choice.routed = event.routed
    else:
        choice.receipt = event.receipt
    await told(choice, event)


@contextmanager
def _as_fault(order: Order, choices: Sequence[Choice]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        fault: Fault = fault_of(refusal, order.names())
        fault.partial = partials(choices)
        raise fault from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallerGone from None  # by nobody here: whoever answers it was ended


async def _end(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
