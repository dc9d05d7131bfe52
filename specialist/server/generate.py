"""Generate and CountTokens: from the arrival of a request to its admission, and from the engine to the caller."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Literal, NamedTuple, NoReturn

from admission.forecast.bookings import Refuse
from admission.forecast.places import KEPT_SECONDS, Places
from octet.rpc import refusal
from octet.rpc.handlers import Context, write_message
from octet.rpc.memory import MemoryGuard
from octet.rpc.refusal import Refusal
from octet.telemetry.requests import current_request, set_request
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.loop import AdmissionGate, apply_reports
from specialist.server.engine_thread import EngineReport, EngineThread
from specialist.server.load_report import AdmissionCounters, LoadPublisher
from specialist.server.output_stream import OutputStream
from specialist.server.preparation import RequestPreparer
from specialist.server.replica import AssembledReplica
from specialist.server.served_request import RequestUsage, ServedRequest, admission_refusal
from specialist.server.settings import ServiceSettings
from specialist.server.tracing import ReplicaTrace, ReplicaTracing, read_trace_context

ServingState = Literal["warming", "open", "draining", "failed"]
_LAST_UPDATES = (RequestUsage, Refusal)
_CLOSED_REFUSALS = {"warming": refusal.not_ready, "draining": refusal.draining, "failed": refusal.replica_failed}


async def send(context: Context, message: wire.GenerateEvent | wire.LoadReport | bytes, seconds: float) -> None:
    """Send a message. Raises Refusal if the caller reads nothing for `seconds`, and CallerGone."""
    if not await write_message(context, message, seconds):
        raise refusal.caller_idle(seconds)


class RequestCall(NamedTuple):
    """How a request arrived, and the way of its answer."""

    metadata: Iterable[tuple[str, str | bytes]]
    seconds_left: float | None  # until its deadline, as its call states it; None if it has none
    open_stream: Callable[[ServedRequest, Callable[[], None]], Callable[[], Awaitable[None]]]
    """Gives an admitted request the stream for its updates. The second argument cancels the request. What it returns is
    awaited and sends the updates to the caller, to the end; if it ends before, the request is cancelled."""


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

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count a request as open until its caller has its status."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self._ended.set()

    async def generate(self, message: wire.GenerateRequest, context: Context) -> None:
        def open_stream(served: ServedRequest, cancel: Callable[[], None]) -> Callable[[], Awaitable[None]]:
            settings = self._settings
            stream = OutputStream(settings.stream_bytes, cancel, settings.piece_gap, self.pull, self._num_running)
            served.stream = stream
            return partial(self._relay, served, stream, context)

        with self.open_call():
            metadata = context.invocation_metadata() or ()
            await self.serve(message, RequestCall(metadata, context.time_remaining(), open_stream))

    async def serve(self, message: wire.GenerateRequest, call: RequestCall) -> None:
        """Have the engine answer the request, unless it is refused. Raises Refusal."""
        trace = self._start_trace(message, call)
        try:
            await self._serve(message, call, trace)
        except BaseException as error:
            if trace is not None and trace.served is None and self._tracing is not None:
                self._tracing.record(trace, error)
            raise

    async def count_tokens(self, message: wire.GenerateRequest) -> wire.CountTokensResponse:
        self._check_open()
        served = self._preparer.count_validator.validate(message)
        return wire.CountTokensResponse(prompt_tokens=await self._preparer.count_tokens(served))

    def _start_trace(self, message: wire.GenerateRequest, call: RequestCall) -> ReplicaTrace | None:
        """Start the call's trace and set the ids for its log lines. Return None if its trace is not collected."""
        parent, state = read_trace_context(call.metadata)
        set_request(message.request_id, "" if parent is None else parent.trace_id)
        if self._tracing is None or parent is None or not parent.is_sampled:
            return None
        return ReplicaTrace(parent, state, message.request_id, message.shadow, self._clock.now())

    async def _serve(self, message: wire.GenerateRequest, call: RequestCall, trace: ReplicaTrace | None) -> None:
        self._check_open()
        served = self._preparer.validator.validate(message)
        self.memory.check(can_wait=served.shadow)
        # Refuse the request before it is tokenised if the queue is full and it outranks no request in it.
        self._catch_up()
        now, seconds_left = self._clock.now(), call.seconds_left
        refuse = self._controller.refuse_if_full(served.priority, now, shadow=served.shadow)
        if refuse is not None and not self._may_get_place(served, seconds_left, now):
            self._refuse(served, refuse)
        await self._preparer.prepare(served, seconds_left)
        request_id = served.request.request_id
        cancel = partial(self._engine.end, request_id, "cancelled")
        try:
            self._check_open()
            self._admit(served)
            relay = call.open_stream(served, cancel)
        except BaseException:
            served.release()
            raise
        self._live[served] = trace
        if trace is not None:
            trace.served, trace.admitted_at = served, self._clock.now()
        self._engine.submit(served)
        try:
            await relay()
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

    async def _relay(self, served: ServedRequest, stream: OutputStream, context: Context) -> None:
        while True:
            for update in served.decode(await stream.take()):
                if isinstance(update, Refusal):
                    raise update
                await send(context, served.to_wire(update), self._settings.stall_seconds)
                if isinstance(update, RequestUsage):
                    if failure := self.failure(served, update):
                        raise failure
                    return
            if stream.overflowed:
                raise refusal.caller_overflowed(self._settings.stream_bytes)

    def failure(self, served: ServedRequest, usage: RequestUsage) -> Refusal | None:
        """Return the error with which the request's call ends after its usage; None if it ends with status OK."""
        return served.failure(usage, partial(self._controller.retry_after, served.booking, self._clock.now()))

    def deliver(self, *reports: EngineReport) -> None:
        """Apply reports of the engine's thread, in order."""
        apply_reports([each.scheduler for each in reports if each.scheduler is not None], self._controller)
        for report in reports:
            for served, update in report.updates:
                served.stream.put(update)
            for served, update in report.updates if report.is_urgent else ():
                if isinstance(update, _LAST_UPDATES):
                    self._ended_request(served, update)
        self._gate.sweep()
        for report in reports:
            if report.load is not None:
                self._publisher.publish(report.load)
            if report.died and self.state != "failed":
                self.state = "failed"
                self.on_death()
        self._ended.set()

    def _ended_request(self, served: ServedRequest, end: RequestUsage | Refusal) -> None:
        self._controller.forget(served.request.request_id)
        trace = self._live.pop(served, None)
        if self._tracing is not None and trace is not None:
            self._tracing.record(trace, end)

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
