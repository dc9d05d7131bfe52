"""The limit on concurrent streams, and calls beyond it."""

import asyncio

import pytest

from router.dispatch.http2 import frames
from tests.router.http2.peer import Peer, greeting, message, read_to_end, run_on_loop, trailers


def test_calls_beyond_the_stream_limit_wait_within_their_deadlines() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle({frames.MAX_CONCURRENT_STREAMS: 2})
        calls = [peer.call(bytes((number,))) for number in range(5)]
        late = peer.call(timeout=0.01)
        assert [frame.stream for frame in peer.take_frames() if frame.kind == frames.HEADERS] == [1, 3]
        assert await read_to_end(late) == ([], "DEADLINE_EXCEEDED")
        calls[2].cancel()
        for stream, number in zip((1, 3, 5, 7), (0, 1, 3, 4), strict=True):
            peer.send(greeting(stream), trailers(stream))
            assert await read_to_end(calls[number]) == ([], "OK")
        assert [frame.stream for frame in peer.take_frames() if frame.kind == frames.HEADERS] == [5, 7]
        call = peer.call()
        peer.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 0}))
        waits = peer.call()
        peer.send(greeting(9), trailers(9))
        assert await read_to_end(call) == ([], "OK") and not waits.is_over
        peer.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}), greeting(11), trailers(11))
        assert await read_to_end(waits) == ([], "OK")
        await peer.lose()

    run_on_loop(scenario)


def test_refused_stream_is_retried_a_bounded_number_of_times() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call(b"first"), peer.call(b"second")]
        peer.send(frames.reset(1, frames.ErrorCode.REFUSED_STREAM))
        await asyncio.sleep(0.02)
        sent = [frame for frame in peer.take_frames() if frame.kind == frames.DATA]
        assert [(frame.stream, frame.payload[5:]) for frame in sent] == [(1, b"first"), (3, b"second"), (5, b"first")]
        peer.send(greeting(5), trailers(5))
        assert await read_to_end(calls[0]) == ([], "OK")
        peer.send(frames.reset(3, frames.ErrorCode.REFUSED_STREAM))
        while not calls[1].is_over:
            peer.send(*(frames.reset(each.stream, frames.ErrorCode.REFUSED_STREAM) for each in peer.take_frames()))
            await asyncio.sleep(0.001)
        assert await read_to_end(calls[1]) == ([], "UNAVAILABLE")
        late = peer.call()
        peer.send(greeting(late.stream), frames.reset(late.stream, frames.ErrorCode.REFUSED_STREAM))
        assert await read_to_end(late) == ([], "UNAVAILABLE"), "a stream that has begun must not be retried"
        lost, cancelled, expired = peer.call(), peer.call(), peer.call(timeout=0.01)
        peer.send(*(frames.reset(each.stream, frames.ErrorCode.REFUSED_STREAM) for each in (lost, cancelled, expired)))
        assert cancelled.cancel() and len(peer.connection.calls) == 2
        assert await read_to_end(expired) == ([], "DEADLINE_EXCEEDED")
        await peer.lose()

    run_on_loop(scenario)


@pytest.mark.parametrize("last", [0, 1, 3, 5, frames.LAST_STREAM])
def test_server_that_goes_away_finishes_its_streams(last: int) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call() for _ in range(3)]
        peer.send(frames.frame(frames.GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4) + b"bye"))
        assert peer.gone == [peer.connection]
        assert [call.is_over for call in calls] == [call.stream > last for call in calls]
        for call in calls:
            if not call.is_over:
                peer.send(greeting(call.stream), message(call.stream, b"done"), trailers(call.stream))
        assert [(await read_to_end(call))[1] for call in calls] == [
            "OK" if call.stream <= last else "UNAVAILABLE" for call in calls
        ]
        assert peer.wire.is_closed, "no call needs the connection any longer"
        await peer.lose()

    run_on_loop(scenario)
