"""The replica's gRPC server and process: start and warm-up, readiness line, signals, drain, stop."""

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import uvloop
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet.clock import Clock
from octet.rpc.drain_gate import DrainGate, DrainGateInterceptor
from octet.rpc.handlers import RequestReader, RequestReadInterceptor
from octet.rpc.listener import SERVER_OPTIONS, bind_server, check_client_ca_configured, format_address
from octet.rpc.memory import MemoryGuard, MemoryLimits, memory_reader
from octet.supervisor.process import ProcessEnd
from octet.telemetry.exposition import MetricsListener
from octet.telemetry.trace_export import SpanExporter, open_span_exporter
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.loop import SchedulerReport, StepReporter
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Finished
from specialist.server.engine_thread import EngineThread
from specialist.server.metrics import add_replica_metrics
from specialist.server.outbox import Outbox
from specialist.server.replica import AssembledReplica
from specialist.server.service import ATTACH, SERVICE_NAME, SpecialistService
from specialist.server.settings import ServiceSettings
from specialist.server.tracing import ReplicaTracing

_MAX_RECEIVED_BYTES = 11 << 20
"""Larger than any request that is served, so that most oversized requests get a typed refusal immediately. Calls that
are being received hold at most this much each, and their number is limited: (max_running + max_waiting + max_watchers +
spare) times this is 5.2 GiB with the default settings. Further calls are refused before their body is read and cost one
flow-control window."""
_STATUS_SECONDS = 0.2  # time for the statuses of ended calls to be sent
_TRACES_SECONDS = 3.0  # time for the last spans to be exported
MAX_ATTACHMENTS = 32  # attached calls; a further one is refused, and its client calls Generate instead
_SPARE_CALLS = 64
"""For health checks, and for callers that have not noticed the end of their call. Watchers are counted separately."""
_INSTANCE_BYTES = 8
_WARM_UP_ROUNDS = (1, 1, 3)
"""Concurrent requests of each round. The first round includes one-time work and is not measured."""


