"""State shared by all clients: address, credentials, retry budget, and the calls of octet.v1 by name."""

import os
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from random import Random
from typing import Any, NamedTuple, Self

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from octet.client import request
from octet.client.channel import PathName, channel_options, load_credentials, open_channel, resolve_api_key, serialize
from octet.client.errors import OctetError, closed_error, error_from_rpc
from octet.client.request import Attempts, Metadata, RetrySchedule, build_message, check_timeout
from octet.clock import SystemClock

DEFAULT_ADDRESS = "127.0.0.1:50051"
LOOKUP_TIMEOUT_S = 10.0  # default timeout of calls that do not generate


class Rpc(NamedTuple):
    path: str
    request: type[Message]
    answer: type[Message]
    is_stream: bool

    def bind(self, channel: Any) -> Any:
        open_method = channel.unary_stream if self.is_stream else channel.unary_unary
        return open_method(self.path, serialize, self.answer.FromString)


@cache
def rpc(name: str) -> Rpc:
    """Look up a call of octet.v1 by service and method, such as "Jobs.GetJob"."""
    service, method_name = name.split(".")
    file = import_module(f"octet.v1.{service.lower()}_pb2").DESCRIPTOR
    method = file.services_by_name[service].methods_by_name[method_name]
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return Rpc(f"/octet.v1.{service}/{method_name}", request, answer, method.server_streaming)


class ClientBase:
    _library: Any = grpc  # or grpc.aio

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
        """With `ca`, the connection uses TLS, and the router's certificate must be signed by that CA. `certificate` and
        `key` are the client's own, for a router that asks for them.

        `api_key` is sent with every call; the default is the variable OCTET_API_KEY. Without `ca`, it is sent only to
        this machine. Set `insecure` to send it unencrypted to other machines, if the network itself is secured.

        `max_retries` limits the retries of one call. Once part of an answer has been returned, the call is not
        retried. After `keepalive` seconds without data in a call, the connection is probed; the server must permit this
        interval.

        Raises ValueError for invalid settings, OSError for a file that cannot be read."""
        self.address = address
        if max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {max_retries}")
        self._max_retries = max_retries
        self._budget = request.ClientRetryBudget()
        self._clock = SystemClock()
        self._random = Random()
        self._credentials = load_credentials(ca, certificate, key)
        encrypted = self._credentials is not None
        self._api_key = resolve_api_key(api_key, os.environ, address, encrypted=encrypted, insecure=insecure)
        self._options = channel_options(keepalive)
        self._closed = False
        self._channel: Any = None
        if self._library is grpc:  # threads may share the channel
            self._connect()

    def _connect(self) -> Any:
        """Open the channel on first use, because a grpc.aio channel belongs to the event loop in which it is opened."""
        if self._channel is None:
            self._channel = open_channel(self._library, self.address, self._credentials, self._options)
        return self._channel

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a function that makes this call with the API key. It takes the message, `timeout` and `metadata`."""
        method = rpc(name).bind(self._connect())
        key = () if self._api_key is None else self._api_key.metadata()

        def call(message: Message, *, timeout: float | None = None, metadata: Metadata = ()) -> Any:
            return method(message, timeout=timeout, metadata=(*metadata, *key))

        return call

    def _is_closed(self) -> bool:
        return self._closed

    def _prepare(self, prompt: str | None, options: Mapping[str, Any], *, embed: bool = False) -> Attempts:
        prepared = request.prepare_request(prompt, options)
        prepared.message.embed = embed
        timeout, first_timeout, wait = prepared.timeouts
        wait = 0.0 if wait is None and self._max_retries else wait
        schedule = self._schedule(self._max_retries, timeout, first_timeout, wait)
        return Attempts(prepared.message_for, schedule, self._error, self._is_closed, prepared.metadata)

    def _repeat(self, message: Message, timeout: float | None, *, is_change: bool = False) -> Attempts:
        """Return attempts that all send the same message. With `is_change`, there is only one attempt."""
        schedule = self._schedule(0 if is_change else self._max_retries, check_timeout(timeout))
        error = partial(self._error, is_change=True) if is_change else self._error
        return Attempts(lambda _: message, schedule, error, self._is_closed)

    def _schedule(self, max_retries: int, *limits: float | None) -> RetrySchedule:
        return RetrySchedule(max_retries, self._budget, self._clock, self._random, *limits)

    def _error(self, error: Any, *, is_change: bool = False, request_id: str = "", begun: bool = False) -> OctetError:
        return error_from_rpc(error, address=self.address, request_id=request_id, begun=begun)


class SyncClientBase(ClientBase):
    """A blocking client with one channel, which any thread may close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def _method(self, name: str) -> Callable[..., Any]:
        """Like the base method, but the call raises Cancelled if a thread has closed the channel."""
        method = super()._method(name)

        def call(message: Message, **options: Any) -> Any:
            try:
                return method(message, **options)
            except ValueError:
                if not self._closed:
                    raise
                raise closed_error(getattr(message, "request_id", "")) from None

        return call

    def _call(self, name: str, attempts: Attempts) -> Any:
        send = self._method(name)
        while True:
            message, options = attempts.start()
            try:
                response = send(message, **options)
            except grpc.RpcError as error:
                time.sleep(attempts.fail(error))
            else:
                attempts.schedule.budget.earn()
                return response

    def _look_up(self, name: str, timeout: float | None, /, **values: Any) -> Any:
        return self._call(name, self._repeat(build_message(rpc(name).request, values), timeout))
