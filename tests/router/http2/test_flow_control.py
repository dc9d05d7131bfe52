"""Flow control: every byte is counted in both directions, no window is exceeded, and no reader starves."""

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.http2 import connection as subject
from router.dispatch.http2 import frames
from router.dispatch.http2.call import Http2Call, frame_message
from router.dispatch.http2.frames import END_STREAM, PADDED
from router.dispatch.http2.streams import SendQueue
from tests.router.http2.peer import GREETING, Peer, greeting, message, read_to_end, run_on_loop, status, trailers

Code = grpc.StatusCode


class Server:
    """A server that respects the windows and keeps its own count of them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.window = subject.WINDOW_BYTES
        self.windows: dict[int, int] = {}
        self.sent = self.given_back = 0
        self.unsent: dict[int, bytes] = {}
        self.read_frames()

    def read_frames(self) -> None:
        for frame in self.peer.take_frames():
            if frame.kind == frames.HEADERS:
                self.windows[frame.stream] = self.peer.lookahead
                self.unsent[frame.stream] = b""
                self.peer.send(greeting(frame.stream))
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
        """Send as much of the stream's data as the windows and `most` permit."""
        overhead = padding + 1 if padding else 0
        room = min(self.windows[stream], self.window, most) - overhead
        part, self.unsent[stream] = self.unsent[stream][: max(0, room)], self.unsent[stream][max(0, room) :]
        if room <= 0 or not part:
            return
        payload = bytes((padding,)) + part + bytes(padding) if padding else part
        self.windows[stream] -= len(payload)
        self.window -= len(payload)
        self.sent += len(payload)
        self.peer.send(frames.frame(frames.DATA, PADDED if padding else 0, stream, payload))


acts = st.tuples(
    st.sampled_from(["send", "send", "send", "read", "read", "cancel", "begin"]),
    st.integers(0, 5),
    st.sampled_from([1, 7, 100, 16_000]),
    st.sampled_from([0, 0, 0, 3, 200]),
)


@given(st.lists(acts, max_size=60), st.sampled_from([64, 256, 1000]), st.sampled_from([5, 90, 3000]))
def test_received_bytes_are_credited_back_and_waiting_streams_progress(
    steps: list[tuple[str, int, int, int]], lookahead: int, length: int
) -> None:
    async def scenario() -> None:
        peer = Peer(lookahead)
        peer.settle()
        server = Server(peer)
        calls: list[Http2Call] = []
        readers: dict[int, asyncio.Task[bytes]] = {}

        def begin() -> None:
            calls.append(peer.call())
            server.read_frames()
            server.unsent[calls[-1].stream] = b"".join(frame_message(b"m" * (length + i)) for i in range(20))

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
            server.read_frames()
            for index, each in enumerate(calls):
                if not each.is_over:
                    assert each.window == server.windows[each.stream]
                    held = sum(map(len, each.buffer.messages)) + each.buffer.num_pending
                    waits = index in readers and not readers[index].done()
                    assert held <= max(lookahead, length + 25 + lookahead // 2), "unread bytes must be bounded"
                    if waits and not each.buffer.messages:
                        assert each.window >= max(1, each.buffer.num_missing)
        assert 0 <= server.sent - server.given_back < subject.WINDOW_BYTES // 2
        assert server.window == subject.WINDOW_BYTES - server.sent + server.given_back
        for call in calls:
            call.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)
        await peer.lose()

    run_on_loop(scenario)


def test_late_data_of_cancelled_calls_counts_against_the_connection_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "WINDOW_BYTES", frames.DEFAULT_WINDOW + 1)

    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        server = Server(peer)
        for _ in range(50):
            call = peer.call()
            server.read_frames()
            call.cancel()
            assert [frame.kind for frame in peer.take_frames()] == [frames.RST_STREAM]
            server.unsent[call.stream] = b"x" * 10_000
            server.send(call.stream, 10_000, 0)
            server.read_frames()
        assert server.sent == 500_000
        await peer.lose()

    run_on_loop(scenario)


