"""A draft token is accepted if it and all drafts before it equal the sampled tokens."""

from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockTable
from specialist.scheduling.step import Row, accept
from tests.specialist.builders import make_sequence

tokens = st.integers(0, 1)


def verified(context: tuple[int, ...], drafts: tuple[int, ...], sampled: tuple[int, ...]) -> tuple[int, ...]:
    row = Row(make_sequence(1), BlockTable(4), 0, context + drafts, len(drafts), len(sampled))
    return accept(row, sampled)


@given(st.lists(tokens, min_size=1, max_size=3), st.lists(st.tuples(tokens, tokens), max_size=6), tokens)
def test_the_longest_correct_draft_is_accepted_with_one_sample_after_it(
    context: list[int], pairs: list[tuple[int, int]], last: int
) -> None:
    drafts, sampled = tuple(draft for draft, _ in pairs), (*(sample for _, sample in pairs), last)
    right = max(n for n in range(len(drafts) + 1) if drafts[:n] == sampled[:n])
    assert verified(tuple(context), drafts, sampled) == sampled[: right + 1]


def test_a_correct_draft_token_after_a_wrong_one_is_rejected() -> None:
    assert verified((9,), drafts=(1, 2, 3), sampled=(1, 7, 3, 4)) == (1, 7)
