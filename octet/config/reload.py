"""Follows a configuration file while a router runs: a new one is taken over whole, or refused whole.

A file is only read once it has been left alone for a while: one that is being written may be valid halfway through.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from octet.config.changes import Changes, changes
from octet.config.ensemble import Ensemble
from octet.config.problem import ConfigInvalid
from octet.config.read import parse_content, read_content

__all__ = ["Changes", "ConfigFile", "ConfigWatch", "Event", "Refused", "Reloaded", "changes"]

INTERVAL = 1.0
SETTLE = 0.2


class Reloaded(NamedTuple):
    ensemble: Ensemble
    changed: tuple[str, ...]
    """Dotted names."""


class Refused(NamedTuple):
    """The old configuration stays."""

    why: str
    """A line each."""


Event: TypeAlias = Reloaded | Refused


class _Stamp(NamedTuple):
    """Another one whenever the file is written, replaced, or linked to elsewhere."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class ConfigFile:
    """What the file says, against what is in force. Reads no clock: whoever calls waits in between."""

    def __init__(self, path: Path, current: Ensemble) -> None:
        self._path = path
        self._current = self._before = current
        self._seen: _Stamp | None = None
        self._settled = False
        self._content: bytes | None = None

    @property
    def current(self) -> Ensemble:
        return self._current

    def refused(self) -> None:
        """What was read last was not taken over: what was in force before still is."""
        self._current = self._before

    def look(self) -> bool:
        """Whether the file is as it was at the last look: if not, look again a little later."""
        stamp = self._stamp()
        still = stamp == self._seen
        self._settled = self._settled and still
        self._seen = stamp
        return still

    def read(self, *, again: bool = False) -> Event | None:
        """After a look that found it still. `again` also reads, and refuses, what was read before."""
        if self._settled and not again:
            return None
        content = self._read()
        self._settled = self._stamp() == self._seen
        if not self._settled:
            return None
        if isinstance(content, Refused):
            return content
        if content == self._content and not again:
            return None
        self._content = content
        return self._judge(content)

    def _read(self) -> bytes | Refused:
        """A pipe would have been emptied by whoever read it first, and be waited for without an end."""
        if self._path.exists() and not self._path.is_file():
            return Refused(f"{self._path}: not a regular file, so changes cannot be followed")
        try:
            return read_content(self._path)
        except ConfigInvalid as invalid:
            return Refused(f"{invalid}; what was read before stays in force")

    def _judge(self, content: bytes) -> Event | None:
        try:
            ensemble = parse_content(content, self._path)
        except ConfigInvalid as invalid:
            return Refused(str(invalid))
        found = changes(self._current, ensemble)
        if found.needs_restart:
            return Refused(f"{self._path}: cannot change without a restart: {', '.join(found.needs_restart)}")
        if not found:
            return None
        self._before, self._current = self._current, ensemble
        return Reloaded(ensemble, found.reloadable)

    def _stamp(self) -> _Stamp | None:
        try:
            found = self._path.stat()
        except OSError:  # gone, or out of reach: reading it says which
            return None
        return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class ConfigWatch:
    """Polls, because that works on every file system and through every kind of link."""

    def __init__(self, path: Path, current: Ensemble, *, interval: float = INTERVAL, settle: float = SETTLE) -> None:
        self._file = ConfigFile(path, current)
        self._interval = interval
        self._settle = settle
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """Look now, and say again what is wrong: for SIGHUP. In the loop's own thread."""
        self._nudged.set()

    def refused(self) -> None:
        """The last `Reloaded` could not be taken over. Before the next event is asked for."""
        self._file.refused()

    async def events(self) -> AsyncIterator[Event]:
        """Without an end; reading never holds up the loop."""
        while True:
            nudged = self._nudged.is_set()
            self._nudged.clear()
            while not await asyncio.to_thread(self._file.look):
                await asyncio.sleep(self._settle)
            event = await asyncio.to_thread(self._file.read, again=nudged)
            if event is not None:
                yield event
            await self._pause()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._nudged.wait(), self._interval)
        except TimeoutError:
            return
