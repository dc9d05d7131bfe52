"""An answer as it comes: server-sent events, from the first token to `[DONE]`."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.v1 import inference_pb2 as wire
from router.http.asking import Service, ask_all, while_there
from router.http.choice import Choice
from router.http.connection import abort
from router.http.fault import Fault
from router.http.openai_objects import Objects
from router.http.order import Order
from router.service.service import TraceHeaders

_DONE = b"data: [DONE]\n\n"
_SLACK_SECONDS = 1.0
"""The router's own watch over callers that read nothing comes first, and says so in the receipt."""
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class EventStream:
    """For one request. Nothing is sent before the first token: what fails until then has a status of its own."""

    def __init__(
        self, order: Order, objects: Objects, scope: Scope, receive: Receive, send: Send, stall: float
    ) -> None:
        """A caller that takes nothing for `stall` seconds is let go."""
        self._order = order
        self._objects = objects
        self._scope = scope
        self._receive = receive
        self._send = send
        self._patience = stall + _SLACK_SECONDS
        self._choices = [Choice(index, keeps=False) for index in range(len(order.requests))]
        self._begun: set[int] = set()
        self._is_open = False

    async def run(self, service: Service, trace: TraceHeaders) -> None:
        """Raises Fault while nothing has been sent."""
        try:
            await while_there(self._receive, ask_all(service, self._order, self._choices, trace, self._told))
            await self._write(self._ending() + _DONE, more=False)
        except Fault as fault:
            if not self._is_open:
                raise
            await self._fail(fault)
        except (CallerGone, TimeoutError):
            await abort(self._scope, self._receive)

    async def _told(self, choice: Choice, event: wire.InferEvent) -> None:
        if event.HasField("chunk"):
            chunk = event.chunk
            if chunk.text or chunk.tool_calls or (self._order.logprobs and chunk.logprobs):
                await self._say(choice, [self._piece(choice, event.chunk)])
        elif event.HasField("receipt"):
            nothing = [] if choice.index in self._begun else [self._piece(choice, wire.Chunk())]
            await self._say(choice, [*nothing, self._last(choice)])

    def _piece(self, choice: Choice, chunk: wire.Chunk) -> Mapping[str, Any]:
        is_first = choice.index not in self._begun
        self._begun.add(choice.index)
        return self._objects.piece(choice, chunk, is_first=is_first)

    def _last(self, choice: Choice) -> Mapping[str, Any]:
        told = self._objects.last(choice)
        is_last = all(each.receipt is not None for each in self._choices) and not self._order.include_usage
        return {**told, **self._objects.own(self._choices)} if is_last else told

    def _ending(self) -> bytes:
        if not self._order.include_usage:
            return b""
        return _event({**self._objects.usage(self._choices), **self._objects.own(self._choices)})

    async def _say(self, choice: Choice, objects: list[Mapping[str, Any]]) -> None:
        if not self._is_open:
            self._is_open = True
            headers = [*_HEADERS, (b"x-octet-specialist", choice.specialist.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(b"".join(map(_event, objects)), more=True)

    async def _fail(self, fault: Fault) -> None:
        """What was said stands, and nobody takes it for the whole: there is no `[DONE]`."""
        if fault.code == "caller_stalled":
            await abort(self._scope, self._receive)
            return
        try:
            await self._write(_event(fault.envelope()), more=False)
        except TimeoutError:
            await abort(self._scope, self._receive)

    async def _write(self, body: bytes, *, more: bool) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(self._patience):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
