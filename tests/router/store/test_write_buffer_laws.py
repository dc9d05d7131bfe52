"""The write buffer, compared with a simple model."""

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from router.store import buffer as held_module
from router.store.buffer import WriteBuffer
from router.store.rows import ComparisonRow, CountBucket, ReceiptRow

MOST_ROWS, MOST_COUNTS = 5, 3
events = st.lists(
    st.tuples(st.sampled_from(["count", "receipt", "comparison"]), st.integers(0, 7))
    | st.tuples(st.sampled_from(["next_batch", "confirm", "reject"]), st.just(0)),
    min_size=20,
    max_size=60,
)


@given(events)
def test_a_buffered_receipt_is_found_and_the_oldest_row_is_dropped_first(events: list[tuple[str, int]]) -> None:
    held = WriteBuffer(MOST_ROWS)
    waiting: list[Any] = []
    """Buffered rows, oldest first."""
    for at, (kind, number) in enumerate(events):
        if kind == "receipt":
            waiting = [row for row in waiting if not (isinstance(row, ReceiptRow) and row.request_id == f"r{number}")]
            waiting.append(ReceiptRow(f"r{number}", at, b"x"))
            held.keep_receipt(waiting[-1])
        elif kind == "comparison":
            waiting.append(ComparisonRow(at, f"r{number}", b"x"))
            held.keep_comparison(waiting[-1])
        elif kind != "count" and (batch := held.next_batch()) is not None:
            taken = {id(row) for row in (*batch.receipts, *batch.comparisons)}
            waiting = [row for row in waiting if id(row) not in taken]
            if kind != "next_batch":
                getattr(held, kind)(batch)
        waiting = waiting[-MOST_ROWS:]
        in_batch = [] if held._batch is None else [*held._batch.receipts]
        for name in (f"r{each}" for each in range(8)):
            here = [row for row in (*in_batch, *waiting) if isinstance(row, ReceiptRow) and row.request_id == name]
            assert held.receipt(name) is (here[-1] if here else None)
        assert [*held._comparisons] == [row for row in waiting if isinstance(row, ComparisonRow)]


@given(events)
def test_buffered_counts_are_the_received_minus_the_written_and_dropped(events: list[tuple[str, int]]) -> None:
    """The counts of a key are dropped together or not at all, and a written batch removes only its own counts."""
    with patch.object(held_module, "MAX_BUFFER_COUNTS", MOST_COUNTS):
        held, here = WriteBuffer(MOST_ROWS), dict[str, int]()
        for kind, number in events:
            if kind == "count":
                held.count(CountBucket("demand", f"k{number}", 0, 1, 2))
                here[f"k{number}"] = here.get(f"k{number}", 0) + 1
            elif (batch := held.next_batch()) is not None and kind in ("confirm", "reject"):
                getattr(held, kind)(batch)
                for (_, key, _), (good, _) in batch.counts.items():
                    here[key] -= good
            under_way = set() if held._batch is None else {key for _, key, _ in held._batch.counts}
            for key in here:
                good, bad = held.get_counts(("demand", key, 0))
                assert bad == 2 * good and good in (here[key], 0)
                assert good or not here[key] or key not in under_way, (
                    "counts of a batch that is being written must not be dropped"
                )
                here[key] = good
            assert len(held._counts) <= MOST_COUNTS + len(under_way)


@given(events)
def test_stored_counts_are_reported_with_buffered_ones(events: list[tuple[str, int]]) -> None:
    held, came, stored = WriteBuffer(MOST_ROWS), dict[str, int](), dict[str, int]()
    for kind, number in events:
        if kind == "count":
            held.count(CountBucket("demand", f"k{number}", number, 1, 0))
            came[f"k{number}"] = came.get(f"k{number}", 0) + 1
        elif (batch := held.next_batch()) is not None and kind == "confirm":
            held.confirm(batch)
            for (_, key, _), (good, _) in batch.counts.items():
                stored[key] = stored.get(key, 0) + good
        rows = [CountBucket("demand", key, int(key[1:]), good, 0) for key, good in stored.items()]
        reported = held.merge_held(rows, lambda place: place[2] >= 3)
        assert {row.key: row.good for row in reported} == {
            key: good for key, good in came.items() if key in stored or int(key[1:]) >= 3
        }
