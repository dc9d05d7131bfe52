"""A key's limits at both doors of a real router, and keys that come and go while it serves."""

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.keys.keys_file import KeysFile
from router.keys.keys_text import KeysInvalid, keys_text
from router.keys.source import FollowedKeys, GivenKeys, open_keys
from tests.later import Later
from tests.router.http.harness import SLOW, Fronted
from tests.router.keys.keyed import Made, keyed, made
from tests.router.service.harness import asking
from tests.service.harness import QUICK, run

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

BODY = json.dumps({"model": "octet/writer", "prompt": "hello", "max_tokens": 8}).encode()


async def complete(fronted: Fronted, key: Made) -> Any:
    return await fronted.post(BODY, "/v1/completions", **key.headers)


def test_over_its_limits_a_key_is_told_when_to_come_back() -> None:
    few, hungry, narrow, free = (
        made("few", requests_per_minute=2),
        made("hungry", tokens_per_minute=20),
        made("narrow", concurrency=1),
        made("free"),
    )

    async def story() -> None:
        async with keyed([few, hungry, narrow, free], cost=QUICK) as fronted:
            assert [(await complete(fronted, few)).status for _ in range(2)] == [200, 200]
            heard = await complete(fronted, few)
            assert (heard.status, heard.error["code"], heard.error["type"]) == (
                429,
                "rate_limit_exceeded",
                "rate_limit_error",
            )
            assert 1 <= int(heard.headers["retry-after"]) <= 30
            assert 0 < int(heard.headers["retry-after-ms"]) <= 30_000
            over = await fronted.routed.ask(asking(), metadata=few.metadata)
            assert over.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert over.reason == error_pb2.ERROR_REASON_KEY_LIMIT
            assert over.error is not None and over.error.field == "requests_per_minute"
            assert 0 < over.error.retry_after_ms <= 30_000

            first = await fronted.routed.ask(asking("hello " * 10, ignore_eos=True), metadata=hungry.metadata)
            assert first.receipt is not None and first.code is grpc.StatusCode.OK
            used = first.receipt.usage.prompt_tokens + first.receipt.usage.completion_tokens
            assert used > 20
            over = await fronted.routed.ask(asking(), metadata=hungry.metadata)
            assert over.error is not None and over.error.field == "tokens_per_minute"
            assert over.error.retry_after_ms == pytest.approx((used - 20 + 1) * 3000, abs=1500)
            with pytest.raises(openai.RateLimitError):
                client = fronted.openai.with_options(api_key=hungry.token)
                await client.completions.create(model="octet/writer", prompt="x")
            with pytest.raises(openai.AuthenticationError):
                await fronted.openai.completions.create(model="octet/writer", prompt="x")

            waiting = fronted.routed.generate(asking(max_tokens=400, ignore_eos=True), metadata=narrow.metadata)
            await waiting.read()
            heard = await complete(fronted, narrow)
            assert (heard.status, heard.error["param"]) == (429, "concurrency")
            assert (await complete(fronted, free)).status == 200
            waiting.cancel()
            meters = fronted.routed.server.gate._meters
            await fronted.routed.until(lambda: meters["narrow"].num_inside == 0)
            assert (await complete(fronted, narrow)).status == 200
            assert all(meter.is_idle for meter in meters.values())

    run(story())


def test_the_status_details_say_when_for_whoever_knows_nothing_of_octet() -> None:
    from google.protobuf.any_pb2 import Any as AnyMessage

    few = made("few", requests_per_minute=1)

    async def story() -> None:
        async with keyed([few]) as fronted:
            await fronted.routed.ask(asking(), metadata=few.metadata)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fronted.routed.call("Infer", asking(), wire.InferResponse, metadata=few.metadata)
            raw = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
            (detail,) = error_pb2.StatusDetails.FromString(raw).details
            assert isinstance(detail, AnyMessage) and detail.type_url.endswith("google.rpc.RetryInfo")
            assert 0 < error_pb2.RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds() <= 60_000

    run(story())


def test_an_answer_that_is_broken_off_is_charged_for_what_was_said() -> None:
    ann = made("ann", tokens_per_minute=30)

    async def story() -> None:
        async with keyed([ann], cost=SLOW) as fronted:
            routed = fronted.routed
            call = routed.generate(asking("x", max_tokens=400, ignore_eos=True), metadata=ann.metadata)
            num_chunks = 0
            async for event in call:
                num_chunks += event.HasField("chunk")
                if num_chunks == 8:
                    break
            call.cancel()
            await routed.idle()
            meter = routed.server.gate._meters["ann"]
            await routed.until(lambda: meter.is_idle)
            assert meter._tokens is not None
            level = meter._tokens.level(routed.server._clock.now())
            assert level <= 30 - 8 + 1

    run(story())


def put(path: Path, content: str) -> None:
    """At once: half of it would be another trouble."""
    beside = path.with_suffix(".new")
    beside.write_text(content)
    beside.chmod(0o600)
    beside.replace(path)


