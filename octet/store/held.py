"""Rows that wait to be written: bounded, the oldest go first. Counts are merged, so that they outlast any outage."""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from octet.store.held_verdicts import HeldVerdicts
from octet.store.rows import Bucket, ComparisonRow, Figures, ReceiptRow, Verdict
from octet.store.values import is_count, is_row

Place = tuple[str, str, int]
"""Series, key, start."""
Counts = tuple[int, int]
"""Good, bad."""

MOST_BYTES = 32 << 20
MOST_COUNTS = 100_000
_BITE_ROWS = 1000
_BITE_COUNTS = 5000


@dataclass(frozen=True, slots=True)
class Batch:
    """Written as a whole, and once: its number tells the database whether it has it already."""

    number: int
    counts: Mapping[Place, Counts]
    receipts: Sequence[ReceiptRow]
    comparisons: Sequence[ComparisonRow]
    verdicts: Sequence[Verdict] = ()
    """On receipts that are written before."""


class Held:
    """Everything is here from the moment it comes until its batch is known to be written. Used on one thread."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._counts: dict[Place, Counts] = {}
        """Those of the batch among them."""
        self._receipts: OrderedDict[str, ReceiptRow] = OrderedDict()
        self._comparisons: deque[ComparisonRow] = deque()
        self.verdicts = HeldVerdicts()
        self._num_bytes = 0
        self._batch: Batch | None = None
        self._num_batches = 0
        self.dropped_receipts = 0
        self.dropped_comparisons = 0
        self.dropped_counts = 0

    def count(self, bucket: Bucket) -> None:
        if not is_count(bucket):
            self.dropped_counts += 1
            return
        self._add((bucket.series, bucket.key, bucket.start), bucket.good, bucket.bad)
        if len(self._counts) > MOST_COUNTS:
            self._drop_oldest_count()

    def keep_receipt(self, row: ReceiptRow) -> None:
        if not is_row(row):
            self.dropped_receipts += 1
            return
        earlier = self._receipts.pop(row.request_id, None)
        self._num_bytes += len(row.raw) - (len(earlier.raw) if earlier else 0)
        self._receipts[row.request_id] = row
        self._shrink()

    def keep_comparison(self, row: ComparisonRow) -> None:
        if not is_row(row):
            self.dropped_comparisons += 1
            return
        self._num_bytes += len(row.raw)
        self._comparisons.append(row)
        self._shrink()

    def keep_verdict(self, verdict: Verdict) -> None:
        row = self._receipts.get(verdict.request_id)
        if row is not None and row.at_ms == verdict.at_ms:
            self._receipts[verdict.request_id] = replace(row, judged=verdict.judged)
        else:
            self.verdicts.keep(verdict)

    def take(self) -> Batch | None:
        """What to write next: the same as before until it is `written` or `refused`."""
        if self._batch is None and self._is_waiting:
            self._num_batches += 1
            self._batch = self._bite()
        return self._batch

    def written(self, batch: Batch) -> None:
        if batch is not self._batch:
            raise ValueError(f"batch {batch.number} is not under way")
        self._batch = None
        self.verdicts.done()
        for place, (good, bad) in batch.counts.items():
            self._add(place, -good, -bad)

    def refused(self, batch: Batch) -> None:
        """The database will never take it."""
        self.written(batch)
        self.dropped_counts += sum(good + bad for good, bad in batch.counts.values())
        self.dropped_receipts += len(batch.receipts)
        self.dropped_comparisons += len(batch.comparisons)

    def counted(self, place: Place) -> Counts:
        return self._counts.get(place, (0, 0))

    def added_to(self, stored: Bucket) -> Bucket:
        """With what is held of it."""
        good, bad = self.counted((stored.series, stored.key, stored.start))
        return replace(stored, good=stored.good + good, bad=stored.bad + bad) if good or bad else stored

    def added_to_all(self, stored: Sequence[Bucket], wanted: Callable[[Place], bool]) -> Sequence[Bucket]:
        """And those of the wanted that are only here."""
        known = {(bucket.series, bucket.key, bucket.start) for bucket in stored}
        only_here = [
            Bucket(*place, *counts) for place, counts in self._counts.items() if place not in known and wanted(place)
        ]
        return [*map(self.added_to, stored), *only_here]

    def receipt(self, request_id: str) -> ReceiptRow | None:
        newest = self._receipts.get(request_id)
        if newest is not None or self._batch is None:
            return newest
        return next((row for row in self._batch.receipts if row.request_id == request_id), None)

    def receipts(self) -> list[ReceiptRow]:
        """Oldest first; of two that are called the same, the later one comes later."""
        return [*(self._batch.receipts if self._batch else ()), *self._receipts.values()]

    def comparisons(self, request_id: str) -> list[ComparisonRow]:
        """Newest first."""
        rows = [*(self._batch.comparisons if self._batch else ()), *self._comparisons]
        return [row for row in reversed(rows) if row.request_id == request_id]

    @property
    def _is_waiting(self) -> bool:
        return bool(self._counts or self._receipts or self._comparisons or len(self.verdicts))

    @property
    def is_empty(self) -> bool:
        return self._batch is None and not self._is_waiting

    @property
    def num_dropped(self) -> int:
        return self.dropped_receipts + self.dropped_comparisons + self.dropped_counts + self.verdicts.num_dropped

    def figures(self) -> Figures:
        batch = self._batch
        return Figures(
            held_receipts=len(self._receipts) + (len(batch.receipts) if batch else 0),
            held_comparisons=len(self._comparisons) + (len(batch.comparisons) if batch else 0),
            held_counts=sum(good + bad for good, bad in self._counts.values()),
            dropped_receipts=self.dropped_receipts,
            dropped_comparisons=self.dropped_comparisons,
            dropped_counts=self.dropped_counts,
            dropped_verdicts=self.verdicts.num_dropped,
        )

    def summary(self) -> str:
        now = self.figures()
        return f"{now.held_counts} counts, {now.held_receipts} receipts and {now.held_comparisons} comparisons"

    def _add(self, place: Place, good: int, bad: int) -> None:
        had_good, had_bad = self._counts.get(place, (0, 0))
        total = (had_good + good, had_bad + bad)
        if any(total):
            self._counts[place] = total
        else:
            self._counts.pop(place, None)

    def _bite(self) -> Batch:
        places = list(islice(self._counts, _BITE_COUNTS))
        most = max(1, min(_BITE_ROWS, self.most_rows // 4))
        receipts = [self._receipts.popitem(last=False)[1] for _ in range(min(most, len(self._receipts)))]
        comparisons = [self._comparisons.popleft() for _ in range(min(most, len(self._comparisons)))]
        self._num_bytes -= sum(len(row.raw) for row in receipts) + sum(len(row.raw) for row in comparisons)
        counts = {place: self._counts[place] for place in places}
        return Batch(self._num_batches, counts, receipts, comparisons, self.verdicts.take(most))

    def _shrink(self) -> None:
        """The batch under way is out of reach, and small."""
        while len(self._receipts) + len(self._comparisons) > self.most_rows or self._num_bytes > MOST_BYTES:
            self._drop_oldest_row()

    def _drop_oldest_row(self) -> None:
        receipt = next(iter(self._receipts.values()), None)
        comparison = self._comparisons[0] if self._comparisons else None
        if receipt is not None and (comparison is None or receipt.at_ms <= comparison.at_ms):
            self._receipts.popitem(last=False)
            self.dropped_receipts += 1
            self._num_bytes -= len(receipt.raw)
        elif comparison is not None:
            self._comparisons.popleft()
            self.dropped_comparisons += 1
            self._num_bytes -= len(comparison.raw)

    def _drop_oldest_count(self) -> None:
        """The longest here goes first; the batch under way may have been written, and stays."""
        under_way = self._batch.counts if self._batch else {}
        oldest = next(place for place in self._counts if place not in under_way)
        self.dropped_counts += sum(self._counts.pop(oldest))
