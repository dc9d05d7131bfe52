"""The limits of a key apply to its jobs."""

import asyncio
from pathlib import Path

from octet import AsyncClient
from router.api.keys.key_file import StaticKeys
from tests.patience import PATIENCE
from tests.router.http.harness import running_http_router
from tests.router.jobs.harness import QUICK, WORDS, answering, jobs_ensemble, until
from tests.router.keys.keyed import issue_key, key_set
from tests.router.serving.spy import running_spy

BODY = b'{"prompt": "hello", "force_specialists": "writer", "timeout_ms": 60000}'


async def test_jobs_of_a_key_that_owes_tokens_wait(tmp_path: Path) -> None:
    may_finish = asyncio.Event()
    hungry, free = issue_key("hungry", tokens_per_minute=1), issue_key("free")
    async with (
        running_spy(answering(*WORDS, holds=may_finish)) as spy,
        running_http_router(
            {"writer": [spy.address]},
            ensemble=jobs_ensemble(f"sqlite:{tmp_path / 'state.db'}", QUICK),
            keys=StaticKeys(key_set(hungry, free)),
        ) as fronted,
    ):
        for _ in range(20):
            assert (await fronted.post(BODY, "/v1/jobs", **hungry.headers)).status == 202
        may_finish.set()
        async with AsyncClient(fronted.routed.address, api_key=free.token) as client:
            for _ in range(3):  # Every worker has looked for due jobs since the key's token limit was overdrawn.
                job = await client.jobs.submit("hello", force="writer")
                assert (await client.jobs.wait(job.id, timeout=PATIENCE)).status == "done"
                await until(lambda: spy.num_live == 0)
        # This counts jobs that began before their key's limit was overdrawn, and jobs of the other key.
        assert 3 < len(spy.asked) <= QUICK.concurrency + 3
