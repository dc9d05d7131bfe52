"""The configuration a router last accepted, kept beside it: a router that comes back must not depend on a file that
somebody is editing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from octet.config.changes import changes
from octet.config.ensemble import Ensemble
from octet.config.problem import ConfigInvalid, Problem
from octet.config.read import parse_content, read_content
from octet.config.reload import ConfigWatch, Event, Reloaded

_log = logging.getLogger(__name__)


def open_accepted(config: Path, kept: Path) -> Ensemble:
    """What `config` says, or what is kept where that cannot be taken over. Raises ConfigInvalid for want of both."""
    if not kept.exists():
        content = read_content(config)
        ensemble = parse_content(content, config)
        _keep(content, kept)
        return ensemble
    before = parse_content(read_content(kept), config)
    try:
        return _taken_over(before, config, kept)
    except ConfigInvalid as invalid:
        _log.error(
            "%s\nthis router starts from the configuration that was accepted last, and follows the file", invalid
        )
        return before


class AcceptedWatch(ConfigWatch):
    """Keeps what it has reloaded, for the router's next start."""

    def __init__(self, kept: Path, path: Path, current: Ensemble) -> None:
        super().__init__(path, current)
        self._path = path
        self._kept = kept

    async def events(self) -> AsyncIterator[Event]:
        async for event in super().events():
            if isinstance(event, Reloaded):
                await asyncio.to_thread(_keep_if_still, event.ensemble, self._path, self._kept)
            yield event


def _keep_if_still(ensemble: Ensemble, config: Path, kept: Path) -> None:
    """A file that has changed once more is the next reload's to keep."""
    try:
        content = read_content(config)
        is_still_it = parse_content(content, config) == ensemble
    except ConfigInvalid:
        return
    if is_still_it:
        _keep(content, kept)


def _taken_over(before: Ensemble, config: Path, kept: Path) -> Ensemble:
    """Only what a running router would have taken over: the other processes are as they were. Raises ConfigInvalid."""
    content = read_content(config)
    ensemble = parse_content(content, config)
    found = changes(before, ensemble)
    if found.needs_restart:
        problem = f"cannot change without a restart of everything: {', '.join(found.needs_restart)}"
        raise ConfigInvalid([Problem(None, problem)], config)
    _keep(content, kept)
    return ensemble


def _keep(content: bytes, kept: Path) -> None:
    """All of it or nothing."""
    unfinished = kept.with_name(f"{kept.name}.new")
    unfinished.write_bytes(content)
    unfinished.replace(kept)
