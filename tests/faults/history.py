"""Record what callers received, and check that a correct system could have sent it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

import grpc

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

Golden = Mapping[tuple[str, str], tuple[int, ...]]
"""The correct answer by specialist and prompt. A partial answer must be a prefix of it."""


@dataclass(frozen=True, slots=True)
class Question:
    specialist: str
    prompt: str
    max_tokens: int


@dataclass(slots=True)
class Account:
    """What one caller received for one request, in order."""

    request_id: str
    question: Question
    began: float = 0.0
    first: float | None = None
    """Arrival time of the first token."""
    ended: float | None = None
    kinds: list[str] = field(default_factory=list)
    """Kinds of the events, in order."""
    tokens: list[int] = field(default_factory=list)
    receipt: wire.Receipt | None = None
    codes: list[grpc.StatusCode] = field(default_factory=list)
    """How the call ended. A correct call has exactly one status."""
    error: error_pb2.Error | None = None
    connected: bool = False
    """Whether the channel seemed connected when the call began. The router may already have been killed."""
    left: bool = False
    """Whether the caller left, so that it received no status."""

    @property
    def is_answered(self) -> bool:
        return self.codes == [grpc.StatusCode.OK]

    @property
    def reason(self) -> int:
        return error_pb2.ERROR_REASON_UNSPECIFIED if self.error is None else self.error.reason

    def add_event(self, event: wire.InferEvent, now: float) -> None:
        kind = event.WhichOneof("event") or "nothing"
        self.kinds.append(kind)
        if kind == "chunk":
            self.tokens += event.chunk.token_ids
            self.first = now if self.first is None else self.first
        elif kind == "receipt":
            self.receipt = event.receipt

    def refused(self, error: Any) -> None:
        """Record that the call ended with `error`, a grpc.aio.AioRpcError."""
        self.codes.append(error.code())
        beside = dict(error.trailing_metadata() or ())
        if "octet-error-bin" in beside:
            self.error = error_pb2.Error.FromString(beside["octet-error-bin"])
        if "octet-receipt-bin" in beside:
            self.receipt = wire.Receipt.FromString(beside["octet-receipt-bin"])


@dataclass(slots=True)
class History:
    golden: Golden
    accounts: list[Account] = field(default_factory=list)
    outages: list["Outage"] = field(default_factory=list)
    """Outages of the router, in order."""

    @property
    def answered(self) -> list[Account]:
        return [each for each in self.accounts if each.is_answered]

    @property
    def failed(self) -> list[Account]:
        return [each for each in self.accounts if not each.is_answered and not each.left]

    @property
    def cut(self) -> list[Account]:
        """Requests whose connection broke because the router was killed, so that no process could give a reason."""
        return [each for each in self.accounts if any(outage.cut(each) for outage in self.outages)]

    @property
    def since_last_restart(self) -> list[Account]:
        """Requests that began after the current router started."""
        last = max((each.ended for each in self.outages), default=-inf)
        return [each for each in self.accounts if each.began > last]

    def violations(self) -> list["Violation"]:
        ids = [each.request_id for each in self.accounts]
        twice = [Violation(name, "end", "two have this id") for name, number in Counter(ids).items() if number > 1]
        cut = {each.request_id for each in self.cut}
        found = [wrong for each in self.accounts for wrong in violations(each, self.golden)]
        return twice + [wrong for wrong in found if wrong.kind != "end" or wrong.request_id not in cut]


NOTICE_SECONDS = 1.0
"""Seconds until a caller's channel notices that the router was killed."""


@dataclass(slots=True)
class Outage:
    """A period without a router."""

    began: float
    sudden: bool
    """Whether the router was killed. A router that is shut down gracefully must give every caller a reason."""
    ended: float = inf

    def cut(self, account: Account) -> bool:
        """Return whether the kill of the router excuses how this request ended: it was under way, and ended during the
        outage with one UNAVAILABLE and no reason."""
        # A request that begins later waits for a connection and must get a reason.
        noticed = self.began + (NOTICE_SECONDS if account.connected else 0.0)
        under_way = account.began <= noticed
        broke = account.ended is not None and self.began <= account.ended <= self.ended
        silent = account.error is None and account.codes == [grpc.StatusCode.UNAVAILABLE]
        return self.sudden and under_way and broke and silent


