"""The gRPC methods of `octet.v1.Specialist`."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from random import Random
from typing import Any, Literal, NoReturn

import grpc
from grpc_health.v1 import health_pb2

from admission.forecast.bookings import Refuse
from admission.forecast.places import KEPT_SECONDS, Places
from octet import __version__
from octet.rpc import refusal
from octet.rpc.handlers import Context, HealthService, streaming_handler, unary_handler, write_message
from octet.rpc.memory import MemoryGuard
from octet.rpc.refusal import Refusal
from octet.telemetry.exposition import Exposition
from octet.telemetry.requests import current_request, set_request
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import AdapterRefused, UnknownAdapter, check_digest, resolve_below
from specialist.scheduling.loop import AdmissionGate, SchedulerReport, new_admission_controller
from specialist.server.engine_thread import EngineReport, EngineThread
from specialist.server.load_report import AdmissionCounters, LoadPublisher, adapters_to_wire
from specialist.server.output_stream import OutputStream
from specialist.server.preparation import RequestPreparer
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import RequestUsage, ServedRequest, admission_refusal, lane_to_wire
from specialist.server.settings import ServiceSettings
from specialist.server.tracing import ReplicaTrace, ReplicaTracing, read_trace_context
from specialist.server.validation import REQUEST_BYTES, GenerateLimits, GenerateValidator

SERVICE_NAME: str = wire.DESCRIPTOR.services_by_name["Specialist"].full_name
ServingState = Literal["warming", "open", "draining", "failed"]
_KEY_BYTES = 16  # of a place's key, which cannot be guessed
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_CLOSED_REFUSALS = {"warming": refusal.not_ready, "draining": refusal.draining, "failed": refusal.replica_failed}


class GenerateHandler:
    """Handles Generate and CountTokens. Used only on the event loop."""

    def __init__(
        self,
        replica: AssembledReplica,
        settings: ServiceSettings,
        engine: EngineThread,
        preparer: RequestPreparer,
        publisher: LoadPublisher,
        places: Places,
        memory: MemoryGuard,
        tracing: ReplicaTracing | None = None,
    ) -> None:
        self._clock = replica.clock
        self._settings = settings
        self._engine = engine
        self._preparer = preparer
        self._publisher = publisher
        self._controller = publisher.controller
        self._places = places
        self._gate = AdmissionGate(publisher.controller, replica.scheduler, engine)
        self._num_running = replica.scheduler.running.__len__
        self.memory = memory
        self._tracing = tracing
        self._live: dict[ServedRequest, ReplicaTrace | None] = {}
        """Live requests in the engine, each with its trace; None if it is not traced."""
        self.num_open = 0  # calls that have no status yet
        self._ended = asyncio.Event()
        self.counters = AdmissionCounters()
        self.state: ServingState = "warming"
        self.on_death: Callable[[], object] = lambda: None  # called once, when the engine has died
        self.pull: Callable[[], object] | None = None  # delivers the reports that wait; None if none ever waits

    @property
    def num_live(self) -> int:
        return len(self._live)

    async def generate(self, message: wire.GenerateRequest, context: Context) -> None:
        self.num_open += 1
        trace = self._start_trace(message, context)
        try:
            await self._generate(message, context, trace)
        except BaseException as error:
            if trace is not None and trace.served is None and self._tracing is not None:
                self._tracing.record(trace, error)
            raise
        finally:
            self.num_open -= 1
            self._ended.set()

    async def count_tokens(self, message: wire.GenerateRequest) -> wire.CountTokensResponse:
        self._check_open()
        served = self._preparer.count_validator.validate(message)
        return wire.CountTokensResponse(prompt_tokens=await self._preparer.count_tokens(served))

    def _start_trace(self, message: wire.GenerateRequest, context: Context) -> ReplicaTrace | None:
        """Start the call's trace and set the ids for its log lines. Return None if its trace is not collected."""
        parent, state = read_trace_context(context)
        set_request(message.request_id, "" if parent is None else parent.trace_id)
        if self._tracing is None or parent is None or not parent.is_sampled:
            return None
        return ReplicaTrace(parent, state, message.request_id, message.shadow, self._clock.now())

    async def _generate(self, message: wire.GenerateRequest, context: Context, trace: ReplicaTrace | None) -> None:
        self._check_open()
        served = self._preparer.validator.validate(message)
        self.memory.check(can_wait=served.shadow)
        # Refuse the request before it is tokenised if the queue is full and it outranks no request in it.
        self._catch_up()
        now, seconds_left = self._clock.now(), context.time_remaining()
        refuse = self._controller.refuse_if_full(served.priority, now, shadow=served.shadow)
        if refuse is not None and not self._may_get_place(served, seconds_left, now):
            self._refuse(served, refuse)
        await self._preparer.prepare(served, seconds_left)
        request_id = served.request.request_id
        cancel = partial(self._engine.end, request_id, "cancelled")
        try:
            self._check_open()
            self._admit(served)
            served.stream = OutputStream(
                self._settings.stream_bytes, cancel, self._settings.piece_gap, self.pull, self._num_running
            )
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

    def _may_get_place(self, served: ServedRequest, seconds_left: float | None, now: float) -> bool:
        limits = (each for each in (served.timeout, seconds_left) if each is not None)
        patience = min(limits, default=inf) + (served.waits or 0.0)
        owner = "" if served.waits is None else served.place_for
        return self._places.may_serve(owner, served.place, served.priority, patience, now)

    def _check_open(self) -> None:
        if self.state != "open":
            raise _CLOSED_REFUSALS[self.state]()

    def _catch_up(self) -> None:
        """Apply what the engine's thread has reported, so that a decision knows it."""
        if self.pull is not None:
            self.pull()

    def _admit(self, served: ServedRequest) -> None:
        self._catch_up()
        now, request = self._clock.now(), served.request
        if request.deadline is not None and request.deadline <= now:
            raise refusal.deadline_exceeded()
        if request.first_deadline is not None and request.first_deadline <= now:
            raise refusal.first_token_late()
        decision = self._gate.decide(served.booking, now)
        if isinstance(decision, Refuse):
            self._refuse(served, decision)
        self.counters.count(decision, shadow=served.shadow)
        served.admission = decision
        served.trace_id = current_request().trace_id

    def _refuse(self, served: ServedRequest, refuse: Refuse) -> NoReturn:
        self.counters.count(refuse, shadow=served.shadow)
        self._publisher.notify()
        refusal = admission_refusal(refuse, self._settings.max_waiting)
        if refuse.place:
            instance, kept_ms = self._publisher.process.instance, round(KEPT_SECONDS * 1000)
            refusal.error.place.CopyFrom(wire.Place(instance=instance, key=refuse.place, kept_ms=kept_ms))
        raise refusal

    async def release_places(self, message: wire.ReleasePlacesRequest) -> wire.ReleasePlacesResponse:
        for key in message.keys:
            self._places.end(key, "released")
        return wire.ReleasePlacesResponse()

    async def _relay(self, served: ServedRequest, context: Context) -> None:
        stream = served.stream
        while True:
            for update in served.decode(await stream.take()):
                if isinstance(update, Refusal):
                    raise update
                await _send(context, served.to_wire(update), self._settings.stall_seconds)
                if isinstance(update, RequestUsage):
                    retry_after = partial(self._controller.retry_after, served.booking, self._clock.now())
                    if failure := served.failure(update, retry_after):
                        raise failure
                    return
            if stream.overflowed:
                raise refusal.caller_stalled(f"more than {self._settings.stream_bytes:,} bytes were unread")

    def deliver(self, report: EngineReport) -> None:
        if report.scheduler is not None:
            report.scheduler.apply(self._controller)
        for served, update in report.updates:
            served.stream.put(update)
            if isinstance(update, RequestUsage | Refusal):
                self._controller.forget(served.request.request_id)
                trace = self._live.pop(served, None)
                if self._tracing is not None and trace is not None:
                    self._tracing.record(trace, update)
        self._gate.sweep()
        if report.load is not None:
            self._publisher.publish(report.load)
        if report.died and self.state != "failed":
            self.state = "failed"
            self.on_death()
        self._ended.set()

    def open(self) -> None:
        """Accept requests, now that the engine is warm. If a drain has already begun, requests stay refused."""
        if self.state == "warming":
            self.state = "open"

    def close(self) -> None:
        if self.state != "failed":
            self.state = "draining"

    async def drain(self) -> int:
        """Accept no further requests and wait until no request is live. Return how many were live."""
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


