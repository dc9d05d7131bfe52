"""The process: a gRPC server on the event loop, the engine in its thread, and an orderly end."""

import asyncio
import os
import secrets
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet.rpc.bind import bind, check_signed
from octet.rpc.cgroup_memory import memory_reader
from octet.rpc.doorstep import Doorstep, DoorstepInterceptor
from octet.rpc.memory_guard import MemoryGuard, MemoryLimits
from octet.rpc.server_options import SERVER_OPTIONS
from octet.rpc.unread import ReadInterceptor, Silence
from octet.telemetry.door import MetricsDoor
from octet.telemetry.otlp import outbox_to
from octet.telemetry.outbox import Outbox
from specialist.front import new_desk
from specialist.loop import StepLoop
from specialist.service.board import LoadBoard
from specialist.service.engine_thread import EngineThread, Handover
from specialist.service.forms import Forms
from specialist.service.generate import Generator
from specialist.service.limits import Limits
from specialist.service.load import Seats, load_of
from specialist.service.meter import Meter
from specialist.service.metrics import metrics_page
from specialist.service.reception import Reception
from specialist.service.replica import Replica
from specialist.service.service import NAME, SpecialistService
from specialist.service.settings import ServiceSettings
from specialist.service.tracing import Tracing, resource_of
from specialist.service.validate import Validator
from specialist.service.warm import warm_up

_MOST_RECEIVED = 11 << 20
"""Larger than any request that is served, so that most of what is too large gets our answer and gets it at once. Calls
that are being received hold at most this much each, and there are never more of them than calls at all: (max_running +
max_waiting + max_watchers + spare) times this, 5.2 GiB where nobody changes the defaults. What comes on top of that is
refused before its body is read, and costs a flow-control window."""
_LAST_WORDS_SECONDS = 0.2
"""For the statuses of calls that have ended."""
_TRACES_SECONDS = 3.0
"""For what is still to be sent of them, where there is time at all."""
_SPARE_CALLS = 64
"""Health checks, and callers that were cut and have not noticed. Watchers have calls of their own."""
_INSTANCE_BYTES = 8
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """Created and used on a running event loop."""

    def __init__(self, replica: Replica, settings: ServiceSettings, limits: Limits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._replica = replica
        self.outbox: Outbox | None = None
        """Where the traces of its requests go."""
        self._step_loop = StepLoop(replica.scheduler, replica.engine)
        validator = Validator(limits or Limits(replica.context, replica.words.vocab_size))
        self.engine = EngineThread(self._step_loop, replica.clock, self._hand_over)
        seats = Seats(replica.scheduler.config.max_running, settings.max_waiting)
        self.desk = new_desk(replica.scheduler, settings.max_waiting, replica.prices, secrets.SystemRandom().random)
        self._reception = Reception(
            replica.lane,
            replica.scheduler,
            replica.words,
            Forms(replica.grammars),
            replica.adapters,
            validator,
            replica.clock,
            max_receiving=seats.total,
            draw_seed=lambda: secrets.randbits(63),
        )
        nothing_yet = load_of(replica.scheduler, Meter(replica.clock))
        self.board = LoadBoard(
            replica.lane.revision,
            replica.adapters,
            self.desk,
            replica.clock,
            seats,
            nothing_yet,
            max_watchers=settings.max_watchers,
            instance=secrets.token_hex(_INSTANCE_BYTES),
        )
        memory = MemoryGuard(memory_reader(), replica.clock, MemoryLimits.of(os.environ))
        memory.warn()
        self.generator = Generator(
            self.engine,
            replica.scheduler,
            self._reception,
            validator,
            self.board,
            self.desk,
            replica.clock,
            stream_bytes=settings.stream_bytes,
            piece_gap=settings.piece_gap,
            stall_seconds=settings.stall_seconds,
            memory=memory,
            tracing=self._traces(settings),
        )
        page = metrics_page(replica, self.engine, self.generator, self._reception, self.board, self.outbox)
        self.service = SpecialistService(
            replica, settings, validator, self.generator, self.board, self._tell_health, page
        )
        self.metrics = None if settings.metrics is None else MetricsDoor(page, settings.metrics)
        self._health: Any = health.aio.HealthServicer()
        self._telling = asyncio.Lock()
        # One connection may fill the line and still be told that it is full; it never has all the calls.
        a_connection = seats.total + _SPARE_CALLS
        silence = Silence(most=max(seats.total, _SPARE_CALLS))
        self._doorstep = Doorstep()
        self._server = self._grpc_server(a_connection + settings.max_watchers, a_connection, silence)
        check_signed(settings)
        self.port: int = bind(self._server, settings)
        self.failed = asyncio.Event()
        """Set when the engine's thread has died."""
        self._failing: asyncio.Task[None] | None = None

    def _traces(self, settings: ServiceSettings) -> Tracing | None:
        if not settings.otlp:
            return None
        self.outbox = outbox_to(settings.otlp, resource_of(self._replica.lane.specialist, str(uuid4())))
        return Tracing(self.outbox, self._replica.clock, time.time_ns, secrets.token_bytes)

    def _grpc_server(self, max_calls: int, max_streams: int, silence: Silence) -> Any:
        limits = (("grpc.max_receive_message_length", _MOST_RECEIVED), ("grpc.max_concurrent_streams", max_streams))
        server = aio.server(
            interceptors=(DoorstepInterceptor(self._doorstep), ReadInterceptor(silence)),
            options=(*SERVER_OPTIONS, *limits),
            maximum_concurrent_rpcs=max_calls,
        )
        server.add_generic_rpc_handlers((self.service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def start(self) -> None:
        """Health is asked and answered from here on; serving begins when the engine is warm."""
        await self._tell_health()
        if self.outbox is not None:
            self.outbox.start()
        await self._server.start()
        if self.metrics is not None:
            await self.metrics.start()
        for account in await asyncio.to_thread(warm_up, self._replica, self._step_loop):
            account.book(self.desk)
        self.engine.start()
        self.generator.open()
        await self._tell_health()

    async def drain(self) -> int:
        return await self.service.drain()

    async def stop(self, grace: float) -> None:
        """Streams get `grace` seconds to be read to their ends; those who only watch hold nobody up."""
        self.generator.shut()
        await self._tell_health()
        self.board.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.generator.flushed(), grace)
        if grace > 0:
            await self._doorstep.still()  # whoever comes is refused at once, and goes to another replica
        await self._server.stop(min(grace, _LAST_WORDS_SECONDS))
        if self.metrics is not None:
            await self.metrics.stop()
        await asyncio.to_thread(self.engine.stop)
        if self.outbox is not None:
            await asyncio.to_thread(self.outbox.close, min(grace, _TRACES_SECONDS))
        self._reception.close()
        self._replica.words.close()

    def _hand_over(self, handover: Handover) -> None:
        self._loop.call_soon_threadsafe(self._deliver, handover)

    def _deliver(self, handover: Handover) -> None:
        self.generator.deliver(handover)
        if handover.load is not None:
            self.board.post(handover.load)
        if handover.died and self._failing is None:
            self._failing = self._loop.create_task(self._fail())

    async def _fail(self) -> None:
        await self._tell_health()
        self.failed.set()

    async def _tell_health(self) -> None:
        """What health says follows the door, and the last word is the newest."""
        async with self._telling:
            status = _SERVING if self.generator.door == "open" else _NOT_SERVING
            await self._health.set("", status)
            await self._health.set(NAME, status)
