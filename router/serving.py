"""Serve one request: validate, admit, plan, dispatch, relay, evaluate, record."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from admission.demand import DemandClass
from octet.clock import Clock
from octet.rpc.handlers import CallerGone
from octet.rpc.memory import MemoryGuard
from octet.rpc.refusal import Refusal, cancelled, draining, internal_error
from octet.telemetry.requests import request_context
from octet.v1 import inference_pb2 as wire
from octet.v1.specialist_pb2 import Structure
from router.api.keys.gate import AccessGate
from router.api.keys.rate_limits import AnswerTokenCounter
from router.control.control import ControlPlane
from router.dispatch.dispatcher import Dispatcher, Write
from router.dispatch.live_requests import LiveRequests
from router.observe.observers import RequestObservers
from router.quality.answer_tap import AnswerTap
from router.quality.answers import is_chunk
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow import ShadowDispatcher
from router.quality.shadow_copy import OrderedShadow, ShadowTask
from router.receipt_log import ReceiptLog
from router.receipts import RECEIPT_METADATA_KEY, ReceiptDraft, clip_bytes, refused_receipt
from router.refusals import caller_gone, no_specialist, unknown_request
from router.request import CallTicket, Request, Tracer, current_caller, current_ticket, record_trace
from router.routing.classifier.base import ClassifierUnavailable
from router.routing.dispatch_plan import DispatchPlan, ShadowOrder, choose_shadow, plan_dispatch
from router.routing.policy import ClassifierClient, RoutingPolicy, build_replica_request
from router.routing.validation import DEFAULT_PRIORITY, RequestValidator
from router.verify.by_task import AnswerPurpose, Judgement, VerifierSet
from router.verify.verdict import Verdict

_log = logging.getLogger(__name__)
TraceHeaders: TypeAlias = tuple[str | None, str]  # the caller's W3C traceparent and tracestate
_MARGIN_SECONDS = 0.2  # a validation ends this long before the request's deadline
_MAX_NAME_BYTES = 64
_MAX_DETAIL_BYTES = 160


@dataclass(eq=False)
class RequestServer:
    policy: RoutingPolicy  # for requests that arrive from now on; replaced as a whole
    validator: RequestValidator
    pipeline: "RequestPipeline"
    live: LiveRequests
    receipts: ReceiptLog
    answer_validator: "AnswerValidator"
    gate: AccessGate
    observers: RequestObservers
    memory: MemoryGuard
    clock: Clock
    wall_ms: Callable[[], int]  # Unix milliseconds
    draining: bool = False

    def answer(
        self,
        message: wire.InferRequest,
        seconds_left: float | None,
        trace: TraceHeaders,
        write: Write,
        *,
        wants_ticket: bool = True,
    ) -> Coroutine[Any, Any, None]:
        """Validate the request immediately, and return a coroutine that serves it and writes serialized InferEvents to
        `write`. `seconds_left` is the time until the transport's deadline. Every Refusal carries the receipt, and a
        ticket only if the caller asks for one; headers are read if `wants_ticket`. Raises CallerGone if `write`
        fails."""
        request = self._receive(message, seconds_left, trace)
        headers = current_ticket() if wants_ticket else CallTicket()
        request.ticket = request.ticket or headers.ticket
        request.wait_ms = headers.wait_ms if request.wait_ms is None else request.wait_ms
        return self._serve(request, write)

    def count(
        self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders
    ) -> Coroutine[Any, Any, wire.CountResponse]:
        """Validate the request now, and return a coroutine that counts its prompt tokens. No receipt is kept."""
        return self._count(self._receive(message, seconds_left, trace))

    async def route(self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders) -> wire.Receipt:
        """Plan a request without serving it. If the plan is a refusal, the returned receipt states why in `error`."""
        request = self._receive(message, seconds_left, trace)
        try:
            refusal = await self.pipeline.plan(request)
        except Refusal as refused:
            raise self._with_receipt(refused, request, keep=False) from None
        if refusal is not None and request.plan is not None:
            request.draft.failed(refusal.error, self.clock.now())
        return request.draft.to_wire()

    async def receipt(self, request_id: str, tenant: str = "") -> wire.Receipt:
        """Return a receipt. If a caller that is not an operator names another tenant, the id is refused as unknown."""
        owner = current_caller().visible_tenant(tenant)
        receipt = None if owner is None else await self.receipts.get(request_id, owner)
        if receipt is None:
            raise unknown_request(request_id)
        return receipt

    def cancel(self, request_id: str) -> None:
        self.live.find(request_id, current_caller().tenant).end(cancelled())

    def refuse_unread(self, refusal: Refusal, request_id: str = "") -> None:
        """Attach a receipt to the refusal of a request that was not validated, and report it to the observers."""
        receipt = refused_receipt(request_id, refusal.error, self.wall_ms())
        refusal.extra_metadata.append((RECEIPT_METADATA_KEY, receipt.SerializeToString()))
        self.observers.rejected(refusal.error)

    def _receive(self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders) -> Request:
        """Validate the request. Raises Refusal with a receipt."""
        try:
            if self.draining:
                raise draining("router")
            request = self.validator.validate(message, seconds_left, *trace, current_caller())
        except Refusal as refusal:
            self.refuse_unread(refusal, message.request_id)
            raise
        record_trace(request.trace)
        request.policy = self.policy
        request.draft = ReceiptDraft(request, self.clock.now(), self.wall_ms())
        return request

    async def _serve(self, request: Request, write: Write) -> None:
        with request_context(request.request_id, request.trace.trace_id):
            try:
                self.memory.check(can_wait=request.priority < DEFAULT_PRIORITY)
                self.live.enter(request)
            except Refusal as refusal:
                self.observers.rejected(refusal.error)
                raise self._with_receipt(refusal, request, keep=False) from None
            try:
                with self._charging(request, write) as counted:
                    await self._serve_live(request, counted)
            finally:
                self.live.leave(request)

    async def _serve_live(self, request: Request, write: Write) -> None:
        try:
            await self._answer(request, write)
        except Refusal as refusal:
            raise self._with_receipt(refusal, request, keep=True) from None
        except (asyncio.CancelledError, CallerGone):
            self._with_receipt(caller_gone(request, self.clock.now()), request, keep=True)
            raise
        except Exception:
            _log.error("the request %s failed", request.request_id, exc_info=True)
            raise self._with_receipt(internal_error("the router"), request, keep=True) from None
        finally:
            self.observers.ended(request, request.draft.to_wire())

    @contextmanager
    def _charging(self, request: Request, write: Write) -> Iterator[Write]:
        """Yield the `write` to use. At the end, even after an error, charge the caller's key if it limits tokens."""
        if not self.gate.counts_tokens(request.caller):
            yield write
            return
        counter = AnswerTokenCounter(write)
        try:
            yield counter.write
        finally:
            self.gate.charge(request.caller, counter.num_tokens(request.draft.to_wire()))

    async def _answer(self, request: Request, write: Write) -> None:
        recorder, draft = None, request.draft
        if request.validate:
            recorder = TextRecorder(write, request.policy.ensemble.correctness.answer_bytes)

        async def finish() -> wire.Receipt:
            if recorder is not None:
                left = request.deadline - self.clock.now()
                validation = await self.answer_validator.validate(
                    draft.to_wire(), request.text, request.structure, recorder.text, left
                )
                draft.validated(validation, self.clock.now())
            receipt = draft.to_wire()
            self.receipts.put(receipt)
            try:
                await write(wire.InferEvent(receipt=receipt).SerializeToString())
            except Exception as error:  # the caller's call is over
                raise CallerGone from error
            return receipt

        with _raise_ending(request):
            await self.pipeline.answer(request, write if recorder is None else recorder.write, finish)

    async def _count(self, request: Request) -> wire.CountResponse:
        try:
            self.live.enter(request)
            try:
                with _raise_ending(request):
                    return await self.pipeline.count(request)
            finally:
                self.live.leave(request)
        except Refusal as refusal:
            raise self._with_receipt(refusal, request, keep=False) from None

    def _with_receipt(self, refusal: Refusal, request: Request, *, keep: bool) -> Refusal:
        """Attach the receipt; store it if `keep`. Do not keep it before admission: another request may use the id."""
        request.draft.failed(refusal.error, self.clock.now())
        receipt = request.draft.to_wire()
        if keep:
            self.receipts.put(receipt)
        refusal.extra_metadata.append((RECEIPT_METADATA_KEY, receipt.SerializeToString()))
        return refusal


