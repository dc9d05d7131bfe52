"""A table maps each token of a sequence to its slot."""

from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockTable


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True), st.integers(1, 5))
def test_slots_walk_the_blocks_in_order(block_ids: list[int], block_size: int) -> None:
    table = BlockTable(block_size)
    table.block_ids.extend(block_ids)
    expected = [block_id * block_size + offset for block_id in block_ids for offset in range(block_size)]
    assert list(table.slots(0, table.num_slots)) == expected


@given(st.integers(1, 5), st.integers(0, 15), st.integers(0, 15))
def test_a_span_has_the_slots_of_its_positions(block_size: int, start: int, stop: int) -> None:
    table = BlockTable(block_size)
    table.block_ids.extend(range(15, 0, -1))
    assert list(table.slots(start, stop)) == list(table.slots(0, table.num_slots))[start:stop]
    assert len(table) * block_size == table.num_slots