class ReplicaServer(SpecialistService):
    """The replica's gRPC server. Create and use it on a running event loop."""

    def __init__(self, replica: AssembledReplica, settings: ServiceSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self.exporter: SpanExporter | None = None
        tracing = None
        if settings.otlp:
            name = {"service.name": "octet-replica", "octet.specialist": replica.lane.specialist}
            self.exporter = open_span_exporter(settings.otlp, {**name, "service.instance.id": str(uuid4())})
            tracing = ReplicaTracing(self.exporter, replica.clock, time.time_ns, secrets.token_bytes)
        memory = MemoryGuard(memory_reader(), replica.clock, MemoryLimits.from_environment(os.environ))
        memory.warn()
        engine = EngineThread(StepLoop(replica.scheduler, replica.engine), replica.clock)
        super().__init__(replica, settings, engine, secrets.SystemRandom(), memory, tracing)
        self.publisher.process = _identify_process()
        outbox = Outbox(self.handler.deliver, self._loop.call_soon_threadsafe)
        engine.deliver, self.handler.pull = outbox.put, outbox.pull
        self.handler.on_death = self._fail
        add_replica_metrics(self, self.exporter)
        self.metrics = None if settings.metrics is None else MetricsListener(self.exposition, settings.metrics)
        self._drain_gate = DrainGate()
        self._server = self._create_grpc_server(settings.max_watchers)
        check_client_ca_configured(settings)
        self.port: int = bind_server(self._server, settings)
        self.failed = asyncio.Event()  # set when the engine's thread has died
        self._failing: asyncio.Task[None] | None = None

    def _create_grpc_server(self, max_watchers: int) -> Any:
        # One connection may fill the queue and still be refused properly, but it can never use all call slots.
        max_queued = self.preparer.max_tokenizing
        max_streams = max_queued + _SPARE_CALLS
        reader = RequestReader(max_pending=max(max_queued, _SPARE_CALLS))
        limits = (
            ("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES),
            ("grpc.max_concurrent_streams", max_streams),
        )
        server = aio.server(
            interceptors=(
                DrainGateInterceptor(self._drain_gate),
                RequestReadInterceptor(reader, {ATTACH: MAX_ATTACHMENTS}),
            ),
            options=(*SERVER_OPTIONS, *limits),
            maximum_concurrent_rpcs=max_streams + max_watchers + MAX_ATTACHMENTS,
        )
        server.add_generic_rpc_handlers((self.grpc_handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def start(self) -> None:
        """Start to answer health checks, warm the engine up, then serve requests."""
        await self.publish_health()
        if self.exporter is not None:
            self.exporter.start()
        await self._server.start()
        if self.metrics is not None:
            await self.metrics.start()
        await self.open(await asyncio.to_thread(warm_up, self.replica, self.engine.step_loop))

    async def stop(self, grace: float) -> None:
        """Stop the server. Callers get `grace` seconds to read their streams to the end; watchers get none."""
        self.handler.close()
        await self.publish_health()
        self.publisher.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.handler.wait_flushed(), grace)
        if grace > 0:
            # Until the server is quiet, late calls are refused immediately and retried on another replica.
            await self._drain_gate.wait_until_quiet()
        for attachment in self.attachments:
            attachment.close()
        await self._server.stop(min(grace, _STATUS_SECONDS))
        if self.metrics is not None:
            await self.metrics.stop()
        await asyncio.to_thread(self.engine.stop)
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.close, min(grace, _TRACES_SECONDS))
        self.preparer.close()
        self.replica.codec.close()

    def _fail(self) -> None:
        async def publish() -> None:
            await self.publish_health()
            self.failed.set()

        self._failing = self._loop.create_task(publish())


def _identify_process() -> wire.LoadReport:
    end = ProcessEnd.from_environment()
    return wire.LoadReport(
        instance=secrets.token_hex(_INSTANCE_BYTES),
        started_unix_ms=time.time_ns() // 1_000_000,
        previous_end=None if end is None else wire.ProcessEnd(kind=end.kind, text=end.text, number=end.number),
    )


class WarmUpFailed(RuntimeError):
    """The engine could not answer its first requests."""


def warm_up(replica: AssembledReplica, loop: StepLoop) -> list[SchedulerReport]:
    """Run a few requests before those of callers, so that one-time delays and startup failures happen here. Return the
    reports of the measured steps, for the admission controller. Raises WarmUpFailed."""
    replica.codec.warm_up()
    replica.grammars.vocabulary()
    reports: list[SchedulerReport] = []
    for number, count in enumerate(_WARM_UP_ROUNDS):
        for index in range(min(count, replica.scheduler.config.max_running)):
            replica.scheduler.submit(_warm_up_request(replica, number, index))
        measured = _run_to_end(replica, loop)
        reports += measured if number else []
    return reports


def _warm_up_request(replica: AssembledReplica, number: int, index: int) -> Request:
    size = min(4 + 4 * number, max(1, replica.context // 2))
    prompt = tuple((index + token) % replica.codec.vocab_size for token in range(size))
    length = min(4, replica.context - len(prompt))
    name = f"warm-up {number}.{index}"
    return Request(name, replica.lane, prompt, max_tokens=length, tenant_salt=name.encode())


def _run_to_end(replica: AssembledReplica, loop: StepLoop) -> list[SchedulerReport]:
    reporter = StepReporter(replica.scheduler)
    reports: list[SchedulerReport] = []
    while (step := loop.run_once()) is not None:
        events = replica.scheduler.take_events()
        reports.append(reporter.report(step, events, replica.clock.now()))
        for event in events:
            if isinstance(event, Finished) and event.reason not in ("stop", "length"):
                raise WarmUpFailed(f"the engine ended its first request with {event.reason}: {event.detail}")
    if replica.scheduler.ledger.live:
        raise WarmUpFailed("the engine did not start its first requests")
    return reports


FLUSH_SECONDS = 10.0  # time for callers to read their streams to the end
BEAT_SECONDS = 1.0
STEP_SECONDS = 30.0  # an engine that takes longer for one step counts as hung
_SWITCH_SECONDS = 0.0005  # how long the engine's thread may keep the interpreter while the event loop waits for it


def serve(
    replica: AssembledReplica,
    settings: ServiceSettings,
    report_ready: Callable[[str], None] = lambda line: print(line, flush=True),
    beat: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and return 0. Return 130 if SIGINT follows an earlier signal, 1 if the
    engine dies. `beat` is called every second unless the loop or engine hangs. Raises BindRefused or WarmUpFailed."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    return uvloop.run(_serve(replica, settings, report_ready, beat))


async def _serve(
    replica: AssembledReplica, settings: ServiceSettings, report_ready: Callable[[str], None], beat: Callable[[], None]
) -> int:
    server = ReplicaServer(replica, settings)
    beating = asyncio.create_task(_beat(server, replica.clock, beat))
    signals = _Signals()
    try:
        if not await signals.wait_first(asyncio.create_task(server.start())):
            return 130
        gc.collect()
        gc.freeze()  # these objects live as long as the process, so that later collections need not visit them
        report_ready(_ready_line(replica, settings, server))
        await signals.wait_first(asyncio.create_task(signals.drain.wait()), asyncio.create_task(server.failed.wait()))
        if signals.drain.is_set():
            await signals.wait_first(asyncio.create_task(server.drain()), asyncio.create_task(server.failed.wait()))
    finally:
        await server.stop(0 if signals.end_now.is_set() else FLUSH_SECONDS)
        beating.cancel()
    if signals.end_now.is_set():
        return 130
    return 1 if server.failed.is_set() else 0


async def _beat(server: ReplicaServer, clock: Clock, beat: Callable[[], None]) -> None:
    while True:
        since = server.engine.stepping_since
        if since is None or clock.now() - since < STEP_SECONDS:
            beat()
        await asyncio.sleep(BEAT_SECONDS)


class _Signals:
    """Tracks SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.end_now = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        if self.drain.is_set():
            self.end_now.set()
        self.drain.set()

    async def wait_first(self, *tasks: "asyncio.Task[object]") -> bool:
        """Wait until a task ends, and raise its error, if any. Return False on a SIGINT that follows another signal."""
        end_now = asyncio.create_task(self.end_now.wait())
        done, pending = await asyncio.wait({*tasks, end_now}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
        return end_now not in done


def _ready_line(replica: AssembledReplica, settings: ServiceSettings, server: ReplicaServer) -> str:
    pool = replica.scheduler.pool
    kernels = ", ".join(f"{kernel.op} {kernel.choice}" for kernel in replica.kernels)
    return (
        f"octet specialist {replica.lane.specialist} ready on {format_address(settings, server.port)} "
        f"(model {replica.model.name}, engine {replica.engine_name}, kernels: {kernels}, "
        f"{pool.capacity} blocks of {pool.block_size}{_metrics_address(settings, server)})"
    )


def _metrics_address(settings: ServiceSettings, server: ReplicaServer) -> str:
    if settings.metrics is None or server.metrics is None:
        return ""
    scheme = "http" if settings.metrics.tls is None else "https"
    return f", metrics at {scheme}://{format_address(settings.metrics, server.metrics.port)}/metrics"
