"""One answer's way through its grammar."""

from array import array
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from specialist.guide.grammar import Grammar, why
from specialist.steering import NothingFits


class Guide:
    """Follows the tokens it is asked about, and goes back where they differ from those before: who is preempted,
    guessed for or run again finds it where his tokens are."""

    def __init__(self, grammar: Grammar, *, may_stop: bool = True) -> None:
        """`may_stop`: a stop token ends the answer where the grammar lets it end; else it goes on while it can."""
        self._table = grammar.table
        self._may_stop = may_stop
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._followed = array("I")

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        known = array("I", generated)
        if not self._follow(known):
            raise self._lost(f"token {len(self._followed)} of the answer does not fit its structure")
        if guessed and not self._follow(known + array("I", guessed)):
            return None
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise self._lost("its structure cannot be followed further")
        return self._narrowed(mask)

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        if token in self._table.stop_ids or not self._follow(array("I", generated) + array("I", guessed)):
            return False
        if self._table.first is not None and not self._followed:
            return False
        forced = self._matcher.compute_ff_tokens()  # of several ways to write it, the mask has one
        fits = forced[0] == token if forced else self._matcher.validate_tokens([token]) == 1
        return fits and not self._matcher.is_error()

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        follows = self._follow(array("I", generated) + array("I", fresh))
        return follows and self._matcher.is_stopped() and not self._matcher.is_error()

    def _follow(self, tokens: "array[int]") -> bool:
        """False, somewhere before their end, where they do not fit."""
        self._back_to(_num_common(self._followed, tokens))
        rest = tokens[len(self._followed) :].tolist()
        if not rest:
            return True
        textual = list(takewhile(lambda token: token not in self._table.stop_ids, rest))
        count = self._matcher.try_consume_tokens(textual)
        self._followed.extend(textual[:count])
        return count == len(rest)

    def _back_to(self, num_tokens: int) -> None:
        ahead = len(self._followed) - num_tokens
        if ahead == 0:
            return
        if self._matcher.is_error() or not self._matcher.rollback(ahead):
            self._again()
        else:
            del self._followed[num_tokens:]

    def _lost(self, what: str) -> NothingFits:
        if not self._matcher.is_error():
            return NothingFits(what)
        error = why(self._matcher)
        self._again()
        return NothingFits(f"{what}: {error}")

    def _again(self) -> None:
        self._matcher = self._grammar.matcher()
        self._followed = array("I")

    def _narrowed(self, mask: bytes) -> bytes:
        first = self._table.first if not self._followed else None
        stops = None if self._may_stop else self._table.but_stops
        for kept in (first, stops):
            if kept is not None:
                mask = (np.frombuffer(mask, np.uint8, len(kept)) & kept).tobytes()
        return mask


def _num_common(one: "array[int]", other: "array[int]") -> int:
    count = min(len(one), len(other))
    if one[:count].tobytes() == other[:count].tobytes():
        return count
    return next(i for i in range(count) if one[i] != other[i])
