"""Talk to a replica. Needs grpcio and protobuf, nothing else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from octet.sdk.channel import channel_options, credentials, dial, found_in, serialize
from octet.sdk.faults import ERROR_KEY
from octet.v1 import specialist_pb2 as wire

DEFAULT_ADDRESS = "127.0.0.1:50151"
_SERVICE = "/octet.v1.Specialist/"
_AnswerT = TypeVar("_AnswerT", bound=Message)


class SpecialistError(Exception):
    """A call failed. `error` holds the replica's own words; None when it never got to say any."""

    def __init__(self, code: grpc.StatusCode, message: str, error: wire.Error | None) -> None:
        super().__init__(message)
        self.code = code
        self.error = error


class SpecialistClient:
    """One replica. Use it as `async with SpecialistClient(address) as client`."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """With `ca`, the replica must show a certificate that it has signed; `certificate` and `key` are the caller's.

        Raises ValueError for files that belong together and are not, OSError for one that cannot be read.
        """
        self._channel = dial(grpc.aio, address, credentials(ca, certificate, key), channel_options())

    async def __aenter__(self) -> "SpecialistClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def generate(
        self, request: wire.GenerateRequest, *, timeout: float | None = None
    ) -> AsyncIterator[wire.GenerateEvent]:
        """The verdict, chunks, usage. Raises SpecialistError. Closing the iterator cancels the request."""
        return self._stream("Generate", request, wire.GenerateEvent, timeout)

    def watch_load(
        self, *, min_interval_ms: int | None = None, heartbeat_ms: int | None = None
    ) -> AsyncIterator[wire.LoadReport]:
        ask = wire.WatchLoadRequest(min_interval_ms=min_interval_ms, heartbeat_ms=heartbeat_ms)
        return self._stream("WatchLoad", ask, wire.LoadReport, None)

    async def load_adapter(self, name: str, path: str, digest: str = "") -> wire.ResidentAdapter:
        """With a digest, no other content is taken."""
        ask = wire.LoadAdapterRequest(name=name, path=path, digest=digest)
        return (await self._call("LoadAdapter", ask, wire.LoadAdapterResponse)).adapter

    async def unload_adapter(self, name: str) -> None:
        await self._call("UnloadAdapter", wire.UnloadAdapterRequest(name=name), wire.UnloadAdapterResponse)

    async def drain(self) -> int:
        """Returns when the replica has finished what it had."""
        return (await self._call("Drain", wire.DrainRequest(), wire.DrainResponse)).finished

    async def count_tokens(self, request: wire.GenerateRequest) -> int:
        """Of its prompt, as `generate` would count them; nothing is computed."""
        return (await self._call("CountTokens", request, wire.CountTokensResponse)).prompt_tokens

    async def describe(self) -> wire.DescribeResponse:
        return await self._call("Describe", wire.DescribeRequest(), wire.DescribeResponse)

    async def _call(self, name: str, ask: Message, answer: type[_AnswerT]) -> _AnswerT:
        method = self._channel.unary_unary(_SERVICE + name, serialize, answer.FromString)
        try:
            result: _AnswerT = await method(ask)
        except grpc.aio.AioRpcError as error:
            raise _typed(error) from None
        return result

    async def _stream(
        self, name: str, ask: Message, answer: type[_AnswerT], timeout: float | None
    ) -> AsyncIterator[_AnswerT]:
        call = self._channel.unary_stream(_SERVICE + name, serialize, answer.FromString)(ask, timeout=timeout)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise _typed(error) from None
        finally:
            call.cancel()


def _typed(error: Any) -> SpecialistError:
    details = found_in(error.trailing_metadata(), ERROR_KEY, wire.Error)
    return SpecialistError(error.code(), details.message if details else error.details() or "", details)
