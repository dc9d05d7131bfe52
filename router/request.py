"""The caller, and the router's representation of its request."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from octet.identity import digest_parts
from octet.rpc.refusal import Refusal
from octet.telemetry import requests as telemetry
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as specialist_wire

if TYPE_CHECKING:
    from router.receipts import ReceiptDraft
    from router.routing.dispatch_plan import DispatchPlan
    from router.routing.policy import RoutingPolicy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    tenant: str = ""  # callers of the same tenant share cached prefixes, receipts and jobs; empty without keys
    name: str = ""  # the name of the caller's key; empty when no keys are required
    operates: bool = False  # whether the caller may read the data of other tenants

    def salt(self, request_salt: bytes) -> bytes:
        """Return a salt that includes the tenant: tenants never share cached blocks, whatever salts they send."""
        return digest_parts((b"tenant", self.tenant.encode(), request_salt)) if self.tenant else request_salt

    def visible_tenant(self, tenant: str) -> str | None:
        """Return `tenant`, by default the caller's own; None if the caller may not see that tenant's data."""
        owner = tenant or self.tenant
        return owner if self.operates or owner == self.tenant else None


ANONYMOUS = CallerIdentity()
_CALLER: ContextVar[CallerIdentity] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> CallerIdentity:
    return _CALLER.get()


def use_caller(caller: CallerIdentity) -> AbstractContextManager[None]:
    return _using(_CALLER, caller)


@contextmanager
def _using(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class AccessGrant:
    """The permission of a running call. It ends when the call's key expires or is revoked, so that endless streams are
    closed too. Used only on the event loop."""

    def __init__(self, seconds_left: Callable[[], float | None], refusal: Callable[[], Refusal]) -> None:
        """`seconds_left` returns None for a key that does not expire."""
        self._seconds_left = seconds_left
        self._refusal = refusal
        self._has_ended = False
        self._waits: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """End the permission and interrupt every running `while_valid` immediately."""
        self._has_ended = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        left = self._seconds_left()
        if self._has_ended or (left is not None and left <= 0):
            raise self._refusal()

    async def while_valid(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await `wait()`. Raises Refusal as soon as the key is no longer valid."""
        self.check()
        scope = asyncio.timeout(self._seconds_left())
        try:
            async with scope:
                self._waits.add(scope)
                return await wait()
        except TimeoutError:
            if scope.expired():
                raise self._refusal() from None
            raise
        finally:
            self._waits.discard(scope)


def _never_ends() -> Refusal:
    raise AssertionError("this grant never expires")


UNLIMITED_GRANT = AccessGrant(lambda: None, _never_ends)  # for routers without keys
_GRANT: ContextVar[AccessGrant] = ContextVar("access_grant", default=UNLIMITED_GRANT)


def current_grant() -> AccessGrant:
    return _GRANT.get()


def use_grant(grant: AccessGrant) -> AbstractContextManager[None]:
    return _using(_GRANT, grant)


SessionSource = Literal["session_id", "metadata", "user", "none"]
MaxTokensSource = Literal["caller", "task", "specialist"]
DecisionSource = Literal["forced", "intent", "rule", "classifier", "default", "bare", "unrouted"]
SESSION_METADATA_KEY = "session_id"


@dataclass(frozen=True, slots=True)
class Session:
    source: SessionSource = "none"
    name: str = ""  # the session id that the caller sent; empty for a user id, which must not appear on a receipt
    key: bytes = b""  # a salted digest of 32 bytes; empty if the request names no session


NO_SESSION = Session()


def identify_session(session_id: str, metadata: Mapping[str, str], user_id: str, tenant_salt: bytes) -> Session:
    """Return the session named by `session_id`, else by `metadata`, else by `user_id`. A session id and an equal user
    id have different keys, and so have equal ids of two tenants."""
    ids: tuple[tuple[SessionSource, bytes, str], ...] = (
        ("session_id", b"session", session_id),
        ("metadata", b"session", metadata.get(SESSION_METADATA_KEY, "")),
        ("user", b"user", user_id),
    )
    for source, kind, name in ids:
        if name:
            key = digest_parts((b"conversation", kind, name.encode(), tenant_salt))
            return Session(source, "" if source == "user" else name, key)
    return NO_SESSION


@dataclass(frozen=True, slots=True)
class TraceContext:
    trace_id: str  # 32 hex digits
    parent_id: str  # the caller's span, 16 hex digits; empty if the trace starts here
    flags: int = 0
    state: str = ""  # the caller's `tracestate`, shortened if it is too long; empty if it is invalid
    span_id: str = ""  # the router's span, 16 hex digits
    recorded: bool = False  # whether the spans of the request are exported


