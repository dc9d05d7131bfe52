"""A router that stops when a file appears and restarts with the same address and store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from octet.v1.specialist_pb2 import Chunk, GenerateEvent, GenerateRequest
from router.settings import HttpSettings
from tests.ports import free_port
from tests.router.jobs.harness import WORDS, answering, jobs_ensemble
from tests.router.serving.harness import running_router
from tests.router.serving.spy import ACCEPTED, Behaviour, running_spy

_DOWN_SECONDS = 0.3
_POLL_SECONDS = 0.01


@asynccontextmanager
async def restarting(folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """Yield the router's address, and a path. When a file appears at that path, the router stops and restarts."""
    mark = folder / "stop"
    async with running_spy(_at_second(answering(*WORDS))) as spy:
        ported: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        living = asyncio.create_task(_lives(folder, spy.address, mark, ported))
        try:
            await asyncio.wait((living, ported), return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
            yield f"http://127.0.0.1:{ported.result()}", mark
            assert not living.done() and mark.exists()
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)


async def _lives(folder: Path, replica: str, mark: Path, ported: "asyncio.Future[int]") -> None:
    ensemble = jobs_ensemble(f"sqlite:{folder / 'state.db'}")
    port = free_port()
    async with running_router({"writer": [replica]}, http=HttpSettings(port=port), ensemble=ensemble):
        ported.set_result(port)
        while not mark.exists():
            await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_DOWN_SECONDS)
    async with running_router({"writer": [replica]}, http=HttpSettings(port=port), ensemble=ensemble):
        await asyncio.Event().wait()


def _at_second(behave: Behaviour) -> Behaviour:
    """Return a behaviour in which the first request hangs after one chunk. Later requests follow `behave`."""
    requested = 0

    async def result(request: GenerateRequest, context: Any) -> None:
        nonlocal requested
        requested += 1
        if requested > 1:
            await behave(request, context)
            return
        await context.write(ACCEPTED)
        await context.write(GenerateEvent(chunk=Chunk(text=WORDS[0], token_ids=[0])))
        await asyncio.Event().wait()

    return result
