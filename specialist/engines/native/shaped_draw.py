"""Which draws a GPU computes itself although the request changes their distribution."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specialist.ops.reference.sampling import SampleRow, allowed_bits, uniform
from specialist.scheduling.sequence import Request, Sampling

MOST_EDITS = 1152  # biased and banned tokens of a row


class Shaped(NamedTuple):
    """A draw from a changed distribution."""

    sampling: Sampling
    uniform: float
    tokens: Sequence[int]  # prompt and answer, as far as they are known; may be the sequence's own memory
    num_prompt: int
    stop_ids: frozenset[int]
    mask: NDArray[np.uint8] | None = None  # bits of the allowed tokens
    key: object = None  # of a sequence whose next draws come in order

    @classmethod
    def of(cls, row: SampleRow, vocab: int) -> "Shaped":
        """Raises ValueError or GuideExhausted if the row's structure allows nothing."""
        drawn = uniform(row.seed, len(row.tokens)) if row.sampling.temperature else 0.0
        return cls(row.sampling, drawn, row.tokens, row.num_prompt, row.stop_ids, allowed_bits(row, vocab))

    @property
    def has_counts(self) -> bool:
        want = self.sampling
        return want.repetition_penalty != 1.0 or want.presence_penalty != 0.0 or want.frequency_penalty != 0.0

    @property
    def bans(self) -> bool:
        """Whether stop tokens may be banned. A mask has these bans already."""
        return bool(self.stop_ids) and self.sampling.min_tokens > 0 and self.mask is None

    @property
    def has_edits(self) -> bool:
        return self.has_counts or self.bans or bool(self.sampling.logit_bias)


@lru_cache(1024)
def is_plain(sampling: Sampling) -> bool:
    """Whether only the temperature matters."""
    return sampling == Sampling(temperature=sampling.temperature)


@lru_cache(1024)
def can_shape(sampling: Sampling, stop_ids: frozenset[int], vocab: int) -> bool:
    """Whether a GPU draws for such a request. The reference draws for all others, and says what is wrong."""
    banned = stop_ids if sampling.min_tokens else frozenset()
    edited = {token for token, _ in sampling.logit_bias} | banned
    fits = len(sampling.logit_bias) + len(banned) <= MOST_EDITS and all(0 <= token < vocab for token in edited)
    return fits and sampling.typical_p == 1.0 and sampling.num_logprobs is None


class PlacedDraw(NamedTuple):
    shaped: Shaped | None
    slot: int = -1  # -1: the row has no edits
    adds: bool = False  # whether its input token must be added to its counts
    position: int = 0  # of its input token


class _Held:
    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.length = 0  # number of tokens in its counts


class Slots:
    """Which slot on the device has the counts of which sequence, and up to which token."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: OrderedDict[object, _Held] = OrderedDict()  # least recently used first
        self._free = list(range(count))

    def forget(self) -> None:
        self._held.clear()
        self._free = list(range(self._count))

    def place(
        self, rows: Sequence[tuple[Shaped | None, int, bool]]
    ) -> tuple[list[PlacedDraw], list[tuple[int, Shaped, int]]]:
        """Take rows with the positions of their input tokens, each of which the host knows or only the device. Return
        them with slots, and which slots must be filled anew, with the counts of so many tokens."""
        placed, new = [], []
        wanted = {shaped.key for shaped, _, _ in rows if shaped is not None}
        for shaped, position, is_known in rows:
            if shaped is None or not shaped.has_edits:
                placed.append(PlacedDraw(shaped, position=position))
                continue
            held = self._held.get(shaped.key)
            if held is None:
                held = self._held[shaped.key] = _Held(self._take(wanted))
            follows = held.length == position > 0
            if not follows:
                if not is_known:
                    raise RuntimeError("the counts of a sequence have missed a token")
                new.append((held.slot, shaped, position + 1))
            held.length = position + 1
            self._held.move_to_end(shaped.key)
            placed.append(PlacedDraw(shaped, held.slot, follows and shaped.has_counts, position))
        return placed, new

    def _take(self, wanted: set[object]) -> int:
        if self._free:
            return self._free.pop()
        oldest = next(key for key in self._held if key not in wanted)
        return self._held.pop(oldest).slot


def shaped_of(request: Request, drawn: float, tokens: Sequence[int], key: object) -> Shaped | None:
    """Return how a request changes its draw; None if it does not, or if its guide must first say what it allows."""
    if request.guide is not None or is_plain(request.sampling):
        return None
    return Shaped(request.sampling, drawn, tokens, len(request.prompt), request.stop_ids, None, key)
