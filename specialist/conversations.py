"""What is remembered of conversations, to tell on a miss why there was one."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kvpool import AdmissionPlan, BlockKey, TokenChain

MissReason = Literal["", "first_time", "evicted", "other_adapter", "diverged", "cache_off", "no_session", "no_boundary"]
"""Why blocks that the conversation could have had are computed. Empty: everything it could have was reused."""
MOST = 4096
SALT_AND_KEY = tuple[bytes, bytes]


class Seen(NamedTuple):
    root: bytes
    """Lane and salt that computed it."""
    keys: tuple[BlockKey, ...]
    """Of the blocks that its last request left behind."""


class Conversations:
    """By tenant salt and session key, the least recently used forgotten first: at most `most` of them, and
    `most_blocks` keys in all. Only whoever has both learns anything from it, and only of its own requests."""

    def __init__(self, most_blocks: int, most: int = MOST) -> None:
        self._most = most
        self._most_blocks = most_blocks
        self._num_blocks = 0
        self._seen: OrderedDict[SALT_AND_KEY, Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def learn(self, salt: bytes, session_key: bytes, chain: TokenChain, num_blocks: int) -> None:
        """A request of the conversation has ended and leaves the first `num_blocks` of its chain in the cache."""
        if not session_key or not num_blocks:
            return
        name = (salt, session_key)
        seen = Seen(chain.root, tuple(chain.keys(num_blocks)[:num_blocks]))
        old = self._seen.get(name)
        if old is not None and old.root == seen.root and old.keys[:num_blocks] == seen.keys:
            seen = old  # it was cut before it came as far as the one before
        self._num_blocks += len(seen.keys) - (len(old.keys) if old is not None else 0)
        self._seen[name] = seen
        self._seen.move_to_end(name)
        while len(self._seen) > self._most or self._num_blocks > self._most_blocks:
            self._num_blocks -= len(self._seen.popitem(last=False)[1].keys)

    def why_missed(self, salt: bytes, session_key: bytes, chain: TokenChain, plan: AdmissionPlan) -> MissReason:
        """Of a request that is let in as planned."""
        num_hit, num_possible = len(plan.hit), plan.num_cached + plan.num_uncached
        if num_hit == num_possible:
            return ""
        if plan.uncached_reason == "disabled":
            return "cache_off"
        if not session_key:
            return "no_session"
        seen = self._seen.get((salt, session_key))
        if seen is None:
            return "first_time"
        if seen.root != chain.root:
            return "other_adapter"
        num_same = _num_same(seen.keys, chain.keys(num_possible)[:num_possible])
        if num_hit < num_same:
            return "no_boundary" if plan.num_cached >= num_same else "evicted"
        return "diverged" if num_same < min(len(seen.keys), num_possible) else ""


def _num_same(one: Sequence[BlockKey], other: Sequence[BlockKey]) -> int:
    """A key names everything before it: the last that is the same settles all before."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