def write(path: Path, *keys: Made) -> None:
    put(path, keys_text(each.key for each in keys))


def test_the_file_is_followed_and_whoever_is_inside_finishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, ann, bob = tmp_path / "keys.json", made("ann"), made("bob")
    write(path, ann)

    async def story() -> None:
        async with keyed(FollowedKeys(KeysFile(path), interval=0.02), cost=SLOW) as fronted:
            routed = fronted.routed
            running = asyncio.create_task(routed.ask(asking(max_tokens=20, ignore_eos=True), metadata=ann.metadata))
            await routed.until(lambda: len(routed.server.live) == 1)
            assert (await routed.ask(asking(), metadata=bob.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
            write(path, bob)
            await routed.until(lambda: routed.server.gate._book is not None and _knows(routed.server, bob))
            assert (await routed.ask(asking(), metadata=ann.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
            assert (await routed.ask(asking(), metadata=bob.metadata)).code is grpc.StatusCode.OK
            assert (await running).code is grpc.StatusCode.OK
            for content in ('{"keys": [', None):
                caplog.clear()
                path.unlink() if content is None else put(path, content)
                await routed.until(lambda: "the keys stay as they were" in caplog.text)
                await asyncio.sleep(0.1)
                assert caplog.text.count("the keys stay as they were") == 1
                assert (await routed.ask(asking(), metadata=bob.metadata)).code is grpc.StatusCode.OK
            write(path, ann)
            await routed.until(lambda: _knows(routed.server, ann))
            assert (await routed.ask(asking(), metadata=bob.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
        assert ann.token not in caplog.text and bob.token not in caplog.text

    with caplog.at_level(logging.DEBUG):
        run(story())


def _knows(server: Any, key: Made) -> bool:
    return server.gate._book.find(key.token.encode(), 0) is not None


def test_where_keys_come_from(tmp_path: Path) -> None:
    option, said, configured = (tmp_path / name for name in ("option", "said", "configured"))
    for path in (option, said, configured):
        write(path, made(path.name))

    def names(*arguments: Any) -> list[str]:
        source = open_keys(*arguments)
        return [] if source is None else [key.name for key in source.book().keys]

    inline = {"OCTET_KEYS": f" {keys_text([made('inline').key])}"}
    assert names(option, {"OCTET_KEYS": str(said)}, str(configured)) == ["option"]
    assert names(None, {"OCTET_KEYS": str(said)}, str(configured)) == ["said"]
    assert names(None, inline, str(configured)) == ["inline"]
    assert isinstance(open_keys(None, inline, None), GivenKeys)
    assert names(None, {"OCTET_KEYS": ""}, str(configured)) == ["configured"]
    assert names(None, {}, None) == []
    with pytest.raises(KeysInvalid, match="OCTET_KEYS"):
        open_keys(None, {"OCTET_KEYS": "{"}, None)


def test_hostile_keys_cost_little_and_are_never_written_down(caplog: pytest.LogCaptureFixture) -> None:
    ann = made("ann")

    async def story() -> None:
        async with keyed([ann]) as fronted:
            with suppress(ConnectionResetError):  # the answer may be lost with the connection, which is not read on
                large = await fronted.post(BODY, "/v1/completions", authorization="Bearer " + "k" * (1 << 20))
                assert large.status == 431
            for value in ("Bearer " + "k" * 60_000, "Bearer \u00e9\u4e2d", "Bearer \x01", f"Bearer {ann.token} x"):
                heard = await fronted.post(BODY, "/v1/completions", authorization=value)
                assert heard.status in (400, 401), value[:20]
            twice = f"authorization: Bearer {ann.token}\r\nauthorization: Bearer {ann.token}\r\n"
            head = f"GET /v1/models HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n{twice}\r\n"
            heard = await fronted.raw(head.encode())
            assert (heard.status, heard.error["code"]) == (401, "invalid_api_key")
            assert "more than one key" in heard.error["message"]
            both = {"authorization": f"Bearer {ann.token}", "x-api-key": ann.token}
            assert (await fronted.send("GET", "/v1/models", b"", both)).status == 200
            huge = await fronted.routed.ask(asking(), metadata=(("authorization", "Bearer " + "k" * (1 << 20)),))
            assert huge.code is not grpc.StatusCode.OK
            wrong = [fronted.send("GET", "/v1/models", b"", {"x-api-key": f"octet_{n}"}) for n in range(200)]
            assert {heard.status for heard in await asyncio.gather(*wrong)} == {401}
            assert fronted.routed.server.gate.num_meters == 1
            assert (await complete(fronted, ann)).status == 200

    with caplog.at_level(logging.DEBUG, logger="router"):
        run(story())
    assert "octet_" not in caplog.text and ann.token not in caplog.text
    assert len([record for record in caplog.records if record.name.startswith("router.keys")]) == 0
