"""A request that has passed reception: every field is in range, every duration is a time."""

from dataclasses import dataclass

from octet.v1 import inference_pb2 as wire
from router.reception.caller import ANYONE, Caller
from router.reception.session import NO_SESSION, Session


@dataclass(frozen=True, slots=True)
class Turn:
    role: str
    content: str
    tool_calls: tuple[wire.ToolCall, ...] = ()
    """An assistant's, as the caller set them."""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """W3C trace context."""

    trace_id: str
    """32 hex digits."""
    parent_id: str
    """16 hex digits: the caller's span; empty where the trace begins here."""
    flags: int = 0
    state: str = ""
    """The caller's `tracestate`: for whoever is asked next, nobody reads it here."""
    span_id: str = ""
    """16 hex digits: the router's own."""
    recorded: bool = False
    """What becomes of the request is told to whoever collects traces."""


@dataclass(frozen=True, slots=True)
class Ask:
    request_id: str
    turns: tuple[Turn, ...]
    """The conversation, template and body applied; the newest last."""
    text: str
    """What rules and classifier read."""
    arrival: float
    """On the router's clock, like the deadline."""
    deadline: float
    trace: Trace
    first_deadline: float | None = None
    """By when the first token must be there."""
    num_bytes: int = 0
    """Of the whole request, as it came."""
    intent: str = ""
    force: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    """The caller's; empty: the specialist's own."""
    max_experts: int | None = None
    sampling: wire.Sampling | None = None
    """As the caller set it, never changed."""
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    context_size: int | None = None
    priority: int = 5
    session: Session = NO_SESSION
    tenant_salt: bytes = b""
    """The caller's tenant is in it."""
    structure: wire.Structure | None = None
    """As the caller set it, never changed."""
    validate: bool = False
    """Its verifier's verdict is wanted on the receipt."""
    caller: Caller = ANYONE
    tools: tuple[wire.Tool, ...] = ()
    tool_choice: wire.ToolChoice | None = None

    @property
    def first_token_by(self) -> float:
        """The earlier of its deadlines."""
        return self.deadline if self.first_deadline is None else min(self.first_deadline, self.deadline)

    @property
    def may_call(self) -> bool:
        """Whether the answer may be calls of tools instead of text."""
        choice = self.tool_choice or wire.ToolChoice()
        return bool(self.tools) and (choice.mode != wire.ToolChoice.NONE or bool(choice.name))
