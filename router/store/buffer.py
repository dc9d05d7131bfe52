"""The buffer of rows that are not yet written."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from router.store import rows

MAX_BUFFER_BYTES = 32 << 20
MAX_BUFFER_COUNTS = 100_000
MAX_VERDICTS = 10_000
_BATCH_ROWS = 1000
_BATCH_COUNTS = 5000
_MAX_COUNT = 1 << 40


class StoreCounters(NamedTuple):
    held_receipts: int
    held_comparisons: int
    held_counts: int
    dropped_receipts: int
    dropped_comparisons: int
    dropped_counts: int
    dropped_verdicts: int = 0


def _is_valid_row(row: rows.ReceiptRow | rows.ComparisonRow) -> bool:
    if isinstance(row, rows.ReceiptRow):
        texts = (row.labels.tenant, row.labels.specialist, row.labels.outcome, row.judged)
        if not all(rows.is_valid_key(text) for text in texts if text):
            return False
    return rows.is_valid_key(row.request_id) and 0 <= row.at_ms < rows.MAX_TIME and len(row.raw) <= rows.MAX_RAW_BYTES


class VerdictBuffer:
    def __init__(self, most: int = MAX_VERDICTS) -> None:
        self._most = most
        self._waiting: OrderedDict[str, rows.VerdictRow] = OrderedDict()
        self._in_flight: Sequence[rows.VerdictRow] = ()
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, verdict: rows.VerdictRow) -> None:
        """Add a verdict; it replaces an earlier one for the same request id."""
        if not (rows.is_valid_key(verdict.request_id) and rows.is_valid_key(verdict.judged)):
            self.num_dropped += 1
            return
        self._waiting[verdict.request_id] = verdict
        if len(self._waiting) > self._most:
            self._waiting.popitem(last=False)
            self.num_dropped += 1

    def take(self, most: int) -> Sequence[rows.VerdictRow]:
        self._in_flight = [self._waiting.popitem(last=False)[1] for _ in range(min(most, len(self._waiting)))]
        return self._in_flight

    def forget_taken(self) -> None:
        self._in_flight = ()

    def apply(self, row: rows.ReceiptRow) -> rows.ReceiptRow:
        in_flight = (each for each in self._in_flight if each.request_id == row.request_id)
        found = self._waiting.get(row.request_id) or next(in_flight, None)
        return row if found is None or found.at_ms != row.at_ms else row._replace(judged=found.judged)


class WriteBuffer:
    """Holds every row until its batch is known to be written. When the buffer is full, the oldest rows are dropped.
    Counts of a bucket are merged, and so survive long outages. Used on one thread; adding never blocks or raises."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._counts: dict[rows.BucketKey, rows.BucketCounts] = {}  # including those of the batch in flight
        self._receipts: OrderedDict[str, rows.ReceiptRow] = OrderedDict()
        self._comparisons: deque[rows.ComparisonRow] = deque()
        self.verdicts = VerdictBuffer()
        self._num_bytes = 0
        self._batch: rows.WriteBatch | None = None
        self._num_batches = 0
        self.dropped_receipts = self.dropped_comparisons = self.dropped_counts = 0

    def count(self, bucket: rows.CountBucket) -> None:
        is_valid = (
            0 <= bucket.start < rows.MAX_TIME and 0 <= bucket.good <= _MAX_COUNT and 0 <= bucket.bad <= _MAX_COUNT
        )
        if not (is_valid and rows.is_valid_key(bucket.series) and rows.is_valid_key(bucket.key)):
            self.dropped_counts += 1
            return
        self._add((bucket.series, bucket.key, bucket.start), bucket.good, bucket.bad)
        if len(self._counts) > MAX_BUFFER_COUNTS:
            in_flight = self._batch.counts if self._batch else {}  # kept, because it may have been written
            oldest = next(key for key in self._counts if key not in in_flight)
            self.dropped_counts += sum(self._counts.pop(oldest))

    def keep_receipt(self, row: rows.ReceiptRow) -> None:
        if not _is_valid_row(row):
            self.dropped_receipts += 1
            return
        earlier = self._receipts.pop(row.request_id, None)
        self._num_bytes += len(row.raw) - (len(earlier.raw) if earlier else 0)
        self._receipts[row.request_id] = row
        self._shrink()

    def keep_comparison(self, row: rows.ComparisonRow) -> None:
        if not _is_valid_row(row):
            self.dropped_comparisons += 1
            return
        self._num_bytes += row.num_bytes
        self._comparisons.append(row)
        self._shrink()

    def keep_verdict(self, verdict: rows.VerdictRow) -> None:
        row = self._receipts.get(verdict.request_id)
        if row is not None and row.at_ms == verdict.at_ms:
            self._receipts[verdict.request_id] = row._replace(judged=verdict.judged)
        else:
            self.verdicts.add(verdict)

    def next_batch(self) -> rows.WriteBatch | None:
        """Return the batch in flight, else a new batch of the next rows; None if the buffer is empty."""
        if self._batch is None and not self.is_empty:
            self._num_batches += 1
            counts = {key: self._counts[key] for key in islice(self._counts, _BATCH_COUNTS)}
            most = max(1, min(_BATCH_ROWS, self.most_rows // 4))
            receipts = [self._receipts.popitem(last=False)[1] for _ in range(min(most, len(self._receipts)))]
            comparisons = [self._comparisons.popleft() for _ in range(min(most, len(self._comparisons)))]
            self._num_bytes -= sum(len(row.raw) for row in receipts) + sum(row.num_bytes for row in comparisons)
            self._batch = rows.WriteBatch(self._num_batches, counts, receipts, comparisons, self.verdicts.take(most))
        return self._batch

    def confirm(self, batch: rows.WriteBatch) -> None:
        if batch is not self._batch:
            raise ValueError(f"batch {batch.number} is not in flight")
        self._batch = None
        self.verdicts.forget_taken()
        for key, (good, bad) in batch.counts.items():
            self._add(key, -good, -bad)

    def reject(self, batch: rows.WriteBatch) -> None:
        self.confirm(batch)
        self.dropped_counts += sum(good + bad for good, bad in batch.counts.values())
        self.dropped_receipts += len(batch.receipts)
        self.dropped_comparisons += len(batch.comparisons)

    def get_counts(self, key: rows.BucketKey) -> rows.BucketCounts:
        return self._counts.get(key, (0, 0))

    def add_held(self, stored: rows.CountBucket) -> rows.CountBucket:
        good, bad = self.get_counts((stored.series, stored.key, stored.start))
        return stored._replace(good=stored.good + good, bad=stored.bad + bad) if good or bad else stored

    def merge_held(
        self, stored: Sequence[rows.CountBucket], wanted: Callable[[rows.BucketKey], bool]
    ) -> Sequence[rows.CountBucket]:
        known = {(bucket.series, bucket.key, bucket.start) for bucket in stored}
        held = ((key, counts) for key, counts in self._counts.items() if key not in known and wanted(key))
        return [*map(self.add_held, stored), *(rows.CountBucket(*key, *counts) for key, counts in held)]

    def receipt(self, request_id: str) -> rows.ReceiptRow | None:
        newest = self._receipts.get(request_id)
        if newest is not None or self._batch is None:
            return newest
        return next((row for row in self._batch.receipts if row.request_id == request_id), None)

    def receipts(self) -> list[rows.ReceiptRow]:
        """List the receipts, oldest first. If a request id occurs twice, the later receipt is the valid one."""
        return [*(self._batch.receipts if self._batch else ()), *self._receipts.values()]

    def comparisons(self, request_id: str) -> list[rows.ComparisonRow]:
        held = [*(self._batch.comparisons if self._batch else ()), *self._comparisons]
        return [row for row in reversed(held) if row.request_id == request_id]

    @property
    def is_empty(self) -> bool:
        return not (self._batch or self._counts or self._receipts or self._comparisons or len(self.verdicts))

    @property
    def num_dropped(self) -> int:
        return self.dropped_receipts + self.dropped_comparisons + self.dropped_counts + self.verdicts.num_dropped

    def counters(self) -> StoreCounters:
        comparisons = len(self._comparisons) + (len(self._batch.comparisons) if self._batch else 0)
        held = (len(self.receipts()), comparisons, sum(good + bad for good, bad in self._counts.values()))
        dropped = (self.dropped_receipts, self.dropped_comparisons, self.dropped_counts, self.verdicts.num_dropped)
        return StoreCounters(*held, *dropped)

    def summary(self) -> str:
        now = self.counters()
        return f"{now.held_counts} counts, {now.held_receipts} receipts and {now.held_comparisons} comparisons"

    def _add(self, key: rows.BucketKey, good: int, bad: int) -> None:
        had_good, had_bad = self.get_counts(key)
        total = (had_good + good, had_bad + bad)
        if any(total):
            self._counts[key] = total
        else:
            self._counts.pop(key, None)

    def _shrink(self) -> None:
        """Drop the oldest rows until the limits are met. The batch in flight is small and is kept."""
        while len(self._receipts) + len(self._comparisons) > self.most_rows or self._num_bytes > MAX_BUFFER_BYTES:
            receipt = next(iter(self._receipts.values()), None)
            comparison = self._comparisons[0] if self._comparisons else None
            if receipt is not None and (comparison is None or receipt.at_ms <= comparison.at_ms):
                self._receipts.popitem(last=False)
                self.dropped_receipts += 1
                self._num_bytes -= len(receipt.raw)
            elif comparison is not None:
                self._comparisons.popleft()
                self.dropped_comparisons += 1
                self._num_bytes -= comparison.num_bytes
