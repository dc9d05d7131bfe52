"""A router and its replicas, each in its own process."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from specialist.engines.sim.engine import CostModel, cost_model_to_json
from tests.faults.commands import need
from tests.faults.process import OCTET, Process

PACE = CostModel(0.001, 0.00001, 0.0, 0.004, 0.0002, 0.0, 0.0, 0.0)
"""With these costs, an answer of 24 tokens takes a tenth of a second: long enough for a fault in its middle."""
NUM_BLOCKS = 512


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process runs, and how other processes reach it."""

    before: tuple[str, ...] = ()
    """Command prefix that selects the network."""
    address: str = ""
    """host:port, or empty for a Unix socket."""
    cgroups: tuple[Path, ...] = ()
    seen_as: str = ""
    """The address that the router uses instead, if a proxy stands in between."""
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    """Where the process's output goes, if not to the common log."""


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    specialist: str
    address: str
    """The address under which the router knows the replica."""
    socket: str
    """The replica's Unix socket, or an empty string if it has a port."""
    process: Process


@dataclass(frozen=True, slots=True)
class Site:
    folder: Path
    router: Process
    replicas: tuple[Replica, ...]

    def ready(self) -> None:
        """Wait until every process has reported ready."""
        for replica in self.replicas:
            replica.process.ready()
        self._router_line()

    @property
    def address(self) -> str:
        """The router's address."""
        return self._router_line()[1]

    @property
    def http(self) -> str:
        return self._router_line()[2]

    def _router_line(self) -> "re.Match[str]":
        return self.router.ready(r"octet router ready on (\S+) and (http://\S+)")

    def of(self, specialist: str) -> list[Replica]:
        return [each for each in self.replicas if each.specialist == specialist]

    @property
    def specialists(self) -> list[str]:
        return list(dict.fromkeys(each.specialist for each in self.replicas))


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes to start, and their configuration."""

    specialists: Mapping[str, int]
    """Number of replicas by specialist."""
    settings: str = ""
    """Further configuration of the ensemble, as YAML."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Configuration of each specialist, as YAML."""
    cost: CostModel = PACE
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Hosts by replica name; `router` is the router's. Processes without a host run locally, behind a Unix socket."""
    options: tuple[str, ...] = ()
    """Further arguments for every replica."""
    router_options: tuple[str, ...] = ()

    def host(self, name: str) -> Host:
        return self.hosts.get(name, Host())

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield each replica's specialist, and the name that the router gives the replica."""
        for specialist, number in self.specialists.items():
            for index in range(number):
                yield specialist, f"{specialist}-{index}"


@contextmanager
def site(plan: Plan, *, wait: bool = True) -> Iterator[Site]:
    """Start all processes, wait until they are ready if `wait` is true, and stop them afterwards."""
    need("setpriv")
    with TemporaryDirectory(prefix="octet-faults-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "cost.json").write_text(cost_model_to_json(plan.cost, {}))
        replicas = tuple(_replica(plan, folder, stack, specialist, name) for specialist, name in plan.names())
        made = Site(folder, _router(plan, folder, stack, replicas), replicas)
        if wait:
            made.ready()
        yield made


def _replica(plan: Plan, folder: Path, stack: ExitStack, specialist: str, name: str) -> Replica:
    host = plan.host(name)
    address, door = _listen_options(host, folder / f"{name}.sock")
    words = [*host.before, *OCTET, "specialist", "--engine", "sim", "--name", specialist, *door]
    words += ["--cost-model", str(folder / "cost.json"), "--kv-blocks", str(NUM_BLOCKS), *plan.options]
    process = _started(stack, words, folder / f"{name}.log", host)
    return Replica(name, specialist, host.seen_as or address, address.removeprefix("unix:"), process)


def _listen_options(host: Host, socket: Path) -> tuple[str, list[str]]:
    if not host.address:
        return f"unix:{socket}", ["--socket", str(socket)]
    name, _, port = host.address.rpartition(":")
    return host.address, ["--host", name, "--port", port, "--insecure"]


def _router(plan: Plan, folder: Path, stack: ExitStack, replicas: Sequence[Replica]) -> Process:
    host = plan.host("router")
    config = folder / "ensemble.yaml"
    specialists = "".join(f"  {name}: {plan.about.get(name, '{}')}\n" for name in plan.specialists)
    config.write_text(f"name: faults\nengine: sim\nspecialists:\n{specialists}{plan.settings}")
    words = [*host.before, *OCTET, "router", "--config", str(config)]
    words += ["--port", "0", "--http-port", "0", *plan.router_options]
    for replica in replicas:
        words += ["--replica", f"{replica.specialist}={replica.address}"]
    return _started(stack, words, folder / "router.log", host, {"XDG_STATE_HOME": str(folder / "state")})


def _started(
    stack: ExitStack, words: Sequence[str], log: Path, host: Host, more: Mapping[str, str] | None = None
) -> Process:
    process = Process(words, host.log or log, cgroups=host.cgroups, environment={**(more or {}), **host.environment})
    stack.callback(process.end)
    return process
