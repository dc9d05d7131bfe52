"""Calls for whoever only looks: everything at a glance, now, as it changes, and how it came to be so."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from octet.rpc.calls import Context, relaying, unary
from octet.v1 import operator_pb2 as wire
from router.operator.limits import CHECKS, REQUEST_BYTES
from router.reception.standing import current_standing
from router.view.view import View


class Glance:
    """Belongs to the event loop."""

    def __init__(self, view: View, send: Callable[[Context, Message | bytes], Awaitable[None]]) -> None:
        """`send` gives up on who takes nothing."""
        self._view = view
        self._send = send

    def handlers(self) -> Mapping[str, Any]:
        return {
            "GetOverview": unary(wire.GetOverviewRequest, wire.Overview, self._get, REQUEST_BYTES),
            "WatchOverview": relaying(wire.WatchOverviewRequest, self._watch, REQUEST_BYTES),
            "GetHistory": unary(wire.GetHistoryRequest, wire.History, self._history, REQUEST_BYTES),
        }

    async def _get(self, _: wire.GetOverviewRequest) -> wire.Overview:
        return self._view.now().overview

    async def _watch(self, _: wire.WatchOverviewRequest, context: Context) -> None:
        known = current_standing()
        async with aclosing(self._view.follow()) as frames:
            while True:
                frame = await known.while_known(lambda: anext(frames))
                await self._send(context, frame.raw)

    async def _history(self, ask: wire.GetHistoryRequest) -> wire.History:
        seconds = CHECKS.in_range("last_seconds", ask.last_seconds)
        return self._view.history.message(self._view.since_ms(seconds))
