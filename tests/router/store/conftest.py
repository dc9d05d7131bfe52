"""Databases for the store tests, and sync rounds that are faster than in production."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octet.backoff import BackoffDelays
from router.store import sync
from tests.router.store.postgres_server import MISSING, PostgresServer, binaries, postgres_server

SHARED = ("sqlite", "postgresql")


def programs_or_skip() -> Path:
    programs = binaries()
    if programs is None:
        pytest.skip(MISSING)
    return programs


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server(programs_or_skip()) as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sync rounds faster than in production. The test that measures their pace sets the pace itself."""
    monkeypatch.setattr(sync, "_TICK_SECONDS", 0.03)
    monkeypatch.setattr(sync, "_DELAYS", BackoffDelays(first=0.03, most=0.5, healthy=0.0))


@pytest.fixture(params=("memory", *SHARED))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    return _url(request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database that several stores can open."""
    return _url(request, tmp_path)


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory"
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'state.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
