"""Work that goes on beside the requests. If it ends by mistake, somebody is told."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5


def background(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    """Has an end."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def for_good(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> "asyncio.Task[None]":
    """Ends when it is cancelled; nobody can do without it, and so it begins again whenever it ends otherwise."""
    return asyncio.create_task(_again_and_again(work, name), name=name)


async def _again_and_again(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    while True:
        try:
            await work()
            _log.critical("%s has ended and begins again", name)
        except Exception:
            _log.critical("%s has ended and begins again", name, exc_info=True)
        await asyncio.sleep(_PAUSE_SECONDS)


def _tell(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("%s has ended", task.get_name(), exc_info=task.exception())
