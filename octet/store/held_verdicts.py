"""Verdicts that wait to be written beside receipts that have been. Bounded; the oldest go first, and are counted."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from octet.store.rows import ReceiptRow, Verdict
from octet.store.values import is_key

MOST = 10_000


class HeldVerdicts:
    """Used on one thread."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: OrderedDict[str, Verdict] = OrderedDict()
        self._taken: Sequence[Verdict] = ()
        """Under way to the database."""
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, verdict: Verdict) -> None:
        """The latest of an id stands."""
        if not (is_key(verdict.request_id) and is_key(verdict.judged)):
            self.num_dropped += 1
            return
        self._waiting[verdict.request_id] = verdict
        if len(self._waiting) > self._most:
            self._waiting.popitem(last=False)
            self.num_dropped += 1

    def take(self, most: int) -> Sequence[Verdict]:
        self._taken = [self._waiting.popitem(last=False)[1] for _ in range(min(most, len(self._waiting)))]
        return self._taken

    def done(self) -> None:
        """What was taken is written, or will never be."""
        self._taken = ()

    def beside(self, row: ReceiptRow) -> ReceiptRow:
        """With what is held of it."""
        found = self._waiting.get(row.request_id) or next(
            (each for each in self._taken if each.request_id == row.request_id), None
        )
        return row if found is None or found.at_ms != row.at_ms else replace(row, judged=found.judged)
