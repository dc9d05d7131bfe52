"""The router put together: a gRPC server, and an HTTP one where it is wanted, over a fleet of replicas, and an orderly
end."""

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet import __version__
from octet.clock import SystemClock, wall_ms
from octet.config.ensemble import Ensemble, JobsConfig
from octet.config.reload import ConfigWatch, Reloaded
from octet.rpc.bind import bind, check_keyed
from octet.rpc.cgroup_memory import memory_reader
from octet.rpc.doorstep import Doorstep, DoorstepInterceptor, begun
from octet.rpc.memory_guard import MemoryGuard, MemoryLimits
from octet.rpc.server_options import SERVER_OPTIONS
from octet.rpc.unread import MOST_SILENT
from octet.v1 import inference_pb2 as wire
from router.background import for_good
from router.decide.decider import Decider, Opinions
from router.decide.policy import Policy
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.live import LiveRequests
from router.dispatch.quarantine import Quarantine
from router.dispatch.relay import Write
from router.dispatch.sweep import Sweep
from router.dispatch.token_counter import TokenCounter
from router.http.app import App
from router.http.server import HttpServer
from router.http.windows import Windows
from router.jobs.attempt import Means
from router.jobs.jobs import Jobs
from router.jobs.service import NAME as JOBS
from router.jobs.service import JobsService
from router.jobs.watchers import Watchers
from router.keys.gate import Gate
from router.keys.interceptor import KeyInterceptor
from router.metrics.doors import Doors
from router.metrics.metrics import Metrics
from router.metrics.requests import RequestTally
from router.observe.observers import Observers
from router.operator.service import NAME as OPERATOR
from router.receipts.book import ReceiptBook
from router.reception.caller import Caller, calling
from router.reception.reception import Reception
from router.replicas.fleet import Fleet
from router.service.answering import Answering
from router.service.backstage import Backstage
from router.service.receipts import Receipts
from router.service.service import NAME, InferenceService
from router.service.settings import RouterSettings, addresses_of
from router.service.traces import Traces
from router.service.validation import Validations
from router.view.open import open_view

