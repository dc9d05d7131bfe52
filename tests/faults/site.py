"""A router and its replicas, every one a process of its own that things may be done to."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from specialist.engines.sim import CostModel
from specialist.engines.sim.calibration import cost_model_to_json
from tests.faults.process import OCTET, Process

PACE = CostModel(0.001, 0.00001, 0.0, 0.004, 0.0002, 0.0, 0.0, 0.0)
"""An answer of 24 tokens takes a tenth of a second: long enough for things to happen in the middle of it."""
NUM_BLOCKS = 512


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process runs, and where it is heard of."""

    before: tuple[str, ...] = ()
    """Words before its own: in which network it is."""
    address: str = ""
    """host:port; empty for a Unix socket."""
    cgroups: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    specialist: str
    address: str
    process: Process


@dataclass(frozen=True, slots=True)
class Site:
    folder: Path
    router: Process
    address: str
    """The router's."""
    http: str
    replicas: tuple[Replica, ...]

    def of(self, specialist: str) -> list[Replica]:
        return [each for each in self.replicas if each.specialist == specialist]

    @property
    def specialists(self) -> list[str]:
        return list(dict.fromkeys(each.specialist for each in self.replicas))


@dataclass(frozen=True, slots=True)
class Plan:
    """Which processes there are to be."""

    specialists: Mapping[str, int]
    """How many replicas each has."""
    settings: str = ""
    """More of the ensemble's configuration, as YAML."""
    each: str = "{}"
    """Of every specialist."""
    cost: CostModel = PACE
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """By replica; `router` is the router's. Who is not named runs here, behind a Unix socket."""
    options: tuple[str, ...] = ()
    """More words for every replica."""
    router_options: tuple[str, ...] = ()

    def host(self, name: str) -> Host:
        return self.hosts.get(name, Host())

    def names(self) -> Iterator[tuple[str, str]]:
        """Specialist and replica, as the router will call it."""
        for specialist, number in self.specialists.items():
            for index in range(number):
                yield specialist, f"{specialist}-{index}"


@contextmanager
def site(plan: Plan) -> Iterator[Site]:
    """Ready; afterwards nobody is left."""
    with TemporaryDirectory(prefix="octet-faults-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "cost.json").write_text(cost_model_to_json(plan.cost, {}))
        replicas = tuple(_replica(plan, folder, stack, specialist, name) for specialist, name in plan.names())
        router = _router(plan, folder, stack, replicas)
        for replica in replicas:
            replica.process.ready()
        ready = router.ready(r"octet router ready on (\S+) and (http://\S+)")
        yield Site(folder, router, ready[1], ready[2], replicas)


def _replica(plan: Plan, folder: Path, stack: ExitStack, specialist: str, name: str) -> Replica:
    host = plan.host(name)
    address, door = _door(host, folder / f"{name}.sock")
    words = [*host.before, *OCTET, "specialist", "--engine", "sim", "--name", specialist, *door]
    words += ["--cost-model", str(folder / "cost.json"), "--kv-blocks", str(NUM_BLOCKS), *plan.options]
    return Replica(name, specialist, address, _started(stack, words, folder / f"{name}.log", host))


def _door(host: Host, socket: Path) -> tuple[str, list[str]]:
    if not host.address:
        return f"unix:{socket}", ["--socket", str(socket)]
    name, _, port = host.address.rpartition(":")
    return host.address, ["--host", name, "--port", port, "--insecure"]


def _router(plan: Plan, folder: Path, stack: ExitStack, replicas: Sequence[Replica]) -> Process:
    host = plan.host("router")
    config = folder / "ensemble.yaml"
    specialists = "".join(f"  {name}: {plan.each}\n" for name in plan.specialists)
    config.write_text(f"name: faults\nengine: sim\nspecialists:\n{specialists}{plan.settings}")
    words = [*host.before, *OCTET, "router", "--config", str(config)]
    words += ["--port", "0", "--http-port", "0", *plan.router_options]
    for replica in replicas:
        words += ["--replica", f"{replica.specialist}={replica.address}"]
    return _started(stack, words, folder / "router.log", host, {"XDG_STATE_HOME": str(folder / "state")})


def _started(
    stack: ExitStack, words: Sequence[str], log: Path, host: Host, more: Mapping[str, str] | None = None
) -> Process:
    process = Process(words, log, cgroups=host.cgroups, environment={**(more or {}), **host.environment})
    stack.callback(process.end)
    return process


def quoted(text: str) -> str:
    """As YAML takes it."""
    return json.dumps(text)
