"""A seed that breaks a law is reported as the shortest script that breaks it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.mutants import IN_THE_ROUTER
from tests.simulation.run import RunResult, run_script
from tests.simulation.script import Script, ScriptedFault, ScriptedRequest, Setup, draw
from tests.simulation.shrink import Shrinker, law_of

LAW = "a law: about this and that"


def run_if(breaks: Callable[[Script], bool]) -> Callable[[Script], RunResult]:
    def run(script: Script) -> RunResult:
        return RunResult(script, "", LAW if breaks(script) else "", {}, 0, 0.0)

    return run


def script_of(num_asks: int, num_faults: int) -> Script:
    asks = tuple(ScriptedRequest(number, float(number), "text") for number in range(num_asks))
    faults = tuple(ScriptedFault(float(number), "kill", f"algo-{number}") for number in range(num_faults))
    setup = Setup({"algo": 1, "stl": 1}, fault_rate=0.1, fault_points={"pool.apply": 0.1, "commit.twice": 0.1})
    return Script(0, setup, asks, faults)


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 11), max_size=3),
    st.sets(st.integers(0, 4), max_size=2),
    st.sampled_from([(), ("pool.apply",), ("pool.apply", "commit.twice")]),
)
def test_shrinking_keeps_only_what_breaks_the_law(
    asks: set[int], faults: set[int], fault_points: tuple[str, ...]
) -> None:
    def breaks(script: Script) -> bool:
        return (
            asks <= {ask.number for ask in script.asks}
            and faults <= {int(fault.at) for fault in script.faults}
            and set(fault_points) <= script.setup.fault_points.keys()
        )

    run = run_if(breaks)
    shortest = Shrinker(run(script_of(12, 5)), run=run).shortest()
    assert law_of(shortest.broken) == law_of(LAW)
    assert {ask.number for ask in shortest.script.asks} == asks
    assert {int(fault.at) for fault in shortest.script.faults} == faults
    assert shortest.script.setup.fault_points.keys() == set(fault_points)
    assert not shortest.script.setup.fault_rate


def test_shrinking_keeps_the_same_law() -> None:

    def run(script: Script) -> RunResult:
        return RunResult(script, "", LAW if len(script.asks) >= 4 else "another law: about this", {}, 0, 0.0)

    assert len(Shrinker(run(script_of(12, 0)), run=run).shortest().script.asks) == 4


def test_a_real_mistake_shrinks_to_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = next(mutant for mutant in IN_THE_ROUTER if mutant.name == "the wrong lane")
    lane.plant(monkeypatch)
    result = next(result for result in map(run_script, map(draw, range(10))) if result.broken)
    shortest = Shrinker(result, most_runs=60).shortest()
    assert (len(shortest.script.asks), len(shortest.script.faults)) == (1, 0)
    assert run_script(Script.from_json(shortest.script.to_json())).broken == shortest.broken


@pytest.mark.parametrize("seed", range(20))
def test_a_script_survives_json(seed: int) -> None:
    script = draw(seed)
    assert Script.from_json(script.to_json()) == script
    assert draw(seed) == script and draw(seed + 1) != script
    assert Script.from_json(replace(script, faults=()).to_json()).faults == ()
