"""A request and its sequence."""

import reprlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from admission.policy import DecodeTurns, PrefillTurns, is_urgent, rank_request
from kvpool import BlockTable, InvariantViolation, TokenChain
from octet.clock import earliest
from octet.identity import Lane

if TYPE_CHECKING:
    from specialist.scheduling.copied_text import OwnText


class RequestRefused(ValueError):
    """The request can never be served in this form; sending it again will not help."""


class InvalidRequestField(RequestRefused):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class PromptTooLarge(RequestRefused):
    def __init__(self, num_blocks: int, capacity: int, block_size: int) -> None:
        super().__init__(
            f"the prompt and one step need {num_blocks} blocks of {block_size} tokens; the whole pool has {capacity}"
        )
        self.num_blocks = num_blocks
        self.capacity = capacity


class LaneMismatch(RequestRefused):
    def __init__(self, differences: list[str]) -> None:
        super().__init__("this replica serves another lane: " + "; ".join(differences))
        self.differences = differences


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, validated where a request is received. They apply in this order: structure, logit bias,
    penalties, minimum length, temperature, top-k, typical, top-p, min-p."""

    temperature: float = 0.0  # 0 takes the most likely token
    top_k: int = 0  # 0 for all
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token seen, including the prompt's."""
    presence_penalty: float = 0.0  # subtracted for every token generated at least once
    frequency_penalty: float = 0.0  # subtracted for every time a token was generated
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0  # no stop token can be drawn before this many are generated
    num_logprobs: int | None = None
    """None: no log probabilities. 0: those of the chosen token. n: also those of the n most likely tokens."""


GREEDY = Sampling()


class SampledLogprobs(NamedTuple):
    """Log probabilities in the model's own distribution, before any sampling parameter is applied."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # (token, log probability), most likely first


class GuideExhausted(Exception):
    """The generated tokens have left the required structure, or following it further would cost too much."""


class TokenGuide(Protocol):
    """Restricts the answer of one request to a structure. Its results depend only on the tokens passed in, not on
    earlier calls."""

    def allowed(self, generated: Tokens[int], guessed: Tokens[int] = ()) -> bytes | None:
        """Return a bit mask of the tokens that may follow, lowest token first. Return None if a guessed token does not
        fit: the token sampled after it is discarded anyway. Raises GuideExhausted if `generated` does not fit."""

    def takes(self, generated: Tokens[int], guessed: Tokens[int], token: int) -> bool:
        """Return True only if the token is allowed and this is known without computing the whole mask."""

    def ended(self, generated: Tokens[int], fresh: Tokens[int]) -> bool:
        """Whether `generated` and then `fresh` complete the structure, so that only a stop token can follow."""


class HiddenSum(Protocol):
    """The sum of the final hidden states of a prompt, to which the engine adds each chunk in order. Adding a chunk that
    starts at 0 begins again, as after a preemption."""

    def begin(self, start: int, stop: int) -> Any:
        """Return the array to which the engine adds the states of tokens [start, stop). Raises ValueError unless they
        follow the tokens that were added before."""


_SECRET = ("tenant_salt", "session_key")

DraftSource = Literal["own_text", "lane", "model"]
"""Where drafts come from: the request's own text, other answers of its lane and tenant, or a smaller model."""

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error", "shed"]
"""`shed`: the request was displaced by a more important one, or could no longer meet its deadline."""


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    lane: Lane
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0  # higher is served first
    arrival: float = 0.0
    deadline: float | None = None  # on the replica's clock; a request past it ends, whatever its state
    first_deadline: float | None = None  # a request past it ends unless it has its first token
    stop_ids: frozenset[int] = frozenset()  # tokens that end the answer and are not part of it
    sampling: Sampling = GREEDY
    seed: int = 0
    draft_window: int = 0  # maximum number of draft tokens; 0 for plain decoding
    tenant_salt: bytes = b""  # requests with different salts never share a cached block
    session_key: bytes = b""  # the same for all requests of a conversation; empty without one
    guide: TokenGuide | None = None  # set if the answer must follow a structure
    hidden_sum: HiddenSum | None = None  # set if the prompt's embedding is wanted; its tokens are never cache hits

    def __post_init__(self) -> None:
        self._require(isinstance(self.request_id, str) and self.request_id != "", "request_id", "a non-empty string")
        self._require(isinstance(self.lane, Lane), "lane", "a Lane")
        self._require(isinstance(self.prompt, tuple) and len(self.prompt) > 0, "prompt", "a tuple of at least 1 token")
        for name, least in (("max_tokens", 1), ("draft_window", 0), ("priority", None), ("seed", None)):
            self._require_integer(name, least)
        for name in ("arrival", "deadline", "first_deadline"):
            value = getattr(self, name)
            finite = isinstance(value, float | int) and abs(value) < 2**63
            self._require(finite or (name != "arrival" and value is None), name, "a finite time")
        tokens = isinstance(self.stop_ids, frozenset) and all(isinstance(token, int) for token in self.stop_ids)
        self._require(tokens, "stop_ids", "a frozenset of tokens")
        self._require(isinstance(self.tenant_salt, bytes), "tenant_salt", "bytes")
        self._require(isinstance(self.session_key, bytes), "session_key", "bytes")
        self._require(isinstance(self.sampling, Sampling), "sampling", "a Sampling")

    @property
    def nearest_deadline(self) -> float | None:
        return earliest(self.first_deadline, self.deadline)

    def _require_integer(self, name: str, least: int | None) -> None:
        value = getattr(self, name)
        integer = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        bound = "an integer of 64 bits" if least is None else f"an integer of at least {least}"
        self._require(integer and (least is None or value >= least), name, bound)

    def _require(self, is_valid: bool, field: str, what: str) -> None:
        if not is_valid:
            value = getattr(self, field)
            got = type(value).__name__ if field in _SECRET else reprlib.repr(value)
            raise InvalidRequestField(field, f"must be {what}, got {got}")


