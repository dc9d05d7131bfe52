"""The replica's side of an attached call, with a transport and an engine that the test plays: every stream has its
events in order and one end, nothing is sent without credit, and nothing is left behind, whatever happens when."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import EOF
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc import refusal
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from simulation.event_loop import HeapLoop
from specialist.scheduling.step import Emitted
from specialist.server.attachment import CREDIT, FRAME_BYTES, Attachment
from specialist.server.served_request import AnswerChunk, Enqueued, RequestUsage
from specialist.server.settings import ServiceSettings

GAP = 0.01
STALL = 5.0
STREAM_BYTES = 400
MAX_STREAMS = 4
USAGE = RequestUsage("length", None, 1, 1, 0, "", 0, 0.0, 0.0, 0.0, 0.0)


class PlayedHandler:
    """Answers each request with what the test puts into its stream."""

    pull = None

    def __init__(self) -> None:
        self.num_open = 0
        self.live: dict[str, Any] = {}
        self.cancelled: list[str] = []
        self.calls: dict[str, Any] = {}

    @contextmanager
    def open_call(self) -> Iterator[None]:
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    async def serve(self, message: wire.GenerateRequest, call: Any) -> None:
        name = message.request_id
        self.calls[name] = call
        if name == "refused":
            raise refusal.draining()
        if name == "broken":
            raise RuntimeError("a bug")
        await asyncio.sleep(0)
        served = SimpleNamespace(public_id=name, log_fields={}, decode=decode, to_wire=to_wire, encode_tokens=encode)
        relay = call.open_stream(served, lambda: None)
        self.live[name] = served
        try:
            await relay()
        finally:
            if self.live.pop(name, None):
                self.cancelled.append(name)

    def failure(self, _: Any, usage: RequestUsage) -> Refusal | None:
        return None if usage.reason == "length" else refusal.cancelled()

    def put(self, name: str, update: Any) -> bool:
        """Report an update, as the engine does for a live request. Return whether it was live."""
        served = self.live.get(name)
        if served is None:
            return False
        if isinstance(update, RequestUsage | Refusal):
            del self.live[name]
        served.stream.put(update)
        return True


def decode(updates: list[Any]) -> list[Any]:
    return [AnswerChunk("", each.tokens) if isinstance(each, Emitted) else each for each in updates]


def encode(tokens: list[int]) -> bytes:
    return bytes(to_wire(AnswerChunk("", tuple(tokens))).SerializeToString())


def to_wire(update: Any) -> wire.GenerateEvent:
    if isinstance(update, Enqueued):
        return wire.GenerateEvent(accepted=wire.Accepted())
    if isinstance(update, AnswerChunk):
        return wire.GenerateEvent(chunk=wire.Chunk(token_ids=update.tokens))
    return wire.GenerateEvent(usage=wire.Usage())


class PlayedCaller:
    """The context of an attached call, and the caller at its other end."""

    def __init__(self, handler: PlayedHandler, **settings: Any) -> None:
        values = {"piece_gap": GAP, "stall_seconds": STALL, "stream_bytes": STREAM_BYTES, **settings}
        self.attachment = Attachment(handler, ServiceSettings(**values), MAX_STREAMS)  # type: ignore[arg-type]
        self.frames: list[wire.AttachResponse] = []
        self.at: list[float] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_gone = False
        self._requests: deque[Any] = deque()
        self._has_more = asyncio.Event()
        self.serving = asyncio.create_task(self.attachment.serve(self))

    async def read(self) -> Any:
        while not self._requests:
            self._has_more.clear()
            await self._has_more.wait()
        return self._requests.popleft()

    async def write(self, frame: bytes) -> None:
        await self.reads.wait()
        if self.is_gone:
            raise RuntimeError("the call is over")
        self.frames.append(wire.AttachResponse.FromString(frame))
        self.at.append(asyncio.get_running_loop().time())

    def send(self, request: wire.AttachRequest | bytes | object) -> None:
        self._requests.append(request.SerializeToString() if isinstance(request, wire.AttachRequest) else request)
        self._has_more.set()

    def start(self, number: int, name: str = "", credit: int = 1000, **fields: Any) -> None:
        request = wire.GenerateRequest(request_id=name or str(number)).SerializeToString()
        start = wire.StreamStart(**{"stream": number, "credit": credit, "request": request, **fields})
        self.send(wire.AttachRequest(starts=[start]))

    def events(self, number: int) -> list[wire.GenerateEvent]:
        return [
            wire.GenerateEvent.FromString(raw)
            for frame in self.frames
            for stream, raw in zip(frame.streams, frame.events, strict=True)
            if stream == number
        ]

    def tokens(self, number: int) -> list[int]:
        return [token for event in self.events(number) for token in event.chunk.token_ids]

    def ends(self, number: int) -> list[wire.StreamEnd]:
        return [end for frame in self.frames for end in frame.ends if end.stream == number]


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def on_heap(scenario: Any) -> None:
    loop = HeapLoop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.cancel_all()
        loop.close()


KINDS = ("start", "token", "token", "token", "end", "fail", "cancel", "credit", "wait", "block", "unblock")
moves = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=60)


@given(moves, st.sampled_from(["close", "break", "gone"]))
def test_every_stream_has_its_tokens_in_order_and_one_end(played: list[tuple[str, int]], last: str) -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        started, cancelled = 0, set[int]()
        put: dict[int, list[int]] = {}
        credit: Counter[int] = Counter()
        complete: set[int] = set()

        async def give(number: int, amount: int) -> None:
            if number in put:
                credit[number] += amount
                caller.send(wire.AttachRequest(credits=[wire.StreamCredit(stream=number, bytes=amount)]))

        for at, (kind, index) in enumerate(played):
            if kind == "start" and started < 3:
                started += 1
                put[started], credit[started] = [], 10
                caller.start(started, credit=10)
                await settle()
                handler.put(str(started), Enqueued(0))
            elif kind == "token" and handler.put(str(index), Emitted(str(index), (at,))):
                put[index].append(at)
            elif kind in ("end", "fail"):
                reason: Any = "length" if kind == "end" else "cancelled"
                if handler.put(str(index), USAGE._replace(reason=reason)):
                    complete.add(index)
            elif kind == "cancel" and index in put:
                caller.send(wire.AttachRequest(cancels=[index]))
                cancelled.add(index)
            elif kind == "credit":
                await give(index, 10)
            elif kind == "wait":
                await asyncio.sleep(GAP)
            elif kind == "block":
                caller.reads.clear()
            elif kind == "unblock":
                caller.reads.set()
            await settle()
            for number in put:
                sizes = [
                    len(raw)
                    for frame in caller.frames
                    for stream, raw in zip(frame.streams, frame.events, strict=True)
                    if stream == number
                ]
                overdrawn = sum(sizes) - credit[number]
                assert overdrawn <= STREAM_BYTES, "at most what waited may overdraw the credit"
        caller.reads.set()
        if last == "close":
            for number in put:
                handler.put(str(number), USAGE)
                await give(number, 10_000)
            await settle()
            await asyncio.sleep(2 * GAP)
            await settle()
            caller.send(EOF)
            await caller.serving
        elif last == "break":
            caller.serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller.serving
        else:
            caller.is_gone = True
            caller.start(4)
            await settle()
            for number in range(1, 5):
                handler.put(str(number), Enqueued(0))
            with pytest.raises(CallerGone):
                await caller.serving
        assert not handler.num_open and not handler.live and not caller.attachment.num_streams
        for number, tokens in put.items():
            received, ends = caller.tokens(number), caller.ends(number)
            assert received == tokens[: len(received)]
            assert len(ends) <= 1
            if last == "close" and number not in cancelled:
                assert received == tokens and len(ends) == 1
                assert [each.WhichOneof("event") for each in caller.events(number)].count("usage") == 1
        assert len(handler.cancelled) == len(set(handler.cancelled))
        assert not complete & {int(name) for name in handler.cancelled}, "what has ended is not cancelled"

    on_heap(scenario())


def test_a_slow_reader_holds_no_other_up_and_is_cut_off() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        caller.start(1, credit=1)
        caller.start(2, credit=10_000)
        await settle()
        for token in range(200):
            handler.put("1", Emitted("1", (token,)))
            handler.put("2", Emitted("2", (token,)))
            await asyncio.sleep(GAP)
        assert caller.tokens(1) == [0] and caller.tokens(2) == [*range(200)]
        (end,) = caller.ends(1)
        assert end.error.reason == wire.ERROR_REASON_CALLER_STALLED
        assert end.message == refusal.caller_overflowed(STREAM_BYTES).error.message
        assert handler.cancelled == ["1"] and "2" in handler.live

    on_heap(scenario())


def test_a_caller_that_reads_nothing_for_long_is_cut_off() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        caller.start(1, credit=1)
        await settle()
        handler.put("1", Emitted("1", (1,)))
        await settle()
        handler.put("1", Emitted("1", (2,)))
        await asyncio.sleep(STALL - 0.1)
        assert not caller.ends(1)
        await asyncio.sleep(0.2)
        (end,) = caller.ends(1)
        assert end.message == refusal.caller_idle(STALL).error.message and handler.cancelled == ["1"]

    on_heap(scenario())


def test_a_connection_that_takes_nothing_for_long_ends() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        caller.start(1)
        await settle()
        caller.reads.clear()
        handler.put("1", Emitted("1", (1,)))
        with pytest.raises(Refusal, match="nothing was read"):
            await caller.serving
        assert handler.cancelled == ["1"]

    on_heap(scenario())


def test_one_frame_carries_the_tokens_of_all_streams() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        for number in (1, 2, 3):
            caller.start(number)
        await settle()
        for number in (1, 2, 3):
            handler.put(str(number), Emitted(str(number), (0,)))
        await settle()
        assert [[*frame.streams] for frame in caller.frames[1:]] == [[1, 2, 3]]
        await asyncio.sleep(GAP)
        began, first = asyncio.get_running_loop().time(), len(caller.frames)
        for step in range(40):
            for number in (1, 2, 3):
                handler.put(str(number), Emitted(str(number), (step,)))
            await asyncio.sleep(GAP / 8)
        frames = caller.frames[first:]
        assert [[*frame.streams] for frame in frames] == [[1, 2, 3]] * len(frames)
        assert 5 <= len(frames) <= 6 and caller.at[first] == began

    on_heap(scenario())


def test_without_a_gap_each_step_is_a_frame() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler, piece_gap=0.0)
        for number in (1, 2):
            caller.start(number)
        await settle()
        for step in range(5):
            for number in (1, 2):
                handler.put(str(number), Emitted(str(number), (step,)))
            await settle()
        assert len(caller.frames) == 6 and caller.attachment.is_due

    on_heap(scenario())


def test_first_tokens_and_ends_do_not_wait() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        for number in (1, 2, 3):
            caller.start(number)
        await settle()
        for number in (1, 2):
            handler.put(str(number), Emitted(str(number), (0,)))
        await settle()
        handler.put("1", Emitted("1", (1,)))
        handler.put("2", Emitted("2", (1,)))
        await settle()
        handler.put("1", Emitted("1", (2,)))
        handler.put("2", Emitted("2", (2,)))
        handler.put("1", USAGE)
        handler.put("3", Emitted("3", (0,)))
        await settle()
        assert caller.tokens(1) == [0, 1, 2] and caller.ends(1)[0].code == 0
        assert caller.tokens(3) == [0] and caller.tokens(2) == [0, 1]
        await asyncio.sleep(GAP)
        assert caller.tokens(2) == [0, 1, 2]

    on_heap(scenario())


@pytest.mark.parametrize("last", ["end", "cancel"])
def test_further_chunks_are_due_again_after_those_that_waited_were_sent_or_dropped(last: str) -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        caller.start(1)
        caller.start(2)
        await settle()
        for number in (1, 2):
            handler.put(str(number), Emitted(str(number), (0,)))
        await settle()
        handler.put("1", Emitted("1", (1,)))
        assert not handler.live["1"].stream.is_due
        if last == "end":
            handler.put("1", USAGE)
        else:
            caller.send(wire.AttachRequest(cancels=[1]))
        await asyncio.sleep(2 * GAP)
        assert handler.live["2"].stream.is_due

    on_heap(scenario())


def test_a_large_frame_is_cut_between_streams() -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler, stream_bytes=8 * FRAME_BYTES)
        for number in (1, 2, 3):
            caller.start(number)
        await settle()
        for number in (1, 2, 3):
            handler.put(str(number), AnswerChunk("", tuple([2**40] * (FRAME_BYTES // 5))))
        await settle()
        assert [[*frame.streams] for frame in caller.frames[1:]] == [[1], [2], [3]]

    on_heap(scenario())


async def test_refusals_and_failures_end_their_own_stream() -> None:
    handler = PlayedHandler()
    caller = PlayedCaller(handler)
    caller.start(1, "refused")
    caller.start(2, "broken")
    caller.start(3, request=b"\xff")
    caller.start(4, timeout_us=0)
    await settle()
    ends = [caller.ends(number)[0] for number in range(1, 5)]
    assert [end.error.reason for end in ends] == [
        wire.ERROR_REASON_DRAINING,
        wire.ERROR_REASON_INTERNAL,
        wire.ERROR_REASON_MALFORMED,
        wire.ERROR_REASON_DEADLINE,
    ]
    assert [end.code for end in ends] == [
        StatusCode.UNAVAILABLE.value[0],
        StatusCode.INTERNAL.value[0],
        StatusCode.INVALID_ARGUMENT.value[0],
        StatusCode.DEADLINE_EXCEEDED.value[0],
    ]
    caller.start(5, traceparent="00-1-2-01", tracestate="a=b", timeout_us=1_500_000)
    await settle()
    call = handler.calls["5"]
    assert dict(call.metadata) == {"traceparent": "00-1-2-01", "tracestate": "a=b"} and call.seconds_left == 1.5
    caller.serving.cancel()


async def test_more_streams_than_fit_are_refused() -> None:
    handler = PlayedHandler()
    caller = PlayedCaller(handler)
    for number in range(1, MAX_STREAMS + 3):
        caller.start(number)
    await settle()
    assert caller.frames[0].hello.max_streams == MAX_STREAMS == len(handler.live)
    for number in (MAX_STREAMS + 1, MAX_STREAMS + 2):
        (end,) = caller.ends(number)
        assert end.error.reason == wire.ERROR_REASON_QUEUE_FULL and f"at most {MAX_STREAMS}" in end.error.limit
    caller.send(wire.AttachRequest(cancels=[1, MAX_STREAMS + 1]))
    await settle()
    caller.start(MAX_STREAMS + 3)
    await settle()
    assert handler.cancelled == ["1"] and str(MAX_STREAMS + 3) in handler.live
    caller.serving.cancel()


async def test_a_caller_that_reads_no_refusals_is_not_read() -> None:
    caller = PlayedCaller(PlayedHandler())
    await settle()
    caller.reads.clear()
    for number in range(1, 100):
        caller.start(number, "refused")
        await settle()
    assert len(caller._requests) > 50
    caller.reads.set()
    for _ in range(100):
        await settle()
    assert all(len(caller.ends(number)) == 1 for number in range(1, 100))
    caller.serving.cancel()


VIOLATIONS: dict[str, tuple[wire.AttachRequest | bytes, str]] = {
    "stream 0": (wire.AttachRequest(starts=[wire.StreamStart(credit=1)]), "greater than 1"),
    "a repeated stream": (wire.AttachRequest(starts=[wire.StreamStart(stream=1, credit=1)]), "greater than 1"),
    "no credit": (wire.AttachRequest(starts=[wire.StreamStart(stream=2)]), "in [1, 2,147,483,647]"),
    "a negative credit": (wire.AttachRequest(credits=[wire.StreamCredit(stream=1, bytes=-1)]), "in [1, 2,147,483,647]"),
    "too much credit": (
        wire.AttachRequest(credits=[wire.StreamCredit(stream=1, bytes=int(CREDIT.most))]),
        "at most 2,147,483,647 with what the stream has",
    ),
    "credit for an unknown stream": (wire.AttachRequest(credits=[wire.StreamCredit(stream=2, bytes=1)]), "from 1 to 1"),
    "an unknown stream cancelled": (wire.AttachRequest(cancels=[2]), "from 1 to 1"),
    "no message": (b"\xff\xff", "a serialised octet.v1.AttachRequest"),
    "too large a message": (bytes(5 << 20), "at most 4,194,304 bytes"),
}


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_a_violation_ends_the_call_and_names_the_limit(what: str) -> None:
    request, limit = VIOLATIONS[what]
    handler = PlayedHandler()
    caller = PlayedCaller(handler)
    caller.start(1)
    await settle()
    caller.send(request)
    with pytest.raises(Refusal) as raised:
        await caller.serving
    assert limit in raised.value.error.limit and raised.value.code is StatusCode.INVALID_ARGUMENT
    assert handler.cancelled == ["1"] and not handler.num_open


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_are_handled(raws: list[bytes]) -> None:
    async def scenario() -> None:
        handler = PlayedHandler()
        caller = PlayedCaller(handler)
        caller.start(1)
        for raw in raws:
            caller.send(raw)
        caller.send(EOF)
        await settle()
        handler.put("1", USAGE)
        try:
            await caller.serving
        except Refusal as refused:
            assert refused.error.limit
        assert not handler.num_open and not handler.live

    on_heap(scenario())


async def test_a_closed_call_finishes_its_streams() -> None:
    handler = PlayedHandler()
    caller = PlayedCaller(handler)
    caller.start(1)
    await settle()
    caller.attachment.close()
    await settle()
    assert not caller.serving.done()
    handler.put("1", USAGE)
    await caller.serving
    assert caller.ends(1)[0].code == 0
