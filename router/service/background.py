"""Work that goes on beside the requests. If it ends by mistake, somebody is told."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


def background(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("%s has ended", task.get_name(), exc_info=task.exception())
