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
    working = asyncio.create_task(work)
    watching = asyncio.create_task(gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerGone
        return working.result()
    finally:
        await _end([working, watching])


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
        fault: Fault = fault_of(refusal, order.names)
        fault.partial = partials(choices)
        raise fault from None
    except asyncio.CancelledError:  # by nobody here: whoever answers it was ended
        raise CallerGone from None


async def _end(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
