"""One request on its way through the replica."""

from collections.abc import Sequence as Tokens

from kvpool import BlockTable, InvariantViolation, TokenChain
from octet.due import due
from specialist.request import FinishReason, Request
from specialist.state import SequenceState, Snapshot


class Sequence:
    """Three integers say where a sequence stands; everything else about its progress is derived from them.

    num_tokens     known: the prompt and what has been generated
    num_computed   their leading part that is in the KV cache for good
    num_scheduled  computed by the step in flight: not to be relied on before its commit
    """

    __slots__ = (
        "aside_for",
        "chain",
        "draft_window",
        "finish_reason",
        "index",
        "max_total_tokens",
        "num_computed",
        "num_scheduled",
        "num_tokens",
        "rank",
        "request",
        "saved",
        "snapshot_at",
        "state",
        "suspect",
        "table",
        "times_preempted",
    )

    def __init__(
        self, request: Request, chain: TokenChain, index: int, max_total_tokens: int, draft_window: int
    ) -> None:
        self.request = request
        self.chain = chain
        self.index = index
        """Order of submission: settles what priority, hurry and arrival leave open."""
        self.rank = (-request.priority, due(request.arrival, request.nearest_deadline), request.arrival, index)
        """Smaller is served first. Never changes, so a preempted request keeps its place."""
        self.max_total_tokens = max_total_tokens
        self.draft_window = draft_window
        self.num_tokens = len(chain)
        self.num_computed = 0
        self.num_scheduled = 0
        self.table: BlockTable | None = None
        self.times_preempted = 0
        self.finish_reason: FinishReason | None = None
        self.aside_for: str | None = None
        """Whom it makes time for: beside the line, not in it, until it is called back."""
        self.suspect = False
        """Was in a step that failed for an unknown reason: runs alone until a step of its own succeeds."""
        self.state: SequenceState | None = None
        self.saved: Snapshot | None = None
        self.snapshot_at: tuple[int, ...] = ()

    @property
    def num_generated(self) -> int:
        return self.num_tokens - len(self.request.prompt)

    @property
    def deadline(self) -> float | None:
        """When it ends at the latest, as it stands now."""
        request = self.request
        return request.deadline if self.num_generated else request.nearest_deadline

    @property
    def generated(self) -> Tokens[int]:
        return self.chain.view()[len(self.request.prompt) :]

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def prefilling(self) -> bool:
        return self.num_tokens - self.num_computed > 1

    @property
    def reserve(self) -> int:
        """Slots to have before it may run: all known tokens, one step, and the whole draft window."""
        return self.num_tokens + 1 + self.draft_window

    def running_table(self) -> BlockTable:
        """The blocks of a sequence that runs."""
        if self.table is None:
            raise InvariantViolation(f"{self} runs without blocks")
        return self.table

    def append(self, tokens: tuple[int, ...]) -> None:
        """Raises ValueError for what is not a token, having added nothing."""
        self.chain.extend(tokens)
        self.num_tokens += len(tokens)

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}, {self.num_computed}+{self.num_scheduled}/{self.num_tokens}, "
            f"priority={self.request.priority}, finish={self.finish_reason})"
        )
