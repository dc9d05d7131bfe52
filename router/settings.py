"""Settings with which a router process is started, in addition to the ensemble's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from octet.config.ensemble import Ensemble
from octet.rpc.listener import Endpoint
from router.api.keys.key_file import KeySource
from router.dispatch.transport import ReplicaTls, check_address


@dataclass(frozen=True, slots=True)
class HttpSettings(Endpoint):
    """The HTTP listener, which cannot be a Unix socket."""

    allow_origins: tuple[str, ...] = ()  # origins of the web pages that may read the answers (CORS)
    descriptor: int | None = None  # of a socket that is bound to the address already; a supervisor keeps it open


@dataclass(frozen=True, slots=True)
class RouterSettings(Endpoint):
    http: HttpSettings | None = None
    keys: KeySource | None = None  # None if callers need no keys
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Replica addresses by specialist, which override the configured addresses."""
    replica_tls: ReplicaTls | None = None
    weights: Path | None = None  # the folder in which a supervisor takes orders for weights
    otlp: str = ""  # the endpoint that receives traces; empty if none are recorded


def replica_addresses(ensemble: Ensemble, settings: RouterSettings) -> dict[str, tuple[str, ...]]:
    """Return addresses by specialist. Raises ValueError for missing or malformed addresses and unknown specialists."""
    for name in settings.replicas:
        if name not in ensemble.names:
            raise ValueError(f"--replica: there is no specialist {name!r}, only {', '.join(ensemble.names)}")
    found = {each.name: settings.replicas.get(each.name) or each.addresses for each in ensemble.specialists}
    missing = [name for name, addresses in found.items() if not addresses]
    if missing:
        raise ValueError(
            f"no addresses are configured for {', '.join(missing)}: pass --replica {missing[0]}=HOST:PORT, or set "
            f"`addresses` in the configuration; `octet serve` starts replicas itself"
        )
    for addresses in found.values():
        for address in addresses:
            check_address(address)
    return found
