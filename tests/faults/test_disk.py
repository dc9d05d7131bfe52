"""Row 15 of docs/reliability.md: the disk that holds the store and the logs is full, then read-only."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.faults.callers import Callers, connected_client, golden_run, until
from tests.faults.disk import Disk, disk
from tests.faults.figures import Figure
from tests.faults.history import History
from tests.faults.page import gauge, get, is_up
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict


@pytest.mark.slow
def test_15_a_full_and_a_read_only_disk_fail_no_request(long: bool, tmp_path: Path, figure: Figure) -> None:
    async def scenario(site: Site, disk: Disk) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            async with Callers(router, history, Random(15), pause=0.02).calling(8 if long else 4) as callers:
                await callers.answered(20)
                await until(lambda: is_up(site))
                disk.fill()
                await until(lambda: not is_up(site))
                await asyncio.sleep(20.0 if long else 1.0)
                await callers.answered(20)
                assert get(site, "/healthz") and get(site, "/readyz")
                held = gauge(site, "octet_store_held_rows")
                disk.relieve()
                await until(lambda: is_up(site))
                await until(lambda: gauge(site, "octet_store_held_rows") < held)
            figure(15, "rows that waited for disk space", held, "rows", "> 0")
            figure(15, "requests failed by the full disk", len(history.failed), "requests", "== 0")
            await put_verdict(15, router, history, figure)
        await _read_only(site, disk, figure)

    with disk(tmp_path / "disk") as small:
        host = Host(log=small.folder / "router.log")
        settings = f"store: {{url: 'sqlite:{small.folder / 'state.db'}'}}\n"
        with site(Plan({"writer": 2}, settings, hosts={"router": host})) as made:
            asyncio.run(scenario(made, small))


async def _read_only(site: Site, disk: Disk, figure: Figure) -> None:
    """Check that a router started on a read-only disk reports its store as unavailable but serves."""
    site.router.end()
    disk.forbid()
    site.router.restart(site.folder / "router-again.log")
    await asyncio.to_thread(site.ready)
    async with connected_client(site.address) as router:
        history = History(await golden_run(router, site.specialists))
        async with Callers(router, history, Random(16), pause=0.02).calling(4) as callers:
            await until(lambda: not is_up(site))
            await callers.answered(50)
        figure(15, "requests failed by the read-only disk", len(history.failed), "requests", "== 0")
        await put_verdict(15, router, history, figure)
