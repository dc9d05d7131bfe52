"""`octet replicas`, `octet drain` and `octet undrain`."""

import argparse
import re
from collections.abc import Sequence

import grpc

from octet.operate.asking import Commands, add_change, add_command, asks, show
from octet.operate.figures import share
from octet.operate.table import table
from octet.sdk.errors import NotFound
from octet.sdk.operating import ReplicaInfo
from octet.sdk.operator import Operator

_PROCESS = re.compile(r"(.+)/([1-9][0-9]{0,8})")
"""As `octet serve` calls its processes, counted from one."""
_HEADING = (
    "replica",
    "specialist",
    "status",
    "health",
    "waiting",
    "running",
    "shadows",
    "wait",
    "error p90",
    "address",
)


def add_replica_commands(commands: Commands) -> None:
    asks(add_command(commands, "replicas", "every replica, and how busy it is"), "replicas", _list)
    drain = add_command(commands, "drain", "send a replica nothing new; what it has, it finishes")
    drain.add_argument("replica", metavar="REPLICA", help="as `octet replicas` calls it")
    add_change(drain)
    asks(drain, "drain", _drain)
    undrain = add_command(commands, "undrain", "send a replica requests again")
    undrain.add_argument("replica", metavar="REPLICA", help="as `octet replicas` calls it")
    add_change(undrain)
    asks(undrain, "undrain", _undrain)


def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    replicas = operator.replicas()
    return show(arguments, {"replicas": [each.to_dict() for each in replicas]}, shown(replicas))


def _drain(operator: Operator, arguments: argparse.Namespace) -> int:
    replica = operator.drain(replica_named(operator, arguments.replica), why=arguments.reason)
    return show(arguments, replica.to_dict(), told(replica))


def _undrain(operator: Operator, arguments: argparse.Namespace) -> int:
    replica = operator.undrain(replica_named(operator, arguments.replica), why=arguments.reason)
    return show(arguments, replica.to_dict(), told(replica))


def replica_named(operator: Operator, name: str) -> str:
    """Raises NotFound for a process of `octet serve`, with the name that its replica has."""
    process = _PROCESS.fullmatch(name)
    names = [] if process is None else [each.name for each in operator.replicas()]
    if process is None or name in names:
        return name
    meant = f"{process[1]}-{int(process[2]) - 1}"
    told = f"what octet serve calls {name} is {meant} here" if meant in names else "octet replicas has their names"
    raise NotFound(
        f"there is no replica {name!r}: {told}", code=grpc.StatusCode.NOT_FOUND, reason="unknown_name", field="replica"
    )


def shown(replicas: Sequence[ReplicaInfo]) -> str:
    return table(_HEADING, [_row(each) for each in replicas])


def told(replica: ReplicaInfo) -> str:
    busy = f"{replica.running} running, {replica.waiting} waiting"
    return f"{replica.name} is {replica.status.replace('_', ' ')}: {busy}"


def _row(replica: ReplicaInfo) -> tuple[str, ...]:
    return (
        replica.name,
        replica.specialist,
        replica.status + (", refusing" if replica.refusing else ""),
        replica.health_breaker,
        str(replica.waiting),
        str(replica.running),
        str(replica.shadows),
        "" if replica.usual_wait is None else f"{replica.usual_wait:.2f} s",
        share(replica.estimate_error_p90),
        replica.address,
    )