@contextmanager
def _raise_ending(request: Request) -> Iterator[None]:
    """Replace CancelledError with the Refusal given to `Request.end`, unless the caller is gone."""
    try:
        yield
    except asyncio.CancelledError:
        refusal = request.claim_end()
        if refusal is None:
            raise
        raise refusal from None


@dataclass(eq=False)
class RequestPipeline:
    """Decides, plans and dispatches a request, with its shadow and its evaluation. Used on the event loop."""

    classifier: ClassifierClient
    control: ControlPlane
    dispatcher: Dispatcher
    evaluations: EvaluationQueue
    shadows: ShadowDispatcher
    tracer: Tracer
    clock: Clock
    uniform: Callable[[], float]  # draws from [0, 1)

    async def plan(self, request: Request) -> Refusal | None:
        """Decide and plan the request. Return a refusal if it cannot be served. Raises Refusal for unknown names."""
        request.decision = decision = await request.policy.classify_and_decide(request, self.classifier)
        request.draft.decided(decision, self.clock.now())
        if not decision.primary:
            return no_specialist(decision, request.policy.ensemble)
        request.plan = plan = plan_dispatch(request, request.policy.ensemble, self.control.fleet_status, self.uniform)
        request.draft.planned(plan.between)
        return plan.refusal

    async def _plan_or_refuse(self, request: Request, *, is_demand: bool) -> DispatchPlan:
        refusal = await self.plan(request)
        if refusal is not None or request.plan is None:
            if is_demand and request.plan is not None:
                self._record_demand(request, request.plan)
            raise refusal or no_specialist(request.decision, request.policy.ensemble)
        return request.plan

    async def answer(self, request: Request, write: Write, finish: Callable[[], Awaitable[wire.Receipt]]) -> None:
        """Send the whole answer to the caller. `finish` stores and writes the receipt. Raises Refusal or CallerGone."""
        try:
            plan = await self._plan_or_refuse(request, is_demand=True)
        except Refusal:
            self.dispatcher.give_place_up(request)
            raise
        tap = self._tap(request, plan, write)
        try:
            with tap or nullcontext():
                await self.dispatcher.answer(request, plan, write if tap is None else tap.write)
                if tap is not None:
                    tap.answered()
                receipt = await finish()
                if tap is not None:
                    tap.finished(receipt)
        finally:
            self._record_demand(request, plan)
        self.shadows.answered(request.intent)

    def _record_demand(self, request: Request, plan: DispatchPlan) -> None:
        """Count the request for the specialist whose knobs apply, and for another one that accepted it."""
        record, accepted_by = self.control.record_demand, request.accepted_by
        if plan.lead in request.full:
            record(plan.lead, request.intent, plan.demand, "refused")
        elif plan.lead and accepted_by == plan.lead:
            record(plan.lead, request.intent, plan.demand, "accepted")
        elif plan.is_withheld:
            record(plan.lead, request.intent, plan.demand, "withheld")
        if accepted_by not in ("", plan.lead):
            record(accepted_by, request.intent, DemandClass(request.priority), "accepted")

    async def count(self, request: Request) -> wire.CountResponse:
        """Let the specialist that would answer now count the prompt tokens. Raises Refusal if no specialist would."""
        return await self.dispatcher.count(request, await self._plan_or_refuse(request, is_demand=False))

    def _tap(self, request: Request, plan: DispatchPlan, write: Write) -> AnswerTap | None:
        """Return a tap that captures the answer for evaluation or for a shadow; None if neither is planned."""
        order = plan.shadow
        if not plan.sample and order is None:
            return None
        tap = AnswerTap(self.evaluations, self.shadows, write, plan, question=request.text)
        tap.structure, tap.ignores_end = request.structure, request.ignore_eos
        if order is not None:
            tap.ordered = ordered = OrderedShadow(order, self.shadows.counters)
            request.draft.write_shadow = ordered.write
            if self.dispatcher.quarantine.suspects(request.content_digest):
                ordered.end("shed", "quarantined")
            else:
                is_chosen = bool(order.candidate.specialist)
                tap.shadow = self._shadow_task(request, order) if is_chosen else partial(self._choose_shadow, request)
        return tap

    def _shadow_task(self, request: Request, order: ShadowOrder) -> ShadowTask:
        candidate = order.candidate
        config = request.policy.specialists[candidate.specialist]
        return ShadowTask(
            order=order,
            num_bytes=request.num_bytes,
            compose=lambda seconds: build_replica_request(request, config, candidate.adapters, seconds),
            trace=lambda: self.tracer.outgoing(request.trace),
            may_answer=lambda replica: replica.name not in candidate.excluded,
            content=request.content_digest,
        )

    async def _choose_shadow(self, request: Request) -> ShadowTask | None:
        """Ask the classifier for the best other specialist; None if there is none or the classifier is unavailable."""
        text, tenant = request.text, request.caller.tenant
        try:
            scores = self.classifier.cached(text, tenant) or await self.classifier.classify(text, tenant)
        except ClassifierUnavailable:
            return None
        order = choose_shadow(request, request.policy.ensemble, self.control.fleet_status, scores)
        return None if order is None else self._shadow_task(request, order)


