"""What the nemesis notes of a router, so that nobody else is excused by it."""

import sys
from pathlib import Path

from tests.faults.history import Outage
from tests.faults.nemesis import of_router
from tests.faults.process import Process

READY = "import signal, sys; print('ready on nothing', flush=True); signal.pause()"


def test_an_end_is_noted_when_it_comes_and_when_it_is_over(tmp_path: Path) -> None:
    outages: list[Outage] = []
    router = Process([sys.executable, "-c", READY], tmp_path / "log")
    router.ready()
    killed, stopped, told = of_router(router, outages)
    try:
        stopped.do()
        stopped.undo()
        assert outages == [] and router.is_alive
        for trouble, sudden in ((killed, True), (told, False)):
            before = router.pid
            trouble.do()
            assert outages[-1].sudden is sudden and outages[-1].ended == float("inf")
            trouble.undo()
            assert router.is_alive and router.pid != before and outages[-1].began < outages[-1].ended < float("inf")
        assert len(outages) == 2 and {each.kind for each in (killed, stopped, told)} == {
            f"the router is {what}" for what in ("killed", "stopped", "told to end")
        }
    finally:
        router.end()
