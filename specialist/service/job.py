"""One request on its way through the service: what was asked, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from admission.forecast import Admit, Booking
from octet.rpc.refusal import Refusal
from specialist.conversations import MissReason
from specialist.request import FinishReason, Request
from specialist.service.answer import Answer, Piece


class Verdict(NamedTuple):
    """The request is in line."""

    queue_position: int


class Usage(NamedTuple):
    """How it ended and what it cost. Times are seconds; None where it never came that far."""

    reason: FinishReason
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_hit_tokens: int
    miss_reason: MissReason
    times_preempted: int
    queued: float | None
    prefill: float | None
    decode: float | None
    total: float
    preempted: float | None = None
    """Of prefill and decode: from every time it gave way until it ran again."""
    has_lost_form: bool = False
    """It ended with an error because its own structure could not be followed further."""


News = Verdict | Piece | Usage | Refusal
"""A verdict, pieces and usage, in this order; or a refusal and nothing else."""


class Sink(Protocol):
    """Where the news of one request go. Called on the event loop."""

    def put(self, news: News) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    request: Request
    public_id: str
    answer: Answer
    sink: Sink
    release: Callable[[], None]
    """Called once, when the request needs its adapters no more."""
    booking: Booking
    """What the desk knows of it."""
    admit: Admit | None = None
    """The desk's verdict, once it is given."""
    trace_id: str = ""
    """For the lines that are logged of it."""
