"""A replica as a process of its own, behind a socket, and on request a router before it."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.admission.replica import LANE, Plant
from bench.router_site import SiteFailed
from specialist.engines.sim.calibration import cost_model_to_json

_READY = re.compile(r"ready on (\S+)")


@dataclass(frozen=True, slots=True)
class LiveSite:
    replica: str
    """Its address."""
    router: str | None


@contextmanager
def live_site(plant: Plant, *, routed: bool) -> Iterator[LiveSite]:
    """Raises SiteFailed."""
    with TemporaryDirectory(prefix="octet-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        replica = stack.enter_context(started(_specialist(plant, folder), folder / "replica.log"))
        router = stack.enter_context(started(_router(folder, replica), folder / "router.log")) if routed else None
        yield LiveSite(replica, router)


def _specialist(plant: Plant, folder: Path) -> list[str]:
    cost = folder / "cost.json"
    cost.write_text(cost_model_to_json(plant.cost, {"from": "octet bench admission"}))
    return [
        *("specialist", "--engine", "sim", "--name", LANE.specialist, "--cost-model", str(cost)),
        *("--socket", str(folder / "replica.sock"), "--context", str(plant.context)),
        *("--kv-blocks", str(plant.num_blocks), "--block-size", str(plant.block_size)),
        *("--max-running", str(plant.max_running), "--max-waiting", str(plant.max_waiting)),
    ]


def _router(folder: Path, replica: str) -> list[str]:
    config = folder / "ensemble.yaml"
    config.write_text(f"engine: sim\nspecialists: {{{LANE.specialist}}}\n")
    return ["router", "--config", str(config), "--port", "0", "--replica", f"{LANE.specialist}={replica}"]


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Iterator[str]:
    """The address that the process says it is ready on."""
    command = [sys.executable, "-m", "octet.cli", *arguments]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,  # noqa: S603
    ):
        try:
            found = _READY.search(process.stdout.readline() if process.stdout else "")
            if found is None:
                raise SiteFailed(f"octet {arguments[0]} did not start: {log.read_text()[-500:]}")
            yield found[1]
        finally:
            process.terminate()
