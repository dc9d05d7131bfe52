"""Cache reuse is computed from the growth of the replicas' counters, across restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.v1 import specialist_pb2 as wire
from router.observe.overview.traffic import RECENT_SECONDS, USUAL_SECONDS, CacheReuseTracker

counts = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 50))


def report(prompts: int, hits: int, evicted: int = 0) -> wire.LoadReport:
    return wire.LoadReport(prompt_tokens=prompts, cache_hit_tokens=hits, evicted_blocks=evicted)


@given(counts, st.lists(st.tuples(counts, st.booleans()), max_size=20))
def test_restarts_lose_no_tokens(first: tuple[int, int, int], steps: list[tuple[tuple[int, int, int], bool]]) -> None:
    """All tokens are counted, even if a replica restarts and its counters begin again at a lower value."""
    reuse, reported = CacheReuseTracker(ManualClock()), first
    reuse.sample("debug", "debug-0", report(*reported))
    expected = [0, 0, 0]
    for step, begins_anew in steps:
        if begins_anew and step[0] < reported[0]:
            reported = step
            expected = [sum(pair) for pair in zip(expected, step, strict=True)]
        else:
            reported = (reported[0] + step[0], reported[1] + step[1], reported[2] + step[2])
            expected = [sum(pair) for pair in zip(expected, step, strict=True)]
        reuse.sample("debug", "debug-0", report(*reported))
    found = reuse.recent("debug")
    assert [found.prompt_tokens, found.hit_tokens, found.evicted_blocks] == expected
    assert found.share is None or 0 <= found.share <= 1
    assert (found.share is None) == (expected[0] == 0)


def test_recent_and_usual_reuse_are_separate() -> None:
    clock = ManualClock()
    reuse = CacheReuseTracker(clock)
    for number in range(40):
        reuse.sample("debug", "debug-0", report(1000 * number, 800 * number))
        reuse.sample("debug", "debug-1", report(0, 0))
        clock.sleep(60)
    before = reuse.usual("debug").prompt_tokens
    assert reuse.recent("debug").share == reuse.usual("debug").share == 0.8
    for number in range(1, 5):
        reuse.sample("debug", "debug-0", report(39_000 + 1000 * number, 31_200))
        clock.sleep(60)
    assert reuse.recent("debug").share == pytest.approx(0.0) and reuse.usual("debug").share == 0.8
    assert reuse.usual("debug").prompt_tokens > before
    clock.sleep(RECENT_SECONDS + USUAL_SECONDS)
    assert reuse.recent("debug").share is None and reuse.usual("debug").share is None


def test_reuse_is_counted_by_specialist_and_dropped_with_it() -> None:
    reuse = CacheReuseTracker(ManualClock())
    for prompts in (0, 100):
        reuse.sample("debug", "debug-0", report(prompts, prompts))
        reuse.sample("stl", "stl-0", report(prompts, 0))
    assert (reuse.recent("debug").share, reuse.recent("stl").share) == (1.0, 0.0)
    reuse.forget_all_but({"stl"}, {"stl-0"})
    assert reuse.recent("debug").share is None and reuse.recent("stl").share == 0.0
    reuse.sample("debug", "debug-0", report(500, 500))
    assert reuse.recent("debug").share is None, "the first report must not count as growth"
