"""The nemesis records an outage when the router ends, and for no other fault, because an outage excuses violations."""

import sys
from pathlib import Path

from tests.faults.history import Outage
from tests.faults.nemesis import of_router
from tests.faults.process import Process

READY = "import signal, sys; print('ready on nothing', flush=True); signal.pause()"


def test_the_start_and_end_of_an_outage_are_noted(tmp_path: Path) -> None:
    outages: list[Outage] = []
    router = Process([sys.executable, "-c", READY], tmp_path / "log")
    router.ready()
    killed, stopped, ended = of_router(router, outages)
    try:
        stopped.do()
        stopped.undo()
        assert outages == [] and router.is_alive
        for fault, sudden in ((killed, True), (ended, False)):
            before = router.pid
            fault.do()
            assert outages[-1].sudden is sudden and outages[-1].ended == float("inf")
            fault.undo()
            assert router.is_alive and router.pid != before and outages[-1].began < outages[-1].ended < float("inf")
        assert len(outages) == 2 and {each.kind for each in (killed, stopped, ended)} == {
            f"the router is {what}" for what in ("killed", "stopped", "stopped in order")
        }
    finally:
        router.end()