class TextRecorder:
    """Records the text of an answer on its way to the caller, up to `max_bytes`."""

    def __init__(self, write: Write, max_bytes: int) -> None:
        self._write = write
        self._max_bytes = max_bytes
        self._texts: list[str] = []
        self._num_bytes = 0

    async def write(self, raw: bytes) -> None:
        await self._write(raw)
        if is_chunk(raw) and self._num_bytes <= self._max_bytes:
            text = wire.InferEvent.FromString(raw).chunk.text
            self._num_bytes += len(text.encode())
            self._texts.append(text)

    @property
    def text(self) -> str | None:
        """Return the text; None if the answer is too long to verify."""
        return "".join(self._texts) if self._num_bytes <= self._max_bytes else None


class AnswerValidator:
    """Verifies complete answers on request, in bounded time."""

    def __init__(self, verifiers: Callable[[], VerifierSet], most: int, seconds: float) -> None:
        """`verifiers` returns the current verifiers. At most `most` answers are verified concurrently, each for at most
        `seconds`."""
        self._verifiers = verifiers
        self._most = most
        self._seconds = seconds
        self._num_waiting = 0

    async def validate(
        self,
        receipt: wire.Receipt,
        question: str,
        structure: Structure | None,
        answer: str | None,
        seconds_left: float,
    ) -> wire.Validation:
        """Verify an answer; never raises. The outcome is `skipped` if verification is impossible or takes too long."""
        seconds = max(0.0, min(self._seconds, seconds_left - _MARGIN_SECONDS))
        purpose = AnswerPurpose(receipt.specialist, receipt.decision.task, receipt.decision.intent, structure)
        has_stopped = receipt.usage.finish_reason == wire.FINISH_REASON_STOP
        verifier, verdict = await self._judge(purpose, question, answer, seconds, has_stopped=has_stopped)
        return wire.Validation(
            verifier=clip_bytes(verifier, _MAX_NAME_BYTES),
            outcome=verdict.outcome if verdict.outcome in ("passed", "failed") else "skipped",
            detail=clip_bytes(verdict.why, _MAX_DETAIL_BYTES),
            seconds=verdict.seconds,
        )

    async def _judge(
        self, purpose: AnswerPurpose, question: str, answer: str | None, seconds: float, *, has_stopped: bool
    ) -> Judgement:
        verifiers = self._verifiers()

        def skipped(why: str) -> Judgement:
            return Judgement(verifiers.line(purpose.specialist) or "none", Verdict("skipped", why))

        if answer is None:
            return skipped("the answer is too long to verify")
        if not has_stopped:
            return skipped("the answer was cut off, and a partial answer is not verified")
        if self._num_waiting >= self._most:
            return skipped(f"{self._most} answers already wait for a verdict")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(seconds):
                return await verifiers.verify(purpose, question, answer)
        except TimeoutError:
            return skipped(f"no verdict within {seconds:.1f} s")
        finally:
            self._num_waiting -= 1
