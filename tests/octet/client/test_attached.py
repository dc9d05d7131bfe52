"""The client's side of an attached call, with a replica that the test plays: every stream has its events in order and
one end, credit is conserved, and nothing is left behind, whatever happens when."""

import asyncio
from collections import deque
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, Metadata
from hypothesis import given
from hypothesis import strategies as st

from octet.client.attached import MAX_REQUEST_BYTES, RETRY_SECONDS, AttachedCall, Attacher, StreamCall
from octet.client.errors import ERROR_METADATA_KEY
from octet.v1 import specialist_pb2 as wire
from simulation.event_loop import HeapLoop

LOOKAHEAD = 10
BROKEN = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details="gone")


class PlayedReplica:
    """The transport of an attached call, and the replica at its other end."""

    def __init__(self) -> None:
        self.requests: list[wire.AttachRequest] = []
        self.is_cancelled = False
        self._responses: deque[Any] = deque()
        self._has_more = asyncio.Event()

    async def write(self, request: bytes) -> None:
        assert not self.is_cancelled
        self.requests.append(wire.AttachRequest.FromString(request))

    async def read(self) -> Any:
        while not self._responses:
            self._has_more.clear()
            await self._has_more.wait()
        response = self._responses.popleft()
        if isinstance(response, AioRpcError):
            raise response
        return response

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True

    def send(self, response: Any) -> None:
        raw = response.SerializeToString() if isinstance(response, wire.AttachResponse) else response
        self._responses.append(raw)
        self._has_more.set()

    def hello(self) -> None:
        self.send(wire.AttachResponse(hello=wire.AttachHello(max_streams=9)))


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def attach() -> tuple[AttachedCall, PlayedReplica, asyncio.Task[None]]:
    replica = PlayedReplica()
    attached = AttachedCall(replica, LOOKAHEAD)
    running = asyncio.create_task(attached.run())
    replica.hello()
    assert await attached.opened
    return attached, replica, running


async def read_all(call: StreamCall) -> tuple[list[bytes], Any]:
    """Return the events, and EOF or the error after them."""
    events: list[bytes] = []
    try:
        while (event := await call.read()) is not EOF:
            events.append(event)
    except (AioRpcError, asyncio.CancelledError) as error:
        return events, error
    return events, EOF


def on_heap(scenario: Any) -> None:
    loop = HeapLoop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.cancel_all()
        loop.close()


moves = st.lists(
    st.tuples(st.sampled_from(["event", "end", "fail", "cancel", "read", "break"]), st.integers(0, 3)), max_size=40
)


