"""Refusals as clients and frameworks recognise them: the words for a prompt that is too long, and whether to retry."""

import re
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octet.limits import MAX_PROMPT_BYTES
from octet.rpc.refusal import (
    PUSHBACK_KEY,
    Refusal,
    deadline_unreachable,
    draining,
    engine_failed,
    invalid_field,
    prompt_too_long,
    queue_full,
)
from octet.v1 import error_pb2
from router.refusals import below_priority_floor, content_quarantined, no_replica
from router.routing.validation import REQUEST_BYTES
from tests.later import Later
from tests.router.http.harness import HELLO, running_http_router
from tests.router.serving.spy import running_spy
from tests.router.serving.test_faults import refusing
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = Later("anthropic"), Later("openai")

CHAT: dict[str, Any] = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8}
TOO_LONG = ("word " * 800, "word " * 20_000, "x" * (REQUEST_BYTES + 1), "x" * (3 * REQUEST_BYTES))
"""Too many tokens; too many bytes for the model, for a request, and for an HTTP body."""


async def test_prompt_that_is_too_long_has_the_words_that_frameworks_look_for() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        for text in TOO_LONG:
            asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
            with pytest.raises(openai.BadRequestError) as refused:
                await fronted.openai.chat.completions.create(**asked)
            assert refused.value.code == "context_length_exceeded"
            # LiteLLM; pydantic-ai looks for either half
            assert "this model's maximum context length is" in str(refused.value).lower()
            assert "reduce the length of the messages" in str(refused.value)
            assert refused.value.response.headers["x-should-retry"] == "false"
            with pytest.raises(anthropic.BadRequestError) as declined:
                await fronted.anthropic.messages.create(**asked)
            assert declined.value.type == "invalid_request_error"
            body: Any = declined.value.body
            words = re.fullmatch(
                r"prompt is too long: ([\d,]+) (tokens|bytes) > ([\d,]+)( bytes)? maximum", _said(body)
            )
            assert words is not None and _number(words[1]) > _number(words[3]) > 0, _said(body)
            assert (words[2] == "tokens") == (words[4] is None)


def _said(body: Any) -> str:
    message: str = body["error"]["message"]
    return message


def _number(text: str) -> int:
    return int(text.replace(",", ""))


async def test_tokens_are_counted_up_to_the_byte_limit() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        for text in ("word " * 800, "word " * 20_000, "x" * (MAX_PROMPT_BYTES - 1)):
            messages: Any = [{"role": "user", "content": text}]
            counted = await fronted.anthropic.messages.count_tokens(model="octet/writer", messages=messages)
            assert counted.input_tokens > served.server.replica.context


NEVER = [
    prompt_too_long(9000, 8191),
    invalid_field("seed", "a number", "x"),
    deadline_unreachable("timeout_ms", "at least 9.0 s", "its own 131 tokens take 9.0 s even alone", None),
    below_priority_floor("unspecified", "writer", 5, "", 1),
    content_quarantined(2, 60),
]
LATER = [
    queue_full("waiting", 1, 0.05),
    deadline_unreachable("timeout_ms", "at least 9.0 s", "9.0 s of work is ahead of it", 0.05),
    no_replica("writer", 0.05),
    engine_failed("x"),
    draining(),
]


@pytest.mark.parametrize(("refusals", "is_retried"), [(NEVER, False), (LATER, True)], ids=["never", "later"])
async def test_sdks_retry_only_what_can_succeed(refusals: list[Refusal], is_retried: bool) -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}) as fronted:
        for refusal in refusals:
            spy.behave = refusing(refusal)
            for call, kind in (
                (fronted.openai.with_options(max_retries=1).chat.completions.create, openai.APIStatusError),
                (fronted.anthropic.with_options(max_retries=1).messages.create, anthropic.APIStatusError),
            ):
                spy.asked.clear()
                with pytest.raises(kind) as caught:
                    await call(**CHAT)
                error: Any = caught.value
                said = error.response.headers
                assert (error.response.request.headers["x-stainless-retry-count"] == "1") == is_retried, refusal
                assert said.get("x-should-retry") == (None if is_retried else "false")


@pytest.mark.parametrize(("refusals", "is_retried"), [(NEVER, False), (LATER, True)], ids=["never", "later"])
def test_grpc_clients_learn_the_same(refusals: list[Refusal], is_retried: bool) -> None:
    for refusal in refusals:
        pushback = dict(refusal.metadata()).get(PUSHBACK_KEY)
        after = refusal.error.retry_after_ms if refusal.error.HasField("retry_after_ms") else None
        assert pushback == ((None if after is None else str(after)) if is_retried else "-1")
        assert refusal.error.reason != error_pb2.ERROR_REASON_UNSPECIFIED


async def test_health_list_names_every_service() -> None:
    async with running_replica(sim(QUICK)) as served, running_http_router({"writer": [served.address]}) as fronted:
        for address, service in (
            (served.address, "octet.v1.Specialist"),
            (fronted.routed.address, "octet.v1.Inference"),
        ):
            async with grpc.aio.insecure_channel(address) as channel:
                found = await health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest())
            serving = health_pb2.HealthCheckResponse.SERVING
            assert {name: each.status for name, each in found.statuses.items()} == {"": serving, service: serving}


async def test_each_dialect_lists_models_as_its_clients_read_them() -> None:
    replicas = {"writer": ["127.0.0.1:1"], "poet": ["127.0.0.1:1"]}
    async with running_http_router(replicas, warm=False) as fronted:
        listed = [each async for each in fronted.openai.models.list()]
        names = [each.id for each in listed]
        assert names[0] == "octet" and {"octet/writer", "octet/poet"} < set(names)
        assert all(each.object == "model" and each.owned_by == "octet" and each.created > 0 for each in listed)
        client = fronted.anthropic.models
        found = [each async for each in client.list()]
        assert [each.id for each in found] == names and all(each.display_name == each.id for each in found)
        assert all(each.type == "model" and each.created_at.timestamp() == listed[0].created for each in found)
        paged = [each.id async for each in client.list(limit=2)]
        assert paged == names, "the client follows has_more and last_id"
        back = [each.id async for each in client.list(limit=1, before_id=names[-1])]
        assert back == names[-2::-1]
        assert (await client.retrieve("octet/writer")).lifecycle == "active"
        for wrong in ({"limit": "0"}, {"limit": "x"}, {"after_id": "octet/absent"}):
            with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
                await client.list(extra_query=wrong)


async def test_health_routes_of_other_servers() -> None:
    async with running_http_router({"writer": ["127.0.0.1:1"]}, warm=False) as fronted:
        assert (await fronted.get("/ping")).status == 200
        assert (await fronted.get("/health")).status == 503, "guidellm starts when answers can be given"
        version = (await fronted.get("/version")).json
        assert list(version) == ["version"] and re.match(r"\d+\.\d+", version["version"])
