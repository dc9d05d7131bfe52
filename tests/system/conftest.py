"""A PostgreSQL server for system tests."""

from collections.abc import Iterator

import pytest

from tests.router.store.conftest import programs_or_skip
from tests.router.store.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def killable() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server that a test may kill."""
    with postgres_server(programs_or_skip()) as server:
        yield server
