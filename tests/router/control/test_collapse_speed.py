"""How soon a lane is caught whose callers ask few prompts, or that several tenants use unequally, and what does not
trip it. Prompts are drawn at random, after 300 healthy answers."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from admission.collapse import DEGENERATE, TenantSlots
from router.control.collapse import CollapseMonitor

LANE, BEFORE, SEEDS, WINDOW = "algo|1|x", 300, 12, 86_400.0


def zipf(size: int) -> list[float]:
    return [1 / (rank + 1) for rank in range(size)]


class RandomLane:
    """A lane that gets random prompts of random tenants, one a second. Without `prompts`, all are different."""

    def __init__(self, seed: int, prompts: list[float], tenants: list[float]) -> None:
        store: Any = SimpleNamespace(count=lambda bucket: None)
        self.monitor, self.random, self.now = CollapseMonitor(store, WINDOW), Random(seed), 1000.0
        self.prompts, self.tenants = prompts, tenants

    def ask(self, *, bad: bool | None = None, bad_prompts: int = 0) -> bool:
        """Judge an answer; without `bad`, one to the first `bad_prompts` is bad. Return whether the lane has
        collapsed."""
        self.now += 1
        prompt: float = self.random.choices(range(len(self.prompts)), self.prompts)[0] if self.prompts else self.now
        (tenant,) = self.random.choices(range(len(self.tenants)), self.tenants)
        is_bad = prompt < bad_prompts if bad is None else bad
        self.monitor.add(LANE, f"tenant {tenant}", f"prompt {prompt}", {DEGENERATE: is_bad}, "", self.now)
        return is_bad and self.monitor.find(LANE, LANE, self.now) is not None

    def until_caught(self) -> int:
        for _ in range(BEFORE):
            self.ask(bad=False)
        return next(number for number in range(1, 2000) if self.ask(bad=True))


@pytest.mark.parametrize(
    ("prompts", "tenants", "median", "most"),
    [
        ([1.0] * 20, [1], 12, 20),
        (zipf(20), [1], 15, 45),
        ([1.0] * 30, [1], 12, 20),
        (zipf(30), [1], 15, 35),
        (zipf(60), [1], 12, 25),
        ([1.0] * 5, [1], 12, 20),
        ([1.0], [1], 8, 8),
        ([], [75, 25], 20, 45),
        ([], [90, 10], 50, 110),
        ([], [90, 5, 5], 50, 110),
    ],
)
def test_a_lane_is_caught_soon_whatever_its_prompts_and_tenants(
    prompts: list[float], tenants: list[float], median: int, most: int
) -> None:
    caught = sorted(RandomLane(seed, prompts, tenants).until_caught() for seed in range(SEEDS))
    assert caught[0] >= 8 and caught[len(caught) // 2] <= median and caught[-1] <= most


@pytest.mark.parametrize(("prompts", "bad"), [(zipf(24), 6), ([1.0] * 24, 6), (zipf(60), 5), (zipf(60), 12)])
def test_popular_prompts_that_always_loop_do_not_trip(prompts: list[float], bad: int) -> None:
    for seed in range(3):
        lane = RandomLane(seed, prompts, [1])
        for _ in range(BEFORE):
            assert not lane.ask(bad_prompts=bad)
        assert not any(lane.ask(bad_prompts=bad) for _ in range(700))


@pytest.mark.parametrize(("others", "is_found"), [(0, True), (3, True), (10, False), (60, False)])
def test_tenants_count_while_they_use_the_lane_in_a_tenth_of_its_window(others: int, is_found: bool) -> None:
    """One tenant gets degenerate answers for the whole window. Others get healthy ones in some of its 60 parts."""
    store: Any = SimpleNamespace(count=lambda bucket: None)
    monitor, found = CollapseMonitor(store, 3600.0), False
    for number in range(600):
        if number % 10 == 0 and number // 10 < others:
            monitor.add(LANE, "other", f"other {number}", {DEGENERATE: False}, "", 6.0 * number)
        monitor.add(LANE, "large", f"large {number}", {DEGENERATE: number >= 100}, "", 6.0 * number)
        found = found or monitor.find(LANE, LANE, 6.0 * number) is not None
    assert found == is_found


def test_a_burst_does_not_push_other_tenants_out() -> None:
    slots = TenantSlots(3600.0)
    for at in range(0, 3600, 60):
        slots.add(at, "other" if at < 600 else "hostile")
    for _ in range(100_000):
        slots.add(3599, "hostile")
    assert slots.has_others("hostile") and slots.has_others("other")
    for at in range(3600, 4200, 60):
        slots.add(at, "hostile")
    assert not slots.has_others("hostile"), "the other has not used the lane in the window"
    assert not TenantSlots(60.0).has_others("")
