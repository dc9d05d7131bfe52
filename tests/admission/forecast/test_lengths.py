"""Estimates of answer length, from answers that ended by themselves and answers that were cut at their limit."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.lengths import AnswerLengths

ended = st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=80)


@given(ended, st.integers(1, 400), st.integers(0, 399))
@settings(deadline=None)
def test_an_estimate_is_between_the_tokens_so_far_and_the_limit(
    answers: list[tuple[int, bool]], most: int, so_far: int
) -> None:
    so_far = min(so_far, most - 1)
    lengths = AnswerLengths()
    for length, cut in answers:
        lengths.add(length, cut=cut)
    mean, long = lengths.mean(most, so_far), lengths.long(most, so_far)
    assert so_far - 1e-6 <= mean <= most
    assert so_far <= long <= most
    assert lengths.mean(most + 10, so_far) >= mean - 1e-6, "a higher limit must not shorten the estimate"
    assert lengths.long(most, so_far, 0.99) >= long, "a larger share of answers must not be shorter"


@given(st.lists(st.integers(1, 60), min_size=8, max_size=16), st.integers(0, 70), st.sampled_from((0.5, 0.9, 0.99)))
@settings(deadline=None)
def test_a_share_of_the_complete_answers_is_no_longer(ends: list[int], so_far: int, share: float) -> None:
    lengths = AnswerLengths()
    for length in ends:
        lengths.add(length, cut=False)
    longer = [length for length in ends if length > so_far]
    found = lengths.long(200, so_far, share)
    if not longer:
        assert found == 200, "an answer that is longer than all may have any length"
        return
    for length in (found, found - 1):
        is_enough = sum(each > length for each in longer) <= (1 - share) * len(longer) + 1e-9
        assert is_enough or (length < found and length >= so_far), length
    tail = so_far + round(so_far / 2) if len(longer) < 8 else 0
    assert found in {*longer, tail}


def test_without_history_the_estimated_rest_is_modest() -> None:
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.add(50, cut=True)
    assert not lengths.known and 16 <= lengths.mean(1024) == lengths.long(1024) <= 128
    assert lengths.mean(10) == lengths.long(10) == 10
    assert lengths.mean(1024, so_far=500) > 500


@given(st.lists(st.integers(1, 39), min_size=300, max_size=600))
@settings(deadline=None, max_examples=8)
def test_short_limits_do_not_replace_learnt_lengths(cuts: list[int]) -> None:
    lengths = AnswerLengths()
    for _ in range(50):
        lengths.add(40, cut=False)
    for length in cuts:
        lengths.add(length, cut=True)
    assert lengths.mean(1024) == lengths.long(1024) == 40
    for _ in range(300):
        lengths.add(45, cut=True)
    assert lengths.known, "cut answers must not evict the answers that ended by themselves"


def test_estimates_follow_answers_that_ended_on_their_own() -> None:
    lengths, rng = AnswerLengths(), Random(3)
    for _ in range(256):
        lengths.add(rng.randrange(10, 31), cut=False)
    assert 18 < lengths.mean(256) < 22
    assert 27 <= lengths.long(256) <= 30
    assert lengths.mean(15) < 15 and lengths.long(15) == 15
    assert 25 < lengths.mean(256, so_far=24) < 30, (
        "an answer that is already long must not be expected to end at the mean"
    )


def test_what_was_cut_would_have_been_longer() -> None:
    """Without a limit, every answer would have 10 or 100 tokens. Half of the callers allow only 20."""
    lengths, rng = AnswerLengths(), Random(5)
    for _ in range(400):
        natural, most = rng.choice([10, 100]), rng.choice([20, 200])
        lengths.add(min(natural, most), cut=natural > most)
    assert 45 < lengths.mean(200) < 65
    assert lengths.long(200) == 100
