"""Construct a router: traces, fleet, store, control plane, evaluation, shadows and the request server."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import uuid4

from octet.background import cancel_tasks, run_every, run_forever
from octet.clock import Clock
from octet.config.ensemble import Ensemble, TelemetryConfig
from octet.rpc.memory import MemoryGuard
from octet.telemetry.trace_export import SpanExporter, open_span_exporter
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from router.api.keys.gate import AccessGate
from router.control.control import ControlPlane
from router.control.demand import USUAL_SECONDS
from router.control.replicas import FleetReplicas
from router.dispatch.attempts import ContentKey, Quarantine
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.live_requests import LiveRequests
from router.dispatch.replicas.fleet import WATCH_INTERVAL, Fleet, Watchdog
from router.dispatch.replicas.replica import ReplicaConnection
from router.dispatch.tickets import Tickets
from router.dispatch.transport import Connect
from router.observe.metrics.quality import EvaluationTotals
from router.observe.observers import RequestObservers
from router.observe.overview.shadow_agreement import ShadowAgreement
from router.observe.traces import RequestTracer
from router.quality.answers import JudgedAnswer
from router.quality.evaluation import load_evaluation_rules
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow import ShadowDispatcher, shadow_counts_to_wire
from router.quality.slo import SloTracker
from router.quality.slo_sharing import SloSharing
from router.receipt_log import ReceiptCache, ReceiptLog, parse_receipt_labels
from router.request import Tracer
from router.routing.classifier.base import sample_text
from router.routing.policy import ClassifierClient, RoutingPolicy
from router.routing.validation import RequestValidator
from router.serving import AnswerValidator, RequestPipeline, RequestServer
from router.store.rows import ComparisonRow, StoredVerdict, VerdictRow, receipt_key
from router.store.store import Store, open_store, store_name
from router.verify.by_task import VerifierSet, open_verifiers
from router.verify.verdict import Outcome

TRACE_SERVICE = "octet-router"
RandomBytes = Callable[[int], bytes]
_FLUSH_SECONDS = 3.0  # for spans that are not yet exported when the router stops
_WRITER_BYTES = 16
_LAST_EXCHANGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RouterEnvironment:
    """The dependencies of a router; the simulation replaces all of them."""

    clock: Clock
    wall: Callable[[], float]  # returns Unix seconds
    random: Random
    connect: Connect
    new_id: Callable[[], str]  # returns 32 random hex digits
    store: Store | None = None  # None for the configured store
    open_verifiers: Callable[[Ensemble], VerifierSet] = open_verifiers
    weights: Path | None = None  # the folder in which a supervisor takes orders for weights; None without a supervisor

    def wall_ms(self) -> int:
        return int(self.wall() * 1000)


class RouterCore:
    """A router without listeners. Create and use it on a running event loop."""

    def __init__(
        self,
        ensemble: Ensemble,
        addresses: dict[str, tuple[str, ...]],
        classifier: ClassifierClient,
        environment: RouterEnvironment,
        gate: AccessGate,
        memory: MemoryGuard,
        traces: "RequestTraces",
    ) -> None:
        """Raises ValueError if a verifier cannot be opened."""
        clock, random, config = environment.clock, environment.random, ensemble.router
        self.environment = environment
        self.gate = gate
        self.memory = memory
        self.traces = traces
        self.observers = RequestObservers()
        if traces.tracing is not None:
            self.observers.add(traces.tracing, gaps=False)
        self.fleet = Fleet(ensemble, addresses, clock, random, environment.connect)
        self.quarantine = Quarantine(clock, lambda: self.fleet.dispatch.quarantine_seconds)
        self.services = BackgroundServices(ensemble, self.fleet, environment, traces.tracing, self.quarantine.left)
        self.slos = self.services.slos
        self.observers.add(self.slos)
        self.live = LiveRequests(config.max_inflight, config.max_inflight_bytes)
        cache = ReceiptCache(clock, max_receipts=config.receipts, seconds=config.receipt_seconds)
        self.receipts = ReceiptLog(cache, self.services.store)
        self._answer_validator = AnswerValidator(
            lambda: self.services.verifiers, config.validations, config.validation_seconds
        )
        self.pipeline = RequestPipeline(
            classifier,
            self.services.control,
            Dispatcher(
                *(clock, random, self.fleet, self.quarantine, traces.tracer, self.observers),
                Tickets(self.services.control.ticket_keys, environment.wall, self.services.control.want_ticket_key),
            ),
            self.services.evaluations,
            self.services.shadows,
            traces.tracer,
            clock,
            random.random,
        )
        self.service = RequestServer(
            RoutingPolicy(ensemble),
            RequestValidator(clock, environment.new_id, traces.tracer, default_timeout=config.default_timeout),
            self.pipeline,
            self.live,
            self.receipts,
            self._answer_validator,
            gate,
            self.observers,
            memory,
            clock,
            environment.wall_ms,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.fleet.start()
        await self.services.start()
        watchdog = Watchdog(self.environment.clock, lambda: self.fleet.dispatch)
        attempts = self.pipeline.dispatcher.attempts

        def check() -> None:
            watchdog.check(self.live, attempts, self.fleet.replicas)

        self._tasks.append(run_every(WATCH_INTERVAL, check, "the watchdog"))

    async def reload(self, ensemble: Ensemble) -> None:
        """Apply a new configuration to future requests; running requests keep their policy. Settings that need a
        restart stay as they are. Raises ValueError, and changes nothing, if a verifier cannot be opened."""
        await self.services.reload(ensemble)
        self.service.policy = RoutingPolicy(ensemble)
        self.fleet.apply(ensemble)
        self.traces.reload(ensemble.telemetry)

    async def close(self) -> None:
        await cancel_tasks(*self._tasks)
        await self.services.close()
        await self.fleet.close()


class RequestTraces:
    """Records traces of requests. Without `endpoint` nothing is recorded, but callers' trace contexts are passed on."""

    def __init__(
        self, endpoint: str, config: TelemetryConfig, clock: Clock, random_bytes: RandomBytes = secrets.token_bytes
    ) -> None:
        self.exporter: SpanExporter | None = None
        self.tracing: RequestTracer | None = None
        if endpoint:
            resource = {"service.name": TRACE_SERVICE, "service.instance.id": str(uuid4())}
            self.exporter = open_span_exporter(endpoint, resource)
            self.tracing = RequestTracer(self.exporter, clock, time.time_ns, random_bytes)
        self.tracer = Tracer(random_bytes, config.sample if endpoint else None)

    def reload(self, config: TelemetryConfig) -> None:
        """Apply the new sampling share; a new endpoint needs a restart."""
        if self.exporter is not None:
            self.tracer.sample = config.sample

    def start(self) -> None:
        if self.exporter is not None:
            self.exporter.start()

    async def close(self, grace: float) -> None:
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.close, min(grace, _FLUSH_SECONDS))


