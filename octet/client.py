"""Talk to a replica. Needs grpcio and protobuf, nothing else."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octet.v1 import specialist_pb2 as wire

DEFAULT_ADDRESS = "127.0.0.1:50151"
_SERVICE = "/octet.v1.Specialist/"
_METADATA_KEY = "octet-error-bin"
_OPTIONS = (("grpc.max_receive_message_length", 32 << 20),)
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
        credentials = _credentials(ca, certificate, key)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    async def __aenter__(self) -> "SpecialistClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def generate(
        self, request: wire.GenerateRequest, *, timeout: float | None = None
    ) -> AsyncIterator[wire.GenerateEvent]:
        """The verdict, chunks, usage. Raises SpecialistError. Closing the iterator cancels the request."""
        return self._stream("Generate", request, wire.GenerateEvent, timeout)

    def watch_load(self, *, min_interval_ms: int | None = None) -> AsyncIterator[wire.LoadReport]:
        return self._stream("WatchLoad", wire.WatchLoadRequest(min_interval_ms=min_interval_ms), wire.LoadReport, None)

    async def load_adapter(self, name: str, path: str) -> wire.ResidentAdapter:
        ask = wire.LoadAdapterRequest(name=name, path=path)
        return (await self._call("LoadAdapter", ask, wire.LoadAdapterResponse)).adapter

    async def unload_adapter(self, name: str) -> None:
        await self._call("UnloadAdapter", wire.UnloadAdapterRequest(name=name), wire.UnloadAdapterResponse)

    async def drain(self) -> int:
        """Returns when the replica has finished what it had."""
        return (await self._call("Drain", wire.DrainRequest(), wire.DrainResponse)).finished

    async def describe(self) -> wire.DescribeResponse:
        return await self._call("Describe", wire.DescribeRequest(), wire.DescribeResponse)

    async def _call(self, name: str, ask: Message, answer: type[_AnswerT]) -> _AnswerT:
        method = self._channel.unary_unary(_SERVICE + name, _serialize, answer.FromString)
        try:
            result: _AnswerT = await method(ask)
        except grpc.aio.AioRpcError as error:
            raise _typed(error) from None
        return result

    async def _stream(
        self, name: str, ask: Message, answer: type[_AnswerT], timeout: float | None
    ) -> AsyncIterator[_AnswerT]:
        call = self._channel.unary_stream(_SERVICE + name, _serialize, answer.FromString)(ask, timeout=timeout)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise _typed(error) from None
        finally:
            call.cancel()


def _credentials(ca: Path | None, certificate: Path | None, key: Path | None) -> Any:
    """None for none at all."""
    if (certificate is None) != (key is None):
        raise ValueError("a TLS certificate and its key belong together")
    if ca is None:
        if certificate is not None:
            raise ValueError("a TLS certificate is shown only to a replica whose own is checked: name its CA as well")
        return None
    own = (None, None) if certificate is None or key is None else (key.read_bytes(), certificate.read_bytes())
    return grpc.ssl_channel_credentials(ca.read_bytes(), *own)


def _serialize(message: Message) -> bytes:
    return bytes(message.SerializeToString())


def _typed(error: Any) -> SpecialistError:
    details = _details(error.trailing_metadata() or ())
    return SpecialistError(error.code(), details.message if details else error.details() or "", details)


def _details(metadata: Sequence[tuple[str, bytes | str]]) -> wire.Error | None:
    for key, value in metadata:
        if key == _METADATA_KEY and isinstance(value, bytes):
            error = wire.Error()
            try:
                error.ParseFromString(value)
            except DecodeError:
                return None
            return error
    return None
