"""The router process: how it starts, listens, reloads, drains and stops."""

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

import uvloop
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet.background import cancel_tasks, run_every, run_forever
from octet.clock import SystemClock, wall_ms
from octet.config.ensemble import Ensemble
from octet.config.reload import ConfigWatch, Reloaded
from octet.rpc.drain_gate import DrainGate, DrainGateInterceptor, begin_shutdown
from octet.rpc.handlers import MAX_PENDING_READS, HealthService
from octet.rpc.listener import SERVER_OPTIONS, bind_server, check_keys_configured, format_address
from octet.rpc.memory import MemoryGuard, MemoryLimits, memory_reader
from octet.supervisor.process import StatusReporter
from router.api.grpc.services import (
    INFERENCE_SERVICE,
    JOBS_SERVICE,
    OPERATOR_SERVICE,
    InferenceService,
    JobsService,
    OperatorService,
)
from router.api.http.app import App
from router.api.http.operator_routes import MonitoringSources
from router.api.http.server import HttpServer
from router.api.keys.gate import AccessGate, KeyInterceptor
from router.api.operations import OperatorApi
from router.assembly import RequestTraces, RouterCore, RouterEnvironment
from router.dispatch.transport import open_transport
from router.jobs.manager import JobManager
from router.observe.metrics.exposition import router_exposition
from router.observe.metrics.replicas import ReplicaMetrics
from router.observe.metrics.requests import RequestCounters
from router.observe.overview.overview import Overviews
from router.routing.classifier.queue import open_classifier_queue
from router.routing.policy import ClassifierClient
from router.settings import RouterSettings, replica_addresses

