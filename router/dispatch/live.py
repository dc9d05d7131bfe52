"""The requests that are being answered, by their id."""

import asyncio
from collections.abc import Callable, Iterator

import grpc

from octet.rpc.refusal import Refusal, queue_full, shorten
from octet.v1 import error_pb2 as wire
from router.replicas.attempt import Attempt


class Live:
    """One of them. `end` ends it from outside, wherever it waits."""

    __slots__ = (
        "_leave",
        "_task",
        "attempt",
        "deadline",
        "ending",
        "first_deadline",
        "num_bytes",
        "request_id",
        "tenant",
    )

    def __init__(
        self,
        request_id: str,
        deadline: float,
        num_bytes: int,
        task: "asyncio.Task[object]",
        leave: Callable[["Live"], None],
        tenant: str = "",
    ) -> None:
        self._leave = leave
        self.request_id = request_id
        self.tenant = tenant
        self.deadline = deadline
        self.first_deadline: float | None = None
        """Of its first token; none once that is there."""
        self.num_bytes = num_bytes
        self._task = task
        self.attempt: Attempt | None = None
        """The one under way."""
        self.ending: Refusal | None = None

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self)

    def end(self, refusal: Refusal) -> None:
        """The first reason stands."""
        if self.ending is None:
            self.ending = refusal
            self._task.cancel()

    def claim_end(self) -> Refusal | None:
        """After CancelledError: why, if it was `end`, and the task goes on to say so. None: the caller is gone."""
        if self.ending is None or self._task.uncancel() > 0:
            return None
        return self.ending


class LiveRequests:
    """Belongs to the event loop."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """`most_bytes` bounds what all of them were asked, together."""
        self.most = most
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._live: dict[tuple[str, str], Live] = {}
        """By tenant and id: nobody meets another's."""
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_bytes(self) -> int:
        """Of what all of them were asked."""
        return self._num_bytes

    def __iter__(self) -> Iterator[Live]:
        return iter(tuple(self._live.values()))

    def enter(self, request_id: str, deadline: float, num_bytes: int, tenant: str = "") -> Live:
        """The current task answers it, as a context. Raises Refusal for an id that is taken, and when there are too
        many or they are too large together."""
        if (tenant, request_id) in self._live:
            raise duplicate(request_id)
        if len(self._live) >= self.most:
            raise queue_full("being answered", self.most, None)
        if self._num_bytes + num_bytes > self._most_bytes and self._live:
            raise too_much(self._most_bytes)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered by a task")
        live = Live(request_id, deadline, num_bytes, task, self._leave, tenant)
        self._live[tenant, request_id] = live
        self._num_bytes += num_bytes
        self._emptied.clear()
        return live

    def _leave(self, live: Live) -> None:
        del self._live[live.tenant, live.request_id]
        self._num_bytes -= live.num_bytes
        if not self._live:
            self._emptied.set()

    def find(self, request_id: str, tenant: str = "") -> Live:
        """Raises Refusal."""
        live = self._live.get((tenant, request_id))
        if live is None:
            raise unknown(request_id)
        return live

    async def emptied(self) -> None:
        await self._emptied.wait()


def duplicate(request_id: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.ALREADY_EXISTS,
        wire.ERROR_REASON_DUPLICATE_REQUEST,
        f"a request with the id {shorten(request_id)} is being answered",
        field="request_id",
        limit="an id that no live request has",
        value=shorten(request_id),
    )


def too_much(most_bytes: int) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{most_bytes:,} bytes of prompts are being answered already",
        field="prompt",
        limit=f"at most {most_bytes:,} bytes in all requests together",
    )


def unknown(request_id: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.NOT_FOUND,
        wire.ERROR_REASON_UNKNOWN_REQUEST,
        f"nothing is known of a request with the id {shorten(request_id)}",
        field="request_id",
        limit="the id of a request that is known here",
        value=shorten(request_id),
    )
