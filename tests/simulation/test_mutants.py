"""A law that nothing can break is worth nothing: every mistake planted on purpose shows within fifty seeds,
by the law that is there for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.simulation.draw import draw
from bench.simulation.run import live
from bench.simulation.shrink import law_of
from tests.laws.mutants import Mutant
from tests.simulation import control_mutants, mutants, shadow_mutants

MOST_SEEDS = 50
FIRST_SEEDS = {
    "nobody else counts": 100,
    "flaps": 100,
    "shadows without a budget": 50,
    "a shadow keeps its seat": 100,
    "who has no token in time runs on": 150,
    "a first token is waited for to the end": 150,
}
"""Not 0: what they do is seldom seen."""
OF_VERDICTS = (
    *control_mutants.IN_THE_CORRECTNESS_BREAKER,
    *shadow_mutants.IN_SHADOWS,
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

ROOT = Path(__file__).parents[2]
PROVEN_FILES = ("correctness_laws", "ladder_laws", "shadow_laws", "way_laws")
"""Every law that they state has a mistake that breaks it, and it alone."""
UNPROVEN: frozenset[str] = frozenset()
"""But for these: nobody should rely on them."""


def test_the_document_counts_them_right() -> None:
    assert len(ALL) == 73
    assert "Seventy-three mistakes" in (ROOT / "docs" / "simulation.md").read_text()


def test_every_law_about_verdicts_has_a_mistake_that_breaks_it() -> None:
    stated = {law for name in PROVEN_FILES for law in laws_stated_in(ROOT / "bench" / "simulation" / f"{name}.py")}
    proven = {mutant.laws[0] for mutant in OF_VERDICTS if len(mutant.laws) == 1}
    assert len(stated) > len(PROVEN_FILES) and stated - proven == UNPROVEN
    document = " ".join((ROOT / "docs" / "simulation.md").read_text().split())
    assert [law for law in UNPROVEN if law not in document] == []


def laws_stated_in(path: Path) -> Iterator[str]:
    """What is required there: in words, or by the name of `law`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("require"):
            said = node.args[1]
            assert isinstance(said, ast.Constant) or ast.unparse(said) == "law", ast.unparse(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "law":
            said = node.value
            assert isinstance(said, ast.Constant), ast.unparse(node)
        else:
            continue
        if isinstance(said, ast.Constant):
            yield str(said.value)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mistake_shows(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    first = FIRST_SEEDS.get(mutant.name, 0)
    scripts = (draw(seed) for seed in range(first, first + MOST_SEEDS))
    worth = (script for script in scripts if script.setup.judged or mutant not in OF_VERDICTS)
    broken = next((broken for script in worth if (broken := live(script).broken)), "")
    assert law_of(broken) in mutant.laws, broken
