"""Sampling of the next token: each filter equals its definition, and every draw depends only on its seed."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, log, nan
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specialist.ops.reference import sampling
from specialist.ops.reference.sampling import (
    Candidates,
    SampledToken,
    SampleRow,
    adjust_logits,
    draw_token,
    sample,
    select_candidates,
    uniform,
)
from specialist.scheduling.sequence import GREEDY, Sampling
from specialist.scheduling.step import RowFault
from tests.later import Later
from tests.ops.naive_sampling import naive_adjusted, naive_probabilities, softmax

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

VOCAB = 11
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
MASSES = (0.0137, 0.31, 0.618, 0.8731, 0.951, 1.0)  # These masses are not sums of a few equal shares.

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from((0.31, 0.7, 1.0, 1.9)),
    top_k=st.sampled_from((0, 1, 2, 5, VOCAB, 99)),
    top_p=st.sampled_from(MASSES),
    min_p=st.sampled_from((0.0, 0.037, 0.41, 1.0)),
    typical_p=st.sampled_from(MASSES),
    repetition_penalty=st.sampled_from((1.0, 1.3, 0.6)),
    presence_penalty=st.sampled_from((0.0, 0.53, -1.1)),
    frequency_penalty=st.sampled_from((0.0, 0.29, -0.4)),
    logit_bias=st.lists(st.tuples(st.integers(0, VOCAB - 1), st.sampled_from((-3.7, 0.9, 5.1))), max_size=3).map(tuple),
    min_tokens=st.integers(0, 4),
)
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@st.composite
def rows(draw: st.DrawFn) -> SampleRow:
    seen = draw(tokens)
    stop_ids = draw(st.frozensets(st.integers(0, VOCAB - 1), max_size=3))
    num_prompt = draw(st.integers(0, len(seen)))
    return SampleRow(draw(samplings), draw(st.integers(-(2**70), 2**70)), array("I", seen), num_prompt, stop_ids)


grid = st.integers(-9 << 10, 9 << 10).map(lambda value: value / (1 << 10))
"""Logits that are equal or differ by more than a rounding error, because near ties may be ranked either way."""

logit_lists = st.lists(
    st.one_of(grid, st.sampled_from((0.0, 1.5, -2.25)), st.just(-inf)),
    min_size=VOCAB,
    max_size=VOCAB,
).filter(lambda values: sum(value > -inf for value in values) > 3)


def row(seed: int = 0, seen: tuple[int, ...] = (), num_prompt: int = 0, **want: float) -> SampleRow:
    return SampleRow(Sampling(**want), seed, array("I", seen), num_prompt)  # type: ignore[arg-type]


def distribution(logits: Tensor, one: SampleRow) -> dict[int, float]:
    found = select_candidates(adjust_logits(logits, one), one.sampling)
    shares = zip(found.ids.tolist(), found.scores.exp().tolist(), strict=True)
    return {token: share for token, share in shares if share > 0}


@settings(max_examples=max(120, settings().max_examples))
@given(logit_lists, rows())
def test_all_filters_together_are_their_definitions(values: list[float], one: SampleRow) -> None:
    expected = naive_probabilities(torch.tensor(values).tolist(), one)
    assert distribution(torch.tensor(values), one) == pytest.approx(expected, abs=1e-4)


@given(logit_lists, rows())
def test_a_token_that_is_not_a_candidate_is_never_drawn(values: list[float], one: SampleRow) -> None:
    allowed = naive_probabilities(torch.tensor(values).tolist(), one)
    for drawn in sample(torch.tensor([values] * 8), [one._replace(seed=seed) for seed in range(8)]):
        assert isinstance(drawn, SampledToken)
        assert drawn.token in allowed


@given(logit_lists, rows())
def test_temperature_0_takes_the_lowest_id_of_the_largest_adjusted_logit(values: list[float], one: SampleRow) -> None:
    one = one._replace(sampling=replace(one.sampling, temperature=0.0))
    expected = adjust_logits(torch.tensor(values), one).tolist()
    assert expected == pytest.approx(naive_adjusted(torch.tensor(values).tolist(), one), abs=1e-4)
    assert sample(torch.tensor([values]), [one]) == [SampledToken(expected.index(max(expected)), None)]


@given(logit_lists, st.sampled_from(MASSES[:-1]))
def test_each_filter_is_the_one_of_transformers(values: list[float], mass: float) -> None:
    scores = torch.tensor([values], dtype=torch.float64)
    for want, warper in (
        (Sampling(temperature=1.0, top_k=4), transformers.TopKLogitsWarper(4)),
        (Sampling(temperature=1.0, typical_p=mass), transformers.TypicalLogitsWarper(mass)),
        (Sampling(temperature=1.0, min_p=mass), transformers.MinPLogitsWarper(mass)),
    ):
        warped = warper(torch.LongTensor([[0]]), scores)  # type: ignore[arg-type]
        expected = dict(enumerate(warped.softmax(1)[0].tolist()))
        got = distribution(torch.tensor(values), SampleRow(want, 0, (), 0))
        assert got == pytest.approx({token: share for token, share in expected.items() if share > 0})


apart = st.lists(st.integers(-9 << 10, 9 << 10), min_size=VOCAB, max_size=VOCAB, unique=True).map(
    lambda values: [value / (1 << 10) for value in values]
)
"""Logits with clearly different probabilities. Tiny probabilities such as 1e-35 and 1e-36 could tie."""


@given(apart, st.sampled_from(MASSES[:-1]))
def test_top_p_is_the_one_of_transformers_where_nothing_ties(values: list[float], mass: float) -> None:
    warped = transformers.TopPLogitsWarper(mass)(torch.tensor([[0]]), torch.tensor([values], dtype=torch.float64))
    expected = {token: share for token, share in enumerate(warped.softmax(1)[0].tolist()) if share > 0}
    assert distribution(torch.tensor(values), row(temperature=1.0, top_p=mass)) == pytest.approx(expected)


@given(logit_lists, tokens.filter(len), st.sampled_from((0.5, 1.3)))
def test_the_repetition_penalty_is_the_one_of_transformers(
    values: list[float], seen: list[int], penalty: float
) -> None:
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), torch.tensor([values]))
    one = SampleRow(Sampling(repetition_penalty=penalty), 0, seen, 0)
    assert torch.equal(adjust_logits(torch.tensor(values), one), expected[0])


def test_among_ties_top_p_keeps_the_lower_ids() -> None:
    assert distribution(torch.zeros(8), row(temperature=1.0, top_p=0.3)) == pytest.approx(
        {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    )


def test_top_p_is_reached_by_exactly_as_much() -> None:
    assert distribution(torch.zeros(2), row(temperature=1.0, top_p=0.5)) == {0: 1.0}


def test_the_smallest_number_does_not_draw_what_cannot_be_drawn() -> None:
    assert draw_token(Candidates(torch.tensor([-inf, 0.0, -inf]), torch.tensor([4, 5, 6])), 0.0).tolist() == [5]


@pytest.mark.parametrize(
    "want",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6, top_k=4),
        Sampling(temperature=1.3, top_p=0.8731),
        Sampling(temperature=1.0, typical_p=0.618, min_p=0.037),
        Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.53, logit_bias=((3, 0.9),)),
    ],
)
def test_over_many_seeds_tokens_come_as_often_as_they_are_likely(want: Sampling) -> None:
    logits = torch.linspace(-2.0, 2.0, VOCAB).sin() * 2
    one = SampleRow(want, 0, array("I", (1, 3, 3, 7)), 2)
    expected = naive_probabilities(logits.tolist(), one)
    num_draws = 3000
    drawn = sample(logits.expand(num_draws, -1), [one._replace(seed=seed) for seed in range(num_draws)])
    counts = Counter(one.token for one in drawn if isinstance(one, SampledToken))
    assert counts.total() == num_draws
    assert counts.keys() <= expected.keys()
    surplus = sum((counts[token] - num_draws * p) ** 2 / (num_draws * p) for token, p in expected.items())
    # Chi-square with 10 degrees of freedom: a larger value has a probability of one in ten thousand.
    assert surplus < 35.6


def test_the_uniform_number_is_a_function_of_seed_and_position() -> None:
    numbers = [uniform(seed, position) for seed in range(-50, 50) for position in range(50)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    tenths = Counter(int(number * 10) for number in numbers)
    assert all(400 < tenths[tenth] < 600 for tenth in range(10))


@given(st.lists(st.tuples(logit_lists, rows()), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_row_depends_on_its_own_settings_only(batch: list[tuple[list[float], SampleRow]], order: object) -> None:
    batch = [(values, one._replace(sampling=replace(one.sampling, num_logprobs=3))) for values, one in batch]
    logits = torch.tensor([values for values, _ in batch])
    alone = [sample(torch.tensor([values]), [one])[0] for values, one in batch]
    assert sample(logits, [one for _, one in batch]) == alone
    assert sample(logits.flip(0), [one for _, one in reversed(batch)]) == alone[::-1]


@pytest.mark.parametrize("vocab", [49_157, 32_000])
def test_draws_are_equal_over_a_whole_vocabulary(vocab: int) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(7)) * 4
    wants = [GREEDY, *(Sampling(temperature=1.0, top_p=p, num_logprobs=2) for p in (0.5, 0.99, 1.0))]
    wants += [Sampling(temperature=0.7, top_k=50, min_p=0.01), Sampling(temperature=1.0, typical_p=0.9)]
    batch = [SampleRow(want, 5, range(100), 50) for want in wants]
    assert sample(logits, batch) == [sample(logits[i : i + 1].clone(), [one])[0] for i, one in enumerate(batch)]


@pytest.mark.parametrize("device", DEVICES)
@given(batch=st.lists(st.tuples(logit_lists, rows()), min_size=1, max_size=4))
def test_a_device_that_must_not_sync_draws_the_same(device: str, batch: list[tuple[list[float], SampleRow]]) -> None:
    logits = torch.tensor([values for values, _ in batch])
    asked = [one for _, one in batch]
    expected = sample(logits, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "is_on_cpu", lambda _: False)
        assert sample(logits.to(device), asked) == expected


@pytest.mark.parametrize("syncs", [True, False])
@pytest.mark.parametrize("want", [GREEDY, Sampling(temperature=1.0, top_p=0.9, typical_p=0.9, num_logprobs=2)])
@pytest.mark.parametrize("bad", [(nan, 1.0), (1.0, nan), (inf, 1.0), (-inf, -inf), (nan, inf), (-inf, nan)])
def test_faulty_row_harms_no_other_row(bad: tuple[float, float], want: Sampling, syncs: bool) -> None:
    good = [0.5, 1.5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "is_on_cpu", lambda _: syncs)
        got = sample(torch.tensor([good, list(bad), good]), [SampleRow(want, 3, (0,), 1)] * 3)
        alone = sample(torch.tensor([good]), [SampleRow(want, 3, (0,), 1)])[0]
    assert isinstance(got[1], RowFault)
    assert "not usable" in got[1].error
    assert got[0] == got[2] == alone


def test_stop_tokens_are_banned_until_enough_are_generated() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    one = SampleRow(Sampling(min_tokens=2), 0, array("I", (1, 1, 1)), 2, frozenset({1}))
    assert sample(logits, [one]) == [SampledToken(2, None)]
    assert sample(logits, [one._replace(num_prompt=1)]) == [SampledToken(1, None)]
    (fault,) = sample(logits, [one._replace(stop_ids=frozenset({0, 1, 2}))])
    assert isinstance(fault, RowFault)
    assert "no token to draw" in fault.error


@pytest.mark.parametrize(
    "one",
    [
        SampleRow(Sampling(logit_bias=((7, 1.0),)), 0, (), 0),
        SampleRow(Sampling(repetition_penalty=1.1), 0, array("I", (2**32 - 1,)), 0),
        SampleRow(Sampling(presence_penalty=1.1), 0, (-1,), 0),
        SampleRow(Sampling(min_tokens=1), 0, (), 0, frozenset({3})),
    ],
)
def test_a_token_outside_the_vocabulary_is_that_rows_fault(one: SampleRow) -> None:
    fault, good = sample(torch.tensor([[0.0, 1.0, 2.0]] * 2), [one, row(temperature=1.0, top_k=1)])
    assert isinstance(fault, RowFault)
    assert "token ids must be in [0, 3)" in fault.error
    assert good == SampledToken(2, None)


@given(logit_lists, rows(), st.integers(0, VOCAB + 2))
def test_log_probabilities_are_the_models_own(values: list[float], one: SampleRow, count: int) -> None:
    one = one._replace(sampling=replace(one.sampling, num_logprobs=count))
    (drawn,) = sample(torch.tensor([values]), [one])
    assert isinstance(drawn, SampledToken)
    assert drawn.logprobs is not None
    shares = softmax({token: value for token, value in enumerate(values) if value > -inf})
    expected = [log(shares[token]) if shares.get(token) else -inf for token in range(VOCAB)]
    ranked = sorted(range(VOCAB), key=lambda token: (-values[token], token))
    assert drawn.logprobs.chosen == pytest.approx(expected[drawn.token], abs=1e-5)
    assert [token for token, _ in drawn.logprobs.top] == ranked[:count]
    assert [p for _, p in drawn.logprobs.top] == pytest.approx([expected[token] for token in ranked[:count]], abs=1e-5)


def test_the_logits_and_the_tokens_are_left_as_they_are() -> None:
    logits, seen = torch.randn(2, VOCAB), array("I", (1, 2))
    before = logits.clone()
    want = Sampling(temperature=1.0, top_k=3, repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((1, 2.0),))
    sample(logits, [SampleRow(want, 0, seen, 1)] * 2)
    assert torch.equal(logits, before)
    seen.append(3)  # `append` raises BufferError while a view of the array exists.


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, VOCAB), []) == []


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize("want", [{}, {"top_p": 0.5}, {"typical_p": 0.5}, {"min_p": 0.1}, {"top_k": 3}])
def test_no_temperature_breaks_a_draw(temperature: float, want: dict[str, Any]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 50) * 10
    row = SampleRow(Sampling(temperature=temperature, **want), 7, (1, 2), 2)
    (drawn,) = sample(logits, [row])
    assert isinstance(drawn, SampledToken)
    if temperature < 1:
        assert drawn.token == int(logits.argmax())


class FixedGuide:
    """A guide that allows only these tokens, whatever has been generated."""

    def __init__(self, *tokens: int, vocab: int = VOCAB) -> None:
        self.tokens = tokens
        self.vocab = vocab

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        bits = sum(1 << token for token in self.tokens)
        return None if guessed else bits.to_bytes((self.vocab + 31) // 32 * 4, "little")

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return not guessed and token in self.tokens

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        return False


@pytest.mark.parametrize("device", DEVICES)
def test_a_guide_comes_before_everything_else_and_leaves_the_log_probabilities(device: str) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)).to(device)
    want = Sampling(temperature=1.0, top_k=2, logit_bias=((3, 100.0),), num_logprobs=VOCAB)
    drawn = set()
    for seed in range(50):
        plain, guided = (
            sample(logits, [SampleRow(want, seed, (), 0, frozenset(), guide)])[0] for guide in (None, FixedGuide(1, 2))
        )
        assert isinstance(plain, SampledToken) and isinstance(guided, SampledToken)
        assert plain.token == 3 and plain.logprobs is not None and guided.logprobs is not None
        assert guided.logprobs.top == plain.logprobs.top
        assert guided.logprobs.chosen == dict(plain.logprobs.top)[guided.token]
        drawn.add(guided.token)
    assert drawn == {1, 2}


def test_a_stop_token_is_banned_until_the_least_length_unless_nothing_else_fits() -> None:
    logits = torch.zeros(1, VOCAB)
    want = Sampling(min_tokens=5, logit_bias=((0, 50.0),))
    for allowed, token in (((0, 4), 4), ((0,), 0)):
        [drawn] = sample(logits, [SampleRow(want, 0, (1, 2), 1, frozenset({0}), FixedGuide(*allowed))])
        assert isinstance(drawn, SampledToken) and drawn.token == token


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_without_an_allowed_token_fails_alone(device: str) -> None:
    logits = torch.zeros(3, VOCAB, device=device)
    row = SampleRow(Sampling(), 0, (), 0)
    lost, fine, guessed = sample(
        logits, [row._replace(guide=FixedGuide()), row, row._replace(tokens=(1,), num_guessed=1, guide=FixedGuide())]
    )
    assert isinstance(lost, RowFault) and isinstance(fine, SampledToken) and isinstance(guessed, SampledToken)
