"""An answer as it comes: server-sent events, from the first token on, in any dialect."""

import asyncio
from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.v1 import inference_pb2 as wire
from router.http.asking import Service, ask_all, while_there
from router.http.choice import Choice
from router.http.connection import abort
from router.http.dialect import Telling
from router.http.fault import Fault
from router.http.order import Order
from router.service.service import TraceHeaders

_SLACK_SECONDS = 1.0
"""The router's own watch over callers that read nothing comes first, and says so in the receipt."""
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class EventStream:
    """For one request. Nothing is sent before the first token: what fails until then has a status of its own."""

    def __init__(self, telling: Telling, scope: Scope, receive: Receive, send: Send, stall: float) -> None:
        """A caller that takes nothing for `stall` seconds is let go."""
        self._telling = telling
        self._scope = scope
        self._receive = receive
        self._send = send
        self._patience = stall + _SLACK_SECONDS
        self._is_open = False

    async def run(self, service: Service, order: Order, choices: Sequence[Choice], trace: TraceHeaders) -> None:
        """Raises Fault while nothing has been sent."""
        try:
            await while_there(self._receive, ask_all(service, order, choices, trace, self._told))
            await self._write(self._telling.ending(), more=False)
        except Fault as fault:
            if not self._is_open:
                raise
            await self._fail(fault)
        except (CallerGone, TimeoutError):
            await abort(self._scope, self._receive)

    async def _told(self, choice: Choice, event: wire.InferEvent) -> None:
        told = self._telling.told(choice, event)
        if not told:
            return
        if not self._is_open:
            self._is_open = True
            headers = [*_HEADERS, (b"x-octet-specialist", choice.specialist.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(told, more=True)

    async def _fail(self, fault: Fault) -> None:
        """What was said stands."""
        if fault.code == "caller_stalled":
            await abort(self._scope, self._receive)
            return
        try:
            await self._write(self._telling.failed(fault), more=False)
        except TimeoutError:
            await abort(self._scope, self._receive)

    async def _write(self, body: bytes, *, more: bool) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(self._patience):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