_TRACE_BYTES = 16
_SPAN_BYTES = 8
_RANDOM_DIGITS = 14  # the last digits of a trace id, which W3C requires to be random; sampling uses them
_MAX_STATE_BYTES = 512
_MAX_STATE_MEMBERS = 32
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class OutgoingTrace(NamedTuple):
    headers: tuple[tuple[str, str], ...]
    span_id: str  # empty if the span is not recorded


class Tracer:
    def __init__(self, random_bytes: Callable[[int], bytes], sample: float | None = None) -> None:
        """`sample` is the share of new traces that are recorded. A caller's trace is recorded if the caller sampled
        it. If `sample` is None, nothing is recorded."""
        self._random_bytes = random_bytes
        self.sample = sample

    def receive(self, header: str | None, state: str = "") -> TraceContext:
        """Return the trace context of a call. Without a valid `header`, start a new trace and ignore `state`."""
        parent = telemetry.parse_traceparent(header) if header is not None else None
        span_id = self._new_id(_SPAN_BYTES)
        if parent is not None:
            recorded = self.sample is not None and parent.is_sampled
            state = clean_tracestate(state)
            return TraceContext(parent.trace_id, parent.span_id, parent.flags, state, span_id, recorded)
        trace_id = self._new_id(_TRACE_BYTES)
        chance = int(trace_id[-_RANDOM_DIGITS:], 16) / 16**_RANDOM_DIGITS
        recorded = self.sample is not None and chance < self.sample
        return TraceContext(trace_id, "", telemetry.SAMPLED_FLAG if recorded else 0, "", span_id, recorded)

    def outgoing(self, trace: TraceContext) -> OutgoingTrace:
        span_id = self._new_id(_SPAN_BYTES)
        state = ((telemetry.TRACESTATE, trace.state),) if trace.state else ()
        header = telemetry.TraceParent(trace.trace_id, span_id, trace.flags).header()
        return OutgoingTrace(((telemetry.TRACEPARENT, header), *state), span_id if trace.recorded else "")

    def _new_id(self, num_bytes: int) -> str:
        """Return an id that is never all zeros, which W3C reserves for "no id"."""
        drawn = self._random_bytes(num_bytes)
        return (drawn if any(drawn) else b"\1" * num_bytes).hex()


def clean_tracestate(state: str) -> str:
    """Shorten a tracestate list to its first members that fit into `_MAX_STATE_BYTES`. Return "" if it is invalid."""
    if not state:
        return ""
    members = [member for each in state.split(",") if (member := each.strip(" \t"))]
    if len(members) > _MAX_STATE_MEMBERS or not all(_MEMBER.fullmatch(each) for each in members):
        return ""
    while len(joined := ",".join(members)) > _MAX_STATE_BYTES:
        members.pop()
    return joined


