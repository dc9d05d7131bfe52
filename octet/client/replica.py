"""A client of one replica. It needs only grpcio and protobuf."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from octet.client.attached import ATTACH, Attacher
from octet.client.base import rpc
from octet.client.channel import channel_options, load_credentials, open_channel, read_metadata_message, serialize
from octet.client.errors import ERROR_METADATA_KEY
from octet.v1 import specialist_pb2 as wire

DEFAULT_REPLICA_ADDRESS = "127.0.0.1:50151"
LOOKAHEAD_BYTES = 1 << 16  # of each attached request


class SpecialistError(Exception):
    """A call failed. `error` holds the replica's details; None if the replica sent none."""

    def __init__(self, code: grpc.StatusCode, message: str, error: wire.Error | None) -> None:
        super().__init__(message)
        self.code = code
        self.error = error


class SpecialistClient:
    """An asyncio client: `async with SpecialistClient(address) as client`. A failed call raises SpecialistError."""

    def __init__(
        self,
        address: str = DEFAULT_REPLICA_ADDRESS,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        attach: bool = False,
    ) -> None:
        """With `attach`, requests share one call, unless the replica is too old for that. With `ca`, the connection
        uses TLS, and that CA must have signed the replica's certificate. `certificate` and `key` are the client's own.
        Raises ValueError for an incomplete set, OSError if a file cannot be read."""
        credentials = load_credentials(ca, certificate, key)
        self._channel = open_channel(grpc.aio, address, credentials, channel_options())
        self._attacher = Attacher(self._attach, LOOKAHEAD_BYTES, address) if attach else None

    async def __aenter__(self) -> "SpecialistClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._attacher is not None:
            await self._attacher.close()
        await self._channel.close()

    async def wait_attached(self) -> bool:
        """Wait until the shared call is attached or has failed. Return whether requests share one."""
        return self._attacher is not None and await self._attacher.wait_opened()

    def generate(
        self, request: wire.GenerateRequest, *, timeout: float | None = None
    ) -> AsyncIterator[wire.GenerateEvent]:
        """Yield an `accepted` event, then chunks, then the usage. Closing the iterator cancels the request."""
        if self._attacher is not None:
            return self._generate_attached(self._attacher, request, timeout)
        return self._stream("Generate", request, timeout)

    def _attach(self) -> Any:
        return self._channel.stream_stream(ATTACH)()

    async def _generate_attached(
        self, attacher: Attacher, request: wire.GenerateRequest, timeout: float | None
    ) -> AsyncIterator[wire.GenerateEvent]:
        call = attacher.start(serialize(request), timeout, ())
        if call is None:
            async for event in self._stream("Generate", request, timeout):
                yield event
            return
        parse = wire.GenerateEvent.FromString
        try:
            async for raw in call:
                yield parse(raw)
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from None
        finally:
            call.cancel()

    def watch_load(
        self, *, min_interval_ms: int | None = None, heartbeat_ms: int | None = None
    ) -> AsyncIterator[wire.LoadReport]:
        request = wire.WatchLoadRequest(min_interval_ms=min_interval_ms, heartbeat_ms=heartbeat_ms)
        return self._stream("WatchLoad", request)

    async def load_adapter(self, name: str, path: str, digest: str = "") -> wire.ResidentAdapter:
        """Load an adapter. If a digest is given, content with a different digest is refused."""
        request = wire.LoadAdapterRequest(name=name, path=path, digest=digest)
        response: wire.LoadAdapterResponse = await self._call("LoadAdapter", request)
        return response.adapter

    async def unload_adapter(self, name: str) -> None:
        await self._call("UnloadAdapter", wire.UnloadAdapterRequest(name=name))

    async def drain(self) -> int:
        """Drain the replica and wait until it is idle. Return the number of requests that finished meanwhile."""
        response: wire.DrainResponse = await self._call("Drain", wire.DrainRequest())
        return response.finished

    async def count_tokens(self, request: wire.GenerateRequest) -> int:
        """Count the prompt tokens as `generate` would, without generating."""
        response: wire.CountTokensResponse = await self._call("CountTokens", request)
        return response.prompt_tokens

    async def describe(self) -> wire.DescribeResponse:
        response: wire.DescribeResponse = await self._call("Describe", wire.DescribeRequest())
        return response

    async def _call(self, name: str, request: Message) -> Any:
        try:
            return await rpc(f"Specialist.{name}").bind(self._channel)(request)
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from None

    async def _stream(self, name: str, request: Message, timeout: float | None = None) -> AsyncIterator[Any]:
        call = rpc(f"Specialist.{name}").bind(self._channel)(request, timeout=timeout)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise _error_from_rpc(error) from None
        finally:
            call.cancel()


def _error_from_rpc(error: Any) -> SpecialistError:
    details = read_metadata_message(error.trailing_metadata(), ERROR_METADATA_KEY, wire.Error)
    return SpecialistError(error.code(), details.message if details else error.details() or "", details)
