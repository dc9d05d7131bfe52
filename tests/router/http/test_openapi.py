"""The OpenAPI document describes the server's behaviour exactly."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from starlette.routing import Route

from octet.config.ensemble import REJECT
from router.api.http.openapi import openapi_document
from router.api.keys.keys import ROUTE_ACCESS, Access
from router.routing.classifier.base import Distribution
from tests.later import Later
from tests.patience import PATIENCE
from tests.router.http.harness import running_http_router
from tests.specialist.server.harness import running_replica, sim

if TYPE_CHECKING:
    import schemathesis
else:
    schemathesis = Later("schemathesis")

DOCUMENT = openapi_document("0")
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
_NOT_ASKED = ("positive_data_acceptance", "negative_data_rejection", "missing_required_header", "ignored_auth")
"""Checks that are left out. A schema cannot express that two fields must agree, or that null means absent. Keys have
tests of their own."""
_ENDLESS = {("/v1/overview/events", "get")}
"""Endless streams, which have tests of their own."""
_PLACES = {"specialist": "writer", "replica": "writer-0"}
_WITHOUT_ADAPTERS = [f"/v1/lanes/{{specialist}}/{what}" for what in ("load", "refresh", "promote", "roll_back")]
"""Routes that the router of these tests refuses, because its replica loads no adapters."""


class _SureClassifier:
    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("writer", 0.9), (REJECT, 0.1)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, list[Route]]]:
    """Yield the URL of a server on its own event loop, and its routes."""
    result: list[Any] = []
    ready, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with (
            running_replica(sim()) as replica,
            running_http_router({"writer": [replica.address]}, opinions=_SureClassifier()) as fronted,
        ):
            result.extend((f"http://127.0.0.1:{fronted.port}", fronted.app.routes))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield result[0], result[1]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def schema(served: tuple[str, list[Route]]) -> Any:
    schemathesis.checks.load_all_checks()
    return schemathesis.openapi.from_url(f"{served[0]}/openapi.json")


def test_document_lists_exactly_the_routes(served: tuple[str, list[Route]]) -> None:
    table = {
        (route.path.replace(":path", ""), method.lower())
        for route in served[1]
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert table == set(OPERATIONS)


def test_routes_with_keys_document_key_errors() -> None:
    for route, access in ROUTE_ACCESS.items():
        for operation in DOCUMENT["paths"][route.replace(":path", "")].values():
            assert ({"401", "403", "429"} <= set(operation["responses"])) == (access is not Access.OPEN), route


@pytest.mark.parametrize(
    ("name", "fits", "misfits"),
    [
        ("Hold", {"hold": "open", "why": "x"}, [{"hold": None, "why": "x"}, {"hold": "open", "why": None}]),
        ("KnobSetting", {"name": "x", "value": 1, "why": "x"}, [{"name": None, "value": 1, "why": "x"}]),
        ("LaneLoad", {"path": "x", "why": "x", "name": None}, [{"path": None, "why": "x"}]),
        ("Structure", {"choice": ["x"]}, [{}, {"choice": []}, {"choice": None}, {"json_object": False}]),
        ("AnthropicToolChoice", {"type": "tool", "name": "x"}, [{"type": "tool"}, {"type": "any", "name": "x"}]),
        ("AnthropicToolChoice", {"type": "any", "name": None}, [{"type": "some"}]),
        ("ResponseFormat", {"type": "json_schema", "json_schema": {"name": "x"}}, [{"type": "json_schema"}]),
        ("ResponseFormat", {"type": "text"}, [{"type": "xml"}]),
    ],
)
def test_request_schemas_exclude_what_the_server_refuses(name: str, fits: Any, misfits: list[Any]) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(fits)
    assert not [each for each in misfits if validator.is_valid(each)]


def test_response_schemas_have_bounds_and_constant_fields() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("ChatCompletion", "Completion"):
        choices = schemas[name]["properties"]["choices"]
        assert (choices["minItems"], choices["maxItems"]) == (1, 8)
    assert schemas["Models"]["properties"]["data"]["minItems"] == 1
    constant = {"ChatAnswer": "refusal", "ChatLogprobs": "refusal", "CompletionLogprobs": "text_offset"}
    assert all(field in schemas[name]["required"] for name, field in constant.items())
    assert schemas["Answer"]["properties"]["partial"]["const"] is False


@pytest.mark.parametrize(
    "path", [path for path, methods in DOCUMENT["paths"].items() if "requestBody" in methods.get("post", {})]
)
def test_documented_examples_are_accepted(schema: Any, path: str) -> None:
    operation = schema[path]["POST"]
    example = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
    places = {
        each["name"]: _PLACES[each["name"]]
        for each in DOCUMENT["paths"][path]["post"].get("parameters", ())
        if each["in"] == "path"
    }
    case = operation.Case(body=example, media_type="application/json", path_parameters=places)
    response = case.call()
    if path == "/v1/embeddings":
        assert response.status_code == 404, "the sim engine computes none"
    else:
        assert response.status_code in ((422,) if path in _WITHOUT_ADAPTERS else (200, 202))
    case.validate_response(response)


_EXAMPLES = max(5, settings().max_examples // 4)
"""The number of examples for each operation."""


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("path", "method"), [each for each in OPERATIONS if each not in _ENDLESS])
def test_every_response_matches_the_document(schema: Any, path: str, method: str, mode: str) -> None:
    checks = [check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ not in _NOT_ASKED]

    @given(case=schema[path][method.upper()].as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=_EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    def law(case: Any) -> None:
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    statuses: Counter[int] = Counter()
    try:
        law()
    except Unsatisfiable:  # No request to this operation can be invalid.
        assert mode == "negative" and not statuses
        return
    assert statuses
