"""OpenAI's Responses API: the endpoint that answers, and the routes for stored responses."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octet.limits import shorten
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.api.http import errors
from router.api.http import responses_requests as requests
from router.api.http.body import BodyReader
from router.api.http.completions import AnswerChoice, run_choices
from router.api.http.connection import ConnectionRoute, get_trace_headers, open_answer_stream, run_while_connected
from router.api.http.fields import parse_whole_number
from router.api.http.responses_answers import ResponseObject, ResponsesWriter
from router.request import current_caller
from router.serving import RequestServer
from router.store.responses import ResponseRow, ResponseTable, oldest_kept_ms
from router.store.rows import StoreUnavailable
from router.store.store import Store

T = TypeVar("T")
_log = logging.getLogger(__name__)
_STORE_SECONDS = 3.0  # an answer waits no longer for the store; then it is not stored
_MAX_REFERRED_BYTES = 16 << 20
_DEFAULT_LISTED, _MAX_LISTED = 20, 100
_NOT_STORED = "it was not stored, was deleted or has expired"
_NO_CANCEL = (
    "a response is answered while its caller is connected: close the connection to cancel it. "
    "POST /v1/jobs/{id}/cancel cancels background work"
)
_RESPONSE_ID = re.compile("resp_[0-9a-f]{32}")


class _StoredAnswer(Struct):
    output: list[requests.TurnItem]


class DeletedResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    object: str = "response"
    deleted: bool = True


class ResponseItemList(Struct, kw_only=True, forbid_unknown_fields=True):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


@dataclass(frozen=True)
class _Turn:
    """A request with what it continues. `kept` says whether its response is to be stored."""

    asked: requests.ResponsesRequest
    items: Sequence[requests.TurnItem]
    session: str
    kept: bool


@dataclass(frozen=True)
class ResponsesApi:
    _service: RequestServer
    _bodies: BodyReader
    _store: Store

    def routes(self) -> list[Route]:
        one = "/v1/responses/{response_id}"
        return [
            ConnectionRoute("/v1/responses", self.create, "POST"),
            Route(one, self._get_or_delete, methods=["GET", "DELETE"]),
            Route(f"{one}/input_items", self._list_input, methods=["GET"]),
            Route(f"{one}/cancel", self._cancel, methods=["POST"]),
        ]

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A stream starts with the first token, so that an earlier error gets its own HTTP status."""
        connection, request_id = Request(scope, receive), scope["request_id"]
        turn = await self._read_turn(await self._bodies.read_object(connection), request_id)
        request = requests.make_responses_request(turn.asked, request_id, turn.items, turn.session)
        choice = AnswerChoice(0, is_kept=not request.stream)
        writer = ResponsesWriter(turn.asked, request, choice, request_id, lambda: self._service.wall_ms() // 1000)
        writer.is_stored = turn.kept
        answer = partial(run_choices, self._service, request, [choice], get_trace_headers(connection))
        if not request.stream:

            async def collect(_: AnswerChoice, event: wire.InferEvent) -> None:
                if event.HasField("chunk"):
                    writer.add(event.chunk)

            async def work() -> ResponseObject:
                await answer(collect)
                return await self._finish(turn, writer)

            response = await run_while_connected(receive, work())
            headers = {"x-octet-specialist": choice.specialist}
            await errors.JsonResponse(response, headers=headers)(scope, receive, send)
            return
        stream = open_answer_stream(self._service, scope, receive, send)

        async def write(_: AnswerChoice, event: wire.InferEvent) -> None:
            events = b""
            if event.HasField("chunk"):
                events = writer.write_chunk(event.chunk)
            elif event.HasField("receipt"):
                events = writer.write_last_item()
            if events:
                await stream.send(events, {"x-octet-specialist": choice.specialist})

        async def write_all() -> None:
            await answer(write)
            await stream.end(writer.end(await self._finish(turn, writer)))

        await stream.run(write_all(), writer.fail)

    async def _read_turn(self, body: dict[str, Any], request_id: str) -> _Turn:
        asked = requests.read_responses_request(body)
        can_keep = self._store.limits.responses > 0
        if asked.store and not can_keep:
            raise errors.unsupported_field("store", "this router stores no responses (store.responses is 0)")
        kept = can_keep and asked.store is not False
        given = requests.input_items(asked)
        earlier: Sequence[requests.TurnItem] = ()
        session = f"resp_{request_id}" if kept and not (asked.user or asked.safety_identifier) else ""
        if asked.previous_response_id is not None:
            row = await self._find(asked.previous_response_id)
            if row is None:
                raise _unknown_previous(asked.previous_response_id)
            earlier, session = _read_conversation(row), row.session
        items = [*earlier, *await self._resolve(given)]
        return _Turn(asked, items, requests.session_key(asked) or session, kept)

    async def _resolve(self, items: Sequence[requests.TurnItem | requests.ItemReference]) -> list[requests.TurnItem]:
        """Replace references with the items of stored responses. Raises ApiError for an unknown item."""
        references = [item.id for item in items if isinstance(item, requests.ItemReference)]
        known: dict[str | None, requests.TurnItem] = {}
        if references:
            ids = dict.fromkeys(filter(None, map(requests.referenced_response, references)))
            mine = current_caller().tenant, self._since_ms()
            stored = await self._on_table(lambda table: table.find(list(ids), *mine, _MAX_REFERRED_BYTES))
            if stored is None:
                limit = f"an input whose references are to responses of at most {_MAX_REFERRED_BYTES:,} bytes in total"
                raise errors.invalid_field("input", limit, "more")
            for raw in stored:
                known |= {item.id: item for item in msgspec.json.decode(raw, type=_StoredAnswer).output}
        found: list[requests.TurnItem] = []
        for index, item in enumerate(items):
            if not isinstance(item, requests.ItemReference):
                found.append(item)
            elif item.id in known:
                found.append(known[item.id])
            else:
                raise _unknown_item(item.id, index)
        return found

    async def _finish(self, turn: _Turn, writer: ResponsesWriter) -> ResponseObject:
        """Store the response if it is to be kept, and return it. `store` in the response says whether it was stored."""
        response = writer.complete()
        if not turn.kept:
            return response
        row = ResponseRow(
            id=response.id,
            tenant=current_caller().tenant,
            created_ms=self._service.wall_ms(),
            session=turn.session,
            input=msgspec.json.encode(requests.number_items(turn.items, response.id)),
            response=msgspec.json.encode(response),
        )
        try:
            if row.num_bytes > self._store.limits.responses_bytes:
                raise StoreUnavailable("the response is larger than store.responses_bytes")
            async with asyncio.timeout(_STORE_SECONDS):
                await self._store.responses(lambda table: table.put(row))
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("the response %s was not stored: %s", response.id, error or f"{_STORE_SECONDS:g} s passed")
            response.store = False
        return response

    async def _get_or_delete(self, request: Request) -> Response:
        return await (self._delete(request) if request.method == "DELETE" else self._get(request))

    async def _get(self, request: Request) -> Response:
        if request.query_params.get("stream", "").lower() == "true":
            raise errors.unsupported_field("stream", "only a new response can be streamed")
        row = await self._get_row(request)
        return Response(row.response, media_type="application/json")

    async def _delete(self, request: Request) -> Response:
        response_id, tenant, since_ms = request.path_params["response_id"], current_caller().tenant, self._since_ms()
        is_id = _RESPONSE_ID.fullmatch(response_id) is not None
        if not is_id or not await self._on_table(lambda table: table.delete(response_id, tenant, since_ms)):
            raise _unknown_response(response_id)
        return errors.JsonResponse(DeletedResponse(id=response_id))

    async def _list_input(self, request: Request) -> Response:
        given = request.query_params
        order = given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise errors.invalid_field("order", "asc or desc", shorten(order))
        limit = parse_whole_number("limit", given.get("limit", str(_DEFAULT_LISTED)))
        if not 1 <= limit <= _MAX_LISTED:
            raise errors.invalid_field("limit", f"in [1, {_MAX_LISTED}]", str(limit))
        items: list[dict[str, Any]] = msgspec.json.decode((await self._get_row(request)).input)
        if order == "desc":
            items.reverse()
        after = given.get("after")
        if after is not None:
            places = [index for index, item in enumerate(items) if item["id"] == after]
            if not places:
                raise errors.invalid_field("after", "the id of an input item", shorten(after))
            items = items[places[0] + 1 :]
        page = items[:limit]
        ids = [item["id"] for item in page] or [None]
        more = len(items) > limit
        return errors.JsonResponse(ResponseItemList(data=page, first_id=ids[0], last_id=ids[-1], has_more=more))

    async def _cancel(self, request: Request) -> Response:
        raise errors.ApiError(400, _NO_CANCEL, param="response_id", code="unsupported_parameter")

    async def _get_row(self, request: Request) -> ResponseRow:
        response_id = request.path_params["response_id"]
        row = await self._find(response_id)
        if row is None:
            raise _unknown_response(response_id)
        return row

    async def _find(self, response_id: str) -> ResponseRow | None:
        if _RESPONSE_ID.fullmatch(response_id) is None:
            return None
        tenant, since_ms = current_caller().tenant, self._since_ms()
        return await self._on_table(lambda table: table.get(response_id, tenant, since_ms))

    def _since_ms(self) -> int:
        return oldest_kept_ms(self._store.limits, self._service.wall_ms())

    async def _on_table(self, call: Callable[[ResponseTable], T]) -> T:
        try:
            return await self._store.responses(call)
        except StoreUnavailable:
            message = "the store, which keeps responses, does not answer"  # does not reveal the address of the store
            raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, message) from None


def _read_conversation(row: ResponseRow) -> list[requests.TurnItem]:
    given = msgspec.json.decode(row.input, type=list[requests.TurnItem])
    return given + msgspec.json.decode(row.response, type=_StoredAnswer).output


def _unknown_previous(response_id: str) -> errors.ApiError:
    """Return OpenAI's error, which clients recognise by its code."""
    message = f"Previous response with id {shorten(response_id)} not found: {_NOT_STORED}"
    return errors.ApiError(400, message, param="previous_response_id", code="previous_response_not_found")


def _unknown_item(item_id: str, index: int) -> errors.ApiError:
    message = f"Item with id {shorten(item_id)} not found: its response is unknown, or {_NOT_STORED}"
    return errors.ApiError(400, message, param=f"input[{index}]", code="item_not_found")


def _unknown_response(response_id: str) -> errors.ApiError:
    message = f"Response with id {shorten(response_id)} not found: {_NOT_STORED}"
    return errors.ApiError(404, message, param="response_id", code="not_found")
