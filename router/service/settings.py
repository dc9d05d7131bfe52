"""What whoever starts a router decides, beside the ensemble's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from octet.config.ensemble import Ensemble
from octet.rpc.bind import LOOPBACK, Tls
from router.keys.source import KeySource
from router.replicas.address import check_address
from router.replicas.channel import ReplicaTls


@dataclass(frozen=True, slots=True)
class HttpDoor:
    """Where HTTP is served: the same TLS, the same care, another port."""

    host: str = LOOPBACK
    port: int = 0
    """0 for any that is free."""
    allow_origins: tuple[str, ...] = ()
    """Whose pages may read the answers."""
    socket: Path | None = None
    """Never one: who speaks HTTP to a Unix socket puts a proxy before the port."""
    tls: Tls | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class RouterSettings:
    host: str = LOOPBACK
    port: int = 0
    """0 for any that is free."""
    socket: Path | None = None
    """A Unix socket instead of host and port."""
    tls: Tls | None = None
    insecure: bool = False
    http: HttpDoor | None = None
    keys: KeySource | None = None
    """None: nobody is asked who they are."""
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Addresses by specialist, instead of those of the configuration."""
    replica_tls: ReplicaTls | None = None
    otlp: str = ""
    """Where traces go; empty: nothing is recorded."""


def addresses_of(ensemble: Ensemble, settings: RouterSettings) -> dict[str, tuple[str, ...]]:
    """Where the replicas of every specialist are. Raises ValueError where that is not said, or for names nobody has."""
    for name in settings.replicas:
        if name not in ensemble.names:
            raise ValueError(f"--replica: there is no specialist {name!r}; there are {', '.join(ensemble.names)}")
    found = {each.name: settings.replicas.get(each.name) or each.addresses for each in ensemble.specialists}
    silent = [name for name, addresses in found.items() if not addresses]
    if silent:
        raise ValueError(
            f"no addresses are known for {', '.join(silent)}: give --replica {silent[0]}=HOST:PORT, or `addresses` in "
            f"the configuration; `octet serve` starts replicas by itself"
        )
    for addresses in found.values():
        for address in addresses:
            check_address(address)
    return found
