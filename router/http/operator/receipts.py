"""`/v1/receipts` and the story of one request."""

import asyncio
import json
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octet.rpc.plain import plain
from octet.rpc.refusal import Refusal
from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from router.http.fault import fault_of, wrong
from router.http.operator.query import whole
from router.operator.desk import Desk

_NAMES = {"most": "limit", "before_unix_ms": "before"}
_PRIVATE = {"cache-control": "no-store"}
_SLICE = 8
"""Receipts between two looks at what else waits: about a millisecond."""


def receipt_routes(desk: Desk) -> list[Route]:
    shelf = _Shelf(desk)
    return [
        Route("/v1/receipts", shelf.newest, methods=["GET"]),
        Route("/v1/receipts/{request_id}/story", shelf.story, methods=["GET"]),
        Route("/v1/story", shelf.story, methods=["GET"]),
    ]


class _Shelf:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def newest(self, request: Request) -> Response:
        given = request.query_params
        ask = wire.ListReceiptsRequest(
            most=whole(request, "limit"),
            before_unix_ms=whole(request, "before"),
            specialist=given.get("specialist", ""),
            outcome=given.get("outcome", ""),
            tenant=given.get("tenant", ""),
        )
        try:
            with self._desk.readers.one():
                listed = await _listed(await self._desk.receipts(ask))
        except Refusal as refusal:
            raise fault_of(refusal, _NAMES) from None
        return Response(listed, media_type="application/json", headers=_PRIVATE)

    async def story(self, request: Request) -> Response:
        """Callers name their requests as they like, and not every name can be a part of a path."""
        given = request.query_params
        request_id = request.path_params.get("request_id") or given.get("request_id", "")
        if not request_id:
            raise wrong("request_id", "the id of a request", "none")
        ask = wire.ExplainRequest(request_id=request_id, tenant=given.get("tenant", ""))
        try:
            with self._desk.readers.one():
                story = await self._desk.explain(ask)
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None
        return JSONResponse({**plain(story), "receipt": Receipt.from_wire(story.receipt).to_dict()}, headers=_PRIVATE)


async def _listed(raws: Sequence[bytes]) -> bytes:
    """Written piece by piece: hundreds at once would hold up everybody else's answers."""
    parts = []
    for number, raw in enumerate(raws):
        if number % _SLICE == 0:
            await asyncio.sleep(0)
        receipt = Receipt.from_wire(inference_pb2.Receipt.FromString(raw))
        parts.append(json.dumps(receipt.to_dict(), ensure_ascii=False, separators=(",", ":")))
    return f'{{"receipts":[{",".join(parts)}]}}'.encode()
