"""Ask the router, from a coroutine. The same calls as `Client`."""

import asyncio
from typing import Any, Unpack

import grpc
from google.protobuf.message import Message

from octet.sdk.answer import Answer, Chunk, Heard, TokenCount
from octet.sdk.asking import Asking
from octet.sdk.async_jobs import AsyncJobs
from octet.sdk.caller import LOOKUP_S, SERVICE, Caller
from octet.sdk.channel import dial, serialize
from octet.sdk.conversation import AsyncConversation
from octet.sdk.ending import ending_of
from octet.sdk.faults import cancelled
from octet.sdk.gathering import Gathering
from octet.sdk.options import Options
from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2 as wire

_Metadata = tuple[tuple[str, str], ...]


class AsyncClient(Caller):
    """For one event loop. `async with AsyncClient("localhost:50051") as client: ...`, or `close()` at the end.

    Every call raises OctetError, in one of its kinds.
    """

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """What is still being answered is cancelled."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    @property
    def jobs(self) -> AsyncJobs:
        """Requests that nobody need wait for."""
        return AsyncJobs(self._call, self._asking, self._connected, self._is_closed, self._clock, self.address)

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> "AsyncStream":
        """The answer as it comes: `async with client.stream("...") as answer: async for chunk in answer: ...`.

        Leaving the block, or dropping the stream, cancels what is unfinished.
        """
        prepared, asking = self._inferring(prompt, options)
        method = self._connected().unary_stream(SERVICE + "Generate", serialize, wire.InferEvent.FromString)
        return AsyncStream(method, asking, prepared.metadata)

    async def infer(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """The whole answer at once. An error in its middle has what was said before as `partial`."""
        prepared, asking = self._inferring(prompt, options)
        method = self._connected().unary_stream(SERVICE + "Generate", serialize, wire.InferEvent.FromString)
        while True:
            message, seconds = asking.attempt()
            heard = Gathering(asking)
            call = method(message, timeout=seconds, metadata=prepared.metadata)
            try:
                async for event in call:
                    heard.hear(event)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                wait = heard.failed(ending_of(call, error))
            else:
                return heard.answer()
            finally:
                call.cancel()
            await asyncio.sleep(wait)

    async def route(self, prompt: str | None = None, **options: Unpack[Options]) -> Receipt:
        """The decision that would be taken now, without an answer."""
        prepared, asking = self._inferring(prompt, options)
        return Receipt.from_wire(await self._call("Route", asking, wire.Receipt, prepared.metadata))

    async def count_tokens(self, prompt: str | None = None, **options: Unpack[Options]) -> TokenCount:
        """How long the prompt, or the conversation, is for the specialist that would answer it now."""
        prepared, asking = self._inferring(prompt, options)
        counted = await self._call("CountTokens", asking, wire.CountResponse, prepared.metadata)
        return TokenCount(counted.prompt_tokens, counted.specialist)

    def conversation(
        self, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> AsyncConversation:
        """Turn after turn, with all that was said before. The options are those of every turn."""
        return AsyncConversation(self, session_id, system, **options)

    async def receipt(self, request_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_S) -> Receipt:
        """Receipts are kept for a while. `tenant`: another's, for an operator. Raises NotFound."""
        asking = self._looking_up(wire.GetReceiptRequest, request_id, timeout, tenant=tenant)
        return Receipt.from_wire(await self._call("GetReceipt", asking, wire.Receipt))

    async def cancel(self, request_id: str, *, timeout: float | None = LOOKUP_S) -> None:
        """Whoever reads its answer gets Cancelled. Raises NotFound."""
        await self._call("Cancel", self._looking_up(wire.CancelRequest, request_id, timeout), wire.CancelResponse)

    def _connected(self) -> Any:
        """A channel belongs to the loop it is made in: not before there is one."""
        if self._channel is None:
            self._channel = dial(grpc.aio, self.address, self._credentials, self._options, self._api_key)
        return self._channel

    async def _call(
        self, name: str, asking: Asking, answer: type[Message], metadata: _Metadata = (), service: str = SERVICE
    ) -> Any:
        method = self._connected().unary_unary(service + name, serialize, answer.FromString)
        while True:
            message, seconds = asking.attempt()
            call = method(message, timeout=seconds, metadata=metadata)
            try:
                response = await call
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                wait = asking.failed(ending_of(call, error))
            else:
                asking.answered()
                return response
            await asyncio.sleep(wait)


class AsyncStream(Heard):
    """One answer, for one reader."""

    def __init__(self, method: Any, asking: Asking, metadata: _Metadata) -> None:
        super().__init__(asking)
        self._method = method
        self._metadata = metadata
        self._call: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self._cancelled = asyncio.Event()

    def __del__(self) -> None:
        """In whichever thread: whoever drops it wants no more of it."""
        if self._call is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    async def __aenter__(self) -> "AsyncStream":
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> Chunk:
        while not self._over:
            chunk = await self._step()
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    def cancel(self) -> None:
        """The reader gets Cancelled."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Nothing more is read. Harmless at the end of a whole answer."""
        self._over = True
        self.cancel()

    async def _step(self) -> Chunk | None:
        call = self._open()
        try:
            event = await call.read()
            if event is not grpc.aio.EOF:
                return self._hear(event)
            self._over = True
            self._end()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            self._over = True
            await self._again(ending_of(call, error))
        return None

    async def _again(self, error: grpc.aio.AioRpcError) -> None:
        """Wait for the next attempt; raise where there is none."""
        wait = self._fail(error, cancelled=self._cancelled.is_set())
        self._over = False
        self._call = None
        try:
            async with asyncio.timeout(wait):
                await self._cancelled.wait()
        except TimeoutError:
            return

    def _open(self) -> Any:
        if self._call is None:
            if self._cancelled.is_set():
                self._over = True
                raise cancelled(self.request_id)
            message, seconds = self._asking.attempt()
            self._loop = asyncio.get_running_loop()
            self._call = self._method(message, timeout=seconds, metadata=self._metadata)
        return self._call
