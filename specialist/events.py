"""What the scheduler decided, in order. The stream a replica serves its clients from and a test its laws."""

from typing import Literal, NamedTuple

from specialist.conversations import MissReason
from specialist.request import FinishReason
from specialist.sampling import TokenLogprobs

Cause = Literal["admission", "growth", "deadline"]


class Submitted(NamedTuple):
    request_id: str
    priority: int


class Admitted(NamedTuple):
    request_id: str
    num_tokens: int
    num_hit_tokens: int
    times_preempted: int
    miss_reason: MissReason = ""
    """Of the first admission: later ones only take up what a preemption interrupted."""


class Preempted(NamedTuple):
    request_id: str
    cause: Cause
    beneficiary: str
    """Who gets the blocks, with cause "growth" possibly a sequence of the same priority; with "deadline", the time."""


class Emitted(NamedTuple):
    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where the request asked for them."""


class Finished(NamedTuple):
    request_id: str
    reason: FinishReason
    detail: str


Event = Submitted | Admitted | Preempted | Emitted | Finished
