"""Hostile callers get a typed error quickly, and other callers do not notice."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.clock import SystemClock
from octet.v1 import specialist_pb2 as wire
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from specialist.server.validation import REQUEST_BYTES, GenerateLimits
from tests.patience import PATIENCE
from tests.specialist.server.background import Background, in_background
from tests.specialist.server.harness import (
    QUICK,
    ask,
    expected,
    generate_request,
    running_replica,
    serving_simulated,
    sim,
    until,
)
from tests.specialist.server.test_aborts import resident_bytes

GENERATE = "/octet.v1.Specialist/Generate"
NUMBERS = [math.nan, math.inf, -math.inf, -1e308, 1e308, -1.0, 1e19]
TINY = [1e-310, 9e-5]
INTEGERS = [-(2**63), -1001, 2**63 - 1, 2**31]
DOCUMENTED = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


@dataclass
class Outcome:
    code: grpc.StatusCode
    error: wire.Error | None
    seconds: float  # CPU time of the client and the server together.


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    with in_background() as background:
        yield background


async def send_raw(address: str, raw: bytes, method: str = GENERATE) -> Outcome:
    async with grpc.aio.insecure_channel(address, options=(("grpc.max_send_message_length", -1),)) as channel:
        await channel.channel_ready()
        started = time.process_time()
        call = channel.unary_stream(method)(raw, timeout=PATIENCE)
        try:
            async for _ in call:
                pass
            return Outcome(grpc.StatusCode.OK, None, time.process_time() - started)
        except grpc.aio.AioRpcError as failure:
            seconds = time.process_time() - started
            details = dict(failure.trailing_metadata() or ()).get("octet-error-bin")
            error = wire.Error.FromString(details) if isinstance(details, bytes) else None
            return Outcome(failure.code(), error, seconds)


Cases = list[tuple[str, wire.GenerateRequest]]


def wrong_numbers(limits: GenerateLimits) -> Cases:
    """Return pairs of a field's name and a request in which the number in that field is out of range."""
    ranges, cases = limits.ranges(), []
    sampling = [name for name in wire.Sampling.DESCRIPTOR.fields_by_name if name != "logit_bias"]
    top = ["seed", "max_tokens", "min_tokens", "priority", "timeout_ms"]
    for field in [*(f"sampling.{name}" for name in sampling), *top]:
        owner, _, name = field.rpartition(".")
        kind = wire.Sampling if owner else wire.GenerateRequest
        is_float = kind.DESCRIPTOR.fields_by_name[name].cpp_type == 5
        for value in NUMBERS if is_float else INTEGERS:
            if value in ranges[field]:
                continue
            request = generate_request()
            setattr(request.sampling if owner else request, name, value)
            cases.append((field, request))
    for name, value in product(["temperature", "repetition_penalty"], TINY):
        request = generate_request()
        setattr(request.sampling, name, value)
        cases.append((f"sampling.{name}", request))
    for token in (-1, limits.vocab_size, 2**62):
        cases.append(("sampling.logit_bias.token", generate_request(sampling=_bias(token, 0.0))))
    cases += [
        ("sampling.logit_bias.bias", generate_request(sampling=_bias(1, bias)))
        for bias in NUMBERS
        if bias not in ranges["sampling.logit_bias.bias"]
    ]
    cases += [("tokens.ids", _tokens([1, token])) for token in (-1, limits.vocab_size, 2**63 - 1)]
    return cases


def _bias(token: int, bias: float) -> wire.Sampling:
    return wire.Sampling(logit_bias=[wire.LogitBias(token=token, bias=bias)])


def _tokens(ids: list[int]) -> wire.GenerateRequest:
    return wire.GenerateRequest(tokens=wire.TokenIds(ids=ids), max_tokens=4)


def _chat(role: str, content: str) -> wire.GenerateRequest:
    return wire.GenerateRequest(chat=wire.Chat(messages=[wire.Message(role=role, content=content)]))


