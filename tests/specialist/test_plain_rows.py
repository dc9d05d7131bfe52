"""Rows in columns are the same rows."""

from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kvpool import BlockPool, BlockTable
from specialist.scheduling.ledger import Ledger, PureAttention
from specialist.scheduling.step import PlainRows, Row, Step, StepOutcome
from tests.specialist.builders import make_sequence


def rows_at(starts: list[int]) -> tuple[Row, ...]:
    return tuple(Row(make_sequence(i), BlockTable(4), start, (i,), 0, 1) for i, start in enumerate(starts))


@given(starts=st.lists(st.integers(0, 99), min_size=1, max_size=6), data=st.data())
def test_columns_have_the_rows_and_measures_of_their_step(starts: list[int], data: st.DataObject) -> None:
    rows = rows_at(starts)
    plain = PlainRows.of(rows)
    one, other = (Step(1, (), each, 0, 0.0) for each in (plain, rows))
    assert (*plain,) == plain[:] == rows and [plain[place] for place in range(len(plain))] == [*rows]
    assert one.mode == other.mode == "decode" and one.sequences == other.sequences
    assert (one.num_tokens, one.num_pairs) == (other.num_tokens, other.num_pairs)
    places = data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(1, len(rows)))]
    assert [*plain.at(places)] == [rows[place] for place in places]


class EndsWithEight:
    """A guide that ends with token 8."""

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        return None

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return True

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        return fresh[-1] == 8


ANSWER = st.lists(st.sampled_from([5, 6, 7, 8, -1, [5], None]), min_size=12, max_size=12)


@given(answers=st.lists(ANSWER, min_size=2, max_size=2))
@example([[5, 5, [5]] + [5] * 9, [5] * 12])
@example([[5] * 12, [5, 5, 8] + [5] * 9])
def test_a_plain_row_advances_as_any_other(answers: list[list[Any]]) -> None:
    """Token 7 ends the answer, -1, [5] and None are no tokens, and the answer ends at its maximum length at the latest.
    Token 8 ends the second answer."""
    told = [advance(answers, plain=plain) for plain in (True, False)]
    for one, other in zip(*told, strict=True):
        assert one == other


def advance(answers: list[list[Any]], *, plain: bool) -> list[object]:
    """Let two sequences draw these answers. Return what can be seen after every step."""
    pool = BlockPool(32, 4)
    ledger = Ledger(pool, PureAttention(pool), age_bound=8)
    seqs = [
        make_sequence(i, prompt=(i, 1, 2), max_tokens=9, stop_ids=frozenset({7}), guide=guide)
        for i, guide in enumerate([None, EndsWithEight()])
    ]
    for seq in seqs:
        ledger.enqueue(seq)
        ledger.start(seq, pool.admit(seq.chain, 20))
        seq.num_computed = 2
    seen: list[object] = []
    for drawn in zip(*answers, strict=True):
        live = [seq for seq in seqs if seq.finish_reason is None]
        if not live:
            break
        for seq in live:
            seq.num_scheduled = 1
        rows = tuple(Row(s, s.running_table(), s.num_computed, (s.chain.last,), 0, 1) for s in live)
        step = Step(1, (), PlainRows.of(rows) if plain else rows, 0, 0.0)
        ledger.settle(step, StepOutcome(tuple((drawn[seq.index],) for seq in live)))
        pool.check()
        state = [(s.num_tokens, s.num_computed, s.num_scheduled, s.finish_reason, list(s.chain.view())) for s in seqs]
        seen.append((state, [*ledger.events], sorted(pool.index), pool.num_free))
    return seen
