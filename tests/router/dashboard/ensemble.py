"""A real router with simulated replicas on its own event loop, under constant load."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

from octet.config.ensemble import Ensemble, IntentConfig
from router.api.keys.key_file import StaticKeys
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.keys.keyed import IssuedKey, key_set
from tests.router.serving.harness import ensemble_of
from tests.specialist.server.harness import running_replica, sim

WRITER, POET = "writer", "poet"


def ensemble() -> Ensemble:
    """Return an ensemble in which `writer` answers requests with the intent `story` and `poet` is its fallback."""
    base = ensemble_of(WRITER, POET)
    writer, poet = base.specialists
    return replace(
        base, specialists=(replace(writer, fallback=POET), poet), intents=(IntentConfig("story", specialist=WRITER),)
    )


@dataclass
class RunningEnsemble:
    fronted: HttpHarness
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.fronted.port}"

    def ask(self, key: IssuedKey) -> HttpResponse:
        """Send one request to the writer. Return the response."""
        body = json.dumps({"prompt": "tell me one", "intent": "story", "max_tokens": 4}).encode()
        return self.on_loop(lambda: self.fronted.post(body, "/v1/infer", **key.headers))

    def post(self, path: str, body: dict[str, Any], key: IssuedKey) -> HttpResponse:
        return self.on_loop(lambda: self.fronted.post(json.dumps(body).encode(), path, **key.headers))

    def on_loop(self, work: Callable[[], Awaitable[HttpResponse]]) -> HttpResponse:
        async def waited() -> HttpResponse:
            return await work()

        found: Future[HttpResponse] = asyncio.run_coroutine_threadsafe(waited(), self.loop)
        return found.result(PATIENCE)


@contextmanager
def running_ensemble(keys: Sequence[IssuedKey]) -> Iterator[RunningEnsemble]:
    started: list[HttpHarness] = []
    failed: list[BaseException] = []
    ready, loop = Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with (
            running_replica(sim()) as writer,
            running_replica(sim()) as poet,
            running_http_router(
                {WRITER: [writer.address], POET: [poet.address]}, keys=StaticKeys(key_set(*keys)), ensemble=ensemble()
            ) as fronted,
        ):
            started.append(fronted)
            ready.set()
            await end.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = Thread(target=run)
    thread.start()
    try:
        assert ready.wait(PATIENCE) and not failed, failed
        yield RunningEnsemble(started[0], loop)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE)
        loop.close()
    assert not failed, failed
