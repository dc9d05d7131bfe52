"""Draws from a changed distribution on a GPU equal those of the reference, and do not depend on other rows."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from specialist.ops.reference.sampling import SampleRow, adjust_logits, pick_by_cumulative, select_candidates, uniform
from specialist.scheduling.sequence import Sampling
from tests.native.device import DEVICE

pytest.importorskip("triton")

from specialist.engines.native.gpu_shaping import Shaper
from specialist.engines.native.shaped_draw import Shaped
from tests.ops.test_gpu_kernels import ON_GPU  # skips without a GPU or an interpreter

VOCAB = 9_001 if ON_GPU else 4_200
CASES: dict[str, Sampling] = {
    "top-p": Sampling(0.8, top_p=0.9),
    "narrow top-p": Sampling(1.3, top_p=0.03),
    "top-k": Sampling(1.0, top_k=7),
    "wide top-k": Sampling(0.5, top_k=5_000),
    "top-k above the vocabulary": Sampling(0.5, top_k=VOCAB + 1),
    "min-p": Sampling(1.5, min_p=0.05),
    "all filters": Sampling(0.9, top_k=60, top_p=0.8, min_p=0.02),
    "penalties": Sampling(0.7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "greedy with penalties": Sampling(0.0, repetition_penalty=1.4, frequency_penalty=0.5),
    "bias": Sampling(1.0, top_p=0.95, logit_bias=((3, 4.0), (4_000, -2.0), (5, 30.0), (3, 1.0))),
    "banned": Sampling(0.3, min_tokens=40, top_p=0.99),
    "default of a task": Sampling(0.6, top_p=0.95, repetition_penalty=1.1),
}


class Masked:
    """Allows every third token."""

    def __init__(self) -> None:
        bits = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
        bits[::3] = 1
        self.bits = np.packbits(bits, bitorder="little").tobytes()

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes:
        return self.bits

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return token % 3 == 0

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        return False


def rows_of(sampling: Sampling, count: int, *, guided: bool = False) -> list[SampleRow]:
    rng = Random(count)
    rows = []
    for seed in range(count):
        known = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 9, 60]))] + [1, 1, 2]
        num_prompt = rng.randrange(len(known))
        stops = frozenset({4, 7, 700})
        rows.append(SampleRow(sampling, seed, array("I", known), num_prompt, stops, Masked() if guided else None))
    return rows


def make_logits(count: int, seed: int = 1) -> Tensor:
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    logits[::4] = logits[::4].bfloat16().float()  # with many ties
    logits[:, 40:60] = -torch.inf
    logits[1, 7] = 20.0
    return logits


def draw(shaper: Shaper, logits: Tensor, rows: list[SampleRow]) -> list[int]:
    return shaper.draw(logits.clone().to(DEVICE), [Shaped.of(row, VOCAB) for row in rows])[0]


def bounds(logits: Tensor, row: SampleRow) -> tuple[int, int]:
    """Return the reference's tokens for uniform numbers that are slightly less and slightly greater."""
    changed = adjust_logits(logits, row)
    if row.sampling.temperature == 0.0:
        return (int(changed.argmax()),) * 2
    found, drawn = select_candidates(changed, row.sampling), uniform(row.seed, len(row.tokens))
    near = [min(max(drawn + by, 0.0), 1.0 - 1e-9) for by in (-2e-5, 2e-5)]
    low, high = (int(found.ids[pick_by_cumulative(found.scores.exp(), each)]) for each in near)
    return low, high


@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
@pytest.mark.parametrize("name", CASES)
def test_draws_equal_the_reference_and_do_not_depend_on_other_rows(name: str, guided: bool) -> None:
    shaper = Shaper(8, VOCAB, DEVICE)
    rows = rows_of(CASES[name], 8 if ON_GPU else 3, guided=guided)
    logits = make_logits(len(rows))
    found = draw(shaper, logits, rows)
    for index, row in enumerate(rows):
        low, high = bounds(logits[index], row)
        assert low <= found[index] <= high, (index, low, found[index], high)
    assert draw(shaper, logits[2:3], rows[2:3]) == found[2:3]
    other = replace(CASES["all filters"], temperature=2.0)
    mixed = [row._replace(sampling=other) if index % 2 else row for index, row in enumerate(rows)]
    assert draw(shaper, logits, mixed)[::2] == found[::2]


def test_a_row_without_a_token_left_is_reported() -> None:
    shaper = Shaper(8, VOCAB, DEVICE)
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, 1] = 1.0
    guided, other = rows_of(Sampling(1.0, top_p=0.9), 2, guided=True)
    rows = [Shaped.of(row, VOCAB) for row in (guided, other._replace(guide=None))]
    _, peaks = shaper.draw(logits.to(DEVICE), rows)
    assert peaks == [-torch.inf, 1.0]
