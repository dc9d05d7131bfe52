"""Row 16 of docs/reliability.md: the wall clock of every process is set an hour ahead, an hour back, and beyond
2038."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.faults.callers import Callers, connected_client, golden_run
from tests.faults.commands import need, run
from tests.faults.figures import Figure
from tests.faults.history import History
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict, states

HOUR = 3600
STEPS = (HOUR, -HOUR, int(2_200_000_000 - time.time()), 0)
"""Offsets of the wall clock in seconds: ahead, back, beyond 2038, and zero."""


@dataclass(frozen=True, slots=True)
class FakeWallClock:
    """A separate wall clock for the processes that are started with its environment."""

    file: Path
    library: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "OCTET_CLOCK_STEP": str(self.file)}

    def step(self, seconds: int) -> None:
        self.file.write_text(str(seconds))


@pytest.fixture
def wall(tmp_path: Path) -> Iterator[FakeWallClock]:
    need("gcc")
    library = tmp_path / "clock_step.so"
    run("gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(Path(__file__).with_name("clock_step.c")), "-ldl")
    made = FakeWallClock(tmp_path / "step", library)
    made.step(0)
    yield made


@pytest.mark.slow
def test_16_a_wall_clock_step_changes_nothing(long: bool, wall: FakeWallClock, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            async with Callers(router, history, Random(16), pause=0.02).calling(8 if long else 4) as callers:
                for seconds in STEPS:
                    await callers.answered(20)
                    wall.step(seconds)
                    await asyncio.sleep(10.0 if long else 1.0)
                    await callers.answered(20)
                    receipt = history.answered[-1].receipt
                    assert receipt is not None
                    off = receipt.created_unix_ms / 1000 - time.time()
                    assert abs(off - seconds) < 60, "the processes did not see the step"
                    assert set((await states(router)).values()) == {("serving", "closed")}
            await put_verdict(16, router, history, figure)
            figure(16, "requests failed by a clock step", len(history.failed), "requests", "== 0")

    host = Host(environment=wall.environment)
    with site(Plan({"writer": 2}, hosts=dict.fromkeys(("router", "writer-0", "writer-1"), host))) as made:
        asyncio.run(scenario(made))
