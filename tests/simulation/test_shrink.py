"""A seed that breaks a law is told as the shortest script that does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.mutants import IN_THE_ROUTER
from tests.simulation.run import Lived, live
from tests.simulation.script import Asked, Deed, Script, Setup, draw
from tests.simulation.shrink import Shrinker, law_of

LAW = "a law: about this and that"


def lives_if(breaks: Callable[[Script], bool]) -> Callable[[Script], Lived]:
    def lives(script: Script) -> Lived:
        return Lived(script, "", LAW if breaks(script) else "", {}, 0, 0.0)

    return lives


def script_of(num_asks: int, num_deeds: int) -> Script:
    asks = tuple(Asked(number, float(number), "text") for number in range(num_asks))
    deeds = tuple(Deed(float(number), "kill", f"algo-{number}") for number in range(num_deeds))
    setup = Setup({"algo": 1, "stl": 1}, fault_rate=0.1, mishaps={"pool.apply": 0.1, "commit.twice": 0.1})
    return Script(0, setup, asks, deeds)


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 11), max_size=3),
    st.sets(st.integers(0, 4), max_size=2),
    st.sampled_from([(), ("pool.apply",), ("pool.apply", "commit.twice")]),
)
def test_only_what_is_needed_is_left(asks: set[int], deeds: set[int], mishaps: tuple[str, ...]) -> None:
    def breaks(script: Script) -> bool:
        return (
            asks <= {ask.number for ask in script.asks}
            and deeds <= {int(deed.at) for deed in script.deeds}
            and set(mishaps) <= script.setup.mishaps.keys()
        )

    lives = lives_if(breaks)
    shortest = Shrinker(lives(script_of(12, 5)), lives=lives).shortest()
    assert law_of(shortest.broken) == law_of(LAW)
    assert {ask.number for ask in shortest.script.asks} == asks
    assert {int(deed.at) for deed in shortest.script.deeds} == deeds
    assert shortest.script.setup.mishaps.keys() == set(mishaps)
    assert not shortest.script.setup.fault_rate


def test_another_law_is_another_matter() -> None:
    """What breaks something else when it is shortened is not shortened that far."""

    def lives(script: Script) -> Lived:
        return Lived(script, "", LAW if len(script.asks) >= 4 else "another law: about this", {}, 0, 0.0)

    assert len(Shrinker(lives(script_of(12, 0)), lives=lives).shortest().script.asks) == 4


def test_a_real_mistake_comes_down_to_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = next(mutant for mutant in IN_THE_ROUTER if mutant.name == "the wrong lane")
    lane.plant(monkeypatch)
    lived = next(lived for lived in map(live, map(draw, range(10))) if lived.broken)
    shortest = Shrinker(lived, most_runs=60).shortest()
    assert (len(shortest.script.asks), len(shortest.script.deeds)) == (1, 0)
    assert live(Script.from_json(shortest.script.to_json())).broken == shortest.broken


@pytest.mark.parametrize("seed", range(20))
def test_a_script_is_data(seed: int) -> None:
    script = draw(seed)
    assert Script.from_json(script.to_json()) == script
    assert draw(seed) == script and draw(seed + 1) != script
    assert Script.from_json(replace(script, deeds=()).to_json()).deeds == ()
