"""Every deliberate bug is detected within fifty seeds, by the law that is meant for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.mutants import Mutant
from tests.simulation import control_mutants, mutants, shadow_mutants
from tests.simulation.run import run_script
from tests.simulation.script import draw
from tests.simulation.shrink import law_of

MOST_SEEDS = 50
FIRST_SEEDS = {
    "failures of others do not count": 100,
    "flaps": 100,
    "shadows without a budget": 50,
    "a first token may come any time": 100,
    "a shadow keeps its slot": 450,
    "relaxes at the first calm": 400,
    "expired work runs": 100,
    "a request without a token in time runs on": 150,
    "a first token is waited for to the end": 150,
}
"""The first seed for bugs that rarely show. For the others it is 0."""
SEEN_AT = {
    "a cancel goes nowhere": 19,
    "a first token is waited for to the end": 171,
    "a first token may come any time": 117,
    "a floor without effect": 47,
    "an unbounded queue": 10,
    "a shadow keeps its slot": 456,
    "a shadow stays behind": 30,
    "a shadow's text reaches the caller": 25,
    "relaxes at the first calm": 414,
    "back below the floor": 25,
    "back without a trial": 25,
    "expired work runs": 133,
    "flaps": 145,
    "failures of others do not count": 114,
    "a poisonous request is tried everywhere": 17,
    "shadows without a budget": 74,
    "unlimited shadows": 30,
    "a request without a token in time runs on": 169,
}
"""The seed to try first. If it no longer shows the bug, all fifty are tried."""
OF_VERDICTS = (
    *control_mutants.IN_THE_CORRECTNESS_BREAKER,
    *shadow_mutants.IN_SHADOWS,
    *control_mutants.IN_ESCALATION,
)
"""Bugs that show only where answers are judged. Other seeds are not run for them."""
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
PROVEN_FILES = ("correctness", "escalation", "shadow", "dispatch")
"""Every law stated in these files has a bug that breaks only this law."""
UNPROVEN: frozenset[str] = frozenset()
"""Laws that no bug breaks alone. docs/simulation.md must name them."""


def test_the_docs_state_the_number_of_mistakes() -> None:
    assert len(ALL) == 73
    assert "73 deliberate bugs" in (ROOT / "docs" / "simulation.md").read_text()


def test_every_law_about_verdicts_has_a_mistake_that_breaks_it() -> None:
    stated = {law for name in PROVEN_FILES for law in laws_stated_in(Path(__file__).parent / "laws" / f"{name}.py")}
    proven = {mutant.laws[0] for mutant in OF_VERDICTS if len(mutant.laws) == 1}
    assert len(stated) > len(PROVEN_FILES) and stated - proven == UNPROVEN
    document = " ".join((ROOT / "docs" / "simulation.md").read_text().split())
    assert [law for law in UNPROVEN if law not in document] == []


def laws_stated_in(path: Path) -> Iterator[str]:
    """Yield the texts of the laws that a file checks with `require`. A text is a literal, or is assigned to the
    variable `law` first."""
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


def test_the_seed_to_try_first_is_one_of_the_fifty() -> None:
    assert SEEN_AT.keys() <= {mutant.name for mutant in ALL}
    assert all(0 <= seed - FIRST_SEEDS.get(name, 0) < MOST_SEEDS for name, seed in SEEN_AT.items())


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_law_catches_the_mistake(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    first = FIRST_SEEDS.get(mutant.name, 0)
    seeds = sorted(range(first, first + MOST_SEEDS), key=lambda seed: seed != SEEN_AT.get(mutant.name))
    scripts = map(draw, seeds)
    worth = (script for script in scripts if script.setup.judged or mutant not in OF_VERDICTS)
    broken = next((broken for script in worth if (broken := run_script(script).broken)), "")
    assert law_of(broken) in mutant.laws, broken
