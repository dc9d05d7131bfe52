"""The tensors of a batch describe its step exactly."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockTable
from specialist.engines.native.engine import build_batch
from specialist.scheduling.step import Row, Step
from tests.specialist.builders import make_sequence


def table_of(block_ids: list[int], block_size: int) -> BlockTable:
    table = BlockTable(block_size)
    table.block_ids.extend(block_ids)
    return table


@st.composite
def steps(draw: st.DrawFn) -> tuple[Step, int]:
    block_size = draw(st.integers(1, 5))
    rows = []
    for index in range(draw(st.integers(1, 5))):
        start, length = draw(st.integers(0, 9)), draw(st.integers(1, 6))
        blocks = draw(st.lists(st.integers(1, 99), min_size=-(-(start + length) // block_size), max_size=20))
        tokens = tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)))
        num_samples = draw(st.integers(0, length))
        rows.append(Row(make_sequence(index), table_of(blocks, block_size), start, tokens, 0, num_samples))
    return Step(1, (), tuple(rows), 0, 0.0), block_size


@given(steps())
def test_every_token_has_its_position_its_slot_and_its_row(drawn: tuple[Step, int]) -> None:
    step, block_size = drawn
    batch = build_batch(step, block_size)
    bounds = batch.query_start.tolist()
    assert batch.tokens.tolist() == [token for row in step.rows for token in row.tokens]
    assert batch.positions.tolist() == [position for row in step.rows for position in range(row.start, row.stop)]
    assert batch.slots.tolist() == [slot for row in step.rows for slot in row.table.slots(row.start, row.stop)]
    assert [stop - start for start, stop in pairwise(bounds)] == [len(r.tokens) for r in step.rows]
    assert batch.context_lens.tolist() == [row.stop for row in step.rows]
    assert batch.outputs.tolist() == [
        index for row, stop in zip(step.rows, bounds[1:], strict=True) for index in range(stop - row.num_samples, stop)
    ]
    for row, blocks in zip(step.rows, batch.block_tables.tolist(), strict=True):
        needed = -(-row.stop // block_size)
        assert blocks == row.table.block_ids.tolist()[:needed] + [0] * (len(blocks) - needed)


def test_the_tables_can_grow_afterwards() -> None:
    table = table_of([3], 4)
    batch = build_batch(Step(1, (), (Row(make_sequence(0), table, 0, (1, 2), 0, 1),), 0, 0.0), 4)
    table.block_ids.append(7)
    assert batch.block_tables.tolist() == [[3]]


@pytest.mark.parametrize("token", [2**31, 2**32 - 1])
def test_a_token_that_does_not_fit_is_refused(token: int) -> None:
    rows = tuple(Row(make_sequence(0), table_of([3], 4), 0, tokens, 0, 1) for tokens in [(1,), (1, token)])
    with pytest.raises(ValueError, match=f"token {token} is not below 2147483648"):
        build_batch(Step(1, (), rows, 0, 0.0), 4)


def test_a_token_without_a_block_is_refused() -> None:
    row = Row(make_sequence(0), table_of([3], 4), 2, (1, 2, 3), 0, 1)
    with pytest.raises(ValueError, match="the step needs 2 blocks, but its tables have 1"):
        build_batch(Step(1, (), (row,), 0, 0.0), 4)
