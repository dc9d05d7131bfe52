"""Whether the database answers; said when it begins, while it lasts, and when it ends."""

import logging
from collections.abc import Callable

from octet.clock import Clock

_log = logging.getLogger("octet.store")
_REPEAT = 30.0
"""Seconds."""


class Trouble:
    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._since = 0.0
        self._said = 0.0
        self.text = ""
        self.told: Callable[[str], None] | None = None

    def begin(self, why: str, held: str) -> None:
        """Or go on; `held` says what waits for its end."""
        now = self._clock.now()
        text = f"{self._name}: {why}"
        is_new = not self.text
        if is_new:
            self._since = now
        if is_new or now - self._said >= _REPEAT:
            self._said = now
            _log.error("the store is in trouble, serving goes on: %s (%s held)", text, held)
        if text != self.text:
            self.text = text
            self._tell()

    def end(self) -> None:
        if self.text:
            self.text = ""
            _log.warning("the store answers again after %.1f s: %s", self._clock.now() - self._since, self._name)
            self._tell()

    def _tell(self) -> None:
        if self.told is None:
            return
        try:
            self.told(self.text)
        except Exception:
            _log.exception("whoever is told of the store's trouble failed")
