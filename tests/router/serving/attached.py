"""The replica's side of an attached call, for replicas whose behaviour a test defines."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from octet.client.attached import ATTACH
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import ERROR_METADATA_KEY, Refusal
from octet.v1 import specialist_pb2 as wire

Generate = Callable[[wire.GenerateRequest, Any], Awaitable[None]]
METHOD = ATTACH.rpartition("/")[2]


class Aborted(Exception):
    pass


class StreamContext:
    """What a behaviour sees of its stream: the same as of a call of its own. Writing waits for credit."""

    def __init__(self, start: wire.StreamStart, frames: "asyncio.Queue[wire.AttachResponse]") -> None:
        self._start = start
        self._frames = frames
        self._credit = start.credit
        self._paid = asyncio.Event()
        self.code, self.message, self.error = grpc.StatusCode.OK, "", b""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        pairs = (("traceparent", self._start.traceparent), ("tracestate", self._start.tracestate))
        return tuple((key, value) for key, value in pairs if value)

    def time_remaining(self) -> float | None:
        return self._start.timeout_us / 1e6 if self._start.HasField("timeout_us") else None

    async def write(self, event: wire.GenerateEvent | bytes) -> None:
        while self._credit <= 0:
            self._paid.clear()
            await self._paid.wait()
        raw = event if isinstance(event, bytes) else event.SerializeToString()
        self._credit -= len(raw)
        self._frames.put_nowait(wire.AttachResponse(streams=[self._start.stream], events=[raw]))

    def pay(self, credit: int) -> None:
        self._credit += credit
        self._paid.set()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.code, self.message = code, details
        self.error = dict(trailing_metadata).get(ERROR_METADATA_KEY, b"")
        raise Aborted


class SpyAttachment:
    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._frames: asyncio.Queue[wire.AttachResponse] = asyncio.Queue()
        self._contexts: dict[int, StreamContext] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self, _: Any, context: Any) -> None:
        reading = asyncio.create_task(self._read(context))
        try:
            await context.write(wire.AttachResponse(hello=wire.AttachHello(max_streams=100)).SerializeToString())
            while True:
                await context.write((await self._frames.get()).SerializeToString())
        finally:
            tasks = [reading, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, context: Any) -> None:
        while (raw := await context.read()) is not aio.EOF:
            request = wire.AttachRequest.FromString(raw)
            for start in request.starts:
                self._contexts[start.stream] = StreamContext(start, self._frames)
                self._tasks[start.stream] = asyncio.create_task(self._run(start))
            for credit in request.credits:
                self._contexts[credit.stream].pay(credit.bytes)
            for number in request.cancels:
                self._tasks[number].cancel()

    async def _run(self, start: wire.StreamStart) -> None:
        context = self._contexts[start.stream]
        end = wire.StreamEnd(stream=start.stream)
        try:
            await self._generate(wire.GenerateRequest.FromString(start.request), context)
        except Refusal as refusal:
            context.code, context.message = refusal.code, str(refusal)
            context.error = refusal.error.SerializeToString()
        except (Aborted, CallerGone):
            pass
        except Exception as error:
            context.code, context.message = grpc.StatusCode.UNKNOWN, repr(error)
        end.code, end.message = context.code.value[0], context.message
        if context.error:
            end.error.ParseFromString(context.error)
        self._frames.put_nowait(wire.AttachResponse(ends=[end]))
