"""Whom a load is put on: how it is asked, and the processes behind it, where they are the bench's own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from bench.peers.process import PeerFailed
from bench.peers.server import ServerProcess, cpu_of_tree
from bench.serving.answer import Caller
from bench.serving.endpoint import Endpoint
from bench.serving.usage import ServeMistake

_WAKE_SECONDS = 60.0
_POLL = 0.25


@dataclass(frozen=True, slots=True)
class System:
    endpoint: Endpoint
    caller: Caller
    peer: ServerProcess | None = None
    """Stopped while it waits."""
    pid: int | None = None
    """Of an ensemble of the bench's own, which is never stopped: whoever watches over it would take that for a hang."""

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def where(self) -> str:
        """In words, for a person."""
        return f"{self.name}: {self.endpoint.where}, {self.endpoint.model}"

    @property
    def root(self) -> int | None:
        """The first of its processes."""
        return self.pid if self.peer is None else self.peer.pid

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Raises PeerFailed when it has died, or does not answer any more."""
        if self.peer is None:
            yield
            return
        self.peer.resume()
        await self._until_it_answers(self.peer)
        yield
        self.peer.check()
        await self.caller.close()
        self.peer.pause()

    async def _until_it_answers(self, peer: ServerProcess) -> None:
        end = monotonic() + _WAKE_SECONDS
        while True:
            try:
                await self.caller.check()
                return
            except ServeMistake as mistake:
                peer.check()
                if monotonic() > end:
                    raise PeerFailed(self.name, f"not awake after {_WAKE_SECONDS:g} s: {mistake}") from mistake
            await asyncio.sleep(_POLL)


def cpu_waiting(systems: Sequence[System], asked: System) -> float | None:
    """Seconds of CPU so far of all the others; None where none of them is a process of the bench's own."""
    roots = {each.root for each in systems} - {asked.root}
    known = [root for root in roots if root is not None]
    try:
        return sum(map(cpu_of_tree, known)) if known else None
    except OSError:
        return None
