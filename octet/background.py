"""Background tasks whose failures are logged."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)
_RESTART_SECONDS = 0.5


def run_in_background(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def run_forever(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> "asyncio.Task[None]":
    """Return a task that runs the work, and restarts it whenever it ends or fails, until the task is cancelled."""

    async def run() -> None:
        while True:
            try:
                await work()
                _log.critical("%s ended unexpectedly; restarting it", name)
            except Exception:
                _log.critical("%s failed; restarting it", name, exc_info=True)
            await asyncio.sleep(_RESTART_SECONDS)

    return asyncio.create_task(run(), name=name)


def run_every(
    seconds: float, work: Callable[[], Coroutine[Any, Any, object] | None], name: str
) -> "asyncio.Task[None]":
    """Return a task that pauses for `seconds` and runs the work, again and again, until the task is cancelled."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            if (working := work()) is not None:
                await working

    return run_forever(repeat, name)


async def cancel_tasks(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("%s has failed", task.get_name(), exc_info=task.exception())
