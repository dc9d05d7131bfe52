"""The gRPC methods of `octet.v1.Specialist`."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NoReturn

import grpc

from admission.forecast.bookings import Refuse
from admission.forecast.controller import AdmissionController
from admission.forecast.forecast import SWEEP_SECONDS
from octet import __version__
from octet.clock import Clock
from octet.rpc.handlers import Context, streaming_handler, unary_handler, write_message
from octet.rpc.memory import MemoryGuard
from octet.rpc.refusal import (
    Refusal,
    adapter_refused,
    caller_stalled,
    deadline_exceeded,
    draining,
    first_token_late,
    not_ready,
    replica_failed,
    unknown_adapter,
)
from octet.telemetry.exposition import Exposition
from octet.telemetry.requests import current_request, set_request
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import AdapterRefused, UnknownAdapter, check_digest, resolve_below
from specialist.scheduling.loop import step_in_flight
from specialist.scheduling.scheduler import Scheduler
from specialist.server.engine_thread import EngineReport, EngineThread
from specialist.server.load_report import AdmissionCounters, LoadPublisher, LoadWatch, adapters_to_wire
from specialist.server.preparation import RequestPreparer
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import (
    OutputStream,
    RequestUsage,
    ServedRequest,
    admission_refusal,
    event_to_wire,
    failure_status,
    lane_to_wire,
)
from specialist.server.settings import ServiceSettings
from specialist.server.tracing import ReplicaTrace, ReplicaTracing, read_trace_context
from specialist.server.validation import GenerateValidator

SERVICE_NAME: str = wire.DESCRIPTOR.services_by_name["Specialist"].full_name
ServingState = Literal["warming", "open", "draining", "failed"]
_CLOSED_REFUSALS = {"warming": not_ready, "draining": draining, "failed": replica_failed}


class GenerateHandler:
    """Generate and CountTokens. Belongs to the event loop."""

    def __init__(
        self,
        engine: EngineThread,
        scheduler: Scheduler,
        preparer: RequestPreparer,
        validator: GenerateValidator,
        publisher: LoadPublisher,
        controller: AdmissionController,
        clock: Clock,
        settings: ServiceSettings,
        *,
        memory: MemoryGuard,
        tracing: ReplicaTracing | None = None,
    ) -> None:
        """`scheduler` is the engine's, and only read here."""
        self._engine = engine
        self._scheduler = scheduler
        self._preparer = preparer
        self._validator = validator
        self._publisher = publisher
        self._controller = controller
        self._clock = clock
        self._settings = settings
        self.memory = memory
        self._tracing = tracing
        self._swept_at = clock.now()
        self._live: dict[ServedRequest, ReplicaTrace | None] = {}
        """Live requests in the engine, with their traces, if they are traced."""
        self.num_open = 0  # calls that have not got their status yet
        self._ended = asyncio.Event()
        self.counters = AdmissionCounters()
        self.state: ServingState = "warming"
        self.on_death: Callable[[], object] = lambda: None  # called once, when the engine has died

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def forecast_margin(self) -> float:
        """The share by which work may exceed its forecast."""
        return self._controller.estimator.margin

    async def generate(self, message: wire.GenerateRequest, context: Context) -> None:
        self.num_open += 1
        trace = self._start_trace(message, context)
        try:
            await self._generate(message, context, trace)
        except BaseException as error:
            if trace is not None and trace.served is None and self._tracing is not None:
                self._tracing.record_refused(trace, error)
            raise
        finally:
            self.num_open -= 1
            self._ended.set()

    async def count_tokens(self, message: wire.GenerateRequest) -> wire.CountTokensResponse:
        self._check_open()
        served = self._validator.validate(message)
        return wire.CountTokensResponse(prompt_tokens=await self._preparer.count_tokens(served))

    def _start_trace(self, message: wire.GenerateRequest, context: Context) -> ReplicaTrace | None:
        """Set the ids for every log line of this call. None if its trace is not collected."""
        parent, state = read_trace_context(context)
        set_request(message.request_id, "" if parent is None else parent.trace_id)
        if self._tracing is None or parent is None or not parent.is_sampled:
            return None
        return ReplicaTrace(parent, state, message.request_id, message.shadow, self._clock.now())

    async def _generate(self, message: wire.GenerateRequest, context: Context, trace: ReplicaTrace | None) -> None:
        self._check_open()
        served = self._validator.validate(message)
        self.memory.check(can_wait=served.shadow)
        self._check_queue(served)
        await self._preparer.prepare(served, context.time_remaining())
        request_id = served.request.request_id
        cancel = partial(self._engine.end, request_id, "cancelled")
        try:
            self._check_open()
            self._admit(served)
            served.stream = OutputStream(self._settings.stream_bytes, cancel, self._settings.piece_gap)
        except BaseException:
            served.release()
            raise
        self._live[served] = trace
        if trace is not None:
            trace.served, trace.admitted_at = served, self._clock.now()
        self._engine.submit(served)
        try:
            await self._relay(served, context)
        finally:
            if served in self._live:
                cancel()

    def _check_open(self) -> None:
        if self.state != "open":
            raise _CLOSED_REFUSALS[self.state]()

    def _check_queue(self, served: ServedRequest) -> None:
        """Refuse a request before tokenising it if the queue is full and it outranks no request in the queue."""
        refuse = self._controller.refuse_if_full(served.priority, self._clock.now(), shadow=served.shadow)
        if refuse is not None:
            self._refuse(served, refuse)

    def _admit(self, served: ServedRequest) -> None:
        now, request = self._clock.now(), served.request
        if request.deadline is not None and request.deadline <= now:
            raise deadline_exceeded()
        if request.first_deadline is not None and request.first_deadline <= now:
            raise first_token_late()
        self._controller.in_flight = step_in_flight(self._scheduler)
        decision = self._controller.decide(served.booking, now)
        if isinstance(decision, Refuse):
            self._refuse(served, decision)
        self.counters.count(decision, shadow=served.shadow)
        self._controller.book(served.booking, decision, now)
        for key in decision.displaced:
            self._engine.end(key, "shed")
        for key in decision.suspended:
            self._engine.suspend(key, request.request_id)
        served.admission = decision
        served.trace_id = current_request().trace_id

    def _refuse(self, served: ServedRequest, refuse: Refuse) -> NoReturn:
        self.counters.count(refuse, shadow=served.shadow)
        self._publisher.notify()
        raise admission_refusal(refuse, self._publisher.slots.waiting)

    async def _relay(self, served: ServedRequest, context: Context) -> None:
        stream = served.stream
        while True:
            for update in await stream.take():
                if isinstance(update, Refusal):
                    raise update
                await self._send(context, event_to_wire(served, update))
                if isinstance(update, RequestUsage):
                    failure = failure_status(served, update, partial(self._retry_after, served))
                    if failure is not None:
                        raise failure
                    return
            if stream.overflowed:
                raise caller_stalled(f"more than {self._settings.stream_bytes:,} bytes were unread")

    async def _send(self, context: Context, event: wire.GenerateEvent) -> None:
        seconds = self._settings.stall_seconds
        if not await write_message(context, event, seconds):
            raise caller_stalled(f"nothing was read for {seconds:g} s")

    def _retry_after(self, served: ServedRequest) -> float | None:
        return self._controller.retry_after(served.booking, self._clock.now())

    def deliver(self, report: EngineReport) -> None:
        if report.scheduler is not None:
            report.scheduler.apply(self._controller)
        for served, update in report.updates:
            served.stream.put(update)
            if isinstance(update, RequestUsage | Refusal):
                self._controller.forget(served.request.request_id)
                trace = self._live.pop(served, None)
                if self._tracing is not None and trace is not None:
                    self._tracing.record_ended(trace, update)
        self._sweep()
        if report.load is not None:
            self._publisher.publish(report.load)
        if report.died and self.state != "failed":
            self.state = "failed"
            self.on_death()
        self._ended.set()

    def _sweep(self) -> None:
        """Shed requests that can no longer meet their deadlines; suspend and resume others."""
        now = self._clock.now()
        if now - self._swept_at < SWEEP_SECONDS and not self._controller.is_sweep_due:
            return
        self._swept_at = now
        self._controller.in_flight = step_in_flight(self._scheduler)
        sweep = self._controller.sweep(now)
        for key in sweep.shed:
            self._engine.end(key, "shed")
        for key in sweep.suspended:
            self._engine.suspend(key, sweep.beneficiary)
        for key in sweep.resumed:
            self._engine.resume(key)

    def open(self) -> None:
        """Accept requests, now that the engine is warm. An earlier drain still applies."""
        if self.state == "warming":
            self.state = "open"

    def close(self) -> None:
        if self.state != "failed":
            self.state = "draining"

    async def drain(self) -> int:
        """Accept no further requests and wait until no request is live. Returns how many were live."""
        self.close()
        num_live = len(self._live)
        while self._live:
            self._ended.clear()
            await self._ended.wait()
        return num_live

    async def wait_flushed(self) -> None:
        """Wait until every caller has read its stream to the end, or is gone."""
        while self.num_open:
            self._ended.clear()
            await self._ended.wait()


