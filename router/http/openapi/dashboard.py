"""The operators' page: files for a browser."""

from collections.abc import Mapping
from typing import Any

from router.http.openapi.answers import refusals
from router.http.openapi.shapes import TEXT

_FILE = {
    "200": {"description": "it", "content": {kind: {} for kind in ("text/html", "text/css", "text/javascript")}},
    "304": {"description": "the browser has it"},
}
PATHS: Mapping[str, Any] = {
    "/dashboard": {
        "get": {
            "operationId": "dashboard",
            "summary": "the operators' page, which holds no data",
            "security": [],
            "responses": _FILE | refusals((405, 500)),
        }
    },
    "/dashboard/{file}": {
        "get": {
            "operationId": "dashboardFile",
            "summary": "a file of the page",
            "security": [],
            "parameters": [{"name": "file", "in": "path", "required": True, "schema": TEXT}],
            "responses": _FILE | {"307": {"description": "without a name: the page"}} | refusals((404, 405, 500)),
        }
    },
}
