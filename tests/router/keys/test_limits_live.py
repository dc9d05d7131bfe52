"""Limits of a key over gRPC and HTTP, and keys that change while the router serves."""

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from octet.identity import file_stamp
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.api.keys.key_file import KeysFile, KeysInvalid, StaticKeys, WatchedKeys, format_keys, open_keys
from tests.later import Later
from tests.router.http.harness import SLOW, HttpHarness
from tests.router.keys.keyed import IssuedKey, issue_key, running_keyed_router
from tests.router.serving.harness import infer_request
from tests.specialist.server.harness import QUICK, run

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

BODY = json.dumps({"model": "octet/writer", "prompt": "hello", "max_tokens": 8}).encode()


async def complete(fronted: HttpHarness, key: IssuedKey) -> Any:
    return await fronted.post(BODY, "/v1/completions", **key.headers)


async def test_key_over_its_limit_gets_a_retry_after() -> None:
    few, hungry, narrow, free = (
        issue_key("few", requests_per_minute=2),
        issue_key("hungry", tokens_per_minute=20),
        issue_key("narrow", concurrency=1),
        issue_key("free"),
    )
    async with running_keyed_router([few, hungry, narrow, free], cost=QUICK) as fronted:
        assert [(await complete(fronted, few)).status for _ in range(2)] == [200, 200]
        received = await complete(fronted, few)
        assert (received.status, received.error["code"], received.error["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        assert 1 <= int(received.headers["retry-after"]) <= 30
        assert 0 < int(received.headers["retry-after-ms"]) <= 30_000
        over = await fronted.routed.ask(infer_request(), metadata=few.metadata)
        assert over.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert over.reason == error_pb2.ERROR_REASON_KEY_LIMIT
        assert over.error is not None and over.error.field == "requests_per_minute"
        assert 0 < over.error.retry_after_ms <= 30_000

        first = await fronted.routed.ask(infer_request("hello " * 10, ignore_eos=True), metadata=hungry.metadata)
        assert first.receipt is not None and first.code is grpc.StatusCode.OK
        used = first.receipt.usage.prompt_tokens + first.receipt.usage.completion_tokens
        assert used > 20
        over = await fronted.routed.ask(infer_request(), metadata=hungry.metadata)
        assert over.error is not None and over.error.field == "tokens_per_minute"
        assert over.error.retry_after_ms == pytest.approx((used - 20 + 1) * 3000, abs=1500)
        with pytest.raises(openai.RateLimitError):
            client = fronted.openai.with_options(api_key=hungry.token)
            await client.completions.create(model="octet/writer", prompt="x")
        with pytest.raises(openai.AuthenticationError):
            await fronted.openai.completions.create(model="octet/writer", prompt="x")

        waiting = fronted.routed.generate(infer_request(max_tokens=400, ignore_eos=True), metadata=narrow.metadata)
        await waiting.read()
        received = await complete(fronted, narrow)
        assert (received.status, received.error["param"]) == (429, "concurrency")
        assert (await complete(fronted, free)).status == 200
        waiting.cancel()
        meters = fronted.routed.server.gate._meters
        await fronted.routed.until(lambda: meters["narrow"].num_open == 0)
        assert (await complete(fronted, narrow)).status == 200
        assert all(meter.num_open == 0 for meter in meters.values())


async def test_status_details_carry_the_retry_after() -> None:
    from google.protobuf.any_pb2 import Any as AnyMessage

    few = issue_key("few", requests_per_minute=1)
    async with running_keyed_router([few]) as fronted:
        await fronted.routed.ask(infer_request(), metadata=few.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fronted.routed.call("Infer", infer_request(), wire.InferResponse, metadata=few.metadata)
        raw = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
        (detail,) = error_pb2.StatusDetails.FromString(raw).details
        assert isinstance(detail, AnyMessage) and detail.type_url.endswith("google.rpc.RetryInfo")
        assert 0 < error_pb2.RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds() <= 60_000


async def test_interrupted_answer_is_charged_for_its_tokens() -> None:
    ann = issue_key("ann", tokens_per_minute=30)
    async with running_keyed_router([ann], cost=SLOW) as fronted:
        routed = fronted.routed
        call = routed.generate(infer_request("x", max_tokens=400, ignore_eos=True), metadata=ann.metadata)
        num_chunks = 0
        async for event in call:
            num_chunks += event.HasField("chunk")
            if num_chunks == 8:
                break
        call.cancel()
        await routed.idle()
        meter = routed.server.gate._meters["ann"]
        await routed.until(lambda: meter.num_open == 0)
        assert meter._tokens is not None
        level = meter._tokens.level(routed.server.environment.clock.now())
        assert level <= 30 - 8 + 1


def put(path: Path, content: str) -> None:
    """Replace the file atomically."""
    beside = path.with_suffix(".new")
    beside.write_text(content)
    beside.chmod(0o600)
    beside.replace(path)


def write(path: Path, *keys: IssuedKey) -> None:
    put(path, format_keys(each.key for each in keys))


def test_key_file_is_reloaded_and_running_calls_finish(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, ann, bob = tmp_path / "keys.json", issue_key("ann"), issue_key("bob")
    write(path, ann)

    async def scenario() -> None:
        async with running_keyed_router(WatchedKeys(KeysFile(path), interval=0.02), cost=SLOW) as fronted:
            routed = fronted.routed
            running = asyncio.create_task(
                routed.ask(infer_request(max_tokens=20, ignore_eos=True), metadata=ann.metadata)
            )
            await routed.until(lambda: len(routed.server.live) == 1)
            assert (await routed.ask(infer_request(), metadata=bob.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
            write(path, bob)
            await routed.until(lambda: routed.server.gate._keys is not None and _knows(routed.server, bob))
            assert (await routed.ask(infer_request(), metadata=ann.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
            assert (await routed.ask(infer_request(), metadata=bob.metadata)).code is grpc.StatusCode.OK
            assert (await running).code is grpc.StatusCode.OK
            for content in ('{"keys": [', None):
                caplog.clear()
                path.unlink() if content is None else put(path, content)
                await routed.until(lambda: "keeping the old keys" in caplog.text)
                await asyncio.sleep(0.1)
                assert caplog.text.count("keeping the old keys") == 1
                assert (await routed.ask(infer_request(), metadata=bob.metadata)).code is grpc.StatusCode.OK
            write(path, ann)
            await routed.until(lambda: _knows(routed.server, ann))
            assert (await routed.ask(infer_request(), metadata=bob.metadata)).code is grpc.StatusCode.UNAUTHENTICATED
        assert ann.token not in caplog.text and bob.token not in caplog.text

    with caplog.at_level(logging.DEBUG):
        run(scenario())


async def test_key_file_is_checked_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ann, bob = tmp_path / "keys.json", issue_key("ann"), issue_key("bob")
    write(path, ann)
    source = open_keys(path, {}, None)
    assert source is not None
    assert [key.name for key in source.load().keys] == ["ann"]
    slept, looked, seen = list[float](), list[int](), list[list[str]]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            write(path, bob)
        if len(slept) == 4:
            raise EOFError

    def stamp(file: Path) -> tuple[int, ...] | None:
        looked.append(len(slept))
        return file_stamp(file)

    monkeypatch.setattr("router.api.keys.key_file.asyncio.sleep", sleep)
    monkeypatch.setattr("router.api.keys.key_file.file_stamp", stamp)
    with pytest.raises(EOFError):
        await source.follow(lambda keys: seen.append([key.name for key in keys.keys]))
    assert slept == [1.0] * 4 and looked == [1, 2, 3]
    assert seen == [["bob"]], "a change must be seen at most one second after it was written"


def _knows(server: Any, key: IssuedKey) -> bool:
    return server.gate._keys.find(key.token.encode(), 0) is not None


def test_precedence_of_key_sources(tmp_path: Path) -> None:
    option, output, configured = (tmp_path / name for name in ("option", "said", "configured"))
    for path in (option, output, configured):
        write(path, issue_key(path.name))

    def names(*arguments: Any) -> list[str]:
        source = open_keys(*arguments)
        return [] if source is None else [key.name for key in source.load().keys]

    inline = {"OCTET_KEYS": f" {format_keys([issue_key('inline').key])}"}
    assert names(option, {"OCTET_KEYS": str(output)}, str(configured)) == ["option"]
    assert names(None, {"OCTET_KEYS": str(output)}, str(configured)) == ["said"]
    assert names(None, inline, str(configured)) == ["inline"]
    assert isinstance(open_keys(None, inline, None), StaticKeys)
    assert names(None, {"OCTET_KEYS": ""}, str(configured)) == ["configured"]
    assert names(None, {}, None) == []
    with pytest.raises(KeysInvalid, match="OCTET_KEYS"):
        open_keys(None, {"OCTET_KEYS": "{"}, None)


def test_hostile_keys_are_cheap_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    ann = issue_key("ann")

    async def scenario() -> None:
        async with running_keyed_router([ann]) as fronted:
            # The response may be lost, because the server closes the connection early.
            with suppress(ConnectionResetError):
                large = await fronted.post(BODY, "/v1/completions", authorization="Bearer " + "k" * (1 << 20))
                assert large.status == 431
            for value in ("Bearer " + "k" * 60_000, "Bearer \u00e9\u4e2d", "Bearer \x01", f"Bearer {ann.token} x"):
                received = await fronted.post(BODY, "/v1/completions", authorization=value)
                assert received.status in (400, 401), value[:20]
            twice = f"authorization: Bearer {ann.token}\r\nauthorization: Bearer {ann.token}\r\n"
            head = f"GET /v1/models HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n{twice}\r\n"
            received = await fronted.raw(head.encode())
            assert (received.status, received.error["code"]) == (401, "invalid_api_key")
            assert "more than one key" in received.error["message"]
            both = {"authorization": f"Bearer {ann.token}", "x-api-key": ann.token}
            assert (await fronted.send("GET", "/v1/models", b"", both)).status == 200
            huge = await fronted.routed.ask(infer_request(), metadata=(("authorization", "Bearer " + "k" * (1 << 20)),))
            assert huge.code is not grpc.StatusCode.OK
            wrong = [fronted.send("GET", "/v1/models", b"", {"x-api-key": f"octet_{n}"}) for n in range(200)]
            assert {received.status for received in await asyncio.gather(*wrong)} == {401}
            assert len(fronted.routed.server.gate._meters) == 1
            assert (await complete(fronted, ann)).status == 200

    with caplog.at_level(logging.DEBUG, logger="router"):
        run(scenario())
    assert "octet_" not in caplog.text and ann.token not in caplog.text
    assert len([record for record in caplog.records if record.name.startswith("router.api.keys")]) == 0
