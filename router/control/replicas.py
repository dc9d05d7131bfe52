"""Replicas as the control plane sees them, and the calls it makes to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from octet.v1 import specialist_pb2 as wire
from router.control.audit import unknown_name
from router.dispatch.attempts import classify_failure, replica_lost, replica_unreachable
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.replicas.replica import Replica, ReplicaRestart


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    name: str
    specialist: str
    address: str = ""
    linked: bool = True  # connected, and has reported
    status: str = "serving"  # serving, connecting, hung or draining
    health_breaker: str = "closed"
    revision: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)  # digests of the loaded adapters by load name
    waiting: int = 0
    running: int = 0
    shadows: int = 0
    refusing: bool = False
    usual_wait: float | None = None
    estimate_error_p90: float | None = None
    restart: ReplicaRestart | None = None  # the last one that this router has seen
    weights: int = 0  # the number of its weights, if a supervisor runs it


LOAD_SECONDS = 60.0
UNLOAD_SECONDS = 10.0


class FleetReplicas:
    """The fleet's replicas. Routers with the same configuration give them the same names. Calls may raise Refusal."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def observe(self) -> Sequence[ObservedReplica]:
        return [observe_replica(replica) for replica in self._fleet.replicas]

    def place(self, specialist: str, weights: Sequence[int]) -> None:
        """Let the specialist have replicas with these weights, and no others."""
        self._fleet.place(specialist, weights)

    async def load(self, replica: str, name: str, path: str) -> str:
        ask = wire.LoadAdapterRequest(name=name, path=path)
        answer = await _call(self._find(replica), "LoadAdapter", ask, wire.LoadAdapterResponse, LOAD_SECONDS)
        return str(answer.adapter.digest)

    async def unload(self, replica: str, name: str) -> None:
        ask = wire.UnloadAdapterRequest(name=name)
        await _call(self._find(replica), "UnloadAdapter", ask, wire.UnloadAdapterResponse, UNLOAD_SECONDS)

    def _find(self, name: str) -> Replica:
        for replica in self._fleet.replicas:
            if replica.name == name:
                return replica
        raise unknown_name("replica", name, (each.name for each in self._fleet.replicas))


def observe_replica(replica: Replica) -> ObservedReplica:
    report, weights = replica.report if replica.is_connected else None, replica.target.weights
    known = (replica.name, replica.specialist, replica.target.address, report is not None)
    if report is None:
        return ObservedReplica(*known, "connecting", replica.breaker.state, restart=replica.restart, weights=weights)
    error, status = report.estimate_error, "serving" if replica.is_serving else "connecting"
    if replica.is_hung or replica.draining:
        status = "hung" if replica.is_hung else "draining"
    return ObservedReplica(
        *known,
        status=status,
        health_breaker=replica.breaker.state,
        adapters={adapter.name: adapter.digest for adapter in report.adapters},
        **{name: getattr(report, name) for name in ("revision", "waiting", "running", "shadows", "refusing")},
        usual_wait=report.usual_wait if report.HasField("usual_wait") else None,
        estimate_error_p90=error.total_p90 if error.HasField("total_p90") else None,
        restart=replica.restart,
        weights=weights,
    )


async def _call(replica: Replica, method: str, ask: Message, answer: Any, seconds: float) -> Any:
    """Call a replica. Raises the replica's own Refusal, or a general one if the call fails without a Refusal."""
    if not replica.is_connected:
        raise replica_unreachable(replica.name)
    path = f"/octet.v1.Specialist/{method}"
    try:
        return answer.FromString(await replica.channel.call(path, ask.SerializeToString(), timeout=seconds))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise replica_unreachable(replica.name) from None
        raise classify_failure(error, replica.name, was_open=True, accepted=False).refusal from None
    except DecodeError:
        raise replica_lost(replica.name, f"its answer to {method} is not readable") from None
