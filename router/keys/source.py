"""Where a router's keys come from: a file that is followed, or the environment."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from router.keys.book import KeyBook
from router.keys.keys_file import KeysFile, Stamp
from router.keys.keys_text import KeysInvalid, parse_keys

_log = logging.getLogger(__name__)
VARIABLE = "OCTET_KEYS"
INTERVAL = 1.0


class KeySource(Protocol):
    def book(self) -> KeyBook:
        """Raises KeysInvalid, OSError."""

    async def follow(self, changed: Callable[[KeyBook], None]) -> None:
        """Without an end."""


@dataclass(frozen=True, slots=True)
class GivenKeys:
    """Told at the start, once and for all."""

    keys: KeyBook

    def book(self) -> KeyBook:
        return self.keys

    async def follow(self, changed: Callable[[KeyBook], None]) -> None:
        await asyncio.get_running_loop().create_future()


class FollowedKeys:
    """A file. Polls, because that works on every file system and through every kind of link. What cannot be read
    changes nothing, and is told once."""

    def __init__(self, file: KeysFile, interval: float = INTERVAL) -> None:
        self._file = file
        self._interval = interval
        self._seen: Stamp | None = None

    def book(self) -> KeyBook:
        self._seen = self._file.stamp()
        return self._file.book()

    async def follow(self, changed: Callable[[KeyBook], None]) -> None:
        while True:
            await asyncio.sleep(self._interval)
            stamp = await asyncio.to_thread(self._file.stamp)
            if stamp == self._seen:
                continue
            self._seen = stamp
            try:
                book = await asyncio.to_thread(self._file.book)
            except (KeysInvalid, OSError) as error:
                _log.error("the keys stay as they were: %s", error)
                continue
            changed(book)
            _log.info("the keys have changed: there are %d", len(book.keys))


def open_keys(option: Path | None, environment: Mapping[str, str], configured: str | None) -> KeySource | None:
    """The option before the environment before the configuration; None where none of them names any.

    The variable holds a path, or, where it begins with a brace, what would stand in the file. Raises KeysInvalid.
    """
    said = environment.get(VARIABLE, "").strip()
    if option is None and said.startswith("{"):
        try:
            return GivenKeys(KeyBook(parse_keys(said)))
        except KeysInvalid as invalid:
            raise KeysInvalid(f"{VARIABLE}: {invalid}") from None
    path = option or said or configured
    return None if not path else FollowedKeys(KeysFile(Path(os.fspath(path)).expanduser()))
