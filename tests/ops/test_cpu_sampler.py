"""The C++ sampler draws the same tokens as the reference, for any settings."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specialist.ops.cpu.sampling import FusedSampler
from specialist.ops.reference.sampling import SampledToken, SampleRow, sample
from specialist.scheduling.sequence import GREEDY, Sampling
from tests.native.fused import kernels
from tests.ops.test_sampling import VOCAB, FixedGuide, logit_lists, rows

fused = FusedSampler(kernels())
guides = st.one_of(st.none(), st.lists(st.integers(0, VOCAB - 1)).map(lambda tokens: FixedGuide(*set(tokens))))


@st.composite
def guided(draw: st.DrawFn) -> SampleRow:
    one = draw(rows())
    want = replace(
        one.sampling,
        temperature=draw(st.sampled_from((0.0, 0.7, 1.9))),
        num_logprobs=draw(st.sampled_from((None, 0, 3))),
    )
    return one._replace(sampling=want, guide=draw(guides))


@settings(max_examples=max(80, settings().max_examples))
@given(st.lists(st.tuples(logit_lists, guided()), max_size=4))
def test_it_draws_what_the_reference_draws(batch: list[tuple[list[float], SampleRow]]) -> None:
    logits = torch.tensor([values for values, _ in batch]).reshape(-1, VOCAB)
    before = logits.clone()
    asked = [one for _, one in batch]
    assert fused(logits, asked) == sample(logits, asked)
    assert torch.equal(logits, before)


WANTS = [
    Sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition)
    for temperature, top_k, top_p, min_p, repetition in product(
        (0.3, 1.0, 1.7), (0, 1, 40, 1000), (1.0, 0.95, 0.3), (0.0, 0.03), (1.0, 1.1)
    )
]


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 60.0])
@pytest.mark.parametrize(
    ("vocab", "every_nth"),
    [(4_099, 1), (49_152, 5), pytest.param(49_152, 1, marks=pytest.mark.slow)],  # the reference sorts every row
)
def test_draws_are_equal_over_a_whole_vocabulary(vocab: int, every_nth: int, spread: float) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    asked = [SampleRow(want, seed, array("I", range(200)), 50) for seed, want in enumerate(WANTS[::every_nth])]
    every = logits.expand(len(asked), -1)
    assert fused(every, asked) == sample(every, asked)


@pytest.mark.parametrize("want", [GREEDY, Sampling(temperature=1.0, top_p=0.9), Sampling(temperature=1.0, top_k=2)])
@pytest.mark.parametrize("length", [2, 40])
def test_faulty_row_harms_no_other_row(want: Sampling, length: int) -> None:
    good = [0.5, 1.5, *[0.25] * (length - 2)]
    bad = [nan, inf, -inf]
    logits = torch.tensor([good, *([*good[:-1], value] for value in bad), [-inf] * length, good])
    asked = [SampleRow(want, 3, (0,), 1)] * len(logits)
    assert fused(logits, asked) == sample(logits, asked)


@pytest.mark.parametrize(
    "one",
    [
        SampleRow(Sampling(logit_bias=((VOCAB, 1.0),)), 0, (), 0),
        SampleRow(Sampling(repetition_penalty=1.1), 0, array("I", (2**32 - 1,)), 0),
        SampleRow(Sampling(presence_penalty=1.1), 0, (-1,), 0),
        SampleRow(Sampling(min_tokens=1), 0, (), 0, frozenset({VOCAB})),
        SampleRow(Sampling(min_tokens=1), 0, (), 0, frozenset({VOCAB}), FixedGuide(1)),
    ],
)
def test_a_token_outside_the_vocabulary_is_that_rows_fault(one: SampleRow) -> None:
    logits = torch.zeros(2, VOCAB)
    got = fused(logits, [one, SampleRow(GREEDY, 0, (), 0)])
    assert got == sample(logits, [one, SampleRow(GREEDY, 0, (), 0)])
    assert got[1] == SampledToken(0, None)


class BrokenGuide(FixedGuide):
    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        raise ValueError("broken")


def test_a_mask_is_computed_only_if_the_likeliest_token_does_not_fit() -> None:
    class CountingGuide(FixedGuide):
        asked = 0

        def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
            self.asked += 1
            return super().allowed(generated, guessed)

    logits = torch.tensor([[float(token) for token in range(VOCAB)]])
    row = SampleRow(GREEDY, 0, (), 0)
    fits, fits_not, broken = CountingGuide(3, VOCAB - 1), CountingGuide(3), BrokenGuide(3)
    for guide, token in ((fits, VOCAB - 1), (fits_not, 3), (broken, 3)):
        assert fused(logits, [row._replace(guide=guide)]) == [SampledToken(token, None)]
    assert (fits.asked, fits_not.asked) == (0, 1)


class ShortGuide(FixedGuide):
    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        return b"\xff"

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return False


def test_a_mask_that_ends_before_the_vocabulary_is_that_rows_fault() -> None:
    row = SampleRow(GREEDY, 0, (), 0)
    for draw_tokens in (fused, sample):
        [lost, fine] = draw_tokens(torch.zeros(2, VOCAB), [row._replace(guide=ShortGuide()), row])
        assert "for 11 tokens" in str(lost) and fine == SampledToken(0, None)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize("want", [{}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3}])
def test_no_temperature_breaks_a_draw(temperature: float, want: dict[str, float]) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 10
    row = SampleRow(Sampling(temperature=temperature, **want), 7, (1, 2), 2)  # type: ignore[arg-type]
    assert fused(logits, [row]) == sample(logits, [row])
