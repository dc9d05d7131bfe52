"""The headers of answers, /v1/slo and GetSlo publish the same figures."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import RouterConfig, SloTargets
from octet.rpc.messages import message_to_json
from octet.rpc.refusal import queue_full
from octet.v1 import error_pb2, operator_pb2, slo_pb2
from octet.v1 import inference_pb2 as wire
from router.quality import slo
from router.quality.slo import SLO_HEADER, format_slo_header
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.serving.harness import ensemble_of, infer_request, running_router
from tests.router.serving.spy import running_spy
from tests.router.slo.fields import members
from tests.specialist.server.harness import running_replica, sim

TARGETS = SloTargets(ttft_p95=30.0, itl_p50=10.0)
SECONDS = st.floats(0, 90_000, allow_nan=False)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache, so that each test sees its own requests."""
    monkeypatch.setattr(slo, "CACHE_SECONDS", 0.0)


@asynccontextmanager
async def door() -> AsyncIterator[HttpHarness]:
    plain = ensemble_of("writer", "critic", router=RouterConfig(default_timeout=2 * PATIENCE))
    writer = replace(plain.specialists[0], slo=TARGETS)
    ensemble = replace(plain, specialists=(writer, plain.specialists[1]))
    async with (
        running_replica(sim()) as one,
        running_replica(sim()) as other,
        running_http_router({"writer": [one.address], "critic": [other.address]}, ensemble=ensemble) as fronted,
    ):
        yield fronted


async def get_slo(fronted: HttpHarness, specialist: str = "") -> operator_pb2.GetSloResponse:
    method = fronted.routed.channel.unary_unary(
        "/octet.v1.Operator/GetSlo",
        operator_pb2.GetSloRequest.SerializeToString,
        operator_pb2.GetSloResponse.FromString,
    )
    answer: operator_pb2.GetSloResponse = await method(operator_pb2.GetSloRequest(specialist=specialist))
    return answer


async def every_dialect(fronted: HttpHarness) -> list[HttpResponse]:
    ask = {"prompt": "hello", "max_tokens": 8}
    infer: dict[str, Any] = {**ask, "model": None, "messages": None, "force_specialists": ["writer"]}
    return [
        *[await fronted.ask(stream=stream) for stream in (False, True)],
        *[
            await fronted.ask("/v1/completions", messages=None, prompt="hello", stream=stream)
            for stream in (False, True)
        ],
        *[await fronted.ask("/v1/messages", stream=stream) for stream in (False, True)],
        *[await _infer(fronted, {**infer, "stream": stream}) for stream in (False, True)],
    ]


async def _infer(fronted: HttpHarness, body: dict[str, Any]) -> HttpResponse:
    said = {key: value for key, value in body.items() if value is not None}
    return await fronted.post(json.dumps(said).encode(), "/v1/infer")


async def test_every_http_answer_carries_its_specialists_slo_header() -> None:
    async with door() as fronted:
        answers = await every_dialect(fronted)
        for number, response in enumerate(answers):
            assert response.status == 200, response.body
            published = members(response.headers[SLO_HEADER])
            assert response.headers["x-octet-specialist"] == "writer"
            assert published["window"] == {"s": 300}
            if number:
                assert published["ttft"]["n"] >= number and set(published["ttft"]) == {"p50", "p95", "p99", "n"}
                assert published["itl"]["n"] >= 7 * number and published["itl"]["n"] <= 7 * (number + 1)
                assert set(published["first-token"]) == {"p95", "n"}
        critic = await fronted.ask(model="octet/critic")
        assert members(critic.headers[SLO_HEADER])["ttft"]["n"] == 1, (
            "the figures must be those of this specialist alone"
        )
        refused = await fronted.ask(max_tokens=8, model="octet/writer", octet={"adapters": ["absent"]})
        assert refused.status == 404
        assert members(refused.headers[SLO_HEADER])["ttft"]["n"] == len(answers), (
            "a specialist that refuses must publish its figures"
        )
        for path in ("/v1/models", "/healthz", "/v1/slo", "/v1/absent"):
            assert SLO_HEADER not in (await fronted.get(path)).headers, "no specialist answered"


async def test_every_grpc_answer_carries_its_specialists_slo_header() -> None:
    async with door() as fronted:
        for number in range(3):
            call = fronted.routed.generate(infer_request(max_tokens=4))
            published = members(dict(await call.initial_metadata())[SLO_HEADER])
            assert ("ttft" in published) == (number > 0)
            events = [event async for event in call]
            assert events[-1].receipt.specialist == "writer"
            method = fronted.routed.channel.unary_unary(
                "/octet.v1.Inference/Infer", wire.InferRequest.SerializeToString, wire.InferResponse.FromString
            )
            whole = method(infer_request(specialist="critic", max_tokens=4))
            published = members(dict(await whole.initial_metadata())[SLO_HEADER])
            assert published["ttft"]["n"] == number + 1, "an answer without streaming must count too"
            assert (await whole).receipt.specialist == "critic"
        refused = fronted.routed.generate(infer_request(adapters=["absent"]))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            [event async for event in refused]
        assert SLO_HEADER not in dict(error.value.initial_metadata() or ()), "a client must be able to retry"