async def _send(context: Context, message: wire.GenerateEvent | wire.LoadReport, seconds: float) -> None:
    if not await write_message(context, message, seconds):
        raise refusal.caller_stalled(f"nothing was read for {seconds:g} s")


class SpecialistService:
    """A replica's gRPC methods and the parts they share, without a listening socket. Used only on the event loop."""

    def __init__(
        self,
        replica: AssembledReplica,
        settings: ServiceSettings,
        engine: EngineThread,
        random: Random,
        memory: MemoryGuard,
        tracing: ReplicaTracing | None = None,
    ) -> None:
        self.replica = replica
        self.engine = engine
        self._settings = settings
        self._validator = GenerateValidator(
            GenerateLimits(replica.context, replica.codec.vocab_size, can_embed=replica.model.hidden_size > 0)
        )
        self.places = Places(lambda: random.randbytes(_KEY_BYTES).hex())
        self.controller = new_admission_controller(
            replica.scheduler, settings.max_waiting, replica.prices, random.random, self.places
        )
        self.preparer = RequestPreparer(replica, settings, self._validator, random)
        self.publisher = LoadPublisher(replica, settings, self.controller)
        self.handler = GenerateHandler(
            replica, settings, engine, self.preparer, self.publisher, self.places, memory, tracing
        )
        self.exposition = Exposition({"specialist": replica.lane.specialist})
        self._loading = asyncio.Lock()
        self.health = HealthService()
        self._health_lock = asyncio.Lock()

    async def open(self, warm_up_reports: Iterable[SchedulerReport]) -> None:
        """Report the warm-up's steps to the admission controller, then serve requests."""
        for report in warm_up_reports:
            report.apply(self.controller)
        self.engine.start()
        self.handler.open()
        await self.publish_health()

    async def publish_health(self) -> None:
        async with self._health_lock:  # so that the newest state is published last
            status = _SERVING if self.handler.state == "open" else _NOT_SERVING
            await self.health.set("", status)
            await self.health.set(SERVICE_NAME, status)

    def grpc_handler(self) -> Any:
        unary = partial(unary_handler, limit=REQUEST_BYTES)
        stream = partial(streaming_handler, limit=REQUEST_BYTES)
        methods = {
            "Generate": stream(wire.GenerateRequest, wire.GenerateEvent, self.handler.generate),
            "WatchLoad": stream(wire.WatchLoadRequest, wire.LoadReport, self._watch_load),
            "LoadAdapter": unary(wire.LoadAdapterRequest, wire.LoadAdapterResponse, self._load_adapter),
            "UnloadAdapter": unary(wire.UnloadAdapterRequest, wire.UnloadAdapterResponse, self._unload_adapter),
            "Drain": unary(wire.DrainRequest, wire.DrainResponse, self._drain),
            "CountTokens": unary(wire.GenerateRequest, wire.CountTokensResponse, self.handler.count_tokens),
            "ReleasePlaces": unary(wire.ReleasePlacesRequest, wire.ReleasePlacesResponse, self.handler.release_places),
            "Describe": unary(wire.DescribeRequest, wire.DescribeResponse, self._describe),
            "GetMetrics": unary(wire.GetMetricsRequest, wire.GetMetricsResponse, self._get_metrics),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _watch_load(self, message: wire.WatchLoadRequest, context: Context) -> None:
        heartbeat = self._validator.seconds(message, "heartbeat_ms") or inf
        interval = self._validator.seconds(message, "min_interval_ms")
        interval = min(heartbeat, self._settings.watch_seconds if interval is None else interval)
        async with aclosing(self.publisher.watch(heartbeat)) as reports:
            async for report in reports:
                await _send(context, report, self._settings.stall_seconds)
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await self.publisher.closed.wait()

    async def _load_adapter(self, message: wire.LoadAdapterRequest) -> wire.LoadAdapterResponse:
        name = self._validator.name("name", message.name)
        path = self._validator.adapter_path(message.path)
        requested = self._validator.adapter_digest(message.digest)
        configured = self._settings.adapter_digests.get(name, "")

        def load() -> str:
            if configured and requested:
                check_digest(name, requested, configured)
            directory = resolve_below(self._settings.adapter_root, path)
            return self.replica.adapters.load(name, directory, configured or requested)

        try:
            async with self._loading:  # one load at a time, because the caller decides its size
                digest = await asyncio.to_thread(load)
        except AdapterRefused as refused:
            raise refusal.adapter_refused(refused.field, refused.why) from None
        self.publisher.notify()
        return wire.LoadAdapterResponse(adapter=wire.ResidentAdapter(name=name, digest=digest))

    async def _unload_adapter(self, message: wire.UnloadAdapterRequest) -> wire.UnloadAdapterResponse:
        name = self._validator.name("name", message.name)
        try:
            self.replica.adapters.unload(name)
        except UnknownAdapter:
            raise refusal.unknown_adapter(name) from None
        self.publisher.notify()
        return wire.UnloadAdapterResponse()

    async def _drain(self, _: wire.DrainRequest) -> wire.DrainResponse:
        return wire.DrainResponse(finished=await self.drain())

    async def drain(self) -> int:
        """Refuse new requests and finish the live ones. Return how many were live."""
        self.publisher.is_draining = True
        self.publisher.notify()
        self.handler.close()
        await self.publish_health()
        return await self.handler.drain()

    async def _get_metrics(self, _: wire.GetMetricsRequest) -> wire.GetMetricsResponse:
        return wire.GetMetricsResponse(text=(await self.exposition.write("")).body)

    async def _describe(self, _: wire.DescribeRequest) -> wire.DescribeResponse:
        replica, pool = self.replica, self.replica.scheduler.pool
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