class SnapshotUnusable(RuntimeError):
    """A snapshot is corrupt or has the wrong shape; the tokens that it covers must be computed again."""


class Snapshot(Protocol):
    """An immutable copy of a sequence's state at one token boundary, to be kept on the host."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class SequenceState(Protocol):
    """A recurrent state after some number of tokens, called its boundary. A forward pass over tokens [n, n + k) stages
    the state after each of them and keeps the state at n. `trim()` then selects one of these boundaries, so that a
    failed step or a rejected draft leaves no trace."""

    @property
    def state(self) -> Any:
        """The tensors at the current boundary; only the engine uses them."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def trim(self, num_tokens: int) -> None:
        """Move to the boundary `num_tokens`, the current one or a staged one, and drop all other states."""

    def snapshot(self, tail: int | None) -> Snapshot | None:
        """Copy the state and, if `tail` is given, the content of that partly filled KV block. Return None if there is
        no room for a copy; the tokens are then computed again."""

    def restore(self, snapshot: Snapshot, tail: int | None) -> None:
        """Restore the state and the partial KV block `tail`. If this raises SnapshotUnusable, nothing has changed."""


class Sequence:
    """One request's tokens and progress. Three integers define the progress:

    num_tokens     known: the prompt and what has been generated
    num_computed   the leading part of them whose KV is final
    num_scheduled  computed by the step in flight: not to be relied on before its commit"""

    __slots__ = (
        *("chain", "draft_source", "draft_window", "drafts", "finish_reason", "index", "is_urgent"),
        *("max_total_tokens", "nearest_deadline", "num_computed", "num_scheduled", "num_tokens", "own_text", "rank"),
        *("request", "saved", "snapshot_at"),
        *("stack", "state", "suspect", "suspended_for", "table", "times_preempted"),
    )

    def __init__(
        self,
        request: Request,
        chain: TokenChain,
        index: int,
        max_total_tokens: int,
        draft_window: int,
        stack: tuple[str, ...] = (),
    ) -> None:
        self.request = request
        self.chain = chain
        self.index = index  # the order of submission
        self.nearest_deadline = request.nearest_deadline
        self.rank = rank_request(request.priority, request.arrival, self.nearest_deadline, index)
        self.is_urgent = is_urgent(request.arrival, self.nearest_deadline)
        self.stack = stack  # requests of one stack share their turns
        self.max_total_tokens = max_total_tokens
        self.draft_window = draft_window
        self.num_tokens = len(chain)
        self.num_computed = 0
        self.num_scheduled = 0
        self.drafts: dict[DraftSource, tuple[int, int]] = {}  # tokens that were guessed, and those that were right
        self.draft_source: DraftSource = "own_text"  # of the newest drafts; set by the proposer
        self.own_text: OwnText | None = None  # set by the proposer that copies from it
        self.table: BlockTable | None = None
        self.times_preempted = 0
        self.finish_reason: FinishReason | None = None
        self.suspended_for: str | None = None  # the request for which it is suspended; None if it is not suspended
        self.suspect = False
        """Whether it was in a step that failed for an unknown reason. It then runs alone until a step succeeds."""
        self.state: SequenceState | None = None
        self.saved: Snapshot | None = None
        self.snapshot_at: tuple[int, ...] = ()

    @property
    def num_generated(self) -> int:
        return self.num_tokens - len(self.request.prompt)

    @property
    def deadline(self) -> float | None:
        """Until the first token, the earlier of the request's two deadlines; then the deadline of the whole answer."""
        return self.request.deadline if self.num_generated else self.nearest_deadline

    @property
    def generated(self) -> Tokens[int]:
        return self.chain.view()[len(self.request.prompt) :]

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next token can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def prefilling(self) -> bool:
        return self.num_tokens - self.num_computed > 1

    @property
    def rounds_left(self) -> int:
        """Decode steps left if the answer reaches its maximum length."""
        return self.max_total_tokens - self.num_tokens

    @property
    def reserve(self) -> int:
        """Slots that the sequence needs before it may run: known tokens, the next one, and the draft window, as far as
        the answer may reach."""
        return max(self.num_tokens + 1, min(self.num_tokens + 1 + self.draft_window, self.max_total_tokens))

    @property
    def num_accepted(self) -> int:
        return sum(accepted for _, accepted in self.drafts.values())

    def count_drafts(self, num_drafted: int, num_accepted: int) -> None:
        drafted, accepted = self.drafts.get(self.draft_source, (0, 0))
        self.drafts[self.draft_source] = drafted + num_drafted, accepted + num_accepted

    def running_table(self) -> BlockTable:
        if self.table is None:
            raise InvariantViolation(f"{self} runs without blocks")
        return self.table

    def append(self, tokens: tuple[int, ...]) -> None:
        """Append the tokens. If one is invalid, raise ValueError and append none."""
        self.chain.extend(tokens)
        self.num_tokens += len(tokens)

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}, {self.num_computed}+{self.num_scheduled}/{self.num_tokens}, "
            f"priority={self.request.priority}, finish={self.finish_reason})"
        )