async def test_slo_over_http_and_grpc_is_the_same_by_specialist() -> None:
    async with door() as fronted:
        for _ in range(5):
            await fronted.routed.ask(infer_request(max_tokens=4))
        await fronted.routed.idle()
        over_grpc = await get_slo(fronted)
        over_http = await fronted.get("/v1/slo")
        assert over_http.json == message_to_json(over_grpc)
        writer, critic = over_http.json["slos"]
        assert (writer["specialist"], critic["specialist"]) == ("writer", "critic")
        assert (writer["ttft"]["samples"], writer["answered"]) == (5, 5)
        assert writer["itl"]["samples"] == 5 * (4 - 1), "an answer of n tokens has n - 1 times between tokens"
        assert 0 < writer["ttft"]["p50"] <= writer["ttft"]["p99"] < 20
        assert 0 < writer["admission_to_first_token"]["p95"] <= writer["ttft"]["p99"] * 1.02
        assert (critic["ttft"]["samples"], critic["ttft"]["p50"], critic["preempted_once"]) == (0, None, None)
        assert [each["name"] for each in writer["objectives"]] == ["ttft_p95", "itl_p50"]
        assert all(each["met"] and each["burns"][0]["rate"] == 0 for each in writer["objectives"])
        alone = await fronted.get("/v1/slo?specialist=writer")
        assert alone.json == message_to_json(await get_slo(fronted, "writer")) == {"slos": [writer]}
        assert fronted.routed.server.slos.all() == list(over_grpc.slos)
        unknown = await fronted.get("/v1/slo?specialist=ensemble")
        assert (unknown.status, unknown.error["code"]) == (404, "unknown_name")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await get_slo(fronted, "writter")
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        assert "did you mean writer?" in str(error.value.details())


async def test_a_capacity_refusal_burns_and_an_invalid_request_does_not() -> None:
    async def full(*_: object) -> None:
        raise queue_full("waiting", 1, 2.0)

    base = ensemble_of("writer")
    promised = replace(base, specialists=(replace(base.specialists[0], slo=TARGETS),))
    async with (
        running_replica(sim()) as served,
        running_spy(full) as spy,
        running_router({"writer": [served.address]}, ensemble=promised) as sound,
        running_router({"writer": [spy.address]}, ensemble=promised) as crowded,
    ):
        await sound.call("Route", infer_request(), wire.Receipt)
        await sound.call("CountTokens", infer_request(), wire.CountResponse)
        await sound.ask(infer_request(adapters=["absent"]))
        assert sound.server.slos.counts("writer")["ttft_p95"] == (0, 0)
        response = await crowded.ask(infer_request())
        assert response.reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert crowded.server.slos.counts("writer")["ttft_p95"] == (1, 1)
        assert crowded.server.slos.counts("writer")["itl_p50"] == (0, 0)


async def test_a_reload_changes_the_objectives() -> None:
    async with door() as fronted:
        server = fronted.routed.server
        await fronted.routed.ask(infer_request(max_tokens=2))
        await fronted.routed.idle()
        ensemble = server.service.policy.ensemble
        strict = replace(ensemble.specialists[0], slo=SloTargets(ttft_p99=0.00002))
        await server.reload(replace(ensemble, specialists=(strict, ensemble.specialists[1])))
        (published,) = (await get_slo(fronted, "writer")).slos
        assert [(each.name, each.met) for each in published.objectives] == [("ttft_p99", False)]


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 10**12), st.floats(0, 1) | st.none(), st.floats(0, 1) | st.none())
def test_the_slo_header_is_valid_for_all_figures(
    p50: float, p95: float, p99: float, samples: int, rate: float | None, floor: float | None
) -> None:
    latency = slo_pb2.Latency(samples=samples, p50=p50, p95=p95, p99=p99)
    slo = slo_pb2.Slo(
        specialist="x", window_seconds=12.5, ttft=latency, itl=latency, admission_to_first_token=latency,
        pass_rate=rate, floor=floor, judged=3, answered=samples, preempted_once=0.25,
    )  # fmt: skip
    line = format_slo_header(slo)
    published = members(line)
    assert line.isascii() and len(line) < 400
    assert ("ttft" in published) == ("preempted" in published) == bool(samples)
    assert ("correctness" in published) == (rate is not None)
    assert published["window"]["s"] == 12.5
    if samples:
        assert published["ttft"]["p95"] == pytest.approx(p95, abs=0.0006)
