"""Changes that a router acknowledged before it was killed are stored."""

import subprocess
import sys

from tests.router.store.stores import NOW, opened

ROUTER = """
import asyncio, sys
from tests.router.store.stores import audit_row, counted, opened

async def main():
    async with opened(sys.argv[1]) as store:
        version = 0
        for number in range(1_000_000):
            store.count(counted(1, 0))
            version = (await store.change("knob", "a", version, {"n": number}, audit_row())).version
            print(number, flush=True)

asyncio.run(main())
"""


async def test_acknowledged_changes_outlive_a_killed_router(shared_url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ROUTER, shared_url], stdout=subprocess.PIPE, text=True) as router:
        assert router.stdout is not None
        acknowledged = [int(router.stdout.readline()) for _ in range(60)]
        router.kill()
        acknowledged += map(int, router.stdout.read().split())
    async with opened(shared_url) as store:
        assert store.trouble == ""
        (document,) = await store.documents()
        assert (document.body or {})["n"] in (acknowledged[-1], acknowledged[-1] + 1)
        assert len(await store.audit(10_000)) == (document.body or {})["n"] + 1
        assert all(0 < each.good <= acknowledged[-1] + 2 for each in await store.buckets("correctness", NOW))
