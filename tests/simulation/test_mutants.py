"""A law that nothing can break is worth nothing: every mistake planted on purpose shows within fifty seeds."""

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


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mistake_shows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    assert any(live(draw(seed)).broken for seed in range(MOST_SEEDS))