@dataclass(frozen=True, slots=True)
class Violation:
    """A response that no caller may receive, with its explanation."""

    request_id: str
    kind: Literal["end", "order", "tokens", "lane"]
    words: str


def violations(account: Account, golden: Golden) -> list[Violation]:
    name = account.request_id
    return [
        *(Violation(name, "end", words) for words in _of_its_end(account)),
        *(Violation(name, "order", words) for words in _of_its_order(account)),
        *(Violation(name, "tokens", words) for words in _of_its_tokens(account, golden)),
        *(Violation(name, "lane", words) for words in _of_its_lane(account)),
    ]


def _of_its_end(account: Account) -> list[str]:
    """Return what is wrong with how the request ended. Unless its caller left, it must end exactly once, and with a
    reason if it was not answered."""
    if account.left:
        return ["it ended after its caller had gone"] if account.codes else []
    if len(account.codes) != 1:
        return [f"it ended {len(account.codes)} times"]
    if not account.is_answered:
        return _of_its_refusal(account)
    if account.receipt is None:
        return ["it was answered without a receipt"]
    return ["it was answered, but its receipt has an error"] if account.receipt.HasField("error") else []


def _of_its_refusal(account: Account) -> list[str]:
    error = account.error
    if error is None or not error.reason:
        return [f"{account.codes[0].name} without a reason"]
    is_lost = error.reason == error_pb2.ERROR_REASON_REPLICA_LOST
    return ["it was lost without a retry-after"] if is_lost and not error.HasField("retry_after_ms") else []


def _of_its_order(account: Account) -> list[str]:
    kinds = account.kinds
    if kinds and kinds[0] != "routed":
        return [f"the first event is {kinds[0]}"]
    begun = kinds[kinds.index("chunk") :] if "chunk" in kinds else []
    if "routed" in begun:
        return ["it was routed again after its first chunk"]
    if "receipt" in kinds[:-1]:
        return ["an event came after the receipt"]
    return []


def _of_its_tokens(account: Account, golden: Golden) -> list[str]:
    question, tokens = account.question, tuple(account.tokens)
    whole = golden[question.specialist, question.prompt]
    if tokens != whole[: len(tokens)]:
        return [diagnosis(tokens, question, golden)]
    if account.is_answered and len(tokens) != question.max_tokens:
        return [f"{len(tokens)} tokens came instead of {question.max_tokens}"]
    if account.is_answered and account.receipt and account.receipt.usage.completion_tokens != len(tokens):
        return [f"{len(tokens)} tokens came, but the receipt counts {account.receipt.usage.completion_tokens}"]
    return []


def diagnosis(tokens: tuple[int, ...], question: Question, golden: Golden) -> str:
    """Describe how the tokens differ from a prefix of the correct answer."""
    for (specialist, prompt), other in golden.items():
        if (specialist, prompt) != (question.specialist, question.prompt) and tokens == other[: len(tokens)]:
            return f"the tokens are {specialist}'s answer to {prompt!r}"
    whole = golden[question.specialist, question.prompt]
    at = next(place for place, token in enumerate(tokens) if whole[place : place + 1] != (token,))
    rest = tokens[at:]
    if any(rest == whole[start : start + len(rest)] for start in range(at)):
        return f"tokens are repeated at {at}"
    if any(rest == whole[start : start + len(rest)] for start in range(at + 1, len(whole))):
        return f"tokens are lost at {at}"
    return f"token {at} is wrong"


def _of_its_lane(account: Account) -> list[str]:
    receipt, asked = account.receipt, account.question.specialist
    if receipt is None or not account.tokens:
        return []
    if receipt.specialist != asked:
        return [f"the receipt names {receipt.specialist}"]
    return [] if receipt.lane.specialist == asked else [f"the receipt names the lane of {receipt.lane.specialist!r}"]


def disagreements(account: Account, kept: wire.Receipt) -> list[str]:
    """Return how the router's receipt contradicts what the caller received. The list is empty if the caller left."""
    ended = kept.error.reason if kept.HasField("error") else error_pb2.ERROR_REASON_UNSPECIFIED
    if account.left:
        return []
    if account.is_answered != (not kept.HasField("error")):
        return [f"{account.request_id}: the caller received {account.codes}, the receipt has {ended}"]
    if account.reason != ended:
        return [f"{account.request_id}: the caller received reason {account.reason}, the receipt has {ended}"]
    return []
