"""What a key may have holds for its jobs as well."""

import asyncio
from pathlib import Path

from router.api.keys.key_file import StaticKeys
from tests.router.http.harness import fronting
from tests.router.jobs.harness import QUICK, WORDS, house, saying
from tests.router.keys.keyed import book_of, made
from tests.router.serving.spy import spying

BODY = b'{"prompt": "hello", "force_specialists": "writer", "timeout_ms": 60000}'


async def test_jobs_of_a_key_that_owes_tokens_wait(tmp_path: Path) -> None:
    hungry, free = made("hungry", tokens_per_minute=1), made("free")
    async with (
        spying(saying(*WORDS, pause=0.5)) as spy,
        fronting(
            {"writer": [spy.address]},
            ensemble=house(f"sqlite:{tmp_path / 'state.db'}", QUICK),
            keys=StaticKeys(book_of(hungry, free)),
        ) as fronted,
    ):
        for _ in range(20):
            assert (await fronted.post(BODY, "/v1/jobs", **hungry.headers)).status == 202
        assert (await fronted.post(BODY, "/v1/jobs", **free.headers)).status == 202
        await asyncio.sleep(5)
        # Those that were answered at once when there was no debt yet, and the other key's.
        assert 1 < len(spy.asked) <= QUICK.concurrency + 1
