"""Waiting for what comes sooner or later."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds, on a machine that has much else to do."""


async def until(condition: Callable[[], Any], why: Callable[[], Any] | None = None, seconds: float = PATIENCE) -> Any:
    """Asked again and again until it is true; it may be awaitable. What it said."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(await why() if why is not None else "it never came true")
        await asyncio.sleep(0.1)