@given(
    st.lists(st.integers(0, 60_000), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["all", "one", "initial", "frame"]), st.integers(1, 40_000)), max_size=25),
)
def test_request_is_sent_completely_within_any_windows(sizes: list[int], grants: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 1000})
        requests = [bytes((65 + index,)) * size for index, size in enumerate(sizes)]
        calls = [peer.call(request) for request in requests]
        got = {call.stream: b"" for call in calls}
        ended: list[int] = []
        window, initial, most = frames.DEFAULT_WINDOW, 1000, frames.FRAME_BYTES
        windows = dict.fromkeys(got, initial)
        announced: list[tuple[int, int]] = []
        """Announced settings, which apply once they are acknowledged."""

        def read_frames() -> None:
            nonlocal window, initial, most, windows
            for frame in peer.take_frames():
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

        read_frames()
        for kind, more in [*grants, ("frame", 0), *(("all", 60_000), ("one", 60_000)) * (2 * len(calls))]:
            if kind == "all":
                window += more
                peer.send(frames.window_update(0, more))
            elif kind == "initial":
                announced.append((frames.INITIAL_WINDOW_SIZE, more))
                peer.send(frames.settings({frames.INITIAL_WINDOW_SIZE: more}))
            elif kind == "frame":
                announced.append((frames.MAX_FRAME_SIZE, frames.FRAME_BYTES + more))
                peer.send(frames.settings({frames.MAX_FRAME_SIZE: frames.FRAME_BYTES + more}))
            else:
                for stream in got:
                    windows[stream] += more
                    peer.send(frames.window_update(stream, more))
                    read_frames()
            read_frames()
        assert [got[call.stream] for call in calls] == [frame_message(request) for request in requests]
        assert sorted(ended) == sorted(got), "each call must end once"
        await peer.lose()

    run_on_loop(scenario)


def test_paused_transport_is_not_written_to() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 1 << 20})
        peer.connection.pause_writing()
        call = peer.call(b"x" * 50_000)
        peer.send(frames.window_update(0, 1 << 20))
        assert [frame.kind for frame in peer.take_frames()] == [frames.HEADERS]
        peer.connection.resume_writing()
        assert sum(len(frame.payload) for frame in peer.take_frames()) == 50_005
        call.cancel()
        await peer.lose()

    run_on_loop(scenario)


def test_window_updates_do_not_scan_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    call_window = SendQueue._call_window

    def counted(outgoing: SendQueue, call: Http2Call) -> int:
        nonlocal looks
        looks += 1
        return call_window(outgoing, call)

    monkeypatch.setattr(SendQueue, "_call_window", counted)

    async def scenario() -> None:
        nonlocal looks
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 0})
        calls = [peer.call(b"x" * 1000) for _ in range(100)]
        looks = 0
        peer.send(frames.window_update(0, 1) * 1000)
        peer.send(*([frames.window_update(0, 1)] * 1000))
        peer.send(b"".join(frames.settings({frames.INITIAL_WINDOW_SIZE: size % 2}) for size in range(1000)))
        assert looks <= 1000
        peer.take_frames()
        peer.send(frames.window_update(3, 2000))
        assert [frame.stream for frame in peer.take_frames() if frame.kind == frames.DATA] == [3]
        for call in calls:
            call.cancel()
        await peer.lose()

    run_on_loop(scenario)


def test_blocked_calls_that_have_ended_are_forgotten() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle({frames.INITIAL_WINDOW_SIZE: 0})
        calls = [peer.call(b"x" * 1000) for _ in range(6)]
        calls[0].cancel()
        peer.send(
            frames.reset(3, frames.ErrorCode.CANCEL),
            trailers(5, GREETING + status(Code.ABORTED)),
            message(7, b"too early"),
        )
        peer.send(frames.frame(frames.GOAWAY, 0, 0, (9).to_bytes(4, "big") + bytes(4)))
        assert [call.is_over for call in calls] == [True, True, True, True, False, True]
        peer.take_frames()
        peer.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 2000}))
        assert [frame.stream for frame in peer.take_frames() if frame.kind == frames.DATA] == [9]
        calls[4].cancel()
        await peer.lose()

    run_on_loop(scenario)


def test_early_end_of_a_call_stops_its_upload() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.settle()
        call = peer.call(b"x" * 100_000)
        peer.take_frames()
        peer.send(trailers(1, GREETING + status(Code.RESOURCE_EXHAUSTED)), frames.window_update(0, 100_000))
        assert [frame.kind for frame in peer.take_frames()] == [frames.RST_STREAM]
        assert await read_to_end(call) == ([], "RESOURCE_EXHAUSTED")
        await peer.lose()

    run_on_loop(scenario)
