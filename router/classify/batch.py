"""Texts that are computed together, and all who wait for them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from router.classify.base import Distribution

if TYPE_CHECKING:
    from router.classify.worker import Worker

Waiter = asyncio.Future[Distribution | str]
"""Ends with an opinion, or with why there is none."""
Outcome = Sequence[Distribution | str]
"""Of a batch, text by text: an opinion, or why there is none."""


class Job:
    """One text and all who wait for an opinion on it."""

    __slots__ = ("ended", "text", "waiters", "waits_until")

    def __init__(self, text: str) -> None:
        self.text = text
        self.waiters: list[Waiter] = []
        self.waits_until: asyncio.TimerHandle | None = None
        """None where a worker took it at once: the batch has a limit itself."""
        self.ended = False

    def end(self, answer: Distribution | str) -> None:
        self.ended = True
        self.stop_clock()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(answer)

    def stop_clock(self) -> None:
        if self.waits_until is not None:
            self.waits_until.cancel()


class Batch:
    __slots__ = ("_land", "_loop", "computed", "jobs", "limit")

    def __init__(
        self,
        jobs: dict[bytes, Job],
        loop: asyncio.AbstractEventLoop,
        land: "Callable[[Worker, Batch, Outcome], None]",
    ) -> None:
        self.jobs = jobs
        self.limit: asyncio.TimerHandle | None = None
        self.computed = False
        """Set by the worker; the outcome may still be on its way to the loop."""
        self._loop = loop
        self._land = land

    def end(self, outcome: Outcome) -> None:
        if self.limit is not None:
            self.limit.cancel()
        for job, answer in zip(self.jobs.values(), outcome, strict=True):
            job.end(answer)

    def land(self, worker: "Worker", outcome: Outcome) -> bool:
        """On the worker's thread. False when the loop is no more."""
        self.computed = True
        try:
            self._loop.call_soon_threadsafe(self._land, worker, self, outcome)
        except RuntimeError:  # closed: nobody is left to be told
            return False
        return True