class CallTrace:
    """The trace in the response headers of one HTTP call: that of its first request, if it has several."""

    __slots__ = ("trace",)

    def __init__(self) -> None:
        self.trace: TraceContext | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the `traceresponse` header; nothing before a request is validated."""
        trace = self.trace
        if trace is None:
            return []
        flags = trace.flags | telemetry.SAMPLED_FLAG if trace.recorded else trace.flags & ~telemetry.SAMPLED_FLAG
        header = telemetry.TraceParent(trace.trace_id, trace.span_id, flags).header()
        return [(telemetry.TRACERESPONSE.encode(), header.encode())]


_CALL_TRACE: ContextVar[CallTrace | None] = ContextVar("call_trace", default=None)


def record_trace(trace: TraceContext) -> None:
    call = _CALL_TRACE.get()
    if call is not None and call.trace is None:
        call.trace = trace


def start_call_trace() -> CallTrace:
    """Return an object in which `record_trace` stores the trace, if called in this task or in a task that it starts."""
    call = CallTrace()
    _CALL_TRACE.set(call)
    return call


class CallTicket(NamedTuple):
    """What the headers of an HTTP call say about tickets."""

    ticket: str = ""
    wait_ms: int | None = None  # for how long the caller waits for a place; None if it uses no tickets


_TICKET: ContextVar[CallTicket] = ContextVar("ticket", default=CallTicket())  # noqa: B039  # it cannot be changed


def current_ticket() -> CallTicket:
    return _TICKET.get()


def start_call_ticket(ticket: CallTicket) -> None:
    """Set the ticket of the requests that this task, or a task that it starts, receives."""
    _TICKET.set(ticket)


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    source: DecisionSource
    decided_by: str  # the rule, the intent or the digest of the classifier; empty when the classifier was unavailable
    why: str
    primary: str = ""  # empty when no specialist should answer
    second_choice: str = ""
    distribution: tuple[tuple[str, float], ...] = ()  # most likely first; empty when the classifier was not asked
    confidence: float | None = None
    classifier_digest: str = ""
    intent: str = ""
    task: str = ""
    adapters: tuple[str, ...] = ()  # the primary's adapters
    sampling: wire.Sampling = field(default_factory=wire.Sampling)
    max_tokens: int = 0
    notes: tuple[str, ...] = ()
    request_digest: str = ""
    config_digest: str = ""
    max_tokens_from: MaxTokensSource = "caller"

    @property
    def is_bare(self) -> bool:
        """Whether the primary answers without its system prompt and adapters, because no specialist fits."""
        return self.source == "bare"


_CONTENT_FIELDS = (
    *("adapters", "sampling", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos", "context_size", "structure"),
    "embed",
)


@dataclass(slots=True)
class Request:
    """A validated request: every field is in range, and every duration has become a time on the router's clock."""

    request_id: str
    messages: Sequence[wire.Message]  # the conversation after template and body are applied; the newest message last
    text: str  # the text that rules and classifier read
    arrival: float
    deadline: float
    trace: TraceContext
    first_deadline: float | None = None  # the deadline of the first token
    num_bytes: int = 0  # the size of the whole request as received
    intent: str = ""
    force: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()  # the caller's adapters; empty for those of the lane
    max_experts: int | None = None
    sampling: wire.Sampling | None = None  # the caller's own, unchanged
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    context_size: int | None = None
    draft_window: int | None = None
    priority: int = 5
    session: Session = NO_SESSION
    tenant_salt: bytes = b""  # includes the caller's tenant
    structure: wire.Structure | None = None  # the caller's own, unchanged
    validate: bool = False  # whether the caller wants the verifier's verdict on the receipt
    caller: CallerIdentity = ANONYMOUS
    tools: tuple[wire.Tool, ...] = ()
    tool_choice: wire.ToolChoice | None = None
    embed: bool = False  # whether the caller wants the prompt's embedding instead of an answer
    ticket: str = ""  # as the caller sent it
    wait_ms: int | None = None  # for how long the caller waits for a place; None if a refusal needs no ticket

    policy: "RoutingPolicy" = field(init=False, repr=False, compare=False)  # the routing policy in force on arrival
    draft: "ReceiptDraft" = field(init=False, repr=False, compare=False)
    decision: RoutingDecision = field(init=False, repr=False, compare=False)
    plan: "DispatchPlan | None" = field(default=None, init=False, repr=False, compare=False)
    """None until the request is planned, or if no specialist should answer."""
    has_first_token: bool = field(default=False, init=False, repr=False, compare=False)
    accepted_by: str = field(default="", init=False, repr=False, compare=False)  # the last specialist that accepted
    full: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Specialists that had no capacity for the request: every replica that was asked was full."""
    waited: float = field(default=0.0, init=False, repr=False, compare=False)  # seconds, for a replica to come back
    ending: Refusal | None = field(default=None, init=False, repr=False, compare=False)  # the reason given to `end`
    _task: "asyncio.Task[object] | None" = field(default=None, init=False, repr=False, compare=False)
    _content_digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def first_token_by(self) -> float:
        return self.deadline if self.first_deadline is None else min(self.first_deadline, self.deadline)

    @property
    def has_text_answer(self) -> bool:
        """Whether the answer is nothing but text. Only such an answer can be verified or compared."""
        return not self.embed and not self.may_call_tools

    @property
    def may_call_tools(self) -> bool:
        choice = self.tool_choice or wire.ToolChoice()
        return bool(self.tools) and (choice.mode != wire.ToolChoice.NONE or bool(choice.name))

    def content_digest(self) -> bytes:
        """Return a digest of the prompt, its parameters and the forced specialists: requests with equal digests make a
        replica do the same work. Caller, id, deadline and priority are left out. Computed once, on demand."""
        if not self._content_digest:
            content = specialist_wire.GenerateRequest(
                chat=specialist_wire.Chat(messages=self.messages, tools=self.tools, tool_choice=self.tool_choice),
                **{name: getattr(self, name) for name in _CONTENT_FIELDS},
            )
            raw: bytes = content.SerializeToString(deterministic=True)
            self._content_digest = digest_parts((*(name.encode() for name in self.force), raw))
        return self._content_digest

    def start(self, task: "asyncio.Task[object]") -> None:
        self._task = task

    def end(self, refusal: Refusal) -> None:
        """Cancel the request's task. `refusal` is the reason; only the first reason is kept."""
        if self.ending is None and self._task is not None:
            self.ending = refusal
            self._task.cancel()

    def claim_end(self) -> Refusal | None:
        """After CancelledError, return the refusal given to `end` and uncancel the task. None if the caller is gone."""
        if self.ending is None or self._task is None or self._task.uncancel() > 0:
            return None
        return self.ending
