"""Tickets over real sockets: two routers that share a store, and a replica in simulated time."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admission.forecast import places
from admission.forecast.places import Allowances
from octet.config.ensemble import StoreConfig
from octet.v1 import error_pb2
from router.api.http.openapi import openapi_document
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.serving.harness import ensemble_of, infer_request
from tests.specialist.server.harness import SLOW, ReplicaHarness, begin_paused, long_answer, serving_simulated

ASKED: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True, "timeout_ms": 8_000}
WAITS: dict[str, Any] = {"wait_ms": 30_000}
RUNNING_TOKENS = 800  # 9 s of simulated time


@asynccontextmanager
async def two_routers(served: ReplicaHarness, folder: Path) -> AsyncIterator[list[HttpHarness]]:
    shared = replace(ensemble_of("writer"), store=StoreConfig(url=f"sqlite:{folder / 'state.db'}"))
    replicas = {"writer": [served.address]}
    async with (
        running_http_router(replicas, ensemble=shared) as first,
        running_http_router(replicas, ensemble=shared) as second,
    ):
        both = [first, second]
        keys = [each.routed.server.services.control.ticket_keys for each in both]
        first.routed.server.services.control.want_ticket_key()
        await first.routed.until(lambda: all(each() for each in keys) and keys[0]() == keys[1]())
        yield both


async def post(door: HttpHarness, prompt: str, ticket: str) -> HttpResponse:
    body = json.dumps({"prompt": prompt, "force_specialists": ["writer"], **ASKED}).encode()
    return await door.post(body, "/v1/infer", octet_ticket=ticket, octet_wait_ms="30000")


async def test_a_refused_caller_returns_with_its_ticket_through_another_router(tmp_path: Path) -> None:
    size = {"max_running": 1, "context": 4096, "num_blocks": 512}
    async with serving_simulated(SLOW, **size) as (served, clock), two_routers(served, tmp_path) as (first, second):
        running = await begin_paused(served, clock, long_answer(RUNNING_TOKENS, priority=5))
        refused = await first.routed.ask(infer_request("second", **ASKED, **WAITS))
        assert refused.error is not None and refused.reason == error_pb2.ERROR_REASON_DEADLINE_UNREACHABLE
        assert refused.error.ticket and not refused.error.HasField("place")
        assert 1_000 < refused.error.retry_after_ms < 20_000
        assert refused.receipt is not None and not refused.receipt.error.ticket, "receipts hold no tickets"
        told = await post(second, "second", refused.error.ticket)
        assert told.status == 429 and told.headers["octet-ticket"] == told.json["error"]["ticket"]
        early = await first.routed.ask(infer_request("second", ticket=refused.error.ticket, **ASKED, **WAITS))
        assert early.error is not None and early.error.ticket, "the place is still kept"
        assert len(served.server.places) == 1
        thief = await second.routed.ask(infer_request("another prompt", ticket=refused.error.ticket, **ASKED))
        assert thief.error is not None
        clock.resume()
        assert (await running).error is None
        answer = await post(second, "second", early.error.ticket)
        assert answer.json["receipt"]["admission"]["reserved"] is True
        replayed = await post(first, "second", early.error.ticket)
        assert replayed.json["receipt"]["admission"]["reserved"] is False, "a place is given once"
        counts = second.routed.server.service.pipeline.dispatcher.tickets.counts
        assert (counts["honoured"], counts["invalid"]) == (1, 1)
        await served.idle()
        served.check_whole()


DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/infer": {"prompt": "one", "force_specialists": ["writer"], **ASKED},
    "/v1/chat/completions": {"model": "octet/writer", "messages": [{"role": "user", "content": "two"}]},
    "/v1/completions": {"model": "octet/writer", "prompt": "three"},
    "/v1/messages": {"model": "octet/writer", "messages": [{"role": "user", "content": "four"}]},
    "/v1/responses": {"model": "octet/writer", "input": "five"},
}
OPENAI_LIMITS = {"max_tokens": 100, "ignore_eos": True, "octet": {"timeout_ms": 8_000}}


async def test_every_dialect_carries_tickets_if_its_caller_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the header and, where the dialect has room for it, in the body; also if the answer would be a stream."""
    monkeypatch.setattr(Allowances, "of", lambda *_: 16.0)
    monkeypatch.setattr(places, "_MAX_TRIES", 50)  # behind many places, three tries may not find one more
    size = {"max_running": 1, "context": 4096, "num_blocks": 512}
    async with serving_simulated(SLOW, **size) as (served, clock), two_routers(served, tmp_path) as (router, _):
        running = await begin_paused(served, clock, long_answer(RUNNING_TOKENS, priority=5))
        for path, body in DIALECTS.items():
            limits = {} if path == "/v1/infer" else dict(OPENAI_LIMITS)
            if path == "/v1/messages":
                del limits["ignore_eos"]
            if path == "/v1/responses":
                limits = {"max_output_tokens": 100, "octet": {"timeout_ms": 8_000}}
            for stream in (False, True):
                raw = json.dumps({**body, **limits, "stream": stream}).encode()
                plain = await router.post(raw, path)
                assert plain.status == 429 and "octet-ticket" not in plain.headers, (path, plain.body)
                asked = await router.post(raw, path, octet_wait_ms="30000")
                assert "octet-ticket" in asked.headers, (path, stream, asked.body)
                ticket = asked.headers["octet-ticket"]
                assert asked.status == 429 and ticket in asked.body.decode(), path
                again = await router.post(raw, path, octet_wait_ms="30000", octet_ticket=ticket)
                assert again.status == 429 and again.headers["octet-ticket"], "it is early"
                described = openapi_document("0")["paths"][path]["post"]
                assert "octet-ticket" in described["responses"]["429"]["headers"]
                named = {each["name"] for each in described["parameters"]}
                assert named >= {"octet-ticket", "octet-wait-ms"}
        assert len(served.server.places) == 2 * len(DIALECTS)
        assert router.routed.server.service.pipeline.dispatcher.tickets.counts["invalid"] == 0
        clock.resume()
        assert (await running).error is None
