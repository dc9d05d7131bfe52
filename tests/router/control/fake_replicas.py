"""Fake replicas that load adapters from a fake disk, and that can restart, disconnect or refuse a load."""

import asyncio
from dataclasses import dataclass, field

from octet.rpc.refusal import Refusal, adapter_refused, unknown_adapter
from octet.v1 import error_pb2
from router.control.replicas import FleetReplicas, ObservedReplica
from router.dispatch.replicas.replica import ReplicaRestart


@dataclass
class FakeReplica:
    name: str
    specialist: str
    revision: str = "r1"
    adapters: dict[str, str] = field(default_factory=dict)
    linked: bool = True
    files: dict[str, str] | None = None
    """The digest of each file as this replica sees it, or None if it sees the fleet's disk."""
    refusal: Refusal | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    """The loads and unloads, each with the name of the adapter."""
    seen_restart: ReplicaRestart | None = None

    def restart(self, revision: str | None = None) -> None:
        self.adapters.clear()
        self.revision = revision or self.revision


class FakeReplicas(FleetReplicas):
    """A fleet of fake replicas. `disk` maps each path to the digest of its content."""

    def __init__(self, *replicas: FakeReplica) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.disk: dict[str, str] = {}
        self.may_load = asyncio.Event()
        """Loads wait until this event is set."""
        self.may_load.set()
        self.lag = 0.0
        """Seconds until a replica reports an adapter that it has loaded."""

    def __getitem__(self, name: str) -> FakeReplica:
        return self.replicas[name]

    def observe(self) -> list[ObservedReplica]:
        return [
            ObservedReplica(
                replica.name,
                replica.specialist,
                f"fake:{replica.name}",
                replica.linked,
                revision=replica.revision,
                adapters=dict(replica.adapters),
                restart=replica.seen_restart,
            )
            for replica in self.replicas.values()
        ]

    async def load(self, target: str, name: str, path: str) -> str:
        replica = self.replicas[target]
        replica.log.append(("load", name))
        await self.may_load.wait()
        self._reach(replica)
        if replica.refusal is not None:
            raise replica.refusal
        digest = (replica.files if replica.files is not None else self.disk).get(path)
        if digest is None:
            raise adapter_refused("path", "a directory below the adapter root")
        if self.lag:
            asyncio.get_running_loop().call_later(self.lag, replica.adapters.__setitem__, name, digest)
        else:
            replica.adapters[name] = digest
        return digest

    async def unload(self, target: str, name: str) -> None:
        replica = self.replicas[target]
        replica.log.append(("unload", name))
        self._reach(replica)
        if replica.adapters.pop(name, None) is None:
            raise unknown_adapter(name)

    @staticmethod
    def _reach(replica: FakeReplica) -> None:
        if not replica.linked:
            message = f"{replica.name} cannot be reached"
            raise Refusal(error_pb2.ERROR_REASON_NO_REPLICA, message)
