"""The gRPC methods of `octet.v1.Specialist`."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from random import Random
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from admission.forecast.places import Places
from octet import __version__
from octet.rpc import refusal
from octet.rpc.handlers import Context, HealthService, duplex_handler, streaming_handler, unary_handler
from octet.rpc.memory import MemoryGuard
from octet.telemetry.exposition import Exposition
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import AdapterRefused, UnknownAdapter, check_digest, resolve_below
from specialist.scheduling.loop import SchedulerReport, new_admission_controller
from specialist.server.attachment import Attachment
from specialist.server.engine_thread import EngineThread
from specialist.server.generate import GenerateHandler, send
from specialist.server.load_report import LoadPublisher, adapters_to_wire
from specialist.server.preparation import RequestPreparer
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import lane_to_wire
from specialist.server.settings import ServiceSettings
from specialist.server.tracing import ReplicaTracing
from specialist.server.validation import REQUEST_BYTES, GenerateLimits, GenerateValidator

SERVICE_NAME: str = wire.DESCRIPTOR.services_by_name["Specialist"].full_name
ATTACH = f"/{SERVICE_NAME}/Attach"
SPARE_STREAMS = 64  # streams of an attached call in addition to the requests that a replica can have
_KEY_BYTES = 16  # of a place's key, which cannot be guessed
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


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
        self.attachments: set[Attachment] = set()
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
            "Attach": duplex_handler("AttachRequest", self._attach),
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

    async def _attach(self, context: Context) -> None:
        attachment = Attachment(self.handler, self._settings, self.preparer.max_tokenizing + SPARE_STREAMS)
        self.attachments.add(attachment)
        try:
            await attachment.serve(context)
        finally:
            self.attachments.discard(attachment)

    async def _watch_load(self, message: wire.WatchLoadRequest, context: Context) -> None:
        heartbeat = self._validator.seconds(message, "heartbeat_ms") or inf
        interval = self._validator.seconds(message, "min_interval_ms")
        interval = min(heartbeat, self._settings.watch_seconds if interval is None else interval)
        async with aclosing(self.publisher.watch(heartbeat)) as reports:
            async for report in reports:
                await send(context, report, self._settings.stall_seconds)
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
