"""The laws of one connection: cut it anywhere, say anything, and every call ends once and every byte is counted."""

import asyncio
from contextlib import suppress

import grpc
import pytest
from grpc.aio import EOF, AioRpcError
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.http2 import connection as subject
from octet.rpc.http2 import errors, frames, keepalive
from octet.rpc.http2.call import Call
from octet.rpc.http2.frames import END_HEADERS, END_STREAM, PADDED
from octet.rpc.http2.header_block import literal
from octet.rpc.http2.inbox import framed
from tests.octet.rpc.http2.peer import GREETING, Frame, Peer, greeting, message, scene, trailers

Code = grpc.StatusCode


async def heard(call: Call) -> tuple[list[bytes], str]:
    """All of it, to its end."""
    messages: list[bytes] = []
    try:
        while (raw := await call.read()) is not EOF:
            messages.append(raw)
    except AioRpcError as error:
        return messages, error.code().name
    except asyncio.CancelledError:
        return messages, "cancelled here"
    return messages, "OK"


def status(code: grpc.StatusCode) -> bytes:
    return literal("grpc-status", str(code.value[0]))


def conversation(answers: list[list[bytes]]) -> bytes:
    """To calls 1, 3, 5 and so on, in turns, with all that a server says beside."""
    streams = range(1, 2 * len(answers), 2)
    said = frames.settings({frames.INITIAL_WINDOW_SIZE: 70_000, frames.MAX_FRAME_SIZE: 20_000})
    said += frames.ping(7) + b"".join(map(greeting, streams)) + frames.window_update(0, 1000)
    for turn in range(max(map(len, answers), default=0)):
        for stream, answer in zip(streams, answers, strict=True):
            if turn < len(answer):
                said += message(stream, answer[turn]) + frames.frame(0xEE, 0xFF, stream, b"unknown")
    for stream in streams:
        block = status(Code.ABORTED if stream % 4 == 3 else Code.OK) + literal("x-key", "a" * 40)
        said += frames.frame(frames.HEADERS, END_STREAM, stream, block[:3])
        said += frames.frame(frames.CONTINUATION, 0, stream, block[3:10])
        said += frames.frame(frames.CONTINUATION, END_HEADERS, stream, block[10:])
    return said


@given(
    st.lists(st.lists(st.binary(max_size=40) | st.just(b"long" * 2000), max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 60), max_size=60),
)
def test_however_the_network_cuts_it_the_same_is_heard(answers: list[list[bytes]], cuts: list[int]) -> None:
    said = conversation(answers)
    ends = ["ABORTED" if stream % 4 == 3 else "OK" for stream in range(1, 2 * len(answers), 2)]
    written = []

    async def story(segments: list[bytes]) -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call() for _ in answers]
        peer.hear()
        peer.say(*segments)
        written.append(peer.wire.written)
        assert [await heard(call) for call in calls] == list(zip(answers, ends, strict=True))
        await peer.lose()

    pieces, at = [], 0
    for cut in cuts:
        pieces.append(said[at : at + cut])
        at += cut
    for segments in ([said], [*pieces, said[at:]]):
        scene(lambda segments=segments: story(segments))  # type: ignore[misc]
    assert written[0] == written[1]


def test_it_can_come_byte_by_byte() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        peer.say(*(bytes((byte,)) for byte in conversation([[b"one", b"two"]])))
        assert await heard(call) == ([b"one", b"two"], "OK")
        await peer.lose()

    scene(story)


@given(
    st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4), st.booleans()
)
def test_nothing_that_is_said_does_more_than_end_the_connection(
    noise: bytes, flips: list[tuple[int, int]], settled: bool
) -> None:
    async def story() -> None:
        peer = Peer()
        said = bytearray(conversation([[b"one", b"two"], [b"three"]]))
        for at, byte in flips:
            said[at % len(said)] = byte
        calls = []
        if settled:
            peer.settle()
            calls = [peer.call(), peer.call(b"x" * 200_000)]
        peer.say(bytes(said) + noise) if settled else peer.say(noise)
        await peer.lose()
        for call in calls:
            await heard(call)
            assert call.is_over

    scene(story)


