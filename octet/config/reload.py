"""Follows a configuration file while a router runs. The last accepted configuration is kept, so that a router can
restart while an operator is editing the file."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from octet.config.ensemble import Ensemble
from octet.config.fields import compare_ensembles
from octet.config.loader import parse_content, read_content
from octet.config.yaml_tree import ConfigInvalid, Problem
from octet.identity import file_stamp

_log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
SETTLE_SECONDS = 0.2


class Reloaded(NamedTuple):
    ensemble: Ensemble
    changed: tuple[str, ...]  # dotted names


class ReloadRefused(NamedTuple):
    """The new configuration was refused; the old one stays active."""

    why: str  # one line for each problem


ReloadEvent: TypeAlias = Reloaded | ReloadRefused


class ConfigWatch:
    """Watches a configuration file by polling, which works on every file system and with symbolic links."""

    def __init__(
        self,
        path: Path,
        current: Ensemble,
        kept: Path | None = None,
        *,
        interval: float = POLL_SECONDS,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        """Every accepted configuration is written to the file `kept`."""
        self._path = path
        self._current = self._before = current
        self._kept = kept
        self._interval = interval
        self._settle = settle
        self._seen: tuple[int, ...] | None = None
        self._settled = False
        self._content: bytes | None = None
        self._nudged = asyncio.Event()

    @property
    def current(self) -> Ensemble:
        return self._current

    def refused(self) -> None:
        """Report that the last `Reloaded` could not be applied: the previous configuration stays active."""
        self._current = self._before

    def look(self) -> bool:
        """Whether the file is unchanged since the last call. A changed file may still be changing: call again later."""
        stamp = file_stamp(self._path)
        still = stamp == self._seen
        self._settled = self._settled and still
        self._seen = stamp
        return still

    def read(self, *, again: bool = False) -> ReloadEvent | None:
        """Return an event if the content has changed or `again` is set. Call it after `look` has returned True."""
        if self._settled and not again:
            return None
        content = self._read()
        self._settled = file_stamp(self._path) == self._seen
        if not self._settled:
            return None
        if isinstance(content, ReloadRefused):
            return content
        if content == self._content and not again:
            return None
        self._content = content
        return self._judge(content)

    def _read(self) -> bytes | ReloadRefused:
        """Return the content. A pipe is refused, because reading it would block and consume its content."""
        if self._path.exists() and not self._path.is_file():
            return ReloadRefused(f"{self._path}: not a regular file, so changes cannot be watched")
        try:
            return read_content(self._path)
        except ConfigInvalid as invalid:
            return ReloadRefused(f"{invalid}; the previous configuration stays in force")

    def _judge(self, content: bytes) -> ReloadEvent | None:
        try:
            ensemble = parse_content(content, self._path)
        except ConfigInvalid as invalid:
            return ReloadRefused(str(invalid))
        found = compare_ensembles(self._current, ensemble)
        if found.needs_restart:
            return ReloadRefused(f"{self._path}: these keys need a restart to change: {', '.join(found.needs_restart)}")
        if not found:
            return None
        self._before, self._current = self._current, ensemble
        return Reloaded(ensemble, found.reloadable)

    def nudge(self) -> None:
        """Check the file now, and report its problems again, for SIGHUP. Call it on the event loop's thread."""
        self._nudged.set()

    async def events(self) -> AsyncIterator[ReloadEvent]:
        """Yield events forever; files are read on another thread."""
        while True:
            nudged = self._nudged.is_set()
            self._nudged.clear()
            while not await asyncio.to_thread(self.look):
                await asyncio.sleep(self._settle)
            event = await asyncio.to_thread(self.read, again=nudged)
            if isinstance(event, Reloaded) and self._kept is not None and self._content is not None:
                await asyncio.to_thread(_keep, self._content, self._kept)
            if event is not None:
                yield event
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), self._interval)


def load_accepted_config(config: Path, kept: Path) -> Ensemble:
    """Load `config` if a router that runs with `kept` would accept it, else load `kept`. Raises ConfigInvalid."""
    before = parse_content(read_content(kept), config) if kept.exists() else None
    try:
        content = read_content(config)
        ensemble = parse_content(content, config)
        needs_restart = () if before is None else compare_ensembles(before, ensemble).needs_restart
        if needs_restart:
            problem = f"these keys need a restart of all processes to change: {', '.join(needs_restart)}"
            raise ConfigInvalid([Problem(None, problem)], config)
    except ConfigInvalid as invalid:
        if before is None:
            raise
        _log.error("%s\nthis router starts with the last accepted configuration and watches the file", invalid)
        return before
    _keep(content, kept)
    return ensemble


def _keep(content: bytes, kept: Path) -> None:
    """Write the file atomically."""
    unfinished = kept.with_name(f"{kept.name}.new")
    unfinished.write_bytes(content)
    unfinished.replace(kept)
