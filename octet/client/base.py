"""State shared by all clients: address, credentials, retry budget, and the calls of octet.v1 by name."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, NamedTuple, Self, TypedDict

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from octet.client.channel import PathName, channel_options, load_credentials, open_channel, resolve_api_key, serialize
from octet.client.errors import closed_error
from octet.client.request import (
    Attempts,
    ClientRetryBudget,
    PreparedRequest,
    RetrySchedule,
    TimeLeft,
    build_message,
    check_timeout,
    prepare_request,
)
from octet.clock import SystemClock

DEFAULT_ADDRESS = "127.0.0.1:50051"
LOOKUP_TIMEOUT_S = 10.0  # default timeout of calls that do not generate


class Rpc(NamedTuple):
    path: str
    request: type[Message]
    answer: type[Message]

    def unary(self, channel: Any) -> Any:
        return channel.unary_unary(self.path, serialize, self.answer.FromString)

    def stream(self, channel: Any) -> Any:
        return channel.unary_stream(self.path, serialize, self.answer.FromString)


@cache
def rpc(name: str) -> Rpc:
    """Looks up a call of octet.v1 by service and method, such as "Jobs.GetJob"."""
    service, method_name = name.split(".")
    file = import_module(f"octet.v1.{service.lower()}_pb2").DESCRIPTOR
    method = file.services_by_name[service].methods_by_name[method_name]
    path = f"/octet.v1.{service}/{method_name}"
    return Rpc(path, GetMessageClass(method.input_type), GetMessageClass(method.output_type))


class ConnectionOptions(TypedDict, total=False):
    """Keyword arguments of every client."""

    ca: PathName | None
    certificate: PathName | None
    key: PathName | None
    api_key: str | None
    insecure: bool
    max_retries: int
    keepalive: float | None


class ClientBase:
    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        ca: PathName | None = None,
        certificate: PathName | None = None,
        key: PathName | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        max_retries: int = 2,
        keepalive: float | None = None,
    ) -> None:
        """With `ca`, the router's certificate must be signed by that CA; `certificate` and `key` are the caller's own.

        `api_key` is sent with every call; the default is OCTET_API_KEY. Without `ca` it is sent to this machine only,
        unless `insecure` is set for a network that is secured otherwise.

        `max_retries` limits the retries of one call, which are made only before any part of an answer has arrived.
        After `keepalive` seconds without data during a call the connection is probed; the server must permit this
        interval.

        Raises ValueError for invalid settings, OSError for a file that cannot be read."""
        self.address = address
        if max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {max_retries}")
        self._max_retries = max_retries
        self._budget = ClientRetryBudget()
        self._clock = SystemClock()
        self._random = Random()
        self._credentials = load_credentials(ca, certificate, key)
        encrypted = self._credentials is not None
        self._api_key = resolve_api_key(api_key, os.environ, address, encrypted=encrypted, insecure=insecure)
        self._options = channel_options(keepalive)
        self._closed = False
        self._channel = self._make_channel()

    def _make_channel(self) -> Any:
        """Returns None if the channel is created on first use."""
        return None

    def _open_channel(self, library: Any) -> Any:
        return open_channel(library, self.address, self._credentials, self._options, self._api_key)

    def _is_closed(self) -> bool:
        return self._closed

    def _attempts(
        self, make_message: Callable[[TimeLeft], Message], timeout: float | None, first_timeout: float | None = None
    ) -> Attempts:
        schedule = RetrySchedule(self._max_retries, self._budget, self._clock, self._random, timeout, first_timeout)
        return Attempts(make_message, schedule, self.address, self._is_closed)

    def _prepare(self, prompt: str | None, options: Mapping[str, Any]) -> tuple[PreparedRequest, Attempts]:
        prepared = prepare_request(prompt, options)
        return prepared, self._attempts(prepared.message_factory(), prepared.timeout, prepared.first_timeout)

    def _repeat(self, message: Message, timeout: float | None) -> Attempts:
        """Returns attempts that all send the same message."""
        return self._attempts(lambda _: message, check_timeout(timeout))


class SyncClientBase(ClientBase):
    """A blocking client with one channel, which any thread may close."""

    def _make_channel(self) -> Any:
        return self._open_channel(grpc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def _call(self, name: str, attempts: Attempts, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        send = rpc(name).unary(self._channel)
        while True:
            message, seconds = attempts.start()
            try:
                with closed_channel_as_cancelled(attempts.is_closed, attempts.request_id):
                    response = send(message, timeout=seconds, metadata=metadata)
            except grpc.RpcError as error:
                wait = attempts.fail(error)
            else:
                attempts.record_answer()
                return response
            time.sleep(wait)

    def _look_up(self, name: str, timeout: float | None, /, **values: Any) -> Any:
        return self._call(name, self._repeat(build_message(rpc(name).request, values), timeout))


@contextmanager
def closed_channel_as_cancelled(is_closed: Callable[[], bool], request_id: str = "") -> Iterator[None]:
    """Raises Cancelled instead of the ValueError of a channel that was closed, by any thread."""
    try:
        yield
    except ValueError:
        if not is_closed():
            raise
        raise closed_error(request_id) from None
