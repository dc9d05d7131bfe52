"""Calls with streams of messages in both directions: no message is lost, split or overtaken, at any windows."""

import asyncio

import grpc
import pytest
from grpc.aio import EOF
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.http2 import frames
from router.dispatch.http2.call import Http2DuplexCall, ReadLimits, frame_message
from router.dispatch.http2.channel import Http2Channel
from router.dispatch.http2.frames import END_STREAM, ErrorCode, encode_call_headers
from tests.router.http2.peer import MOST_MESSAGE, Peer, greeting, message, read_to_end, run_on_loop, trailers

LOOKAHEAD = 64


def begin(peer: Peer, lookahead: int = 1000) -> Http2DuplexCall:
    """Begin a call whose server has answered with headers."""
    loop = asyncio.get_running_loop()
    limits = ReadLimits(MOST_MESSAGE, peer.lookahead)
    call = Http2DuplexCall(loop, encode_call_headers("http", "there", "/a/B"), b"", None, limits)
    peer.connection.begin(call)
    call.look_ahead(lookahead)
    peer.send(greeting(call.stream))
    return call


@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(0, 200), st.lists(st.integers(1, 400), min_size=1))
def test_written_messages_arrive_whole_and_in_order(messages: list[bytes], window: int, grants: list[int]) -> None:
    async def scenario() -> None:
        peer = Peer(LOOKAHEAD)
        peer.settle({frames.INITIAL_WINDOW_SIZE: window + 5})
        call = begin(peer)
        room, received = window + 5, b""

        async def write_all() -> None:
            for each in messages:
                await call.write(each)

        writing = asyncio.create_task(write_all())
        expected = frame_message(b"") + b"".join(map(frame_message, messages))
        for turn in range(10_000):
            await asyncio.sleep(0)
            for frame in peer.take_frames():
                if frame.kind == frames.DATA:
                    assert not frame.flags & END_STREAM
                    room -= len(frame.payload)
                    assert room >= 0
                    received += frame.payload
            if writing.done() and received == expected:
                break
            more = grants[turn % len(grants)]
            room += more
            peer.send(frames.window_update(call.stream, more), frames.window_update(0, more))
        assert received == expected
        await writing
        call.cancel()
        assert [frame.kind for frame in peer.take_frames()] == [frames.RST_STREAM]
        await peer.lose()

    run_on_loop(scenario)


def test_the_server_may_send_more_than_in_other_calls() -> None:
    async def scenario() -> None:
        peer = Peer(LOOKAHEAD)
        peer.settle()
        call = begin(peer, lookahead=1000)
        await asyncio.sleep(0)
        updates = [frame for frame in peer.take_frames() if frame.kind == frames.WINDOW_UPDATE and frame.stream]
        assert [int.from_bytes(frame.payload, "big") for frame in updates] == [1000 - LOOKAHEAD]
        peer.send(message(call.stream, bytes(900)))
        assert len(await call.read()) == 900
        call.cancel()
        await peer.lose()

    run_on_loop(scenario)


@pytest.mark.parametrize("how", ["trailers", "reset", "loss", "cancel"])
def test_the_end_of_the_call_ends_a_write(how: str) -> None:
    async def scenario() -> None:
        peer = Peer(LOOKAHEAD)
        peer.settle({frames.INITIAL_WINDOW_SIZE: 10})
        call = begin(peer)
        writing = asyncio.create_task(call.write(bytes(100)))
        await asyncio.sleep(0)
        assert not writing.done()
        peer.take_frames()
        if how == "trailers":
            peer.send(trailers(call.stream))
            assert [frame.kind for frame in peer.take_frames()] == [frames.RST_STREAM]
        elif how == "reset":
            peer.send(frames.reset(call.stream, ErrorCode.CANCEL))
            assert not peer.take_frames()
        elif how == "cancel":
            call.cancel()
        else:
            await peer.lose()
        await writing
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")
        ends = {"trailers": "OK", "reset": "CANCELLED", "loss": "UNAVAILABLE", "cancel": "cancelled here"}
        assert await read_to_end(call) == ([], ends[how])
        if how != "loss":
            await peer.lose()

    run_on_loop(scenario)


def test_nothing_is_written_before_the_server_answers() -> None:
    async def scenario() -> None:
        peer = Peer(LOOKAHEAD)
        peer.settle()
        loop = asyncio.get_running_loop()
        limits = ReadLimits(MOST_MESSAGE, LOOKAHEAD)
        call = Http2DuplexCall(loop, encode_call_headers("http", "there", "/a/B"), b"", None, limits)
        peer.connection.begin(call)
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"early")
        call.cancel()
        await peer.lose()

    run_on_loop(scenario)


async def test_a_grpc_server_and_the_call_understand_each_other() -> None:
    """Megabytes in both directions at once, beyond every window."""

    async def repeat(_: object, context: grpc.aio.ServicerContext) -> None:
        while (raw := await context.read()) is not EOF:
            await context.write(raw)

    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
    handlers = {"Repeat": grpc.stream_stream_rpc_method_handler(repeat)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = Http2Channel(f"127.0.0.1:{port}", ReadLimits(32 << 20, 512))
    try:
        call = channel.duplex("/test.Test/Repeat", 1 << 18)
        assert await call.read() == b""
        messages = [bytes((i,)) * size for i, size in enumerate((0, 1, 70_000, 3_000_000, 5, 900_000))]

        async def write_all() -> None:
            for each in messages:
                await call.write(each)

        writing = asyncio.create_task(write_all())
        assert [await call.read() for _ in messages] == messages
        await writing
        call.cancel()
    finally:
        await channel.close()
        await server.stop(0)
