"""One connection to a replica, from its first word to its loss. Whether a replica died behind it is known later."""

import asyncio
from collections import deque
from collections.abc import Callable

SOON_SECONDS = 2.0
"""Whoever left so long before the connection was lost was there as well: to hang up is no way out."""
_MOST_LEFT = 256


class Link:
    __slots__ = ("_left", "drained", "instance", "lost", "on_trial", "survived", "turn")

    def __init__(self) -> None:
        self.instance = ""
        """Of the process behind it; empty until it has said so."""
        self.drained = False
        """It had said that it would go."""
        self.lost = False
        self.survived = False
        """The same process was behind the next connection: the network was lost, and nobody died."""
        self.on_trial: list[bytes] = []
        """The contents of suspects that were sent over it and have brought no token yet; they stay when it is lost."""
        self.turn = asyncio.Lock()
        """One suspect at a time."""
        self._left: deque[tuple[float, Callable[[], None]]] = deque(maxlen=_MOST_LEFT)

    @property
    def is_death(self) -> bool:
        """As far as is known now."""
        return self.lost and not (self.drained or self.survived)

    def left(self, now: float, blame: Callable[[], None]) -> None:
        """Somebody went away while it stood, as far as is known. `blame` is called if it is lost soon, or was."""
        if self.lost:
            blame()
        else:
            self._left.append((now, blame))

    def lose(self, now: float) -> None:
        self.lost = True
        left = [*self._left]
        self._left.clear()
        for at, blame in left:
            if now - at <= SOON_SECONDS:
                blame()
