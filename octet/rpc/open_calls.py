"""Calls that have not got their status yet."""

import asyncio
from math import inf
from typing import Any

from octet.rpc.calls import Context

_JUST_SECONDS = 1.0


class OpenCalls:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._number = 0
        self._last = -inf
        """When one ended."""

    def counted(self, handler: Any) -> Any:
        """The same call; it counts from its request to its status, a refusal's included."""
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        behaviour = getattr(handler, kind)

        async def serve(request: Any, context: Context) -> Any:
            self._number += 1
            try:
                serving = behaviour(request, context)
                del request  # whoever serves keeps what it needs of it
                return await serving
            finally:
                self._number -= 1
                self._last = asyncio.get_running_loop().time()

        return handler._replace(**{kind: serve})

    def are_quiet(self) -> bool:
        """Nobody asks, nor has just asked."""
        return not self._number and asyncio.get_running_loop().time() - self._last > _JUST_SECONDS
