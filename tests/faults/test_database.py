"""Row 15 of docs/reliability.md: the store's database is restarted and killed; the router keeps serving."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from tests.faults.callers import Callers, connected_client, golden_run, until
from tests.faults.figures import Figure
from tests.faults.history import History
from tests.faults.page import is_up
from tests.faults.site import Plan, Site, site
from tests.faults.verdict import put_verdict
from tests.router.store.conftest import programs_or_skip
from tests.router.store.postgres_server import PostgresServer, postgres_server


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with postgres_server(programs_or_skip()) as server:
        yield server


@pytest.mark.slow
def test_15_a_restarted_database_fails_no_request(long: bool, database: PostgresServer, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            async with Callers(router, history, Random(15), pause=0.02).calling(8 if long else 4) as callers:
                for away in (database.stop, database.kill, database.stop):
                    await callers.answered(20)
                    await until(lambda: is_up(site))
                    await asyncio.to_thread(away)
                    await until(lambda: not is_up(site))
                    await asyncio.sleep(10.0 if long else 0.5)
                    await callers.answered(20)
                    await asyncio.to_thread(database.start)
                await until(lambda: is_up(site))
            await put_verdict(15, router, history, figure)
            figure(15, "requests failed by the database restart", len(history.failed), "requests", "== 0")

    with site(Plan({"writer": 2}, f"store: {{url: '{database.new_database()}'}}\n")) as made:
        asyncio.run(scenario(made))
