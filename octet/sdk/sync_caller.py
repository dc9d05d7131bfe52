"""What a client that blocks holds: one channel, which any thread may close."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import grpc

from octet.sdk.caller import DEFAULT_ADDRESS, Caller
from octet.sdk.channel import PathName, dial
from octet.sdk.faults import closed


class SyncCaller(Caller):
    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        ca: PathName | None = None,
        certificate: PathName | None = None,
        key: PathName | None = None,
        max_retries: int = 2,
        keepalive: float | None = None,
    ) -> None:
        super().__init__(address, ca=ca, certificate=certificate, key=key, max_retries=max_retries, keepalive=keepalive)
        self._channel = dial(grpc, address, self._credentials, self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What is still being answered is cancelled."""
        self._closed = True
        self._channel.close()


@contextmanager
def unless_closed(is_closed: Callable[[], bool], request_id: str = "") -> Iterator[None]:
    """A channel that is closed, by whichever thread, says ValueError."""
    try:
        yield
    except ValueError:
        if not is_closed():
            raise
        raise closed(request_id) from None