_Order = tuple[float, ...]


class WaitingQueue:
    """A sorted set of sequences. A member keeps the sort key that it had when it was pushed."""

    def __init__(self, order: Callable[[Sequence], _Order]) -> None:
        """`order` returns the sort key of a sequence, which must be unique; the smallest comes first."""
        self._order = order
        self._sorted: list[tuple[_Order, Sequence]] = []
        self._places: dict[Sequence, _Order] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._sorted)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._places

    def push(self, seq: Sequence) -> None:
        self._places[seq] = place = self._order(seq)
        insort(self._sorted, (place, seq))

    def peek(self) -> Sequence | None:
        return self._sorted[0][1] if self._sorted else None

    def discard(self, seq: Sequence) -> None:
        place = self._places.pop(seq, None)
        if place is not None:
            del self._sorted[bisect_left(self._sorted, (place,))]


class RunningSet:
    """The sequences that hold blocks, by the kind of their next row: a chunk of the prompt, a decode row or, for a
    sequence suspected of causing a failed step, a row that runs alone."""

    def __init__(self, age_bound: int) -> None:
        self._members: dict[Sequence, None] = {}
        self.to_prefill: PrefillTurns[Sequence] = PrefillTurns(age_bound)
        self.to_decode: DecodeTurns[Sequence] = DecodeTurns(age_bound)
        self.suspects: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate in order of admission."""
        return iter(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._members

    def copy(self) -> tuple[Sequence, ...]:
        """Return the members. Any thread may call this, because Python copies a dict without switching threads."""
        return tuple(self._members)

    def add(self, seq: Sequence) -> None:
        self._members[seq] = None
        self._file(seq)

    def discard(self, seq: Sequence) -> None:
        if self._members.pop(seq, seq) is None:
            self._unfile(seq)

    def refile(self, seq: Sequence) -> None:
        """Update which kind of row the sequence needs next."""
        self._unfile(seq)
        self._file(seq)

    def _file(self, seq: Sequence) -> None:
        if seq.suspect:
            self.suspects[seq] = None
        elif seq.prefilling:
            self.to_prefill.add(seq)
        else:
            self.to_decode.add(seq)

    def _unfile(self, seq: Sequence) -> None:
        self.to_prefill.discard(seq)
        self.to_decode.discard(seq)
        self.suspects.pop(seq, None)