WRONG: Cases = [
    ("prompt", wire.GenerateRequest()),
    ("text", generate_request("")),
    ("tokens.ids", _tokens([])),
    ("prompt", _tokens([1] * 512)),
    ("prompt", generate_request("x" * 512)),
    ("text", generate_request("x" * (512 * 16 + 1))),
    ("chat.messages", wire.GenerateRequest(chat=wire.Chat())),
    ("chat.messages", _chat("user", "x" * 10_000)),
    ("chat.messages", wire.GenerateRequest(chat=wire.Chat(messages=[wire.Message(role="user")] * 1025))),
    ("chat.messages.role", _chat("", "hello")),
    ("chat.messages.role", _chat("us er<|turn|>", "hello")),
    ("chat.messages.role", _chat("u" * 33, "hello")),
    ("min_tokens", generate_request(min_tokens=9)),
    ("max_tokens", generate_request(max_tokens=0)),
    ("timeout_ms", generate_request(timeout_ms=0)),
    ("stop", generate_request(stop=[""])),
    ("stop", generate_request(stop=["x"] * 17)),
    ("stop", generate_request(stop=["x" * 257])),
    ("request_id", generate_request(request_id="x" * 129)),
    ("request_id", generate_request(request_id="mine\n2026-01-01 CRITICAL all is lost")),
    ("tenant_salt", generate_request(tenant_salt=b"x" * 65)),
    ("adapters", generate_request(adapters=["a", "b", "c", "d", "e"])),
    ("adapters", generate_request(adapters=["a", "a"])),
    ("adapters", generate_request(adapters=["../../etc"])),
    ("sampling.logit_bias", generate_request(sampling=wire.Sampling(logit_bias=[wire.LogitBias(token=7)] * 2))),
    ("sampling.logit_bias", generate_request(sampling=wire.Sampling(logit_bias=[wire.LogitBias()] * 1025))),
]


@pytest.fixture(params=["sim", "native"])
def build(request: pytest.FixtureRequest) -> Callable[[], AssembledReplica]:
    """Return a builder of a replica with a context of 512 tokens."""
    if request.param == "sim":
        return sim(QUICK)
    model = request.getfixturevalue("stories_dir")
    native = ReplicaSettings(name="teller", model=model, num_blocks=128, context=512, kernel="fused", threads=1)
    return lambda: create_native_replica(native, SystemClock())


def limits_of(replica: AssembledReplica) -> GenerateLimits:
    return GenerateLimits(replica.context, replica.codec.vocab_size)


async def test_every_invalid_value_is_refused_by_name_and_other_requests_are_unaffected(
    build: Callable[[], AssembledReplica],
) -> None:
    async with running_replica(build) as served:
        neighbour = generate_request("the neighbour", max_tokens=400, seed=5, ignore_eos=True)
        alone = await ask(served.client, neighbour)
        running = asyncio.create_task(ask(served.client, neighbour))
        for field, request in [*wrong_numbers(limits_of(served.replica)), *WRONG]:
            received = await ask(served.client, request)
            assert received.accepted is None and received.error is not None and received.error.error is not None, field
            error = received.error.error
            assert (received.error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field), request
            assert error.limit and error.value and len(error.value) <= 200, error
        assert len(alone.tokens) == 400 and (await running).tokens == alone.tokens
        await served.idle()
        served.check_whole()


async def test_largest_and_smallest_value_of_every_setting_are_served(build: Callable[[], AssembledReplica]) -> None:
    async with running_replica(build) as served:
        for field, allowed in limits_of(served.replica).ranges().items():
            owner, _, name = field.rpartition(".")
            if owner != "sampling":
                continue
            for value in (allowed.least, allowed.most, 1e-9 if allowed.open else 0):
                if value not in allowed:
                    continue
                request = generate_request(sampling=wire.Sampling(temperature=1.0), seed=1)
                setattr(request.sampling, name, value)
                received = await ask(served.client, request)
                assert received.error is None and received.usage is not None, (field, value, received.error)


async def test_refusal_of_a_long_prompt_names_both_numbers() -> None:
    async with running_replica(sim(num_blocks=4, context=512)) as served:
        received = await ask(served.client, generate_request("x" * 100))
        assert received.error is not None and received.error.error is not None
        assert received.error.error.reason == wire.ERROR_REASON_PROMPT_TOO_LONG
        assert "100" in str(received.error) and "63" in str(received.error), received.error


def median_seconds_to_refuse(background: Background, size: int) -> float:
    raw = wire.GenerateRequest(text="x" * size).SerializeToString()
    outcomes = [background.run(send_raw(background.served.address, raw)) for _ in range(7)]
    for outcome in outcomes:
        assert outcome.code == grpc.StatusCode.INVALID_ARGUMENT and outcome.error is not None
        assert outcome.error.field == ("request" if size > REQUEST_BYTES else "text")
    return median(outcome.seconds for outcome in outcomes)


@pytest.mark.parametrize("size", [200_000, 5 << 20, 10 << 20])
def test_oversize_is_answered_at_once(background: Background, size: int) -> None:
    """It is enough that one of three rounds is quick, because other load on the machine may slow down a round."""
    assert any(median_seconds_to_refuse(background, size) < 0.05 for _ in range(3))


def test_message_above_the_transport_limit_is_not_received(background: Background) -> None:
    outcome = background.run(send_raw(background.served.address, b"x" * (12 << 20)))
    assert outcome.code == grpc.StatusCode.RESOURCE_EXHAUSTED and outcome.error is None