_log = logging.getLogger(__name__)
FLUSH_SECONDS = 10.0  # for running requests if the router stops after an error; after a drain, none are left
_MAX_RECEIVED_BYTES = 4 << 20  # larger than any accepted request, so that most oversized ones get a typed refusal
_LAST_STATUS_SECONDS = 0.2  # for the final statuses of calls that have ended
_LATE_STATUS_SECONDS = 3.0  # for calls that have not ended, or arrive at the last moment
_STATUS_POLL_SECONDS = 0.02
_NO_GRACE_LIMIT_SECONDS = 3600.0
_WARM_LOG_SECONDS = 5.0
_SPARE_CALLS = 128  # health checks, receipts, cancellations, and requests that are refused because too many are running
_ID_BYTES = 16
_HEARTBEAT_SECONDS = 1.0  # the supervisor restarts a router whose event loop does not run
_DIGEST_DIGITS = 12
_SWITCH_SECONDS = 0.0005
"""The longest time that the event loop or the classifier's thread waits for the interpreter lock."""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class RouterServer(RouterCore):
    def __init__(self, ensemble: Ensemble, settings: RouterSettings, classifier: ClassifierClient) -> None:
        """Raises ValueError, OSError or BindRefused for invalid settings."""
        clock, random = SystemClock(), SystemRandom()
        connect = open_transport(ensemble.dispatch.transport, settings.replica_tls, attach=ensemble.dispatch.attach)
        environment = RouterEnvironment(
            clock, time.time, random, connect, lambda: secrets.token_hex(_ID_BYTES), weights=settings.weights
        )
        memory = MemoryGuard(memory_reader(), clock, MemoryLimits.from_environment(os.environ))
        memory.warn()
        super().__init__(
            ensemble,
            replica_addresses(ensemble, settings),
            classifier,
            environment,
            AccessGate(None if settings.keys is None else settings.keys.load(), clock, wall_ms),
            memory,
            RequestTraces(settings.otlp, ensemble.telemetry, clock),
        )
        services, config = self.services, ensemble.router
        self._keys = settings.keys
        self.is_warm = False
        self.operator_api = OperatorApi(services.control, self.receipts, self.slos)
        self.view = Overviews(services, self.fleet, ensemble, clock, wall_ms)
        self.observers.add(self.view.traffic, gaps=False)
        self.jobs = JobManager(services.store, self.service, config.jobs, random.random, environment.new_id)
        self.responses: Counter[tuple[str, int]] = Counter()  # by route pattern (empty for unknown routes) and status
        self._drain_gate = DrainGate()
        self.request_counters = RequestCounters(ensemble)
        self.observers.add(self.request_counters)
        self.replica_metrics = ReplicaMetrics(self.fleet)
        self._exposition = router_exposition(self)
        self._health = HealthService()
        self._inference = InferenceService(self.service, self.slos.header)
        max_pending_reads = max(config.max_inflight, MAX_PENDING_READS)
        max_calls = config.max_inflight + config.jobs.watchers + max_pending_reads + _SPARE_CALLS
        self._grpc = self._build_grpc_server(max_calls, max_pending_reads)
        for listener in (settings, settings.http):
            if listener is not None:
                check_keys_configured(listener, has_keys=self.gate.requires_keys)
        self.port: int = bind_server(self._grpc, settings)
        self.http = None if settings.http is None else HttpServer(self._build_http_app(), settings.http)

    def _build_grpc_server(self, max_calls: int, max_pending_reads: int) -> Any:
        limits = (("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES), ("grpc.max_concurrent_streams", max_calls))
        server = aio.server(
            interceptors=(
                DrainGateInterceptor(self._drain_gate),
                KeyInterceptor(self.gate, max_pending_reads),
            ),
            options=(*SERVER_OPTIONS, *limits),
            maximum_concurrent_rpcs=max_calls,
        )
        jobs = JobsService(self.jobs)
        operator = OperatorService(self.operator_api, self.receipts, self.services.shadow_counts, self.view)
        server.add_generic_rpc_handlers((self._inference.handler(), jobs.handler(), operator.handler()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (INFERENCE_SERVICE, JOBS_SERVICE, OPERATOR_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    def _build_http_app(self) -> App:
        scraped = self._exposition.write, self.replica_metrics.write
        sources = MonitoringSources(self.operator_api, self.view, self.slos, self.responses, *scraped)
        parts = self.jobs, self.services.store, sources, self._drain_gate
        return App(self.service, self.fleet, lambda: self.is_warm, *parts)

    async def start(self) -> None:
        """Start accepting requests. The health service reports SERVING only after `warm`."""
        await self._set_health(_NOT_SERVING)
        self.traces.start()
        await super().start()
        self.view.start(self.receipts)
        self.jobs.start()
        if self._keys is not None:
            source = self._keys
            self._tasks.append(run_forever(lambda: source.follow(self.gate.replace), "following the keys"))
        await self._grpc.start()
        if self.http is not None:
            await self.http.start()

    async def warm(self) -> None:
        """Wait until every specialist has a warm replica, then report SERVING unless the router is draining."""
        while waiting_for := self.fleet.waiting_for:
            self.fleet.changed.clear()
            try:
                async with asyncio.timeout(_WARM_LOG_SECONDS):
                    await self.fleet.changed.wait()
            except TimeoutError:
                _log.info("waiting for a warm replica of %s", ", ".join(waiting_for))
        self.is_warm = True
        if not self.service.draining:
            await self._set_health(_SERVING)

    def follow(self, watch: ConfigWatch) -> Callable[[], None]:
        """Reload the configuration whenever it changes. Return a function that checks for a change immediately."""
        self._tasks.append(run_forever(lambda: self._follow(watch), "following the configuration"))
        return watch.nudge

    async def _follow(self, watch: ConfigWatch) -> None:
        async for event in watch.events():
            if not isinstance(event, Reloaded):
                _log.error("the configuration was not reloaded: %s", event.why)
                continue
            try:
                await self.reload(event.ensemble)
            except ValueError as error:
                watch.refused()
                _log.error("the configuration was not reloaded: %s", error)
            else:
                _log.info("the configuration was reloaded: %s", ", ".join(event.changed))

    async def reload(self, ensemble: Ensemble) -> None:
        await super().reload(ensemble)
        self.view.reload(ensemble)
        self.request_counters.reload(ensemble)

    async def drain(self) -> None:
        self.service.draining = True
        self.fleet.stop_waiting()
        await self._set_health(_NOT_SERVING)
        await self.jobs.drain()
        await self.live.emptied()

    async def stop(self, grace: float) -> None:
        """Stop the router; running requests get `grace` seconds to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.drain()
        if grace > 0:
            async with self._drain_gate.hold():
                ending = await begin_shutdown(self._stop_grpc(grace), self._stop_http(grace))
            await ending
        else:
            await asyncio.gather(self._stop_grpc(0), self._stop_http(0))
        await cancel_tasks(*self._tasks)
        await self.jobs.close()
        await self.view.close()
        await super().close()
        await self.traces.close(grace)

    async def _stop_grpc(self, grace: float) -> None:
        """Stop the gRPC server. Wait until every inference call has sent its status, at most `grace` seconds; then
        cancel the remaining calls, such as watchers."""
        calls, gate = self._inference.calls, self._drain_gate
        seconds = _LAST_STATUS_SECONDS if calls.are_quiet() and not gate.num_held else _LATE_STATUS_SECONDS
        end = asyncio.get_running_loop().time() + grace
        # grpcio crashes if the grace period of this stop ends after the stop below has destroyed the server
        ending = asyncio.ensure_future(self._grpc.stop(_NO_GRACE_LIMIT_SECONDS))
        await asyncio.wait((ending,), timeout=min(grace, seconds))
        while not ending.done() and (calls.num_open or gate.num_held) and asyncio.get_running_loop().time() < end:
            await asyncio.wait((ending,), timeout=_STATUS_POLL_SECONDS)
        await self._grpc.stop(None)
        await ending

    async def _stop_http(self, grace: float) -> None:
        if self.http is not None:
            await self.http.stop(min(grace, _LAST_STATUS_SECONDS))

    async def _set_health(self, status: Any) -> None:
        await self._health.set("", status)
        await self._health.set(INFERENCE_SERVICE, status)


def serve(ensemble: Ensemble, settings: RouterSettings, accepted: Path | None) -> int:
    """Run the router until a signal stops it, and return the exit status. SIGTERM or SIGINT drains the router (status
    0); SIGINT during the drain stops it immediately (130). SIGHUP reloads the configuration; every accepted version is
    written to the file `accepted`. Raises ValueError, OSError or BindRefused for invalid settings."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    return uvloop.run(_serve(ensemble, settings, accepted))


async def _serve(ensemble: Ensemble, settings: RouterSettings, accepted: Path | None) -> int:
    stop, stop_now, reload = asyncio.Event(), asyncio.Event(), list[Callable[[], None]]()

    def interrupt() -> None:
        if stop.is_set():
            stop_now.set()
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGHUP, lambda: [nudge() for nudge in reload])
    heartbeat = run_every(_HEARTBEAT_SECONDS, StatusReporter.from_environment().alive, "the heartbeat")
    async with open_classifier_queue(ensemble, SystemClock()) as classifier:
        server = RouterServer(ensemble, settings, classifier)
        try:
            await server.start()
            if ensemble.source is not None:
                reload.append(server.follow(ConfigWatch(ensemble.source, ensemble, accepted)))
            if await _finish_before(server.warm(), stop):
                gc.freeze()  # long-lived objects: the garbage collector need not visit them while requests wait
                also = "" if server.http is None else f" and {server.http.url}"
                replicas = f"{len(ensemble.specialists)} specialists, {len(server.fleet.replicas)} replicas"
                version = f"classifier {classifier.digest[:_DIGEST_DIGITS]}"
                address = format_address(settings, server.port)
                print(f"octet router ready on {address}{also} ({replicas}, {version})", flush=True)
            await stop.wait()
            await _finish_before(server.drain(), stop_now)
        finally:
            await server.stop(0 if stop_now.is_set() else FLUSH_SECONDS)
            heartbeat.cancel()
    return 130 if stop_now.is_set() else 0


async def _finish_before(work: Coroutine[Any, Any, None], event: asyncio.Event) -> bool:
    """Run `work`, but cancel it when `event` is set. Return whether it finished."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False
