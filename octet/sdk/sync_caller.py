"""What a client that blocks holds: one channel, which any thread may close."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from octet.sdk.caller import Caller
from octet.sdk.channel import dial
from octet.sdk.faults import closed


class SyncCaller(Caller):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What is still being answered is cancelled."""
        self._closed = True
        self._channel.close()

    def _dialled(self) -> Any:
        return dial(grpc, self.address, self._credentials, self._options, self._api_key)


@contextmanager
def unless_closed(is_closed: Callable[[], bool], request_id: str = "") -> Iterator[None]:
    """A channel that is closed, by whichever thread, says ValueError."""
    try:
        yield
    except ValueError:
        if not is_closed():
            raise
        raise closed(request_id) from None