_log = logging.getLogger(__name__)
_MOST_RECEIVED = 4 << 20
"""Larger than any request that is served, so that most of what is too large gets our answer."""
_LAST_WORDS_SECONDS = 0.2
"""For the statuses of calls that have ended."""
_LATE_WORDS_SECONDS = 3.0
"""For those of calls that have not, or that come at the last moment."""
_PATIENCE_SECONDS = 5.0
"""A start that takes longer between two steps is worth a line."""
_SPARE_CALLS = 128
"""Health checks, receipts, cancellations, and requests that are told that there are too many."""
_ID_BYTES = 16
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """Created and used on a running event loop."""

    def __init__(self, ensemble: Ensemble, settings: RouterSettings, opinions: Opinions) -> None:
        """Raises ValueError, OSError, BindRefused for what must be put right first."""
        self._clock = SystemClock()
        self._keys = settings.keys
        self.gate = Gate(None if settings.keys is None else settings.keys.book(), self._clock, wall_ms)
        self.observers = Observers()
        self.traces = Traces(settings.otlp, ensemble.telemetry, self._clock, self.observers)
        random = SystemRandom()
        credentials = None if settings.replica_tls is None else settings.replica_tls.credentials()
        self.fleet = Fleet(ensemble, addresses_of(ensemble, settings), self._clock, random, credentials)
        self.quarantine = Quarantine(self._clock, lambda: self.fleet.dispatch.quarantine_seconds)
        self.backstage = Backstage(
            ensemble, self.fleet, self._clock, random, credentials, self.traces.tracing, blame=self.quarantine.left
        )
        self.slos = self.backstage.slos
        self.observers.add(self.slos)
        self.live = LiveRequests(ensemble.router.max_inflight, ensemble.router.max_inflight_bytes)
        router = ensemble.router
        self._validations = Validations(
            lambda: self.backstage.verifiers, ensemble.correctness, router.validations, router.validation_seconds
        )
        book = ReceiptBook(self._clock, most=ensemble.router.receipts, seconds=ensemble.router.receipt_seconds)
        receipts = Receipts(book, self.backstage.store)
        self.desk = self.backstage.desk(receipts.get)
        self.memory = MemoryGuard(memory_reader(), self._clock, MemoryLimits.of(os.environ))
        self.memory.warn()
        self.service = InferenceService(
            Policy(ensemble),
            self._reception(ensemble),
            self._answering(opinions, random),
            self.live,
            receipts,
            self._clock,
            wall_ms,
            self._validations,
            self.gate,
            self.observers,
            self.slos.header,
            self.memory,
        )
        self.view = open_view(ensemble, self.backstage, self.fleet, self._clock, wall_ms, slos=self.slos)
        self.observers.add(self.view.parts.traffic, gaps=False)
        self.jobs = self._jobs(ensemble.router.jobs, random)
        self._responses: Counter[tuple[str, int]] = Counter()
        self._doorstep = Doorstep()
        self.metrics = self._metrics()
        self._health: Any = health.aio.HealthServicer()
        most_silent = max(router.max_inflight, MOST_SILENT)
        max_calls = router.max_inflight + router.jobs.watchers + most_silent + _SPARE_CALLS
        self._server = self._grpc_server(max_calls, most_silent)
        for door in (settings, settings.http):
            if door is not None:
                check_keyed(door, has_keys=self.gate.asks)
        self.port: int = bind(self._server, settings)
        self.http = None if settings.http is None else HttpServer(self._http_app(), settings.http)
        self.is_warm = False
        self._tasks: list[asyncio.Task[None]] = []

    def _http_app(self) -> App:
        pages = self.metrics.page, self.metrics.replicas
        windows = Windows(self.desk, self.view, self.slos, self._responses, *pages)
        return App(
            self.service, self.fleet, lambda: self.is_warm, wall_ms, self.jobs, self.gate, windows, self._doorstep
        )

    def _metrics(self) -> Metrics:
        requests = RequestTally(lambda: self.service.policy.ensemble)
        self.observers.add(requests)
        doors = Doors(
            live=self.live,
            gate=self.gate,
            jobs=self.jobs,
            responses=self._responses,
            num_connections=lambda: 0 if self.http is None else self.http.num_connections,
            is_warm=lambda: self.is_warm,
            is_draining=lambda: self.service.draining,
            memory_share=lambda: self.memory.share,
            version=__version__,
        )
        metrics = Metrics(requests, self.backstage.control, self.backstage, doors, self.fleet)
        metrics.publish(self.slos)
        metrics.trace(self.traces.outbox)
        return metrics

    def _jobs(self, config: JobsConfig, random: Random) -> Jobs:
        watchers = Watchers(config.watchers)
        means = Means(
            self.backstage.store.jobs,
            self._answer_job,
            config,
            self._clock,
            wall_ms,
            random.random,
            watchers.told,
        )
        return Jobs(self.backstage.store, self.service, means, watchers, lambda: secrets.token_hex(_ID_BYTES))

    def _answer_job(
        self, message: wire.InferRequest, seconds_left: float, write: Write, caller: Caller
    ) -> Coroutine[Any, Any, None]:
        """As whoever submitted it, while its key is known, and when it may have tokens."""
        self.gate.check_still(caller)
        with calling(caller):
            return self.service.answer(message, seconds_left, (None, ""), write)

    def _reception(self, ensemble: Ensemble) -> Reception:
        return Reception(
            self._clock,
            lambda: secrets.token_hex(_ID_BYTES),
            self.traces.tracer,
            default_timeout=ensemble.router.default_timeout,
        )

    def _answering(self, opinions: Opinions, random: Random) -> Answering:
        return Answering(
            Decider(opinions),
            self.backstage.control,
            self.fleet,
            Dispatcher(self._clock, random, self.quarantine),
            TokenCounter(self._clock, random),
            self.backstage.aftermath,
            self.backstage.shadows,
            self.traces.tracer,
            self.observers,
            self._clock,
            random.random,
        )

    def _grpc_server(self, max_calls: int, most_silent: int) -> Any:
        limits = (("grpc.max_receive_message_length", _MOST_RECEIVED), ("grpc.max_concurrent_streams", max_calls))
        server = aio.server(
            interceptors=(DoorstepInterceptor(self._doorstep), KeyInterceptor(self.gate, most_silent=most_silent)),
            options=(*SERVER_OPTIONS, *limits),
            maximum_concurrent_rpcs=max_calls,
        )
        jobs = JobsService(self.jobs, self.service.reception.limits.request_bytes)
        operator = self.backstage.operator(self.desk, self.view)
        server.add_generic_rpc_handlers((self.service.handler(), jobs.handler(), operator.handler()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (NAME, JOBS, OPERATOR, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        return server

    async def start(self) -> None:
        """Requests are taken from here on; health says so when every specialist has a replica that is warm."""
        await self._tell_health(_NOT_SERVING)
        self.traces.start()
        await self.fleet.start()
        await self.backstage.start()
        self.view.start(self.backstage.archive)
        sweep = Sweep(self._clock, lambda: self.fleet.dispatch)
        self._tasks.append(for_good(lambda: sweep.run(self.live, lambda: self.fleet.replicas), "the sweep"))
        self.jobs.start()
        if self._keys is not None:
            source = self._keys
            self._tasks.append(for_good(lambda: source.follow(self.gate.replace), "following the keys"))
        await self._server.start()
        if self.http is not None:
            await self.http.start()

    async def warm(self) -> None:
        """Returns when every lane is."""
        while waiting_for := self.fleet.waiting_for:
            self.fleet.changed.clear()
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self.fleet.changed.wait()
            except TimeoutError:
                _log.info("waiting for %s", ", ".join(waiting_for))
        self.is_warm = True
        if not self.service.draining:
            await self._tell_health(_SERVING)

    def follow(self, watch: ConfigWatch) -> Callable[[], None]:
        """Take over what changes in the configuration while serving. What comes back makes it look at once."""
        self._tasks.append(for_good(lambda: self._follow(watch), "following the configuration"))
        return watch.nudge

    async def _follow(self, watch: ConfigWatch) -> None:
        async for event in watch.events():
            if not isinstance(event, Reloaded):
                _log.error("the configuration stays as it was: %s", event.why)
                continue
            try:
                await self.reload(event.ensemble)
            except ValueError as error:
                watch.refused()
                _log.error("the configuration stays as it was: %s", error)
            else:
                _log.info("the configuration has changed: %s", ", ".join(event.changed))

    async def reload(self, ensemble: Ensemble) -> None:
        """For every request from now on, except what needs a restart. Those under way keep the policy they began
        with. Raises ValueError for a verifier that cannot be had; then nothing has changed."""
        await self.backstage.reload(ensemble)
        self.service.policy = Policy(ensemble)
        self.fleet.apply(ensemble)
        self.view.reload(ensemble)
        self.traces.reload(ensemble.telemetry)

    async def drain(self) -> None:
        """Refuse what is new, finish what is not."""
        self.service.draining = True
        await self._tell_health(_NOT_SERVING)
        await self.jobs.drain()
        await self.live.emptied()

    async def stop(self, grace: float) -> None:
        """What runs gets `grace` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.drain()
        await self._close_doors(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.jobs.close()
        await self._validations.close()
        await self.view.close()
        await self.backstage.close()
        await self.fleet.close()
        await self.traces.close(grace)

    async def _close_doors(self, grace: float) -> None:
        if grace > 0:
            async with self._doorstep.held():
                ending = await begun(self._stop_grpc(grace), self._stop_http(grace))
            await ending
        else:
            await asyncio.gather(self._stop_grpc(0), self._stop_http(0))

    async def _stop_grpc(self, grace: float) -> None:
        """gRPC cancels whoever is left after a while, as those who only watch. Where somebody asks to the last, it is
        long enough for his refusal on a machine that has much else to do; it is over as soon as all have ended."""
        is_quiet = self.service.calls.are_quiet() and not self._doorstep.num_held
        words = _LAST_WORDS_SECONDS if is_quiet else _LATE_WORDS_SECONDS
        await self._server.stop(min(grace, words))

    async def _stop_http(self, grace: float) -> None:
        if self.http is not None:
            await self.http.stop(min(grace, _LAST_WORDS_SECONDS))

    async def _tell_health(self, status: Any) -> None:
        await self._health.set("", status)
        await self._health.set(NAME, status)
