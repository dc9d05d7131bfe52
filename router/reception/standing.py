"""How long whoever was let in stays known: for a call that would else go on without an end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from octet.rpc.refusal import Refusal

T = TypeVar("T")


class Standing:
    """Of one call. Belongs to the event loop."""

    def __init__(self, seconds_left: Callable[[], float | None], over: Callable[[], Refusal]) -> None:
        """None: until it is ended. `over` is what is said from then on."""
        self._seconds_left = seconds_left
        self._over = over
        self._has_ended = False
        self._waits: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Whoever waits hears of it now."""
        self._has_ended = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raises Refusal."""
        left = self._seconds_left()
        if self._has_ended or (left is not None and left <= 0):
            raise self._over()

    async def while_known(self, wait: Callable[[], Awaitable[T]]) -> T:
        """What is waited for. Raises Refusal as soon as whoever waits is known no more."""
        self.check()
        scope = asyncio.timeout(self._seconds_left())
        try:
            async with scope:
                self._waits.add(scope)
                return await wait()
        except TimeoutError:
            if scope.expired():
                raise self._over() from None
            raise
        finally:
            self._waits.discard(scope)


def _never() -> Refusal:
    raise AssertionError("nobody ends what is everybody's")


ALWAYS = Standing(lambda: None, _never)
"""Where nobody is asked for a key."""
_STANDING: ContextVar[Standing] = ContextVar("standing", default=ALWAYS)


def current_standing() -> Standing:
    """Of whoever the door has let in for what is being done now."""
    return _STANDING.get()


@contextmanager
def standing(found: Standing) -> Iterator[None]:
    token = _STANDING.set(found)
    try:
        yield
    finally:
        _STANDING.reset(token)