class SpecialistService:
    """All methods, by name on the wire."""

    def __init__(
        self,
        replica: AssembledReplica,
        settings: ServiceSettings,
        validator: GenerateValidator,
        handler: GenerateHandler,
        publisher: LoadPublisher,
        publish_health: Callable[[], Awaitable[None]],
        metrics: Exposition,
    ) -> None:
        self._replica = replica
        self._settings = settings
        self._validator = validator
        self._handler = handler
        self._publisher = publisher
        self._loading = asyncio.Lock()
        self._publish_health = publish_health
        self._metrics = metrics

    def grpc_handler(self) -> Any:
        unary = partial(unary_handler, limit=self._validator.limits.request_bytes)
        stream = partial(streaming_handler, limit=self._validator.limits.request_bytes)
        methods = {
            "Generate": stream(wire.GenerateRequest, wire.GenerateEvent, self._handler.generate),
            "WatchLoad": stream(wire.WatchLoadRequest, wire.LoadReport, self._watch_load),
            "LoadAdapter": unary(wire.LoadAdapterRequest, wire.LoadAdapterResponse, self._load_adapter),
            "UnloadAdapter": unary(wire.UnloadAdapterRequest, wire.UnloadAdapterResponse, self._unload_adapter),
            "Drain": unary(wire.DrainRequest, wire.DrainResponse, self._drain),
            "CountTokens": unary(wire.GenerateRequest, wire.CountTokensResponse, self._handler.count_tokens),
            "Describe": unary(wire.DescribeRequest, wire.DescribeResponse, self._describe),
            "GetMetrics": unary(wire.GetMetricsRequest, wire.GetMetricsResponse, self._get_metrics),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def _watch_load(self, message: wire.WatchLoadRequest, context: Context) -> Awaitable[None]:
        heartbeat = self._validator.watch_heartbeat(message)
        interval = min(heartbeat, self._validator.watch_interval(message, self._settings.watch_seconds))
        return LoadWatch(self._publisher, heartbeat).send(context, interval, self._settings.stall_seconds)

    async def _load_adapter(self, message: wire.LoadAdapterRequest) -> wire.LoadAdapterResponse:
        name = self._validator.adapter_name(message.name)
        path = self._validator.adapter_path(message.path)
        requested = self._validator.adapter_digest(message.digest)
        configured = self._settings.adapter_digests.get(name, "")

        def load() -> str:
            if configured and requested:
                check_digest(name, requested, configured)
            directory = resolve_below(self._settings.adapter_root, path)
            return self._replica.adapters.load(name, directory, configured or requested)

        try:
            async with self._loading:  # one load at a time: its size is up to the caller
                digest = await asyncio.to_thread(load)
        except AdapterRefused as refused:
            raise adapter_refused(refused.field, refused.why) from None
        self._publisher.notify()
        return wire.LoadAdapterResponse(adapter=wire.ResidentAdapter(name=name, digest=digest))

    async def _unload_adapter(self, message: wire.UnloadAdapterRequest) -> wire.UnloadAdapterResponse:
        name = self._validator.adapter_name(message.name)
        try:
            self._replica.adapters.unload(name)
        except UnknownAdapter:
            raise unknown_adapter(name) from None
        self._publisher.notify()
        return wire.UnloadAdapterResponse()

    async def _drain(self, _: wire.DrainRequest) -> wire.DrainResponse:
        return wire.DrainResponse(finished=await self.drain())

    async def drain(self) -> int:
        """Refuse new requests and finish the others. Returns the number of those."""
        self._publisher.is_draining = True
        self._publisher.notify()
        self._handler.close()
        await self._publish_health()
        return await self._handler.drain()

    async def _get_metrics(self, _: wire.GetMetricsRequest) -> wire.GetMetricsResponse:
        return wire.GetMetricsResponse(text=(await self._metrics.write("")).body)

    async def _describe(self, _: wire.DescribeRequest) -> wire.DescribeResponse:
        replica, pool = self._replica, self._replica.scheduler.pool
        return wire.DescribeResponse(
            lane=lane_to_wire(replica.lane),
            version=__version__,
            model=replica.model,
            kernels=replica.kernels,
            context=replica.context,
            block_size=pool.block_size,
            num_blocks=pool.capacity,
            adapters=adapters_to_wire(replica.adapters.names()),
            limits=[wire.Limit(field=field, limit=limit) for field, limit in self._validator.limits.describe()],
            engine=replica.engine_name,
        )