@given(moves)
def test_every_stream_has_its_events_in_order_and_one_end(played: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        attached, replica, running = await attach()
        calls = [attached.start(b"%d" % i, None, ()) for i in range(4)]
        sent: list[list[bytes]] = [[] for _ in calls]
        read: list[list[bytes]] = [[] for _ in calls]
        ends: list[Any] = [None] * 4
        for number, (move, i) in enumerate(played):
            is_over = ends[i] is not None
            if move in ("event", "end", "fail") and not running.done():
                frame = wire.AttachResponse()
                if move == "event":
                    frame.streams.append(i + 1)
                    frame.events.append(b"%03d" % number)
                    if not is_over:
                        sent[i].append(b"%03d" % number)
                else:
                    code = grpc.StatusCode.ABORTED if move == "fail" else grpc.StatusCode.OK
                    frame.ends.add(stream=i + 1, code=code.value[0], message=move)
                    ends[i] = ends[i] or move
                replica.send(frame)
            elif move == "cancel":
                assert calls[i].cancel() == (not is_over)
                ends[i] = ends[i] or "cancel"
            elif move == "read" and len(read[i]) < len(sent[i]) and ends[i] != "cancel":
                read[i].append(await calls[i].read())
            elif move == "break" and not running.done():
                replica.send(BROKEN)
                ends = [end or "break" for end in ends]
            await settle()
        if not running.done():
            replica.send(BROKEN)
            ends = [end or "break" for end in ends]
        for i, call in enumerate(calls):
            events, end = await read_all(call)
            if ends[i] == "cancel":
                assert not events and isinstance(end, asyncio.CancelledError)
                assert read[i] == sent[i][: len(read[i])]
                continue
            assert read[i] + events == sent[i]
            codes = {"fail": grpc.StatusCode.ABORTED, "break": grpc.StatusCode.UNAVAILABLE}
            assert (end is EOF) == (ends[i] == "end")
            assert end is EOF or end.code() is codes[ends[i]]
        await running
        assert replica.is_cancelled and not attached._streams
        cancelled = [number for request in replica.requests for number in request.cancels]
        assert sorted(cancelled) == sorted(set(cancelled)) and set(cancelled) <= {
            i + 1 for i in range(4) if ends[i] == "cancel"
        }

    on_heap(scenario())


@given(st.lists(st.integers(1, 2 * LOOKAHEAD), min_size=1, max_size=40))
def test_credit_follows_what_was_read(sizes: list[int]) -> None:
    """A replica that obeys credits is never stuck, and has at most the lookahead and one event outstanding."""

    async def scenario() -> None:
        attached, replica, running = await attach()
        call = attached.start(b"", None, ())
        await settle()
        credit, num_read = replica.requests[0].starts[0].credit, 0
        assert credit == LOOKAHEAD
        num_sent = 0
        for size in sizes:
            while credit <= 0:
                num_read += len(await call.read())
                await settle()
                for request in replica.requests[1:]:
                    credit += sum(each.bytes for each in request.credits)
                del replica.requests[1:]
            assert credit <= LOOKAHEAD - (num_sent - num_read)
            replica.send(wire.AttachResponse(streams=[1], events=[bytes(size)]))
            await settle()
            credit -= size
            num_sent += size
            assert num_sent - num_read < LOOKAHEAD + size
        replica.send(wire.AttachResponse(ends=[wire.StreamEnd(stream=1)]))
        events, end = await read_all(call)
        assert end is EOF and num_read + sum(map(len, events)) == sum(sizes)
        running.cancel()

    on_heap(scenario())


async def test_one_message_carries_what_the_client_says_at_one_time() -> None:
    attached, replica, running = await attach()
    trace = (("traceparent", "00-1-2-01"), ("tracestate", "a=b"), ("other", "x"))
    first, _, third = (attached.start(b"%d" % i, 1.5, trace) for i in range(3))
    third.cancel()
    await settle()
    (request,) = replica.requests
    assert [(start.stream, start.request, start.timeout_us) for start in request.starts] == [
        (1, b"0", 1_500_000),
        (2, b"1", 1_500_000),
    ]
    assert request.starts[0].traceparent == "00-1-2-01" and request.starts[0].tracestate == "a=b"
    assert not request.cancels  # the third was never sent
    replica.send(wire.AttachResponse(streams=[3, 1], events=[b"late", b"event"]))
    assert await first.read() == b"event"
    running.cancel()
    with pytest.raises(AioRpcError, match="cancelled"):
        await first.read()


async def test_an_event_without_credit_ends_the_call() -> None:
    attached, replica, running = await attach()
    stream = attached.start(b"", None, ())
    replica.send(wire.AttachResponse(streams=[1, 1], events=[b"x" * 1000, b"x"]))
    await settle()
    assert await stream.read() == b"x" * 1000
    with pytest.raises(AioRpcError, match="event of stream 1 came without credit"):
        await stream.read()
    await running


async def test_messages_are_cut() -> None:
    attached, replica, running = await attach()
    for _ in range(3):
        attached.start(bytes(MAX_REQUEST_BYTES // 2), None, ())
    await settle()
    assert [len(request.starts) for request in replica.requests] == [2, 1]
    running.cancel()


def test_a_deadline_ends_the_stream_and_tells_the_replica() -> None:
    async def scenario() -> None:
        attached, replica, running = await attach()
        call = attached.start(b"", 2.0, ())
        began = asyncio.get_running_loop().time()
        _, end = await read_all(call)
        assert end.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)
        await settle()
        assert [*replica.requests[-1].cancels] == [1]
        running.cancel()

    on_heap(scenario())


async def test_an_error_has_its_details() -> None:
    attached, replica, running = await attach()
    call = attached.start(b"", None, ())
    error = wire.Error(reason=wire.ERROR_REASON_SHED, message="shed")
    end = wire.StreamEnd(stream=1, code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="shed", error=error)
    replica.send(wire.AttachResponse(ends=[end]))
    _, raised = await read_all(call)
    assert raised.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and raised.details() == "shed"
    assert raised.trailing_metadata()[ERROR_METADATA_KEY] == error.SerializeToString()
    running.cancel()


VIOLATIONS = {
    "no hello": wire.AttachResponse(),
    "an unknown stream": wire.AttachResponse(streams=[7], events=[b""]),
    "stream 0": wire.AttachResponse(streams=[0], events=[b""]),
    "an event without a stream": wire.AttachResponse(events=[b""]),
    "the end of an unknown stream": wire.AttachResponse(ends=[wire.StreamEnd(stream=2)]),
    "no message": b"\xff",
}


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_a_violation_by_the_replica_ends_all_streams(what: str) -> None:
    replica = PlayedReplica()
    attached = AttachedCall(replica, LOOKAHEAD)
    running = asyncio.create_task(attached.run())
    if what != "no hello":
        replica.hello()
        await attached.opened
    calls = [] if what == "no hello" else [attached.start(b"", None, ())]
    replica.send(VIOLATIONS[what])
    await running
    assert replica.is_cancelled and not attached.is_open and attached.error is not None
    assert attached.error.code() is grpc.StatusCode.INTERNAL
    for call in calls:
        _, end = await read_all(call)
        assert end.code() is grpc.StatusCode.ABORTED and "violates the protocol" in end.details()


def refused(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details="Method not found!")


def test_a_replica_without_attached_calls_is_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        opened: list[PlayedReplica] = []

        def open_call() -> PlayedReplica:
            opened.append(PlayedReplica())
            return opened[-1]

        attacher = Attacher(open_call, LOOKAHEAD, "writer-0")
        assert attacher.start(b"", None, ()) is None and len(opened) == 1
        opened[0].send(refused(grpc.StatusCode.UNIMPLEMENTED))
        assert not await attacher.wait_opened()
        await settle()
        for _ in range(2):
            assert attacher.start(b"", None, ()) is None and len(opened) == 1
        assert caplog.text.count("writer-0 attaches no call") == 1
        await asyncio.sleep(RETRY_SECONDS)
        assert attacher.start(b"", None, ()) is None and len(opened) == 2
        opened[1].hello()
        assert await attacher.wait_opened() and attacher.is_open
        assert attacher.start(bytes(MAX_REQUEST_BYTES + 1), None, ()) is None
        call = attacher.start(b"", None, ())
        assert call is not None
        await attacher.close()
        assert opened[1].is_cancelled and (await read_all(call))[1].code() is grpc.StatusCode.CANCELLED
        assert attacher.start(b"", None, ()) is None and len(opened) == 2

    on_heap(scenario())


def test_a_broken_call_is_attached_again() -> None:
    async def scenario() -> None:
        opened: list[PlayedReplica] = []

        def open_call() -> PlayedReplica:
            opened.append(PlayedReplica())
            opened[-1].hello()
            return opened[-1]

        attacher = Attacher(open_call, LOOKAHEAD, "writer-0")
        assert await attacher.wait_opened()
        call = attacher.start(b"", None, ())
        assert call is not None
        opened[0].send(BROKEN)
        assert (await read_all(call))[1].code() is grpc.StatusCode.UNAVAILABLE
        await settle()
        assert attacher.start(b"", None, ()) is None and len(opened) == 1
        await asyncio.sleep(1.0)
        assert await attacher.wait_opened() and len(opened) == 2

    on_heap(scenario())
