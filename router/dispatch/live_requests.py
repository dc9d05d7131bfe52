"""The requests that this router is answering, limited in number and bytes."""

import asyncio
from collections.abc import Iterator

from octet.rpc.refusal import queue_full
from router.refusals import duplicate_request, too_many_bytes, unknown_request
from router.request import Request


class LiveRequests:
    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._requests: dict[tuple[str, str], Request] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._requests.values()))

    def enter(self, request: Request) -> None:
        """Register the request, which the current task serves until `leave`. Raises Refusal for an id already in use,
        and for too many requests or bytes."""
        key = (request.caller.tenant, request.request_id)
        if key in self._requests:
            raise duplicate_request(request.request_id)
        if len(self._requests) >= self.max_requests:
            raise queue_full("being answered", self.max_requests, None)
        if self.num_bytes + request.num_bytes > self._max_bytes and self._requests:  # a request alone may be larger
            raise too_many_bytes(self._max_bytes)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request must be served by an asyncio task")
        request.start(task)
        self._requests[key] = request
        self.num_bytes += request.num_bytes
        self._emptied.clear()

    def leave(self, request: Request) -> None:
        del self._requests[request.caller.tenant, request.request_id]
        self.num_bytes -= request.num_bytes
        if not self._requests:
            self._emptied.set()

    def find(self, request_id: str, tenant: str = "") -> Request:
        request = self._requests.get((tenant, request_id))
        if request is None:
            raise unknown_request(request_id)
        return request

    async def emptied(self) -> None:
        await self._emptied.wait()
