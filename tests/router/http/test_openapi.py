"""What the document says is what the door does."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from starlette.routing import Route

from router.classify.base import REJECT, Distribution
from router.http.openapi.document import document
from router.keys.access import ROUTES, Access
from router.reception.limits import Limits
from tests.later import Later
from tests.router.http.harness import fronting
from tests.service.harness import serving, sim

if TYPE_CHECKING:
    import schemathesis
else:
    schemathesis = Later("schemathesis")

DOCUMENT = document(Limits(), "0")
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
_NOT_ASKED = ("positive_data_acceptance", "negative_data_rejection", "missing_required_header", "ignored_auth")
"""A schema cannot say that fields agree with each other, nor that null is nothing; keys have laws of their own."""
_ENDLESS = {("/v1/overview/events", "get")}
"""Whoever waits for their end waits for ever; they have tests of their own."""
_PLACES = {"specialist": "writer", "replica": "writer-0"}
_WITHOUT_ADAPTERS = [f"/v1/lanes/{{specialist}}/{what}" for what in ("load", "promote", "roll_back")]
"""The replica here loads none, and says so."""


class _Sure:
    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("writer", 0.9), (REJECT, 0.1)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, list[Route]]]:
    """The URL of a door on a loop of its own, and its table."""
    told: list[Any] = []
    ready, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(sim()) as replica, fronting({"writer": [replica.address]}, opinions=_Sure()) as fronted:
            told.extend((f"http://127.0.0.1:{fronted.port}", fronted.app.routes))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield told[0], told[1]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def schema(served: tuple[str, list[Route]]) -> Any:
    schemathesis.checks.load_all_checks()
    return schemathesis.openapi.from_url(f"{served[0]}/openapi.json")


def test_every_route_is_in_the_document_and_nothing_else(served: tuple[str, list[Route]]) -> None:
    table = {
        (route.path.replace(":path", ""), method.lower())
        for route in served[1]
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert table == set(OPERATIONS)


def test_whatever_asks_for_a_key_may_say_what_keys_are_told() -> None:
    for route, access in ROUTES.items():
        for operation in DOCUMENT["paths"][route.replace(":path", "")].values():
            assert ({"401", "403", "429"} <= set(operation["responses"])) == (access is not Access.OPEN), route


@pytest.mark.parametrize(
    "path", [path for path, methods in DOCUMENT["paths"].items() if "requestBody" in methods.get("post", {})]
)
def test_its_examples_are_answered(schema: Any, path: str) -> None:
    operation = schema[path]["POST"]
    example = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
    places = {
        each["name"]: _PLACES[each["name"]]
        for each in DOCUMENT["paths"][path]["post"].get("parameters", ())
        if each["in"] == "path"
    }
    case = operation.Case(body=example, media_type="application/json", path_parameters=places)
    response = case.call()
    assert response.status_code in ((422,) if path in _WITHOUT_ADAPTERS else (200, 202))
    case.validate_response(response)


_EXAMPLES = max(12, settings().max_examples // 3)
"""Of each operation."""


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("path", "method"), [each for each in OPERATIONS if each not in _ENDLESS])
def test_whatever_is_sent_the_answer_is_one_the_document_knows(schema: Any, path: str, method: str, mode: str) -> None:
    checks = [check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ not in _NOT_ASKED]

    @given(case=schema[path][method.upper()].as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=_EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    def law(case: Any) -> None:
        response = case.call()
        heard[response.status_code] += 1
        case.validate_response(response, checks=checks)

    heard: Counter[int] = Counter()
    try:
        law()
    except Unsatisfiable:  # nothing that could be wrong with it
        assert mode == "negative" and not heard
        return
    assert heard
