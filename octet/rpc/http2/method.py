"""One method of a server, which is called."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from octet.rpc.http2.call import Call
from octet.rpc.http2.header_block import custom
from octet.rpc.http2.inbox import framed
from octet.rpc.http2.metadata import Pairs

Serialize: TypeAlias = Callable[[Any], bytes]
Parse: TypeAlias = Callable[[bytes], Any]
Start: TypeAlias = Callable[[Call, bool], None]
"""A call on its way; the other argument says whether it waits for a connection where none can be had now."""


class Method:
    def __init__(
        self,
        start: Start,
        kind: type[Call],
        opening: bytes,
        serialize: Serialize | None,
        parse: Parse | None,
        most_message: int,
        lookahead: int,
    ) -> None:
        self._start = start
        self._kind = kind
        self._opening = opening
        self._serialize = serialize
        self._parse = parse
        self._most_message = most_message
        self._lookahead = lookahead

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Pairs | None = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        """A call that is on its way already. Raises ValueError for metadata that cannot be sent."""
        raw = request if self._serialize is None else self._serialize(request)
        call = self._kind(
            asyncio.get_running_loop(),
            self._opening if not metadata else self._opening + custom(metadata),
            framed(raw),
            timeout,
            self._parse,
            self._most_message,
            self._lookahead,
        )
        self._start(call, bool(wait_for_ready))
        return call
