"""Laws of a connection: whatever bytes the peer sends, however they are split, every call ends exactly once."""

import asyncio
from contextlib import suppress

import grpc
import pytest
from grpc.aio import EOF
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.http2 import connection, frames
from router.dispatch.http2.frames import END_HEADERS, END_STREAM, encode_literal
from simulation.event_loop import HeapLoop
from tests.router.http2.peer import Frame, Peer, greeting, message, read_to_end, run_on_loop, status, trailers

Code = grpc.StatusCode


def conversation(answers: list[list[bytes]]) -> bytes:
    """Return interleaved answers to calls 1, 3, 5 and so on, mixed with other frames."""
    streams = range(1, 2 * len(answers), 2)
    said = frames.settings({frames.INITIAL_WINDOW_SIZE: 70_000, frames.MAX_FRAME_SIZE: 20_000})
    said += frames.ping(7) + b"".join(map(greeting, streams)) + frames.window_update(0, 1000)
    for turn in range(max(map(len, answers), default=0)):
        for stream, answer in zip(streams, answers, strict=True):
            if turn < len(answer):
                said += message(stream, answer[turn]) + frames.frame(0xEE, 0xFF, stream, b"unknown")
    for stream in streams:
        block = status(Code.ABORTED if stream % 4 == 3 else Code.OK) + encode_literal("x-key", "a" * 40)
        said += frames.frame(frames.HEADERS, END_STREAM, stream, block[:3])
        said += frames.frame(frames.CONTINUATION, 0, stream, block[3:10])
        said += frames.frame(frames.CONTINUATION, END_HEADERS, stream, block[10:])
    return said


@given(
    st.lists(st.lists(st.binary(max_size=40) | st.just(b"long" * 2000), max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 60), max_size=60),
)
def test_frames_are_read_however_the_network_splits_them(answers: list[list[bytes]], cuts: list[int]) -> None:
    said = conversation(answers)
    ends = ["ABORTED" if stream % 4 == 3 else "OK" for stream in range(1, 2 * len(answers), 2)]
    written = []

    async def scenario(segments: list[bytes]) -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call() for _ in answers]
        peer.take_frames()
        peer.send(*segments)
        written.append(peer.wire.written)
        assert [await read_to_end(call) for call in calls] == list(zip(answers, ends, strict=True))
        await peer.lose()

    pieces, at = [], 0
    for cut in cuts:
        pieces.append(said[at : at + cut])
        at += cut
    for segments in ([said], [*pieces, said[at:]]):
        run_on_loop(lambda segments=segments: scenario(segments))  # type: ignore[misc]
    assert written[0] == written[1]


def test_frames_may_arrive_byte_by_byte() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        peer.send(*(bytes((byte,)) for byte in conversation([[b"one", b"two"]])))
        assert await read_to_end(call) == ([b"one", b"two"], "OK")
        await peer.lose()

    run_on_loop(scenario)


@given(
    st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4), st.booleans()
)
def test_hostile_frames_only_end_the_connection(noise: bytes, flips: list[tuple[int, int]], settled: bool) -> None:
    async def scenario() -> None:
        peer = Peer()
        said = bytearray(conversation([[b"one", b"two"], [b"three"]]))
        for at, byte in flips:
            said[at % len(said)] = byte
        calls = []
        if settled:
            peer.settle()
            calls = [peer.call(), peer.call(b"x" * 200_000)]
        peer.send(bytes(said) + noise) if settled else peer.send(noise)
        farewells = [frame.payload[4:8] for frame in peer.take_frames() if frame.kind == frames.GOAWAY]
        assert frames.ErrorCode.INTERNAL_ERROR.to_bytes(4, "big") not in farewells, (
            "an internal error would be a bug in this client"
        )
        await peer.lose()
        for call in calls:
            await read_to_end(call)
            assert call.is_over

    run_on_loop(scenario)


def test_smaller_header_table_is_acknowledged_before_the_next_headers() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle({frames.HEADER_TABLE_SIZE: 0})
        calls = [peer.call(b"x"), peer.call(b"x")]
        blocks = [frame.payload for frame in peer.take_frames() if frame.kind == frames.HEADERS]
        assert [block[:1] for block in blocks] == [b"\x20", b"\x83"]
        for call in calls:
            call.cancel()
        await peer.lose()

    run_on_loop(scenario)


def test_short_request_is_one_write_and_buffered_messages_are_read_at_once() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        before = peer.wire.num_writes
        call = peer.call(b"x" * 1000, timeout=5)
        assert peer.wire.num_writes == before + 1
        assert [frame.kind for frame in peer.take_frames()] == [frames.HEADERS, frames.DATA]
        peer.send(greeting(1), message(1, b"one") + message(1, b"two"), trailers(1))
        for expected in (b"one", b"two", EOF):
            with pytest.raises(StopIteration) as caught:  # The coroutine returns before it waits.
                call.read().send(None)
            assert caught.value.value == expected
        await peer.lose()

    run_on_loop(scenario)


def test_pings_are_answered_and_acknowledgements_are_not() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        peer.send(
            frames.ping(41),
            frames.frame(frames.PING, frames.ACK, 0, bytes(8)),
            frames.frame(frames.SETTINGS, frames.ACK, 0),
        )
        assert peer.take_frames() == [Frame(frames.PING, frames.ACK, 0, (41).to_bytes(8, "big"))]
        await peer.lose()

    run_on_loop(scenario)


def test_peer_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        peer.connection.pause_writing()
        monkeypatch.setattr(peer.wire, "get_write_buffer_size", lambda: 2 << 20)
        peer.send(frames.ping(1))
        assert peer.wire.is_closed
        await peer.lose()

    run_on_loop(scenario)


def test_silent_peer_is_pinged_and_closed_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(connection, "PING_TIMEOUT_SECONDS", 0.05)

    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        await asyncio.sleep(0.15)
        assert peer.take_frames() == [], "a connection without calls must not be pinged"
        call = peer.call()
        peer.take_frames()
        for _ in range(3):
            while not (asked := peer.take_frames()):
                await asyncio.sleep(0.005)
            assert [frame.kind for frame in asked] == [frames.PING]
            peer.send(frames.frame(frames.PING, frames.ACK, 0, bytes(8)))
        assert await read_to_end(call) == ([], "UNAVAILABLE")
        await peer.lose()

    loop = HeapLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_cancelled_call_is_reset_once() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call, done, expired = peer.call(), peer.call(), peer.call(timeout=0.01)
        peer.send(greeting(1), message(1, b"unread"), greeting(3), message(3, b"read"), trailers(3))
        peer.take_frames()
        assert call.cancel() and not call.cancel() and not done.cancel()
        assert await read_to_end(call) == ([], "cancelled here")
        assert await read_to_end(done) == ([b"read"], "OK")
        assert await read_to_end(expired) == ([], "DEADLINE_EXCEEDED")
        cancel = frames.ErrorCode.CANCEL.to_bytes(4, "big")
        assert peer.take_frames() == [Frame(frames.RST_STREAM, 0, stream, cancel) for stream in (1, 5)]
        peer.send(message(1, b"late"), trailers(1), frames.reset(5, 0))
        assert len(peer.connection.calls) == 0
        await peer.lose()

    run_on_loop(scenario)


def test_cancelled_reader_cancels_its_call() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        assert call.is_over and len(peer.connection.calls) == 0
        await peer.lose()

    run_on_loop(scenario)
