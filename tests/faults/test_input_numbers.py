"""Row 11 of docs/reliability.md: NaN, infinities and out-of-range numbers in every numeric field, over gRPC and HTTP,
while a well-behaved request runs."""

import asyncio
import json
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import grpc

from octet.v1 import inference_pb2 as wire
from router.api.http.infer import INFER_FIELD_NAMES
from router.routing.validation import RANGES
from tests.faults.figures import Figure
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.serving.harness import CallResult, infer_request
from tests.specialist.server.harness import QUICK, running_replica, sim

FLOATS = (math.nan, math.inf, -math.inf, -0.0, 1e308, -1e308, 5e-324, -1.0, 1e19)
INTEGERS = (-(2**63), 2**63 - 1, -(2**31), 2**31 - 1, 2**32, -1, 0)
LITERALS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "-0.0",
    "1e308",
    "-1",
    "9" * 30,
    "-" + "9" * 30,
    '"1"',
    "[1]",
)
OF_THE_MODEL = ("sampling.top_k", "sampling.logit_bias.token", "context_size")
"""Fields for which a replica allows a smaller range than the router."""
NEIGHBOUR = infer_request("the neighbour", max_tokens=400, ignore_eos=True, sampling=wire.Sampling(temperature=0.0))


def _numeric(kind: Any) -> set[str]:
    """Return the names of all numeric fields of a message type."""
    numbers = {"int32", "int64", "uint32", "uint64", "float", "double"}
    types = {number: name.removeprefix("TYPE_").lower() for name, number in _types(kind)}
    return {each.name for each in kind.DESCRIPTOR.fields if types[each.type] in numbers}


def _types(kind: Any) -> Iterator[tuple[str, int]]:
    field = kind.DESCRIPTOR.fields[0]
    return ((name, getattr(field, name)) for name in dir(field) if name.startswith("TYPE_"))


def _requests() -> Iterator[tuple[str, Any, wire.InferRequest]]:
    for field in RANGES:
        owner, _, name = field.rpartition(".")
        for value in (*FLOATS, *INTEGERS):
            request = infer_request(max_tokens=4)
            place = {"": request, "sampling": request.sampling, "sampling.logit_bias": wire.LogitBias()}[owner]
            try:
                setattr(place, name, value)
            except (TypeError, ValueError):  # The field cannot hold the value.
                continue
            if owner == "sampling.logit_bias":
                request.sampling.logit_bias.append(place)
            yield field, getattr(place, name), request


def _is_right(field: str, value: Any, received: CallResult) -> bool:
    """Return whether the result is right. A value outside the range must be refused. A value in the range may be
    refused only by a replica whose own range is smaller. A refusal must name the field."""
    if value in RANGES[field] and received.code is grpc.StatusCode.OK:
        return True
    ended, is_refused = received.error, received.code is grpc.StatusCode.INVALID_ARGUMENT
    is_replicas = ended is not None and value in RANGES[field] and field in OF_THE_MODEL
    return is_refused and ended is not None and ended.field == field and (value not in RANGES[field] or is_replicas)


async def _over_grpc(fronted: HttpHarness) -> tuple[int, list[str]]:
    cases = list(_requests())
    received = [await fronted.routed.ask(request) for _, _, request in cases]
    wrong = [
        f"{field} = {value}: {each.code} {each.error}"
        for (field, value, _), each in zip(cases, received, strict=True)
        if not _is_right(field, value, each)
    ]
    return len(cases), wrong


def _bodies() -> Iterator[tuple[str, str, str, bytes]]:
    """Yield HTTP requests in which one numeric field has an unusual value. Each item has the path, the field's name,
    the JSON literal of the value, and the request body."""
    own = [INFER_FIELD_NAMES.get(field, field) for field in RANGES if not field.startswith("sampling.logit_bias")]
    for name, literal in product(own, LITERALS):
        body = json.dumps({"prompt": "hello", "force_specialists": ["writer"], "max_tokens": 4} | {name: 7777})
        yield "/v1/infer", name, literal, body.replace("7777", literal).encode()
    talk: dict[str, Any] = {"model": "octet/writer", "messages": [{"role": "user", "content": "hello"}]}
    vendors = (
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "max_tokens",
        "n",
        "top_k",
        "min_p",
    )
    for path, name, literal in product(("/v1/chat/completions", "/v1/messages"), vendors, LITERALS):
        if path == "/v1/messages" and name not in ("temperature", "top_p", "top_k", "max_tokens"):
            continue
        body = json.dumps({**talk, "max_tokens": 4, name: 7777})
        yield path, name, literal, body.replace("7777", literal).encode()


async def _over_http(fronted: HttpHarness) -> tuple[int, list[str]]:
    """Send every body over HTTP. Return the number sent, and a description of each wrong answer. An answer may have
    status 200 only for a finite JSON number, and 400 only with a message that shows the cause."""
    num_sent, wrong = 0, []
    for path, name, literal, body in _bodies():
        received = await fronted.post(body, path)
        num_sent += 1
        allowed = {400} if literal in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"1"', "[1]") else {200, 400}
        names_it = (
            received.status != 400
            or name.encode() in received.body
            or b"JSON" in received.body
            or b"number" in received.body
        )
        if received.status not in allowed or not names_it:
            wrong.append(f"{path} {name} = {literal}: {received.status} {received.body[:200]!r}")
    return num_sent, wrong


async def test_11_invalid_numbers_do_not_harm_other_requests_of_the_batch(figure: Figure) -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        alone = await fronted.routed.ask(NEIGHBOUR)
        same, over = [], asyncio.Event()

        async def neighbour() -> None:
            while not over.is_set():
                same.append((await fronted.routed.ask(NEIGHBOUR)).tokens == alone.tokens)

        beside = asyncio.create_task(neighbour())
        by_grpc, wrong = await _over_grpc(fronted)
        by_http, wrong_too = await _over_http(fronted)
        over.set()
        await beside
        assert len(alone.tokens) == 400 and same
        assert not wrong + wrong_too, "\n".join([*wrong, *wrong_too][:20])
        figure(11, "wrong numbers sent", by_grpc + by_http, "requests", ">= 300 requests")
        figure(11, "not refused, or without the field's name", len(wrong + wrong_too), "requests", "== 0 requests")
        figure(11, "other requests with a changed answer", same.count(False), "answers", "== 0 answers")
        await served.idle()
        served.check_whole()


def test_11_every_numeric_field_of_the_wire_has_a_range() -> None:
    fields = _numeric(wire.InferRequest) | {f"sampling.{name}" for name in _numeric(wire.Sampling)}
    assert fields | {f"sampling.logit_bias.{name}" for name in _numeric(wire.LogitBias)} == set(RANGES)
