"""All the ways in which calls and connections end."""

import grpc
import pytest

from router.dispatch.http2 import frames
from router.dispatch.http2.call import frame_message
from router.dispatch.http2.frames import END_HEADERS, END_STREAM, PADDED, encode_literal
from tests.router.http2.peer import GREETING, Peer, greeting, message, read_to_end, run_on_loop, status, trailers

Code = grpc.StatusCode


def at_call(*said: bytes) -> list[bytes]:
    return [frames.settings({}), *said]


BREACHES = {
    "no settings first": ([frames.ping(1)], frames.ErrorCode.PROTOCOL_ERROR),
    "a frame too long": ([b"\xff\xff\xff" + bytes(6)], frames.ErrorCode.FRAME_SIZE_ERROR),
    "half a setting": ([frames.frame(frames.SETTINGS, 0, 0, bytes(5))], frames.ErrorCode.FRAME_SIZE_ERROR),
    "settings of a stream": (at_call(frames.frame(frames.SETTINGS, 0, 1)), frames.ErrorCode.PROTOCOL_ERROR),
    "a window too wide": (at_call(frames.window_update(0, 2**31 - 1)), frames.ErrorCode.FLOW_CONTROL_ERROR),
    "a call's window too wide": (at_call(frames.window_update(1, 2**31 - 1)), frames.ErrorCode.FLOW_CONTROL_ERROR),
    "a first window too wide": (
        at_call(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31})),
        frames.ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a frame size too small": (at_call(frames.settings({frames.MAX_FRAME_SIZE: 1})), frames.ErrorCode.PROTOCOL_ERROR),
    "a window by nothing": (at_call(frames.window_update(1, 0)), frames.ErrorCode.PROTOCOL_ERROR),
    "a call that was never begun": (at_call(greeting(5)), frames.ErrorCode.PROTOCOL_ERROR),
    "a call of the server's": (at_call(message(2, b"x")), frames.ErrorCode.PROTOCOL_ERROR),
    "a promise": (
        at_call(frames.frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4))),
        frames.ErrorCode.PROTOCOL_ERROR,
    ),
    "a ping too short": (at_call(frames.frame(frames.PING, 0, 0, b"x")), frames.ErrorCode.FRAME_SIZE_ERROR),
    "padding alone": (
        at_call(greeting(1), frames.frame(frames.DATA, PADDED, 1, b"\x05abc")),
        frames.ErrorCode.PROTOCOL_ERROR,
    ),
    "headers broken off": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), frames.ping(1)),
        frames.ErrorCode.PROTOCOL_ERROR,
    ),
    "data among headers": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), message(1, b"x")),
        frames.ErrorCode.PROTOCOL_ERROR,
    ),
    "headers of another": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), frames.frame(frames.CONTINUATION, END_HEADERS, 3)),
        frames.ErrorCode.PROTOCOL_ERROR,
    ),
    "headers without an end": (
        at_call(frames.frame(frames.HEADERS, 0, 1), *[frames.frame(frames.CONTINUATION, 0, 1)] * 100),
        frames.ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "headers that are no headers": (
        at_call(frames.frame(frames.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")),
        frames.ErrorCode.COMPRESSION_ERROR,
    ),
    "more than the window": (
        at_call(greeting(1), *[frames.frame(frames.DATA, 0, 1, bytes(16_000))] * 5),
        frames.ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a farewell too short": (at_call(frames.frame(frames.GOAWAY, 0, 0, b"x")), frames.ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_protocol_violation_ends_the_connection_with_its_error(breach: str) -> None:
    said, code = BREACHES[breach]

    async def scenario() -> None:
        peer = Peer()
        is_begun = len(said) > 1
        if is_begun:
            peer.send(said[0])
            call = peer.call()
        peer.take_frames()
        peer.send(*said[1 if is_begun else 0 :])
        last = peer.take_frames()[-1]
        assert last.kind == frames.GOAWAY and int.from_bytes(last.payload[4:8], "big") == code
        assert peer.wire.is_closed
        if is_begun:
            assert (await read_to_end(call))[1] == "UNAVAILABLE"
        await peer.lose()

    run_on_loop(scenario)


ENDINGS = {
    "no status": ([greeting(1), trailers(1, encode_literal("x", "y"))], "UNKNOWN"),
    "no trailers": ([greeting(1), frames.frame(frames.DATA, END_STREAM, 1, frame_message(b"x"))], "UNKNOWN"),
    "a status that is none": ([greeting(1), trailers(1, encode_literal("grpc-status", "99"))], "UNKNOWN"),
    "nothing but trailers": ([trailers(1, GREETING + status(Code.NOT_FOUND))], "NOT_FOUND"),
    "messages before headers": ([message(1, b"x")], "INTERNAL"),
    "headers twice": ([greeting(1), greeting(1)], "INTERNAL"),
    "a status before the final one": (
        [frames.frame(frames.HEADERS, END_HEADERS, 1, encode_literal(":status", "103")), greeting(1), trailers(1)],
        "OK",
    ),
    "a message that is compressed": ([greeting(1), frames.frame(frames.DATA, 0, 1, b"\x01\0\0\0\x01x")], "INTERNAL"),
    "a message that breaks off": (
        [greeting(1), frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\x09x"), trailers(1)],
        "INTERNAL",
    ),
    "a message too large": ([greeting(1), frames.frame(frames.DATA, 0, 1, b"\0\xff\0\0\0")], "RESOURCE_EXHAUSTED"),
    "not gRPC": (
        [frames.frame(frames.HEADERS, END_HEADERS, 1, b"\x88" + encode_literal("content-type", "text/html"))],
        "UNKNOWN",
    ),
    **{
        f"HTTP {http}": ([frames.frame(frames.HEADERS, END_HEADERS, 1, encode_literal(":status", http))], code)
        for http, code in {
            "400": "INTERNAL",
            "401": "UNAUTHENTICATED",
            "403": "PERMISSION_DENIED",
            "404": "UNIMPLEMENTED",
            "429": "UNAVAILABLE",
            "500": "UNKNOWN",
            "502": "UNAVAILABLE",
            "503": "UNAVAILABLE",
            "504": "UNAVAILABLE",
        }.items()
    },
    **{
        f"reset {frames.error_name(number)}": ([greeting(1), frames.reset(1, number)], code)
        for number, code in {
            frames.ErrorCode.NO_ERROR: "INTERNAL",
            frames.ErrorCode.PROTOCOL_ERROR: "INTERNAL",
            frames.ErrorCode.CANCEL: "CANCELLED",
            frames.ErrorCode.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
            frames.ErrorCode.INADEQUATE_SECURITY: "PERMISSION_DENIED",
            999: "INTERNAL",
        }.items()
    },
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_call_ends_like_a_grpc_call_and_the_connection_stays_open(ending: str) -> None:
    said, code = ENDINGS[ending]

    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        peer.send(*said)
        assert (await read_to_end(call))[1] == code
        next_call = peer.call()
        peer.send(greeting(3), message(3, b"still there"), trailers(3))
        assert await read_to_end(next_call) == ([b"still there"], "OK")
        await peer.lose()

    run_on_loop(scenario)


def test_oversized_headers_end_only_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        block = encode_literal("x-long", "a" * 4000) * 16
        parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        peer.send(greeting(1), frames.frame(frames.HEADERS, END_STREAM, 1, parts[0]))
        peer.send(*(frames.frame(frames.CONTINUATION, 0, 1, part) for part in parts[1:]))
        peer.send(frames.frame(frames.CONTINUATION, END_HEADERS, 1, encode_literal("x-long", "a" * 1000)))
        assert (await read_to_end(call))[1] == "RESOURCE_EXHAUSTED"
        assert not peer.wire.is_closed
        await peer.lose()

    run_on_loop(scenario)
