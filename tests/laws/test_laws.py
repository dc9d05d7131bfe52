"""The scheduler's laws (invariants) hold for 200 random histories, or a thousand in `make proofs`, and deliberate bugs
break them."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from kvpool import InvariantViolation
from specialist.scheduling.sequence import DraftSource
from specialist.scheduling.step import Finished
from tests.laws.mutants import HOST_TIER, MORE, THE_SIX, Mutant
from tests.laws.world import World
from tests.simulation.laws.scheduler import LawBroken

NUM_EVENTS = 500
SEEDS = 1000
QUICK_SEEDS = 200
SHARE = 50
ONCE_BROKEN = (20775, 21042, 21719, 22157)
"""Further seeds, beyond the thousand, that once found a bug in the scheduler or in a law."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=() if first < QUICK_SEEDS else pytest.mark.slow) for first in range(0, SEEDS, SHARE)],
)
def test_random_histories_keep_every_law(first: int) -> None:
    for seed in range(first, first + SHARE):
        world = World(seed).run(NUM_EVENTS)
        assert len(world.log) >= NUM_EVENTS


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_history_that_once_broke_a_law_keeps_them_all(seed: int) -> None:
    assert World(seed).run(NUM_EVENTS).laws.finished


@pytest.mark.parametrize("mutant", [*THE_SIX, *MORE, *HOST_TIER], ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_bug_is_caught_within_fifty_seeds(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(LawBroken) as caught:
        for seed in range(50):
            World(seed).run(NUM_EVENTS)
    assert isinstance(caught.value.__cause__, LawBroken | InvariantViolation), (
        "the bug caused a crash before a law could detect it"
    )


def test_one_seed_is_one_history_byte_for_byte() -> None:
    """The history is the same in processes with other hash seeds: it does not depend on set order or memory
    addresses."""
    script = "import sys; from tests.laws.world import World; sys.stdout.buffer.write(World(7).run(500).history())"
    history = World(7).run(NUM_EVENTS).history()
    for hash_seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        assert hashlib.sha256(other.stdout).hexdigest() == hashlib.sha256(history).hexdigest()


def test_histories_are_not_all_alike() -> None:
    """Control: the random runs reach every kind of end, preemption, cache hits, speculation and late completions."""
    worlds = [World(seed).run(NUM_EVENTS) for seed in range(20)]
    ends = {reason for world in worlds for reason in world.laws.finished.values()}
    assert ends == {"stop", "length", "cancelled", "deadline", "error"}
    text = b"\n".join(world.history() for world in worlds).decode()
    for sight in (
        "cause='admission'",
        "cause='growth'",
        "cause='deadline'",
        " spec_verify ",
        " prefill ",
        " decode ",
        "Preempted(",
    ):
        assert sight in text
    assert sum(world.pool.counters.hits for world in worlds) > 100
    assert sum(world.pool.counters.evictions for world in worlds) > 100
    hosts = [world.pool.host for world in worlds if world.pool.host is not None]
    counts = [(host.num_spilled, host.num_restored, host.num_dropped) for host in hosts]
    assert min(sum(each) for each in zip(*counts, strict=True)) > 20
    assert sum(world.pool.counters.misses["no_boundary"] for world in worlds) > 10
    assert sum(world.scheduler.num_stale_commits for world in worlds) > 10
    assert sum(world.scheduler.num_unusable_snapshots for world in worlds) > 0
    sources = dict.fromkeys(get_args(DraftSource), 0)
    for events in (events for world in worlds for _, _, events in world.log):
        for count in (count for event in events if isinstance(event, Finished) for count in event.drafts):
            sources[count.source] += count.num_accepted
    assert min(sources.values()) > 10
    assert sum(world.copies.num_copied for world in worlds if world.copies is not None) > 10
