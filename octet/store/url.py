"""Where the store is, from what the configuration says."""

import os
from importlib.util import find_spec
from pathlib import Path

from octet.store.connection import Connection, Opener
from octet.store.errors import BadStoreUrl, Unavailable
from octet.store.sqlite import MEMORY, SqliteFile, SqliteMemory

_FORMS = "must be empty, sqlite:PATH, postgresql://USER:PASSWORD@HOST:PORT/DATABASE or memory"
_ELSEWHERE = "set store.url to sqlite:PATH in a folder that can be written, postgresql://... or memory"


def opener_of(url: str, ensemble: str, base: Path | None) -> Opener:
    """Relative paths start at `base`. Opens nothing yet. Raises BadStoreUrl."""
    scheme, colon, rest = url.partition(":")
    if not url:
        return _at_home(ensemble)
    if url == "memory":
        return SqliteMemory()
    if scheme == "sqlite" and colon:
        return SqliteFile(_path(rest, base), _ELSEWHERE)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return _postgres(url)
    raise BadStoreUrl(f"store.url {_FORMS}")


def _path(text: str, base: Path | None) -> Path:
    if not text or text == MEMORY or text.startswith("//") or "\0" in text:
        raise BadStoreUrl(f"store.url {_FORMS}; an absolute path is written as sqlite:/var/lib/octet/state.db")
    try:
        return (base or Path()) / Path(text).expanduser()
    except RuntimeError as error:
        raise BadStoreUrl(f"store.url: {error}") from error


def _at_home(ensemble: str) -> Opener:
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return Nowhere()
    return SqliteFile(Path(state) / "octet" / f"{ensemble}.db", _ELSEWHERE)


def _postgres(url: str) -> Opener:
    if find_spec("psycopg") is None:
        raise BadStoreUrl('store.url: PostgreSQL needs psycopg: pip install "octet[postgres]"')
    try:
        from octet.store.postgres import PostgresUrl  # heavy, and not everybody has it
    except ImportError as error:
        raise BadStoreUrl(
            f'store.url: psycopg cannot be loaded ({error}): pip install "octet[postgres]" brings one that can'
        ) from error
    return PostgresUrl(url)


class Nowhere:
    """There is no home folder."""

    name = "SQLite file"

    def open(self) -> Connection:
        raise Unavailable(f"there is no home folder to keep it in; {_ELSEWHERE}")