class BackgroundServices:
    """Store, control plane, SLOs, evaluation and shadows. They run independently of individual requests."""

    def __init__(
        self,
        ensemble: Ensemble,
        fleet: Fleet,
        environment: RouterEnvironment,
        tracing: RequestTracer | None,
        blame: Callable[[ContentKey, ReplicaConnection], None],
    ) -> None:
        """`blame` is called for shadows with a lost connection. Raises ValueError if a verifier cannot be opened."""
        clock, wall = environment.clock, environment.wall
        self.ensemble = ensemble
        self.store = environment.store or _open_store(ensemble)
        self.store.label_receipt = parse_receipt_labels
        weights = environment.weights
        self.control = ControlPlane(ensemble, self.store, FleetReplicas(fleet), wall=wall, clock=clock, weights=weights)
        self.slos = SloTracker(ensemble, self.control.breakers, clock, wall)
        self._sharing = SloSharing(self.slos, self.store, secrets.token_hex(_WRITER_BYTES), wall)
        self._sharing_task: asyncio.Task[None] | None = None
        self._open_verifiers = environment.open_verifiers
        self.verifiers = self._open_verifiers(ensemble)
        rules = load_evaluation_rules(ensemble, self.verifiers)
        self.agreement = ShadowAgreement(environment.wall_ms)
        self.evaluation_totals = EvaluationTotals()
        self.evaluations = EvaluationQueue(
            self,
            environment.wall_ms,
            rules,
            clock=clock.now,
            on_traced=None if tracing is None else tracing.answer_verified,
        )
        self.shadows = ShadowDispatcher(
            fleet.replica_sets,
            environment.random,
            environment.connect,
            ensemble,
            on_traced=None if tracing is None else tracing.shadow_ended,
            clock=clock.now,
            blame=blame,
        )

    def shadow_counts(self) -> wire.ShadowCounts:
        return shadow_counts_to_wire(self.shadows, self.evaluations)

    async def start(self) -> None:
        await self.control.start()
        self._sharing_task = run_forever(self._sharing.run, "sharing SLO measurements")
        self.evaluations.start()

    async def reload(self, ensemble: Ensemble) -> None:
        """Apply a new configuration. Raises ValueError, and changes nothing, if a verifier cannot be opened."""
        replaced: VerifierSet | None = None
        if _verifier_config(ensemble) != _verifier_config(self.ensemble):
            verifiers = await asyncio.to_thread(self._open_verifiers, ensemble)  # may probe the compiler
            replaced, self.verifiers = self.verifiers, verifiers
        self.ensemble = ensemble
        self.evaluations.apply(load_evaluation_rules(ensemble, self.verifiers))
        self.shadows.apply(ensemble)
        self.control.reload(ensemble)
        self.slos.reload(ensemble)
        if replaced is not None:
            await replaced.close()

    async def close(self) -> None:
        """Stop all services and write buffered rows. If the store answers in time, share the last SLO measurements."""
        await self.shadows.close()
        await self.evaluations.close()
        if self._sharing_task is not None:
            await cancel_tasks(self._sharing_task)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_EXCHANGE_SECONDS):
                    await self._sharing.exchange()
        await self.control.close()

    def lane_evaluated(self, lane_id: str, specialist: str, outcome: Outcome, verifier: str) -> None:
        self.control.record_outcome(lane_id, outcome, verifier)
        self.evaluation_totals.add_verdict(specialist, outcome)
        status = self.control.fleet_status.specialists.get(specialist)
        if status is not None and lane_id == status.lane.lane_id and outcome in ("passed", "failed"):
            self.slos.verified(specialist, passed=outcome == "passed")

    def lane_judged(self, lane_id: str, specialist: str, judged: JudgedAnswer) -> None:
        self.evaluation_totals.add_judged(specialist, judged)
        if judged.outcome == "unavailable":
            self.control.record_outcome(lane_id, judged.outcome)
        self.control.record_signals(lane_id, specialist, judged.tenant, judged.question, judged.signals, judged.why)

    def answer_evaluated(self, receipt: inference_pb2.Receipt, judged: JudgedAnswer) -> None:
        key = receipt_key(receipt.request_id, receipt.tenant)
        verdict = StoredVerdict(judged.outcome, judged.kind, judged.why)
        self.store.keep_verdict(VerdictRow(key, receipt.created_unix_ms, verdict.pack()))

    def compared(self, comparison: wire.Comparison, tenant: str, question: str) -> None:
        self.evaluation_totals.add_comparison(comparison)
        key, shadow = receipt_key(comparison.request_id, tenant), self.ensemble.shadow
        is_kept = shadow.keep_text and not comparison.agreed and tenant not in shadow.private_tenants
        text = sample_text(question) if is_kept and self.store.limits.texts else b""
        self.store.keep_comparison(ComparisonRow(comparison.at_unix_ms, key, comparison.SerializeToString(), text))
        self.agreement.add(comparison)


def _verifier_config(ensemble: Ensemble) -> object:
    own = [(each.name, each.verify) for each in ensemble.specialists]
    return ensemble.correctness, own, ensemble.tasks, [(each.name, each.task) for each in ensemble.intents]


def _open_store(ensemble: Ensemble) -> Store:
    source, longest = ensemble.source, max(ensemble.correctness.window, USUAL_SECONDS)
    return open_store(ensemble.store, store_name(ensemble), None if source is None else source.parent, window=longest)
