"""The blocking and the asyncio client of a router. The blocking client documents the calls of both."""

import asyncio
from contextlib import suppress
from threading import Event, Lock
from typing import Any, Unpack

import grpc

from octet.client.answer import Answer, Chunk, StreamBase
from octet.client.base import LOOKUP_TIMEOUT_S, ClientBase, SyncClientBase, rpc
from octet.client.channel import call_error
from octet.client.conversation import AsyncConversation, Conversation
from octet.client.jobs import AsyncJobsClient, JobsClient
from octet.client.options import Options
from octet.client.receipts import Receipt
from octet.client.records import TokenCount
from octet.client.request import Attempts, build_message


class Client(SyncClientBase):
    """A client that threads may share: `with Client(address) as client: ...`. A failed call raises an OctetError."""

    @property
    def jobs(self) -> JobsClient:
        return JobsClient(self)

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> "Stream":
        """Stream the answer: `with client.stream("...") as answer: for chunk in answer: ...`. Leaving the block or
        dropping the stream cancels an unfinished request."""
        return self._stream(prompt, options)

    def _stream(self, prompt: str | None, options: Options, *, is_whole: bool = False) -> "Stream":
        return Stream(self._method("Inference.Generate"), self._prepare(prompt, options), is_whole=is_whole)

    def infer(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """Return the whole answer. If it breaks off, the error holds the text so far in `partial`."""
        with self._stream(prompt, options, is_whole=True) as stream:
            for _ in stream:
                pass
            return stream.answer()

    def route(self, prompt: str | None = None, **options: Unpack[Options]) -> Receipt:
        """Return the routing decision for this request, without generating an answer."""
        return Receipt.from_wire(self._call("Inference.Route", self._prepare(prompt, options)))

    def count_tokens(self, prompt: str | None = None, **options: Unpack[Options]) -> TokenCount:
        """Count the tokens of the prompt or conversation for the specialist that would answer it now."""
        return TokenCount.from_wire(self._call("Inference.CountTokens", self._prepare(prompt, options)))

    def embed(self, text: str, **options: Unpack[Options]) -> list[float]:
        """Return the text's embedding, a vector of length 1, by the specialist in `force` or the only one that computes
        embeddings."""
        return list(self._call("Inference.Infer", self._prepare(text, options, embed=True)).embedding)

    def conversation(
        self, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> Conversation:
        """Start a conversation that keeps its history. The options apply to every turn."""
        return Conversation(self, session_id, system, **options)

    def receipt(self, request_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Receipt:
        """Return a receipt; it is kept for a limited time. An operator may name another `tenant`. Raises NotFound."""
        found = self._look_up("Inference.GetReceipt", timeout, request_id=request_id, tenant=tenant)
        return Receipt.from_wire(found)

    def cancel(self, request_id: str, *, timeout: float | None = LOOKUP_TIMEOUT_S) -> None:
        """Cancel the request; its reader gets Cancelled. Raises NotFound for an unknown request."""
        self._look_up("Inference.Cancel", timeout, request_id=request_id)


class Stream(StreamBase):
    """A streamed answer for a single reader. `cancel` may be called from any thread."""

    def __init__(self, method: Any, attempts: Attempts, *, is_whole: bool = False) -> None:
        super().__init__(method, attempts, is_whole=is_whole)
        self._cancelled = Event()
        self._lock = Lock()

    def __enter__(self) -> "Stream":
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Chunk:
        while not self._is_over:
            chunk = self._read()
            if chunk is not None:
                return chunk
        raise StopIteration

    def cancel(self) -> None:
        """Cancel the request; its reader gets Cancelled."""
        with self._lock:
            super().cancel()

    def _read(self) -> Chunk | None:
        try:
            event = next(self._open(), None)
            if event is not None:
                return self._handle(event)
            self._finish()
        except grpc.RpcError as error:
            self._cancelled.wait(self._fail(error))
        return None

    def _open(self) -> Any:
        with self._lock:
            return super()._open()


class AsyncClient(ClientBase):
    """A client for one event loop: `async with AsyncClient(address) as client: ...`, or `close()` at the end."""

    _library = grpc.aio

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client and cancel its running calls."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    @property
    def jobs(self) -> AsyncJobsClient:
        return AsyncJobsClient(self)

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> "AsyncStream":
        """Stream the answer: `async with client.stream("...") as answer: async for chunk in answer: ...`."""
        return self._stream(prompt, options)

    def _stream(self, prompt: str | None, options: Options, *, is_whole: bool = False) -> "AsyncStream":
        return AsyncStream(self._method("Inference.Generate"), self._prepare(prompt, options), is_whole=is_whole)

    async def infer(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        async with self._stream(prompt, options, is_whole=True) as stream:
            async for _ in stream:
                pass
            return stream.answer()

    async def route(self, prompt: str | None = None, **options: Unpack[Options]) -> Receipt:
        return Receipt.from_wire(await self._call("Inference.Route", self._prepare(prompt, options)))

    async def count_tokens(self, prompt: str | None = None, **options: Unpack[Options]) -> TokenCount:
        return TokenCount.from_wire(await self._call("Inference.CountTokens", self._prepare(prompt, options)))

    async def embed(self, text: str, **options: Unpack[Options]) -> list[float]:
        return list((await self._call("Inference.Infer", self._prepare(text, options, embed=True))).embedding)

    def conversation(
        self, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> AsyncConversation:
        return AsyncConversation(self, session_id, system, **options)

    async def receipt(self, request_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Receipt:
        found = await self._look_up("Inference.GetReceipt", timeout, request_id=request_id, tenant=tenant)
        return Receipt.from_wire(found)

    async def cancel(self, request_id: str, *, timeout: float | None = LOOKUP_TIMEOUT_S) -> None:
        await self._look_up("Inference.Cancel", timeout, request_id=request_id)

    async def _call(self, name: str, attempts: Attempts) -> Any:
        send = self._method(name)
        while True:
            message, options = attempts.start()
            call = send(message, **options)
            try:
                response = await call
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                await asyncio.sleep(attempts.fail(call_error(call, error)))
            else:
                attempts.schedule.budget.earn()
                return response

    async def _look_up(self, name: str, timeout: float | None, /, **values: Any) -> Any:
        return await self._call(name, self._repeat(build_message(rpc(name).request, values), timeout))


class AsyncStream(StreamBase):
    """A streamed answer for a single reader."""

    def __init__(self, method: Any, attempts: Attempts, *, is_whole: bool = False) -> None:
        super().__init__(method, attempts, is_whole=is_whole)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = asyncio.Event()

    def __del__(self) -> None:
        """Cancel the request of a dropped stream. The garbage collector may run in any thread."""
        if not self._is_over and self._call is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    async def __aenter__(self) -> "AsyncStream":
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> Chunk:
        while not self._is_over:
            chunk = await self._read()
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def _read(self) -> Chunk | None:
        call = self._open()
        try:
            event = await call.read()
            if event is not grpc.aio.EOF:
                return self._handle(event)
            self._finish()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            self._is_over = True
            wait = self._fail(call_error(call, error))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._cancelled.wait()
        return None

    def _open(self) -> Any:
        self._loop = self._loop or asyncio.get_running_loop()
        return super()._open()
