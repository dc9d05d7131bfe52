"""`octet.v1.Inference`: its six calls."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from octet.clock import Clock
from octet.rpc.calls import CallerGone, Context, relaying, unary, unary_with_context
from octet.rpc.memory_guard import MemoryGuard
from octet.rpc.open_calls import OpenCalls
from octet.rpc.refusal import Refusal, cancelled, draining, failed_inside
from octet.telemetry.handling import handling
from octet.v1 import inference_pb2 as wire
from router.decide.policy import Policy
from router.dispatch.live import Live, LiveRequests, unknown
from router.dispatch.relay import Write
from router.keys.gate import Gate
from router.keys.tally import Tally
from router.observe.observers import Observers
from router.receipts.receipt import METADATA_KEY, ReceiptDraft, refused_receipt
from router.reception.ask import Ask
from router.reception.caller import Caller, current_caller
from router.reception.reception import DEFAULT_PRIORITY, Reception
from router.reception.trace import HEADER, STATE
from router.reception.traced import received
from router.refusals import caller_gone
from router.service.announced import Announced, metadata_of
from router.service.answering import Answering, Call
from router.service.receipts import Receipts
from router.service.validation import Overheard, Validations
from router.service.whole import Whole

_log = logging.getLogger(__name__)
TraceHeaders: TypeAlias = tuple[str | None, str]
"""W3C traceparent and tracestate, as the caller sent them."""
NAME: str = wire.DESCRIPTOR.services_by_name["Inference"].full_name


class InferenceService:
    """Belongs to the event loop."""

    def __init__(
        self,
        policy: Policy,
        reception: Reception,
        answering: Answering,
        live: LiveRequests,
        receipts: Receipts,
        clock: Clock,
        wall_ms: Callable[[], int],
        validations: Validations,
        gate: Gate,
        observers: Observers,
        slo_header: Callable[[str], str],
        memory: MemoryGuard,
    ) -> None:
        """`wall_ms` is milliseconds since 1970, for people. `slo_header` tells how a specialist does, in one line;
        empty for one that nobody knows."""
        self.policy = policy
        """In force for requests that come from now on; replaced whole."""
        self.reception = reception
        self.draining = False
        self.calls = OpenCalls()
        """By gRPC."""
        self._answering = answering
        self._live = live
        self._receipts = receipts
        self._clock = clock
        self._wall_ms = wall_ms
        self._validations = validations
        self._gate = gate
        self._observers = observers
        self._slo_header = slo_header
        self._memory = memory

    def handler(self) -> Any:
        most = self.reception.limits.request_bytes
        handlers = {
            "Generate": relaying(wire.InferRequest, self._generate, most, self._unread),
            "Infer": unary_with_context(wire.InferRequest, wire.InferResponse, self._infer, most, self._unread),
            "Route": unary_with_context(wire.InferRequest, wire.Receipt, self._route, most, self._unread),
            "CountTokens": unary_with_context(
                wire.InferRequest, wire.CountResponse, self._count_tokens, most, self._unread
            ),
            "GetReceipt": unary(wire.GetReceiptRequest, wire.Receipt, self._get_receipt, most),
            "Cancel": unary(wire.CancelRequest, wire.CancelResponse, self._cancel, most),
        }
        return grpc.method_handlers_generic_handler(
            NAME, {name: self.calls.counted(handler) for name, handler in handlers.items()}
        )

    def answer(
        self,
        message: wire.InferRequest,
        seconds_left: float | None,
        trace: TraceHeaders,
        write: Write,
        caller: Caller | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Whatever door a request comes through, it passes here. It is received at once, and answered by the task that
        awaits what comes back: an answer takes long, and a prompt that may be large need not be kept for it.

        InferEvents go to `write`, serialised. `seconds_left` is what the call itself still has. Every Refusal that is
        raised carries the receipt; CallerGone is raised where `write` fails. `caller` is whoever the door has let in,
        unless it is said.
        """
        return self._serve(self._received(message, seconds_left, trace, caller), write)

    def count(
        self, message: wire.InferRequest, seconds_left: float | None, trace: TraceHeaders, caller: Caller | None = None
    ) -> Coroutine[Any, Any, wire.CountResponse]:
        """The same for how many tokens its prompt is. No receipt is kept of it."""
        return self._count(self._received(message, seconds_left, trace, caller))

    async def receipt(self, request_id: str, tenant: str = "", caller: Caller | None = None) -> wire.Receipt:
        """Of the caller's own tenant; an operator may name another. Raises Refusal, the same for what is somebody
        else's as for what never was."""
        caller = current_caller() if caller is None else caller
        owner = tenant or caller.tenant
        receipt = await self._receipts.get(request_id, owner) if caller.may_see(owner) else None
        if receipt is None:
            raise unknown(request_id)
        return receipt

    async def _generate(self, message: wire.InferRequest, context: Context) -> None:
        announced = Announced(context, self._slo_header)
        answering = self.answer(message, context.time_remaining(), _trace(context), announced.write)
        del message
        await answering

    async def _infer(self, message: wire.InferRequest, context: Context) -> wire.InferResponse:
        whole = Whole()
        answering = self.answer(message, context.time_remaining(), _trace(context), whole.write)
        del message
        await answering
        response = whole.response
        await context.send_initial_metadata(metadata_of(self._slo_header(response.receipt.specialist)))
        return response

    async def _route(self, message: wire.InferRequest, context: Context) -> wire.Receipt:
        """The receipt's error says why it would be refused now; who should answer stands beside it."""
        ask = self._received(message, context.time_remaining(), _trace(context))
        draft = self._draft(ask)
        try:
            planned = await self._answering.plan(ask, self.policy, draft)
        except Refusal as refusal:
            raise self._with_receipt(refusal, draft, keep=False) from None
        if planned.plan is not None and planned.refusal is not None:
            draft.failed(planned.refusal.error, self._clock.now())
        return draft.wire()

    async def _count_tokens(self, message: wire.InferRequest, context: Context) -> wire.CountResponse:
        counting = self.count(message, context.time_remaining(), _trace(context))
        del message
        return await counting

    async def _count(self, ask: Ask) -> wire.CountResponse:
        """Every Refusal that is raised carries a receipt."""
        draft = self._draft(ask)
        try:
            with (
                self._live.enter(ask.request_id, ask.deadline, ask.num_bytes, ask.caller.tenant) as live,
                _ended_from_outside(live),
            ):
                return await self._answering.count(ask, self.policy, draft, live)
        except Refusal as refusal:
            raise self._with_receipt(refusal, draft, keep=False) from None

    async def _get_receipt(self, message: wire.GetReceiptRequest) -> wire.Receipt:
        return await self.receipt(message.request_id, message.tenant)

    async def _cancel(self, message: wire.CancelRequest) -> wire.CancelResponse:
        self._live.find(message.request_id, current_caller().tenant).end(cancelled())
        return wire.CancelResponse()

    async def _serve(self, ask: Ask, write: Write) -> None:
        """Events go to `write`. Every Refusal that is raised carries the receipt."""
        with handling(ask.request_id, ask.trace.trace_id):
            await self._let_in(ask, write)

    async def _let_in(self, ask: Ask, write: Write) -> None:
        draft = self._draft(ask)
        try:
            self._memory.check(can_wait=ask.priority < DEFAULT_PRIORITY)
            live = self._live.enter(ask.request_id, ask.deadline, ask.num_bytes, ask.caller.tenant)
        except Refusal as refusal:
            self._observers.turned_away(refusal.error)
            raise self._with_receipt(refusal, draft, keep=False) from None
        live.first_deadline = ask.first_deadline
        with live, self._charging(ask, draft, write) as counted:
            try:
                await self._answer(ask, draft, live, counted)
            except Refusal as refusal:
                raise self._with_receipt(refusal, draft, keep=True) from None
            except (asyncio.CancelledError, CallerGone):
                self._with_receipt(self._gone(ask), draft, keep=True)
                raise
            except Exception:
                _log.error("%s failed", ask.request_id, exc_info=True)
                raise self._with_receipt(failed_inside("the router"), draft, keep=True) from None
            finally:
                self._observers.ended(ask, draft.wire())

    @contextmanager
    def _charging(self, ask: Ask, draft: ReceiptDraft, write: Write) -> Iterator[Write]:
        """Whatever the end is like: what was computed is charged for."""
        if not self._gate.counts_tokens(ask.caller):
            yield write
            return
        tally = Tally(write)
        try:
            yield tally.write
        finally:
            self._gate.charge(ask.caller, tally.num_tokens(draft.wire()))

    async def _answer(self, ask: Ask, draft: ReceiptDraft, live: Live, write: Write) -> None:
        """Raises Refusal, CallerGone, CancelledError when the caller is gone."""
        overheard = Overheard(write, self.policy.ensemble.correctness.answer_bytes) if ask.validate else None

        async def finish() -> wire.Receipt:
            if overheard is not None:
                left = live.deadline - self._clock.now()
                verdict = await self._validations.validate(draft.wire(), ask.text, overheard.text, left)
                draft.validated(verdict, self._clock.now())
            receipt = draft.wire()
            self._receipts.put(receipt)
            await _last(write, receipt)
            return receipt

        with _ended_from_outside(live):
            relayed = write if overheard is None else overheard.write
            call = Call(ask, self.policy, draft, live, relayed, finish, lambda: self._gone(ask))
            await self._answering.answer(call)

    def _received(
        self,
        message: wire.InferRequest,
        seconds_left: float | None,
        trace: TraceHeaders,
        caller: Caller | None = None,
    ) -> Ask:
        """Raises Refusal with a receipt."""
        try:
            if self.draining:
                raise draining("router")
            ask = self.reception.receive(message, seconds_left, *trace, caller or current_caller())
            received(ask.trace)
            return ask
        except Refusal as refusal:
            self._refused(message.request_id, refusal)
            raise

    def _unread(self, refusal: Refusal) -> None:
        self._refused("", refusal)

    def _refused(self, request_id: str, refusal: Refusal) -> None:
        """A receipt for what did not pass reception."""
        receipt = refused_receipt(request_id, refusal.error, self._wall_ms())
        refusal.beside.append((METADATA_KEY, receipt.SerializeToString()))
        self._observers.turned_away(refusal.error)

    def _gone(self, ask: Ask) -> Refusal:
        return caller_gone(ask.arrival, ask.deadline, self._clock.now())

    def _draft(self, ask: Ask) -> ReceiptDraft:
        return ReceiptDraft(ask, self._clock.now(), self._wall_ms())

    def _with_receipt(self, refusal: Refusal, draft: ReceiptDraft, *, keep: bool) -> Refusal:
        """Kept are those of requests that were let in: nobody overwrites another's by its id."""
        draft.failed(refusal.error, self._clock.now())
        receipt = draft.wire()
        if keep:
            self._receipts.put(receipt)
        refusal.beside.append((METADATA_KEY, receipt.SerializeToString()))
        return refusal


@contextmanager
def _ended_from_outside(live: Live) -> Iterator[None]:
    """Raises the Refusal that it was ended with; CancelledError when it was not, and the caller is gone."""
    try:
        yield
    except asyncio.CancelledError:
        refusal = live.claim_end()
        if refusal is None:
            raise
        raise refusal from None


async def _last(write: Write, receipt: wire.Receipt) -> None:
    raw = wire.InferEvent(receipt=receipt).SerializeToString()
    try:
        await write(raw)
    except Exception as error:  # nothing can be written to a call that is over
        raise CallerGone from error


def _trace(context: Context) -> TraceHeaders:
    """Its headers: one parent, and what is said of its state wherever it is said."""
    parent: str | None = None
    state: list[str] = []
    for key, value in context.invocation_metadata() or ():
        if key == HEADER and isinstance(value, str):
            parent = parent or value
        elif key == STATE and isinstance(value, str):
            state.append(value)
    return parent, ",".join(state)
