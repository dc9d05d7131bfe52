"""The contract of the transport to replicas, checked on each of its implementations."""

import asyncio
from typing import get_args

import grpc
import pytest
from grpc.aio import EOF, AioRpcError

from octet.config.ensemble import ReplicaTransport
from router.dispatch.http2.call import ReadLimits
from router.dispatch.transport import ReplicaChannel, ReplicaTarget, TransportKind, open_transport
from tests.patience import PATIENCE
from tests.router.http2.peer import run_on_both_loops
from tests.router.http2.servers import TRAILING, Proxy, outcome, served, stream

LIMITS = ReadLimits(max_message_bytes=100_000, lookahead=256)
KINDS = get_args(TransportKind)


def connect(kind: TransportKind, address: str) -> ReplicaChannel:
    return open_transport(kind)(ReplicaTarget("0", address), LIMITS)


def test_every_configurable_transport_is_tested() -> None:
    assert set(KINDS) == set(get_args(ReplicaTransport))


@pytest.mark.parametrize("kind", KINDS)
def test_streams_and_calls_carry_bytes_metadata_and_a_deadline(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = connect(kind, server.address)
            assert (await outcome(stream(channel, "Count", b"3 2")))[0] == [b"00000xx", b"00001xx", b"00002xx"]
            assert [raw async for raw in stream(channel, "Count", b"2 0")] == [b"00000", b"00001"]
            assert await channel.call("/test.Test/Echo", b"words") == b"words"
            metadata = (("x-text", "plain"), ("x-raw-bin", b"\x00\xff"))
            answer = await channel.call("/test.Test/Said", b"", timeout=50, metadata=metadata)
            assert answer == b"x-raw-bin=b'\\x00\\xff' x-text='plain' True"
            await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_carries_code_details_and_trailing_metadata(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = connect(kind, server.address)
            result = await outcome(stream(channel, "Refuse", b"1|8|no capacity"))
            assert result == ([b"before"], grpc.StatusCode.RESOURCE_EXHAUSTED, "no capacity", TRAILING)
            with pytest.raises(AioRpcError) as unknown:
                await channel.call("/test.Test/Nowhere", b"")
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
            await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_over_the_limit_ends_its_call(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = connect(kind, server.address)
            result = await outcome(stream(channel, "Count", b"1 100000"))
            assert result[:2] == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert (await outcome(stream(channel, "Count", b"1 1")))[1] == "OK"
            await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_end_at_their_deadline_by_cancellation_and_with_their_connection(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server, Proxy(server.address) as proxy:
            channel = connect(kind, proxy.address)
            assert (await outcome(stream(channel, "Hang", b"", timeout=0.2)))[1] is grpc.StatusCode.DEADLINE_EXCEEDED
            cancelled = stream(channel, "Hang", b"")
            assert await cancelled.read() == b"begun"
            assert cancelled.cancel() and not cancelled.cancel()
            assert await outcome(cancelled) == ([], "cancelled")
            lost = stream(channel, "Hang", b"")
            assert await lost.read() == b"begun"
            proxy.sever()
            assert (await outcome(lost))[1] is grpc.StatusCode.UNAVAILABLE
            await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_server_calls_fail_unless_they_wait_for_one(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            address = server.address
        channel = connect(kind, address)
        assert (await outcome(stream(channel, "Count", b"1 1")))[1] is grpc.StatusCode.UNAVAILABLE
        waiting = asyncio.create_task(outcome(stream(channel, "Count", b"1 1", wait_for_ready=True, timeout=PATIENCE)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with served(address=address):
            assert (await waiting)[1] == "OK"
        await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_cancels_the_calls_that_are_left(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = connect(kind, server.address)
            hanging = stream(channel, "Hang", b"")
            assert await hanging.read() == b"begun"
            reading = asyncio.create_task(outcome(hanging))
            await asyncio.sleep(0)
            await channel.close()
            assert (await reading)[1] in ("cancelled", grpc.StatusCode.CANCELLED)

    run_on_both_loops(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_stops_reading_loses_nothing(kind: TransportKind) -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = connect(kind, server.address)
            call = stream(channel, "Count", b"60 50")
            for index in range(60):
                assert await call.read() == b"%05d" % index + b"x" * 50
                if index % 7 == 0:
                    await asyncio.sleep(0.002)
            assert await call.read() is EOF
            await channel.close()

    run_on_both_loops(scenario)
