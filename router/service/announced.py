"""Before the first event of an answer: how its specialist does, in the call's initial metadata."""

from collections.abc import Callable
from typing import TypeAlias

from octet.rpc.calls import Context, announce
from octet.v1 import inference_pb2 as wire
from router.slo.header import NAME

Metadata: TypeAlias = tuple[tuple[str, str], ...]


class Announced:
    """Of one call. The first event names whoever has accepted the request."""

    def __init__(self, context: Context, slo_header: Callable[[str], str]) -> None:
        self._context = context
        self._slo_header = slo_header
        self._is_open = False

    async def write(self, raw: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            specialist = wire.InferEvent.FromString(raw).routed.specialist
            await announce(self._context, metadata_of(self._slo_header(specialist)))
        await self._context.write(raw)


def metadata_of(header: str) -> Metadata:
    return ((NAME, header),) if header else ()
