"""So many long calls at once, and no more: an operator's screens must not crowd out the callers."""

from collections.abc import Iterator
from contextlib import contextmanager

from octet.rpc.refusal import queue_full


class Seats:
    def __init__(self, what: str, most: int) -> None:
        """`what` its sitters are doing."""
        self._what = what
        self._most = most
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises Refusal."""
        if self.taken >= self._most:
            raise queue_full(self._what, self._most, None)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