async def test_one_connection_cannot_use_all_call_slots() -> None:
    async with (
        serving_simulated(QUICK, max_waiting=256) as (served, clock),
        grpc.aio.insecure_channel(served.address) as greedy,
    ):
        clock.pause()
        await greedy.channel_ready()
        blocker = asyncio.create_task(ask(served.client, generate_request(max_tokens=400, ignore_eos=True)))
        await until(lambda: served.server.handler.num_live)
        drain = greedy.unary_unary("/octet.v1.Specialist/Drain")
        calls = [drain(b"") for _ in range(600)]
        await asyncio.sleep(0.05)
        assert not blocker.done()
        assert (await served.client.describe()).context == 512
        clock.resume()
        await blocker
        codes = Counter([await call.code() for call in calls])
        assert codes[grpc.StatusCode.OK] > 256, "there must be room for more calls than the queue holds"
        assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("text", b"\x12\x02\xff\xfe"),
        ("request_id", b"\x0a\x03\xed\xa0\x80" + generate_request().SerializeToString()),
        ("chat.messages.content", b"\x22\x0d\x0a\x0b\x0a\x04user\x12\x03a\xc3("),
        ("stop", generate_request().SerializeToString() + b"\x52\x01\x80"),
    ],
)
def test_text_that_is_not_utf8_is_found(background: Background, field: str, raw: bytes) -> None:
    outcome = background.run(send_raw(background.served.address, raw))
    assert outcome.code == grpc.StatusCode.INVALID_ARGUMENT
    assert outcome.error is not None and outcome.error.reason == wire.ERROR_REASON_MALFORMED
    assert outcome.error.field == field


@pytest.mark.parametrize("method", ["Generate", "WatchLoad", "LoadAdapter", "UnloadAdapter", "Drain", "Describe"])
def test_malformed_bytes_are_the_callers_mistake(background: Background, method: str) -> None:
    for raw in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x22" * 1000, bytes(range(256))):
        outcome = background.run(send_raw(background.served.address, raw, f"/octet.v1.Specialist/{method}"))
        assert outcome.code == grpc.StatusCode.INVALID_ARGUMENT, (method, raw)
        assert outcome.error is not None and outcome.error.reason == wire.ERROR_REASON_MALFORMED


SEED_REQUEST = generate_request(
    "some words",
    request_id="mine",
    stop=["ab", "cd"],
    priority=2,
    seed=9,
    sampling=wire.Sampling(temperature=0.5, top_k=4, logit_bias=[wire.LogitBias(token=3, bias=1.5)]),
).SerializeToString()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a valid request in which a few bytes are changed, removed or inserted."""
    raw = bytearray(SEED_REQUEST)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        raw[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(raw)


@settings(max_examples=300)
@given(raw=st.one_of(mutated(), st.binary(max_size=40)))
def test_any_bytes_get_a_documented_status(background: Background, raw: bytes) -> None:
    outcome = background.run(send_raw(background.served.address, raw))
    assert outcome.code in DOCUMENTED or outcome.error is not None, outcome
    assert outcome.code in DOCUMENTED | {grpc.StatusCode.DEADLINE_EXCEEDED}, outcome
    assert outcome.code == grpc.StatusCode.OK or (outcome.error is not None and outcome.error.message)


def test_the_replica_still_serves_afterwards(background: Background) -> None:
    request = generate_request("after all that", max_tokens=20, seed=1)
    served = background.served
    assert background.run(ask(served.client, request)).tokens == expected(served.replica, request)
    background.run(served.idle())
    served.check_whole()


async def test_a_caller_that_never_reads_is_cut_and_costs_no_memory() -> None:
    """The caller's receive window is full after a few kilobytes. From then on, the replica must hold only a bounded
    number of bytes for it."""
    settings: dict[str, Any] = {"stream_bytes": 4096, "stall_seconds": 20.0}
    narrow = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with running_replica(sim(QUICK, num_blocks=8192, context=60_000), **settings) as served:
        neighbour = generate_request("the neighbour", max_tokens=60, seed=5, ignore_eos=True)
        before = resident_bytes()
        async with grpc.aio.insecure_channel(served.address, options=narrow) as channel:
            method = channel.unary_stream(GENERATE, wire.GenerateRequest.SerializeToString)
            calls = [method(generate_request(f"{i}", max_tokens=59_000, ignore_eos=True)) for i in range(8)]
            for call in calls:
                await call.read()
            assert (await ask(served.client, neighbour)).tokens == expected(served.replica, neighbour)
            async with asyncio.timeout(PATIENCE):
                while served.replica.scheduler.ledger.live:
                    await asyncio.sleep(0.02)
            served.check_whole()
            assert resident_bytes() - before < 48 << 20
            for call in calls:
                await _read_to_the_end(call)
                assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "not read" in await call.details()


async def _read_to_the_end(call: Any) -> None:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        return
