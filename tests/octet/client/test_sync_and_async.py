"""Sync and async clients behave alike on the same script."""

import asyncio
from dataclasses import dataclass

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from octet import AsyncClient, Busy, Client, OctetError, Unavailable
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import ScriptedCall, scripted

MAX_RETRIES = 2
CODES = sorted(set(grpc.StatusCode) - {grpc.StatusCode.OK}, key=lambda code: str(code.name))


@st.composite
def acts(draw: st.DrawFn) -> ScriptedCall:
    reason = draw(st.sampled_from(wire.ErrorReason.values()))
    after = draw(st.none() | st.integers(1, 3))
    error = wire.Error(reason=reason, message="no", retry_after_ms=after) if reason else None
    return ScriptedCall(
        words=draw(st.sampled_from([(), ("a ",), ("a ", "b")])),
        code=draw(st.sampled_from([grpc.StatusCode.OK, *CODES])),
        error=error,
        with_receipt=draw(st.booleans()),
        is_routed=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Outcome:
    text: str
    error: type[OctetError] | None
    message: str
    reason: str
    has_receipt: bool
    num_calls: int


def outcome(text: str, error: OctetError | None, has_receipt: bool, num_calls: int) -> Outcome:
    if error is None:
        return Outcome(text, None, "", "", has_receipt, num_calls)
    words = str(error).split("127.0.0.1")[0]
    return Outcome(text, type(error), words, error.reason, has_receipt, num_calls)


def stream_sync(script: list[ScriptedCall]) -> Outcome:
    error = None
    with scripted(*script) as server, Client(server.address, max_retries=MAX_RETRIES) as client:
        with client.stream("x", timeout=10) as answer:
            try:
                for _ in answer:
                    pass
            except OctetError as caught:
                error = caught
        return outcome(answer.text, error, has_receipt(answer), len(server.calls))


def stream_async(script: list[ScriptedCall]) -> Outcome:
    async def ask() -> Outcome:
        error = None
        with scripted(*script) as server:
            async with AsyncClient(server.address, max_retries=MAX_RETRIES) as client:
                async with client.stream("x", timeout=10) as answer:
                    try:
                        async for _ in answer:
                            pass
                    except OctetError as caught:
                        error = caught
                return outcome(answer.text, error, has_receipt(answer), len(server.calls))

    return asyncio.run(ask())


def has_receipt(answer: object) -> bool:
    try:
        return bool(answer.receipt.request_id)  # type: ignore[attr-defined]
    except LookupError:
        return False


def is_permanent(last: ScriptedCall, reason: str) -> bool:
    """Return whether the client does not retry a refusal with this reason."""
    is_hopeless = last.error is not None and not last.error.HasField("retry_after_ms")
    return reason in ("below_floor", "demoted") or (reason == "deadline_unreachable" and is_hopeless)


@settings(max_examples=40)
@given(st.lists(acts(), min_size=1, max_size=4))
def test_sync_and_async_streams_end_alike_and_never_retry_after_a_chunk(script: list[ScriptedCall]) -> None:
    result = stream_sync(script)
    assert stream_async(script) == result
    assert 1 <= result.num_calls <= MAX_RETRIES + 1
    for act in script[: result.num_calls - 1]:
        assert not act.words, "no retry may follow a chunk"
        assert act.code != grpc.StatusCode.OK
    if result.num_calls <= len(script):
        last = script[result.num_calls - 1]
        assert result.text == "".join(last.words)
        gave_up = result.error in (Busy, Unavailable) and not last.words and not is_permanent(last, result.reason)
        assert not gave_up or result.num_calls == MAX_RETRIES + 1


@settings(max_examples=20)
@given(
    st.lists(acts(), min_size=1, max_size=4), st.sampled_from(["infer", "route", "count_tokens", "receipt", "cancel"])
)
def test_sync_and_async_single_answers_are_alike(script: list[ScriptedCall], call: str) -> None:
    def ask() -> Outcome:
        with scripted(*script) as server, Client(server.address) as client:
            try:
                getattr(client, call)("x")
            except OctetError as error:
                return outcome("", error, error.receipt is not None, len(server.calls))
            return outcome("", None, True, len(server.calls))

    async def ask_async() -> Outcome:
        with scripted(*script) as server:
            async with AsyncClient(server.address) as client:
                try:
                    await getattr(client, call)("x")
                except OctetError as error:
                    return outcome("", error, error.receipt is not None, len(server.calls))
                return outcome("", None, True, len(server.calls))

    assert asyncio.run(ask_async()) == ask()
