"""Everything at a glance."""

from collections.abc import Mapping
from typing import Any

from octet.v1 import overview_pb2
from router.http.openapi.answers import ALWAYS, events, refusals, whole
from router.http.openapi.messages import schemas_of
from router.http.openapi.shapes import Shape, named

_SECONDS: Shape = {"type": "string", "pattern": "^[0-9]{1,8}([.][0-9]{1,6})?$"}
PATHS: Mapping[str, Any] = {
    "/v1/overview": {
        "get": {
            "operationId": "getOverview",
            "summary": "what is wrong now, and how every specialist does; for operators",
            "responses": whole(named("Overview"), "as of now, or half a second ago") | refusals(ALWAYS),
        }
    },
    "/v1/overview/events": {
        "get": {
            "operationId": "watchOverview",
            "summary": "the history, then an overview for every change, at most twice a second; for operators",
            "responses": events("they have no end") | refusals(ALWAYS),
        }
    },
    "/v1/history": {
        "get": {
            "operationId": "getHistory",
            "summary": "the last hour of every specialist in points, as this router remembers it; for operators",
            "parameters": [{"name": "last_seconds", "in": "query", "schema": _SECONDS}],
            "responses": whole(named("History"), "oldest first") | refusals((*ALWAYS, 400)),
        }
    },
}
SCHEMAS: Mapping[str, Shape] = schemas_of(overview_pb2.Overview.DESCRIPTOR, overview_pb2.History.DESCRIPTOR)
