"""A process that can be stopped and killed though it shares an event loop with all the others."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal
from weakref import WeakSet

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""Whose work the current callback is: tasks and timers inherit it from whoever begins them."""
State = Literal["up", "stopped", "dead"]


class Process:
    """What it has to do is done while it is up, held back while it is stopped, and never done once it is dead: no
    handler is told, no `finally` runs, as after kill -9."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: State = "up"
        self._held: list[asyncio.TimerHandle] = []
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._buried: list[object] = []
        """Nothing of the dead is collected while the others live: that would run what must not run."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def takes(self, handle: asyncio.TimerHandle) -> bool:
        """Whether it is done now."""
        if self.state == "up":
            return True
        (self._held if self.state == "stopped" else self._buried).append(handle)
        return False

    def stop(self) -> None:
        if self.state == "up":
            self.state = "stopped"

    def let_go(self) -> list[asyncio.TimerHandle]:
        """It goes on; what was held back, in its order."""
        if self.state == "stopped":
            self.state = "up"
        held, self._held = self._held, []
        return held

    def kill(self) -> None:
        self.state = "dead"
        self._buried += [*self._held, *self.tasks]
        self._held = []
