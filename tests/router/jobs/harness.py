"""A router with gRPC and HTTP, a replica whose answers tests define, and jobs in a store."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octet import AsyncClient
from octet.config.ensemble import Ensemble, JobsConfig, RouterConfig, StoreConfig
from octet.v1 import specialist_pb2 as wire
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.serving.harness import ensemble_of
from tests.router.serving.spy import ACCEPTED, Behaviour, SpyReplica, running_spy

WORDS = ("one ", "two ", "three ")
QUICK = JobsConfig(lease=0.4)


def answering(*words: str, pause: float = 0.0, holds: asyncio.Event | None = None) -> Behaviour:
    """Return a behaviour that sends one chunk per word. If `holds` is given, the answer ends only once it is set."""

    async def behave(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(ACCEPTED)
        for number, word in enumerate(words):
            await context.write(wire.GenerateEvent(chunk=wire.Chunk(text=word, token_ids=[number])))
            await asyncio.sleep(pause)
        if holds is not None:
            await holds.wait()
        usage = wire.Usage(finish_reason=wire.FINISH_REASON_STOP, completion_tokens=len(words))
        await context.write(wire.GenerateEvent(usage=usage))

    return behave


@dataclass
class JobsHarness:
    fronted: HttpHarness
    spy: SpyReplica
    client: AsyncClient

    async def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> HttpResponse:
        return await self.fronted.post(json.dumps(body or {}).encode(), path, **headers)

    async def submit(self, **fields: Any) -> HttpResponse:
        return await self.post("/v1/jobs", {"prompt": "hello", "force_specialists": "writer", **fields})

    async def ended(self, job_id: str) -> Any:
        async with asyncio.timeout(PATIENCE):
            return await self.client.jobs.wait(job_id)

    async def answered(self, job_id: str, text: str) -> None:
        """Wait until the text of the stored answer equals `text`."""
        stored = ""
        async with asyncio.timeout(PATIENCE):
            async for event in self.client.jobs.events(job_id):
                stored += "" if event.chunk is None else event.chunk.text
                if stored == text:
                    return


def jobs_ensemble(url: str, jobs: JobsConfig = QUICK, **specialist: Any) -> Ensemble:
    ensemble = ensemble_of("writer", router=RouterConfig(default_timeout=2 * PATIENCE, jobs=jobs))
    specialists = tuple(replace(each, **specialist) for each in ensemble.specialists)
    return replace(ensemble, specialists=specialists, store=StoreConfig(url=url))


@asynccontextmanager
async def running_jobs(
    folder: Path, behave: Behaviour | None = None, jobs: JobsConfig = QUICK, **specialist: Any
) -> AsyncIterator[JobsHarness]:
    ensemble = jobs_ensemble(f"sqlite:{folder / 'state.db'}", jobs, **specialist)
    async with (
        running_spy(behave or answering(*WORDS)) as spy,
        running_http_router({"writer": [spy.address]}, ensemble=ensemble) as fronted,
        AsyncClient(fronted.routed.address) as client,
    ):
        yield JobsHarness(fronted, spy, client)


def events_of(response: HttpResponse) -> list[tuple[int, str, Any]]:
    """Return the number, name and content of each server-sent event."""
    return list(map(_event, filter(lambda part: part.startswith("id:"), response.body.decode().split("\n\n"))))


def _event(text: str) -> tuple[int, str, Any]:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return int(fields["id"]), fields["event"], json.loads(fields["data"])


async def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
