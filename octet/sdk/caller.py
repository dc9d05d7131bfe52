"""What a client holds, sync or async: where it calls, how it retries."""

import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from google.protobuf.message import Message

from octet.clock import SystemClock
from octet.sdk.api_key import api_key_for
from octet.sdk.asking import Asking
from octet.sdk.channel import PathName, channel_options, credentials
from octet.sdk.request import Prepared, check_timeout, lookup, prepare
from octet.sdk.retry import Effort, Left, RetryBudget, RetryPolicy

DEFAULT_ADDRESS = "127.0.0.1:50051"
SERVICE = "/octet.v1.Inference/"
LOOKUP_S = 10.0
"""For calls that only look something up."""


class Caller:
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
        """With `ca`, the router must show a certificate that it has signed; `certificate` and `key` are the caller's.

        `api_key` is shown with every call; OCTET_API_KEY where none is given. Without `ca` it goes to this machine
        only, unless `insecure` says that the way is safe.

        `max_retries` of one call, made only before anything of an answer has come; 0 for none. `keepalive`: seconds of
        silence in a call after which the connection is probed; the server must allow it as often.

        Raises ValueError for settings that cannot be, OSError for a file that cannot be read.
        """
        self.address = address
        self._policy = RetryPolicy(max_retries=max_retries)
        self._budget = RetryBudget()
        self._clock = SystemClock()
        self._random = Random()
        self._credentials = credentials(ca, certificate, key)
        self._api_key = api_key_for(
            api_key, os.environ, address, encrypted=self._credentials is not None, insecure=insecure
        )
        self._options = channel_options(keepalive)
        self._closed = False
        self._channel = self._dialled()

    def _dialled(self) -> Any:
        """None: not yet."""
        return None

    def _asking(
        self, renew: Callable[[Left], Message], timeout: float | None, first_timeout: float | None = None
    ) -> Asking:
        effort = Effort(self._policy, self._budget, self._clock, self._random, timeout, first_timeout)
        return Asking(renew, effort, self.address, self._is_closed)

    def _is_closed(self) -> bool:
        return self._closed

    def _inferring(self, prompt: str | None, options: Mapping[str, Any]) -> tuple[Prepared, Asking]:
        prepared = prepare(prompt, options)
        return prepared, self._asking(prepared.renew(), prepared.timeout, prepared.first_timeout)

    def _looking_up(self, kind: type[Message], request_id: str, timeout: float | None, **more: str) -> Asking:
        message = lookup(kind, request_id, **more)
        return self._asking(lambda _: message, check_timeout(timeout))
