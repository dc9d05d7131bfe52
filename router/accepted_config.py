"""Keeps the last accepted configuration, so that the router can start while an operator is editing the file."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from octet.config.ensemble import Ensemble
from octet.config.fields import compare_ensembles
from octet.config.loader import parse_content, read_content
from octet.config.reload import ConfigWatch, Reloaded, ReloadEvent
from octet.config.yaml_tree import ConfigInvalid, Problem

_log = logging.getLogger(__name__)


def load_accepted_config(config: Path, kept: Path) -> Ensemble:
    """Load `config` if a running router would accept it, otherwise the kept configuration. Raises ConfigInvalid if
    neither is valid."""
    before = parse_content(read_content(kept), config) if kept.exists() else None
    try:
        content = read_content(config)
        ensemble = parse_content(content, config)
        needs_restart = () if before is None else compare_ensembles(before, ensemble).needs_restart
        if needs_restart:
            problem = f"cannot change without a restart of all processes: {', '.join(needs_restart)}"
            raise ConfigInvalid([Problem(None, problem)], config)
    except ConfigInvalid as invalid:
        if before is None:
            raise
        _log.error("%s\nthis router starts with the last accepted configuration and watches the file", invalid)
        return before
    _keep(content, kept)
    return ensemble


class AcceptedConfigWatch(ConfigWatch):
    def __init__(self, kept: Path, path: Path, current: Ensemble) -> None:
        super().__init__(path, current)
        self._kept = kept

    async def events(self) -> AsyncIterator[ReloadEvent]:
        async for event in super().events():
            if isinstance(event, Reloaded):
                await asyncio.to_thread(_keep_if_current, event.ensemble, self._path, self._kept)
            yield event


def _keep_if_current(ensemble: Ensemble, config: Path, kept: Path) -> None:
    """Keep the configuration. If the file has changed again, leave that to the next reload."""
    try:
        content = read_content(config)
        is_current = parse_content(content, config) == ensemble
    except ConfigInvalid:
        return
    if is_current:
        _keep(content, kept)


def _keep(content: bytes, kept: Path) -> None:
    """Write the file atomically."""
    unfinished = kept.with_name(f"{kept.name}.new")
    unfinished.write_bytes(content)
    unfinished.replace(kept)
