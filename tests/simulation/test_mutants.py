"""A law that nothing can break is worth nothing: every mistake planted on purpose shows within fifty seeds,
by the law that is there for it."""

from pathlib import Path

import pytest

from bench.simulation.draw import draw
from bench.simulation.run import live
from bench.simulation.shrink import law_of
from tests.laws.mutants import Mutant
from tests.simulation import control_mutants, mutants

MOST_SEEDS = 50
FIRST_SEEDS = {
    "nobody else counts": 100,
    "a step before the last was felt": 50,
    "a floor that nobody keeps": 50,
    "a shadow keeps its seat": 100,
}
"""Not 0: what they do is seldom seen."""
OF_VERDICTS = (
    *control_mutants.IN_THE_CORRECTNESS_BREAKER,
    *control_mutants.IN_SHADOWS,
    *control_mutants.IN_ESCALATION,
)
"""They show where answers are judged, and other seeds need not be lived through."""
ALL = (
    *mutants.IN_THE_POOL,
    *mutants.IN_THE_SCHEDULER,
    *mutants.IN_THE_BREAKER,
    *mutants.IN_ADMISSION,
    *mutants.IN_THE_ROUTER,
    *mutants.IN_THE_STORE,
    *OF_VERDICTS,
)


def test_the_document_counts_them_right() -> None:
    assert len(ALL) == 57
    assert "Fifty-seven mistakes" in (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mistake_shows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    first = FIRST_SEEDS.get(mutant.name, 0)
    scripts = (draw(seed) for seed in range(first, first + MOST_SEEDS))
    worth = (script for script in scripts if script.setup.judged or mutant not in OF_VERDICTS)
    broken = next((broken for script in worth if (broken := live(script).broken)), "")
    assert law_of(broken) in mutant.laws, broken
