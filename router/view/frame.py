"""One overview as everybody gets it: made once, and written once in each form, however many look."""

import asyncio
from collections.abc import Callable
from functools import cached_property

from octet.rpc.plain import plain
from octet.v1 import overview_pb2 as wire
from router.view.compact import compact


class Frame:
    """Belongs to the event loop."""

    def __init__(self, number: int, overview: wire.Overview, made: float, cpu: Callable[[], float]) -> None:
        """`made` is when, and `cpu` tells seconds of computing of this thread."""
        self.number = number
        self.overview = overview
        """Not to be changed."""
        self.made = made
        self.cost = 0.0
        """Seconds of computing that it has taken so far."""
        self._cpu = cpu
        self._writing: asyncio.Task[bytes] | None = None

    @cached_property
    def raw(self) -> bytes:
        """The message itself."""
        began = self._cpu()
        raw: bytes = self.overview.SerializeToString()
        self.cost += self._cpu() - began
        return raw

    async def told(self) -> bytes:
        """As JSON."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="writing an overview")
        return await asyncio.shield(self._writing)

    def says_the_same(self, overview: wire.Overview) -> bool:
        """But for the time."""
        at, overview.at_unix_ms = overview.at_unix_ms, self.overview.at_unix_ms
        same = overview == self.overview
        overview.at_unix_ms = at
        return bool(same)

    async def _write(self) -> bytes:
        """Specialist by specialist: requests go on in between."""
        written = []
        for view in self.overview.specialists:
            written.append(self._timed(view))
            await asyncio.sleep(0)
        rest = wire.Overview()
        rest.CopyFrom(self.overview)
        del rest.specialists[:]
        told = {name: compact(value) for name, value in plain(rest).items()}
        told["specialists"] = b"[" + b",".join(written) + b"]"
        return b"{" + b",".join(compact(name) + b":" + value for name, value in told.items()) + b"}"

    def _timed(self, view: wire.SpecialistView) -> bytes:
        began = self._cpu()
        written = compact(plain(view))
        self.cost += self._cpu() - began
        return written
