"""Replicas in memory that load what lies under a path, go, come back, and refuse when told to."""

import asyncio
from dataclasses import dataclass, field

from octet.rpc.refusal import Refusal, adapter_refused, unknown_adapter
from octet.v1 import error_pb2
from router.control.replicas import FleetReplicas, ObservedReplica


@dataclass
class Toy:
    name: str
    specialist: str
    revision: str = "r1"
    adapters: dict[str, str] = field(default_factory=dict)
    linked: bool = True
    files: dict[str, str] | None = None
    """Its own view of the disk."""
    refusal: Refusal | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    """What it was asked, and for which adapter."""

    def restart(self, revision: str | None = None) -> None:
        self.adapters.clear()
        self.revision = revision or self.revision


class Toys(FleetReplicas):
    """A fleet of them. `disk` is the digest under every path."""

    def __init__(self, *toys: Toy) -> None:
        self.toys = {toy.name: toy for toy in toys}
        self.disk: dict[str, str] = {}
        self.seconds = 0.0
        """That a load takes."""
        self.lag = 0.0
        """Until it is seen that one has been loaded."""

    def __getitem__(self, name: str) -> Toy:
        return self.toys[name]

    def observe(self) -> list[ObservedReplica]:
        return [
            ObservedReplica(
                toy.name,
                toy.specialist,
                f"toy:{toy.name}",
                toy.linked,
                revision=toy.revision,
                adapters=dict(toy.adapters),
            )
            for toy in self.toys.values()
        ]

    async def load(self, replica: str, name: str, path: str) -> str:
        toy = self.toys[replica]
        toy.log.append(("load", name))
        await asyncio.sleep(self.seconds)
        self._reach(toy)
        if toy.refusal is not None:
            raise toy.refusal
        digest = (toy.files if toy.files is not None else self.disk).get(path)
        if digest is None:
            raise adapter_refused("path", "a directory below the adapter root")
        if self.lag:
            asyncio.get_running_loop().call_later(self.lag, toy.adapters.__setitem__, name, digest)
        else:
            toy.adapters[name] = digest
        return digest

    async def unload(self, replica: str, name: str) -> None:
        toy = self.toys[replica]
        toy.log.append(("unload", name))
        self._reach(toy)
        if toy.adapters.pop(name, None) is None:
            raise unknown_adapter(name)

    @staticmethod
    def _reach(toy: Toy) -> None:
        if not toy.linked:
            message = f"{toy.name} cannot be reached"
            raise Refusal(error_pb2.ERROR_REASON_NO_REPLICA, message)
