"""An answer as it comes: server-sent events, from the first token on, in any dialect."""

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
from router.http.outlet import Outlet
from router.service.service import TraceHeaders

SLACK_SECONDS = 1.0
"""The router's own watch over callers that read nothing comes first, and says so in the receipt."""


class EventStream:
    """For one request. Nothing is sent before the first token: what fails until then has a status of its own."""

    def __init__(self, telling: Telling, scope: Scope, receive: Receive, send: Send, stall: float) -> None:
        """A caller that takes nothing for `stall` seconds is let go."""
        self._telling = telling
        self._scope = scope
        self._receive = receive
        self._outlet = Outlet(scope, send, stall + SLACK_SECONDS)

    async def run(self, service: Service, order: Order, choices: Sequence[Choice], trace: TraceHeaders) -> None:
        """Raises Fault while nothing has been sent."""
        try:
            await while_there(self._receive, ask_all(service, order, choices, trace, self._told))
            await self._outlet.end(self._telling.ending())
        except Fault as fault:
            if not self._outlet.is_open:
                raise
            await last_event(self._telling.failed(fault), fault, self._outlet, self._scope, self._receive)
        except (CallerGone, TimeoutError):
            await abort(self._scope, self._receive)

    async def _told(self, choice: Choice, event: wire.InferEvent) -> None:
        told = self._telling.told(choice, event)
        if told:
            await self._outlet.say(told, {"x-octet-specialist": choice.specialist})


async def last_event(event: bytes, fault: Fault, outlet: Outlet, scope: Scope, receive: Receive) -> None:
    """What was said stands, and nobody takes it for the whole."""
    if fault.code == "caller_stalled":
        await abort(scope, receive)
        return
    try:
        await outlet.end(event)
    except TimeoutError:
        await abort(scope, receive)
