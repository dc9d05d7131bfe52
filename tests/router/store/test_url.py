"""Store URLs, and the errors for invalid URLs."""

import subprocess
import sys
from pathlib import Path

import pytest

from octet.terminal import install_hint
from router.store.connection import BadStoreUrl
from router.store.store import opener_for_url


@pytest.mark.parametrize(
    "url",
    ["mysql://u:s3cr3t@h/d", "sqlite", "sqlite:", "sqlite://state.db", "sqlite::memory:", "Memory", "postgresql:x"],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadStoreUrl, match="must be empty, sqlite:PATH, postgresql") as refused:
        opener_for_url(url, "test", None)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3@cr3t@host/d",
        "postgresql://u:s3/cr3t@host/d",
        "postgresql://u:s3%zzcr3t@host/d",
        "postgresql://u:s3cr3t@host/d?nonsense=cr3t",
        "postgresql://u:s3cr3t@host:s3cr3t/d",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(BadStoreUrl) as refused:
        opener_for_url(url, "test", None)
    shown = f"{refused.value!r} {refused.value.__cause__!r}"
    assert "cr3t" not in shown
    assert "s3" not in shown


def test_the_display_name_has_no_password() -> None:
    pytest.importorskip("psycopg")
    name = opener_for_url("postgresql://u:s3cr3t@db.example:6432/octet?sslmode=require", "test", None).name
    assert name == "PostgreSQL at db.example, database octet"


def test_a_relative_path_starts_at_the_configuration(tmp_path: Path) -> None:
    assert opener_for_url("sqlite:state.db", "test", tmp_path).name == f"SQLite file {tmp_path / 'state.db'}"
    assert opener_for_url("sqlite:/x/state.db", "test", tmp_path).name == "SQLite file /x/state.db"


def test_psycopg_is_loaded_only_for_postgresql_and_its_absence_is_explained(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["psycopg"] = None  # This makes psycopg look as if it were not installed.
from octet.config.ensemble import StoreConfig
from router.store.store import open_store
open_store(StoreConfig(url="memory"), "test")
open_store(StoreConfig(url="sqlite:x"), "test")
try:
    open_store(StoreConfig(url="postgresql://host/d"), "test")
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert install_hint("postgres") in done.stdout, done.stderr
    quiet = "import sys, router.store; print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True).stdout == "False\n"
