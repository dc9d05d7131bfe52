"""The write buffer is bounded, and every row is buffered, written or counted as dropped."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.store import buffer as held_module
from router.store.buffer import WriteBuffer
from router.store.rows import ComparisonRow, CountBucket, ReceiptRow
from tests.router.store.stores import counted

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(0, 30), st.integers(0, 3)),
        st.tuples(st.just("receipt"), st.integers(0, 30), st.integers(0, 40)),
        st.tuples(st.just("comparison"), st.integers(0, 30), st.integers(0, 40)),
        st.tuples(st.sampled_from(["next_batch", "confirm", "reject"]), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@given(EVENTS)
def test_every_row_is_buffered_written_or_counted_as_dropped(events: list[tuple[str, int, int]]) -> None:
    held = WriteBuffer(8)
    came: Counter[str] = Counter()
    written: Counter[str] = Counter()
    replaced = 0
    for at, (kind, number, size) in enumerate(events):
        if kind == "count":
            held.count(counted(size, 0, f"k{number}"))
            came["counts"] += size
        elif kind == "receipt":
            replaced += f"r{number}" in held._receipts
            held.keep_receipt(ReceiptRow(f"r{number}", at, bytes(size)))
            came["receipts"] += 1
        elif kind == "comparison":
            held.keep_comparison(ComparisonRow(at, f"r{number}", bytes(size)))
            came["comparisons"] += 1
        elif (batch := held.next_batch()) is not None and kind != "next_batch":
            getattr(held, kind)(batch)
            if kind == "confirm":
                written["counts"] += sum(good for good, _ in batch.counts.values())
                written["receipts"] += len(batch.receipts)
                written["comparisons"] += len(batch.comparisons)
        figures = held.counters()
        assert figures.held_counts + figures.dropped_counts + written["counts"] == came["counts"]
        assert figures.held_receipts + figures.dropped_receipts + written["receipts"] + replaced == came["receipts"]
        assert figures.held_comparisons + figures.dropped_comparisons + written["comparisons"] == came["comparisons"]
        assert len(held._receipts) + len(held._comparisons) <= 8
        raws = [*(row.raw for row in held._receipts.values()), *(row.raw for row in held._comparisons)]
        assert held._num_bytes == sum(map(len, raws))


def test_a_batch_does_not_change_until_it_is_confirmed_or_rejected() -> None:
    held = WriteBuffer(100)
    held.count(counted(1, 0))
    batch = held.next_batch()
    assert batch is not None
    held.count(counted(5, 0))
    assert held.next_batch() is batch
    assert batch.counts == {("correctness", "lane", counted(0, 0).start): (1, 0)}
    assert held.add_held(counted(10, 0)) == counted(16, 0)
    held.confirm(batch)
    assert held.add_held(counted(11, 0)) == counted(16, 0)
    with pytest.raises(ValueError, match="not in flight"):
        held.confirm(batch)


def test_too_many_bytes_or_counts_drop_the_oldest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "MAX_BUFFER_BYTES", 100)
    monkeypatch.setattr(held_module, "MAX_BUFFER_COUNTS", 3)
    held = WriteBuffer(1000)
    for number in range(5):
        held.keep_receipt(ReceiptRow(f"r{number}", number, bytes(40)))
        held.count(CountBucket("demand", f"k{number}", number, 1, 1))
    assert list(held._receipts) == ["r3", "r4"]
    assert [place[1] for place in held._counts] == ["k2", "k3", "k4"]
    assert (held.dropped_receipts, held.dropped_counts) == (3, 4)
