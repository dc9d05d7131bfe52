"""One thing for the store's thread to do."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from octet.store.database import Database

T = TypeVar("T")


class Job(Generic[T]):
    """Begun at most once, and never after it was abandoned."""

    def __init__(
        self,
        do: Callable[[Database], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        settle_until: float,
    ) -> None:
        """`do` may be called again when the database was lost under it, and has one effect however often. `done` or
        `failed` are called on the store's thread. Until `settle_until` a lost commit is looked for."""
        self.do = do
        self.done = done
        self.failed = failed
        self.settle_until = settle_until
        self._lock = Lock()
        self._is_begun = False
        self._is_abandoned = False

    def begin(self) -> bool:
        with self._lock:
            self._is_begun = not self._is_abandoned
            return self._is_begun

    def abandon(self) -> bool:
        """Whether it will never be done; not so when it was begun."""
        with self._lock:
            self._is_abandoned = not self._is_begun
            return self._is_abandoned
