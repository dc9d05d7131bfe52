"""A replica that serves on its own thread, for tests without an event loop."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

from tests.patience import PATIENCE
from tests.specialist.server.harness import ReplicaHarness, running_replica, sim

_ResultT = TypeVar("_ResultT")


class Background:
    def __init__(self, served: ReplicaHarness, loop: asyncio.AbstractEventLoop) -> None:
        self.served = served
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, _ResultT], seconds: float = PATIENCE) -> _ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)


@contextmanager
def in_background(**settings: Any) -> Iterator[Background]:
    ready, made = Event(), list[Background]()
    done: list[asyncio.Event] = []

    async def serve() -> None:
        async with running_replica(sim(), **settings) as served:
            done.append(asyncio.Event())
            made.append(Background(served, asyncio.get_running_loop()))
            ready.set()
            await done[0].wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        if not ready.wait(PATIENCE):
            raise TimeoutError("the replica did not start")
        yield made[0]
    finally:
        if made:
            made[0].run(_set(done[0]))
        thread.join(PATIENCE)


async def _set(event: asyncio.Event) -> None:
    event.set()
