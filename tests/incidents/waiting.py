"""Waiting for a condition."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.patience import PATIENCE


async def until(condition: Callable[[], Any], why: Callable[[], Any] | None = None, seconds: float = PATIENCE) -> Any:
    """Poll the condition, awaitable or not, until its value is true, and return that value. Raises AssertionError after
    `seconds`."""
    now = asyncio.get_running_loop().time
    end = now() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if now() > end:
            raise AssertionError(await why() if why is not None else "the condition never became true")
        await asyncio.sleep(0.1)
