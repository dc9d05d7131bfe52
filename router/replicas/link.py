"""One connection to a replica, from its first word to its loss. Whether a replica died behind it is known later."""

import asyncio


class Link:
    __slots__ = ("drained", "instance", "lost", "on_trial", "survived", "turn")

    def __init__(self) -> None:
        self.instance = ""
        """Of the process behind it; empty until it has said so."""
        self.drained = False
        """It had said that it would go."""
        self.lost = False
        self.survived = False
        """The same process was behind the next connection: the network was lost, and nobody died."""
        self.on_trial = b""
        """The content of a suspect that was sent over it and has brought no token yet; stays when it is lost."""
        self.turn = asyncio.Lock()
        """One suspect at a time."""

    @property
    def is_death(self) -> bool:
        """Of one that was lost, as far as is known now."""
        return not (self.drained or self.survived)
