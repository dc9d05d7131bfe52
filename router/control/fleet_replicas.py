"""The fleet's replicas, as the control sees and asks them."""

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from router.control.refusals import unknown_name
from router.control.seen import Seen
from router.replicas.failure import failure_of, unreachable
from router.replicas.fleet import Fleet
from router.replicas.replica import Replica

LOAD_SECONDS = 60.0
UNLOAD_SECONDS = 10.0


class FleetReplicas:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def seen(self) -> Sequence[Seen]:
        return [seen_of(replica) for replica in self._fleet.replicas]

    async def load(self, replica: str, name: str, path: str) -> str:
        """Raises Refusal."""
        ask = wire.LoadAdapterRequest(name=name, path=path)
        answer = await _call(self._find(replica), "LoadAdapter", ask, wire.LoadAdapterResponse, LOAD_SECONDS)
        return str(answer.adapter.digest)

    async def unload(self, replica: str, name: str) -> None:
        """Raises Refusal."""
        ask = wire.UnloadAdapterRequest(name=name)
        await _call(self._find(replica), "UnloadAdapter", ask, wire.UnloadAdapterResponse, UNLOAD_SECONDS)

    def _find(self, name: str) -> Replica:
        for replica in self._fleet.replicas:
            if replica.name == name:
                return replica
        raise unknown_name("replica", name, (each.name for each in self._fleet.replicas))


def seen_of(replica: Replica) -> Seen:
    """What it last reported; nothing of one that is not connected."""
    report = replica.report if replica.linked else None
    if report is None:
        return Seen(
            replica.name, replica.specialist, replica.target.address, False, "connecting", replica.breaker.state
        )
    return Seen(
        name=replica.name,
        specialist=replica.specialist,
        address=replica.target.address,
        linked=True,
        status=_status(replica),
        health_breaker=replica.breaker.state,
        revision=report.revision,
        adapters={adapter.name: adapter.digest for adapter in report.adapters},
        waiting=report.waiting,
        running=report.running,
        shadows=report.shadows,
        refusing=report.refusing,
        usual_wait=report.usual_wait if report.HasField("usual_wait") else None,
        estimate_error_p90=_error(report),
    )


def _status(replica: Replica) -> str:
    if replica.hung:
        return "hung"
    if replica.draining:
        return "draining"
    return "serving" if replica.warm else "connecting"


def _error(report: wire.LoadReport) -> float | None:
    has_total = report.HasField("estimate_error") and report.estimate_error.HasField("total_p90")
    return report.estimate_error.total_p90 if has_total else None


async def _call(replica: Replica, method: str, ask: Message, answer: Any, seconds: float) -> Any:
    """Raises Refusal: the replica's own words where it said some."""
    if not replica.linked:
        raise unreachable(replica.name)
    call = replica.channel.unary_unary(f"/octet.v1.Specialist/{method}", type(ask).SerializeToString, answer.FromString)
    try:
        return await call(ask, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise _refusal(replica, error) from None


def _refusal(replica: Replica, error: Any) -> Refusal:
    refusal = failure_of(error, replica.name, was_open=True, accepted=False).refusal
    return refusal if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED else unreachable(replica.name)
