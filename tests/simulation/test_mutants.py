"""A law that nothing can break is worth nothing: every mistake planted on purpose shows within fifty seeds."""

from pathlib import Path

import pytest

from bench.simulation.draw import draw
from bench.simulation.run import live
from tests.laws.mutants import Mutant
from tests.simulation import mutants

MOST_SEEDS = 50
ALL = (
    *mutants.IN_THE_POOL,
    *mutants.IN_THE_SCHEDULER,
    *mutants.IN_THE_BREAKER,
    *mutants.IN_ADMISSION,
    *mutants.IN_THE_ROUTER,
)


def test_the_document_counts_them_right() -> None:
    assert len(ALL) == 32
    assert "Thirty-two mistakes" in (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mistake_shows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    assert any(live(draw(seed)).broken for seed in range(MOST_SEEDS))