class Server:
    """Sends only what it may. Counts for itself what it was allowed."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.window = subject.WINDOW_BYTES
        self.windows: dict[int, int] = {}
        self.sent = self.given_back = 0
        self.unsent: dict[int, bytes] = {}
        self.heed()

    def heed(self) -> None:
        for frame in self.peer.hear():
            if frame.kind == frames.HEADERS:
                self.windows[frame.stream] = self.peer.lookahead
                self.unsent[frame.stream] = b""
                self.peer.say(greeting(frame.stream))
            elif frame.kind == frames.RST_STREAM:
                self.unsent[frame.stream] += b"late" * 10
            elif frame.kind == frames.WINDOW_UPDATE:
                more = int.from_bytes(frame.payload, "big")
                if frame.stream:
                    self.windows[frame.stream] += more
                else:
                    self.window += more
                    self.given_back += more

    def send(self, stream: int, most: int, padding: int) -> None:
        """As much as it may of what this stream has to say."""
        overhead = padding + 1 if padding else 0
        room = min(self.windows[stream], self.window, most) - overhead
        part, self.unsent[stream] = self.unsent[stream][: max(0, room)], self.unsent[stream][max(0, room) :]
        if room <= 0 or not part:
            return
        payload = bytes((padding,)) + part + bytes(padding) if padding else part
        self.windows[stream] -= len(payload)
        self.window -= len(payload)
        self.sent += len(payload)
        self.peer.say(frames.frame(frames.DATA, PADDED if padding else 0, stream, payload))


acts = st.tuples(
    st.sampled_from(["send", "send", "send", "read", "read", "cancel", "begin"]),
    st.integers(0, 5),
    st.sampled_from([1, 7, 100, 16_000]),
    st.sampled_from([0, 0, 0, 3, 200]),
)


@given(st.lists(acts, max_size=60), st.sampled_from([64, 256, 1000]), st.sampled_from([5, 90, 3000]))
def test_every_byte_that_came_is_given_back_and_who_waits_is_never_starved(
    steps: list[tuple[str, int, int, int]], lookahead: int, length: int
) -> None:
    async def story() -> None:
        peer = Peer(lookahead)
        peer.settle()
        server = Server(peer)
        calls: list[Call] = []
        readers: dict[int, asyncio.Task[bytes]] = {}

        def begin() -> None:
            calls.append(peer.call())
            server.heed()
            server.unsent[calls[-1].stream] = b"".join(framed(b"m" * (length + i)) for i in range(20))

        begin()
        for act, which, most, padding in steps:
            number = which % len(calls)
            call = calls[number]
            if act == "begin" and len(calls) < 6:
                begin()
            elif act == "send":
                server.send(call.stream, most, padding)
            elif act == "read" and (number not in readers or readers[number].done()):
                readers[number] = asyncio.create_task(call.read())
            elif act == "cancel":
                call.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            server.heed()
            for index, each in enumerate(calls):
                if not each.is_over:
                    assert each.window == server.windows[each.stream]
                    held = sum(map(len, each.inbox.messages)) + each.inbox.num_pending
                    waits = index in readers and not readers[index].done()
                    assert held <= max(lookahead, length + 25 + lookahead // 2), "a bound on what nobody reads"
                    if waits and not each.inbox.messages:
                        assert each.window >= max(1, each.inbox.num_missing)
        assert 0 <= server.sent - server.given_back < subject.WINDOW_BYTES // 2
        assert server.window == subject.WINDOW_BYTES - server.sent + server.given_back
        for call in calls:
            call.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)
        await peer.lose()

    scene(story)


def test_late_words_to_cancelled_calls_are_counted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "WINDOW_BYTES", frames.USUAL_WINDOW + 1)

    async def story() -> None:
        peer = Peer()
        peer.settle()
        server = Server(peer)
        for _ in range(50):
            call = peer.call()
            server.heed()
            call.cancel()
            assert [frame.kind for frame in peer.hear()] == [frames.RST_STREAM]
            server.unsent[call.stream] = b"x" * 10_000
            server.send(call.stream, 10_000, 0)
            server.heed()
        assert server.sent == 500_000
        await peer.lose()

    scene(story)


@given(
    st.lists(st.integers(0, 60_000), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["all", "one", "initial", "frame"]), st.integers(1, 40_000)), max_size=25),
)
def test_a_request_is_sent_whole_within_whatever_windows(sizes: list[int], grants: list[tuple[str, int]]) -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 1000})
        requests = [bytes((65 + index,)) * size for index, size in enumerate(sizes)]
        calls = [peer.call(request) for request in requests]
        got = {call.stream: b"" for call in calls}
        ended: list[int] = []
        window, initial, most = frames.USUAL_WINDOW, 1000, frames.FRAME_BYTES
        windows = dict.fromkeys(got, initial)
        announced: list[tuple[int, int]] = []
        """Settings that count once they are acknowledged, and not before."""

        def heed() -> None:
            nonlocal window, initial, most, windows
            for frame in peer.hear():
                if frame.kind == frames.SETTINGS:
                    name, value = announced.pop(0)
                    if name == frames.MAX_FRAME_SIZE:
                        most = value
                    else:
                        windows = {stream: each + value - initial for stream, each in windows.items()}
                        initial = value
                elif frame.kind == frames.DATA:
                    assert len(frame.payload) <= most
                    got[frame.stream] += frame.payload
                    windows[frame.stream] -= len(frame.payload)
                    window -= len(frame.payload)
                    assert windows[frame.stream] >= 0 and window >= 0
                    ended.extend([frame.stream] if frame.flags & END_STREAM else [])

        heed()
        for kind, more in [*grants, ("frame", 0), *(("all", 60_000), ("one", 60_000)) * (2 * len(calls))]:
            if kind == "all":
                window += more
                peer.say(frames.window_update(0, more))
            elif kind == "initial":
                announced.append((frames.INITIAL_WINDOW_SIZE, more))
                peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: more}))
            elif kind == "frame":
                announced.append((frames.MAX_FRAME_SIZE, frames.FRAME_BYTES + more))
                peer.say(frames.settings({frames.MAX_FRAME_SIZE: frames.FRAME_BYTES + more}))
            else:
                for stream in got:
                    windows[stream] += more
                    peer.say(frames.window_update(stream, more))
                    heed()
            heed()
        assert [got[call.stream] for call in calls] == [framed(request) for request in requests]
        assert sorted(ended) == sorted(got), "each ends once"
        await peer.lose()

    scene(story)


def test_a_short_request_is_one_write_and_what_is_there_is_read_without_waiting() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        before = peer.wire.num_writes
        call = peer.call(b"x" * 1000, timeout=5)
        assert peer.wire.num_writes == before + 1
        assert [frame.kind for frame in peer.hear()] == [frames.HEADERS, frames.DATA]
        peer.say(greeting(1), message(1, b"one") + message(1, b"two"), trailers(1))
        for expected in (b"one", b"two", EOF):
            with pytest.raises(StopIteration) as caught:  # a coroutine that returns before it waits
                call.read().send(None)
            assert caught.value.value == expected
        await peer.lose()

    scene(story)


def test_nothing_is_sent_into_a_transport_that_is_full() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 1 << 20})
        peer.connection.pause_writing()
        call = peer.call(b"x" * 50_000)
        peer.say(frames.window_update(0, 1 << 20))
        assert [frame.kind for frame in peer.hear()] == [frames.HEADERS]
        peer.connection.resume_writing()
        assert sum(len(frame.payload) for frame in peer.hear()) == 50_005
        call.cancel()
        await peer.lose()

    scene(story)


def test_calls_beyond_what_the_other_side_takes_wait_in_line_within_their_deadlines() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle({frames.MAX_CONCURRENT_STREAMS: 2})
        calls = [peer.call(bytes((number,))) for number in range(5)]
        late = peer.call(timeout=0.01)
        assert [frame.stream for frame in peer.hear() if frame.kind == frames.HEADERS] == [1, 3]
        assert await heard(late) == ([], "DEADLINE_EXCEEDED")
        calls[2].cancel()
        for stream, number in zip((1, 3, 5, 7), (0, 1, 3, 4), strict=True):
            peer.say(greeting(stream), trailers(stream))
            assert await heard(calls[number]) == ([], "OK")
        assert [frame.stream for frame in peer.hear() if frame.kind == frames.HEADERS] == [5, 7]
        call = peer.call()
        peer.say(frames.settings({frames.MAX_CONCURRENT_STREAMS: 0}))
        waits = peer.call()
        peer.say(greeting(9), trailers(9))
        assert await heard(call) == ([], "OK") and not waits.is_over
        peer.say(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}), greeting(11), trailers(11))
        assert await heard(waits) == ([], "OK")
        await peer.lose()

    scene(story)


def test_a_call_that_is_not_begun_for_now_is_begun_again_and_not_for_ever() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call(b"first"), peer.call(b"second")]
        peer.say(frames.reset(1, errors.REFUSED_STREAM))
        await asyncio.sleep(0.02)
        sent = [frame for frame in peer.hear() if frame.kind == frames.DATA]
        assert [(frame.stream, frame.payload[5:]) for frame in sent] == [(1, b"first"), (3, b"second"), (5, b"first")]
        peer.say(greeting(5), trailers(5))
        assert await heard(calls[0]) == ([], "OK")
        peer.say(frames.reset(3, errors.REFUSED_STREAM))
        while not calls[1].is_over:
            peer.say(*(frames.reset(each.stream, errors.REFUSED_STREAM) for each in peer.hear()))
            await asyncio.sleep(0.001)
        assert await heard(calls[1]) == ([], "UNAVAILABLE")
        late = peer.call()
        peer.say(greeting(late.stream), frames.reset(late.stream, errors.REFUSED_STREAM))
        assert await heard(late) == ([], "UNAVAILABLE"), "it had been begun"
        lost, cancelled, expired = peer.call(), peer.call(), peer.call(timeout=0.01)
        peer.say(*(frames.reset(each.stream, errors.REFUSED_STREAM) for each in (lost, cancelled, expired)))
        assert cancelled.cancel() and len(peer.connection.calls) == 2
        assert await heard(expired) == ([], "DEADLINE_EXCEEDED")
        await peer.lose()

    scene(story)


@pytest.mark.parametrize("last", [0, 1, 3, 5, frames.LAST_STREAM])
def test_who_goes_away_finishes_what_it_has_begun(last: int) -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        calls = [peer.call() for _ in range(3)]
        peer.say(frames.frame(frames.GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4) + b"bye"))
        assert peer.gone == [peer.connection]
        assert [call.is_over for call in calls] == [call.stream > last for call in calls]
        for call in calls:
            if not call.is_over:
                peer.say(greeting(call.stream), message(call.stream, b"done"), trailers(call.stream))
        assert [(await heard(call))[1] for call in calls] == [
            "OK" if call.stream <= last else "UNAVAILABLE" for call in calls
        ]
        assert peer.wire.is_closed, "nobody needs it any more"
        await peer.lose()

    scene(story)


def at_call(*said: bytes) -> list[bytes]:
    return [frames.settings({}), *said]


BREACHES = {
    "no settings first": ([frames.ping(1)], errors.PROTOCOL_ERROR),
    "a frame too long": ([b"\xff\xff\xff" + bytes(6)], errors.FRAME_SIZE_ERROR),
    "half a setting": ([frames.frame(frames.SETTINGS, 0, 0, bytes(5))], errors.FRAME_SIZE_ERROR),
    "settings of a stream": (at_call(frames.frame(frames.SETTINGS, 0, 1)), errors.PROTOCOL_ERROR),
    "a window too wide": (at_call(frames.window_update(0, 2**31 - 1)), errors.FLOW_CONTROL_ERROR),
    "a call's window too wide": (at_call(frames.window_update(1, 2**31 - 1)), errors.FLOW_CONTROL_ERROR),
    "a first window too wide": (
        at_call(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31})),
        errors.FLOW_CONTROL_ERROR,
    ),
    "a frame size too small": (at_call(frames.settings({frames.MAX_FRAME_SIZE: 1})), errors.PROTOCOL_ERROR),
    "a window by nothing": (at_call(frames.window_update(1, 0)), errors.PROTOCOL_ERROR),
    "a call nobody began": (at_call(greeting(5)), errors.PROTOCOL_ERROR),
    "a call of the server's": (at_call(message(2, b"x")), errors.PROTOCOL_ERROR),
    "a promise": (at_call(frames.frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4))), errors.PROTOCOL_ERROR),
    "a ping too short": (at_call(frames.frame(frames.PING, 0, 0, b"x")), errors.FRAME_SIZE_ERROR),
    "padding alone": (
        at_call(greeting(1), frames.frame(frames.DATA, PADDED, 1, b"\x05abc")),
        errors.PROTOCOL_ERROR,
    ),
    "headers broken off": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), frames.ping(1)),
        errors.PROTOCOL_ERROR,
    ),
    "data among headers": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), message(1, b"x")),
        errors.PROTOCOL_ERROR,
    ),
    "headers of another": (
        at_call(frames.frame(frames.HEADERS, 0, 1, GREETING), frames.frame(frames.CONTINUATION, END_HEADERS, 3)),
        errors.PROTOCOL_ERROR,
    ),
    "headers without an end": (
        at_call(frames.frame(frames.HEADERS, 0, 1), *[frames.frame(frames.CONTINUATION, 0, 1)] * 100),
        errors.ENHANCE_YOUR_CALM,
    ),
    "headers that are no headers": (
        at_call(frames.frame(frames.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")),
        errors.COMPRESSION_ERROR,
    ),
    "more than the window": (
        at_call(greeting(1), *[frames.frame(frames.DATA, 0, 1, bytes(16_000))] * 5),
        errors.FLOW_CONTROL_ERROR,
    ),
    "a farewell too short": (at_call(frames.frame(frames.GOAWAY, 0, 0, b"x")), errors.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_who_breaks_the_rules_is_told_so_and_left(breach: str) -> None:
    said, code = BREACHES[breach]

    async def story() -> None:
        peer = Peer()
        is_begun = len(said) > 1
        if is_begun:
            peer.say(said[0])
            call = peer.call()
        peer.hear()
        peer.say(*said[1 if is_begun else 0 :])
        last = peer.hear()[-1]
        assert last.kind == frames.GOAWAY and int.from_bytes(last.payload[4:8], "big") == code
        assert peer.wire.is_closed
        if is_begun:
            assert (await heard(call))[1] == "UNAVAILABLE"
        await peer.lose()

    scene(story)


ENDINGS = {
    "no status": ([greeting(1), trailers(1, literal("x", "y"))], "UNKNOWN"),
    "no trailers": ([greeting(1), frames.frame(frames.DATA, END_STREAM, 1, framed(b"x"))], "UNKNOWN"),
    "a status that is none": ([greeting(1), trailers(1, literal("grpc-status", "99"))], "UNKNOWN"),
    "nothing but trailers": ([trailers(1, GREETING + status(Code.NOT_FOUND))], "NOT_FOUND"),
    "messages before headers": ([message(1, b"x")], "INTERNAL"),
    "headers twice": ([greeting(1), greeting(1)], "INTERNAL"),
    "a status before the final one": (
        [frames.frame(frames.HEADERS, END_HEADERS, 1, literal(":status", "103")), greeting(1), trailers(1)],
        "OK",
    ),
    "a message that is compressed": ([greeting(1), frames.frame(frames.DATA, 0, 1, b"\x01\0\0\0\x01x")], "INTERNAL"),
    "a message that breaks off": (
        [greeting(1), frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\x09x"), trailers(1)],
        "INTERNAL",
    ),
    "a message too large": ([greeting(1), frames.frame(frames.DATA, 0, 1, b"\0\xff\0\0\0")], "RESOURCE_EXHAUSTED"),
    "not gRPC": (
        [frames.frame(frames.HEADERS, END_HEADERS, 1, b"\x88" + literal("content-type", "text/html"))],
        "UNKNOWN",
    ),
    **{
        f"HTTP {http}": ([frames.frame(frames.HEADERS, END_HEADERS, 1, literal(":status", http))], code)
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
        f"reset {errors.name_of(number)}": ([greeting(1), frames.reset(1, number)], code)
        for number, code in {
            errors.NO_ERROR: "INTERNAL",
            errors.PROTOCOL_ERROR: "INTERNAL",
            errors.CANCEL: "CANCELLED",
            errors.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
            errors.INADEQUATE_SECURITY: "PERMISSION_DENIED",
            999: "INTERNAL",
        }.items()
    },
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_call_ends_as_grpc_would_end_it_and_the_connection_goes_on(ending: str) -> None:
    said, code = ENDINGS[ending]

    async def story() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        peer.say(*said)
        assert (await heard(call))[1] == code
        next_call = peer.call()
        peer.say(greeting(3), message(3, b"still there"), trailers(3))
        assert await heard(next_call) == ([b"still there"], "OK")
        await peer.lose()

    scene(story)


def test_headers_that_are_too_long_end_their_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call()
        block = literal("x-long", "a" * 4000) * 16
        parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        peer.say(greeting(1), frames.frame(frames.HEADERS, END_STREAM, 1, parts[0]))
        peer.say(*(frames.frame(frames.CONTINUATION, 0, 1, part) for part in parts[1:]))
        peer.say(frames.frame(frames.CONTINUATION, END_HEADERS, 1, literal("x-long", "a" * 1000)))
        assert (await heard(call))[1] == "RESOURCE_EXHAUSTED"
        assert not peer.wire.is_closed
        await peer.lose()

    scene(story)


def test_pings_are_answered_and_acknowledgements_are_not() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        peer.say(frames.ping(41), frames.ping(42, frames.ACK), frames.frame(frames.SETTINGS, frames.ACK, 0))
        assert peer.hear() == [Frame(frames.PING, frames.ACK, 0, (41).to_bytes(8, "big"))]
        await peer.lose()

    scene(story)


def test_who_asks_and_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        peer.connection.pause_writing()
        monkeypatch.setattr(peer.wire, "get_write_buffer_size", lambda: 2 << 20)
        peer.say(frames.ping(1))
        assert peer.wire.is_closed
        await peer.lose()

    scene(story)


def test_who_is_silent_is_asked_and_who_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(keepalive, "PATIENCE_SECONDS", 0.05)

    async def story() -> None:
        peer = Peer()
        peer.settle()
        await asyncio.sleep(0.15)
        assert peer.hear() == [], "nobody waits for anything"
        call = peer.call()
        peer.hear()
        for _ in range(3):
            async with asyncio.timeout(5):
                while not (asked := peer.hear()):
                    await asyncio.sleep(0.005)
            assert [frame.kind for frame in asked] == [frames.PING]
            peer.say(frames.frame(frames.PING, frames.ACK, 0, bytes(8)))
        assert await heard(call) == ([], "UNAVAILABLE")
        await peer.lose()

    scene(story)


def test_a_call_is_reset_once_and_leaves_nothing() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        call, done, expired = peer.call(), peer.call(), peer.call(timeout=0.01)
        peer.say(greeting(1), message(1, b"unread"), greeting(3), message(3, b"read"), trailers(3))
        peer.hear()
        assert call.cancel() and not call.cancel() and not done.cancel()
        assert await heard(call) == ([], "cancelled here")
        assert await heard(done) == ([b"read"], "OK")
        assert await heard(expired) == ([], "DEADLINE_EXCEEDED")
        cancel = errors.CANCEL.to_bytes(4, "big")
        assert peer.hear() == [Frame(frames.RST_STREAM, 0, stream, cancel) for stream in (1, 5)]
        peer.say(message(1, b"late"), trailers(1), frames.reset(5, 0))
        assert len(peer.connection.calls) == 0
        await peer.lose()

    scene(story)


def test_a_reader_that_is_cancelled_cancels_its_call() -> None:
    async def story() -> None:
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

    scene(story)


def test_calls_that_could_not_send_and_are_over_wait_for_nothing() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 0})
        calls = [peer.call(b"x" * 1000) for _ in range(6)]
        calls[0].cancel()
        peer.say(frames.reset(3, errors.CANCEL), trailers(5, GREETING + status(Code.ABORTED)), message(7, b"too early"))
        peer.say(frames.frame(frames.GOAWAY, 0, 0, (9).to_bytes(4, "big") + bytes(4)))
        assert [call.is_over for call in calls] == [True, True, True, True, False, True]
        assert len(peer.connection._outgoing) == 1
        peer.hear()
        peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 2000}))
        assert [frame.stream for frame in peer.hear() if frame.kind == frames.DATA] == [9]
        calls[4].cancel()
        await peer.lose()

    scene(story)


def test_an_early_end_stops_what_is_still_being_sent() -> None:
    async def story() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call(b"x" * 100_000)
        peer.hear()
        peer.say(trailers(1, GREETING + status(Code.RESOURCE_EXHAUSTED)), frames.window_update(0, 100_000))
        assert [frame.kind for frame in peer.hear()] == [frames.RST_STREAM]
        assert await heard(call) == ([], "RESOURCE_EXHAUSTED")
        await peer.lose()

    scene(story)
