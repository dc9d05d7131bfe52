"""Where every call passes, whatever door it comes through: who it is, what it may, how much it has had."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from octet.clock import Clock
from octet.rpc.refusal import Refusal
from router.keys.access import Access
from router.keys.book import KeyBook
from router.keys.key import Key
from router.keys.meter import Meter
from router.keys.refusals import forbidden, undeclared, unknown_key
from router.keys.shown import Headers, shown_key
from router.reception.caller import Caller, calling
from router.reception.standing import Standing, standing

EVERYBODY = Caller(operates=True)
"""Where there are no keys."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Somebody who may do what was asked for."""

    caller: Caller
    key: Key | None
    """None: nobody counts."""


class Gate:
    """Belongs to the event loop. There is a meter for every key that has shown up and is still in the book."""

    def __init__(self, book: KeyBook | None, clock: Clock, wall_ms: Callable[[], int]) -> None:
        """Without a book everybody may do everything that has been declared. `wall_ms` is milliseconds since 1970."""
        self._book = book
        self._clock = clock
        self._wall_ms = wall_ms
        self._meters: dict[str, Meter] = {}
        self._inside: dict[Standing, Key] = {}
        self.refused: Counter[int] = Counter()
        """Calls that were not let in, by the reason's number."""

    @property
    def asks(self) -> bool:
        """Whether it wants to see keys."""
        return self._book is not None

    @property
    def num_meters(self) -> int:
        return len(self._meters)

    def admit(self, access: Access | None, headers: Headers) -> Pass:
        """Raises Refusal. None is what nobody has declared."""
        try:
            return self._admitted(access, headers)
        except Refusal as refusal:
            self.refused[refusal.error.reason] += 1
            raise

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except Refusal as refusal:
            self.refused[refusal.error.reason] += 1
            raise

    def _admitted(self, access: Access | None, headers: Headers) -> Pass:
        if access is Access.OPEN:
            return Pass(Caller(), None)
        if self._book is None:
            if access is None:
                raise undeclared()
            return Pass(EVERYBODY, None)
        key = self._book.find(shown_key(headers), self._wall_ms())
        if key is None:
            raise unknown_key()
        if access is None:
            raise undeclared()
        if access is Access.OPERATE and not key.operates:
            raise forbidden(access.value)
        return Pass(Caller(key.tenant, key.name, key.operates), key)

    @contextmanager
    def inside(self, passed: Pass) -> Iterator[Caller]:
        """The call itself, from its beginning to its end. Raises Refusal for who has had all there is to have."""
        if passed.key is None:
            with calling(passed.caller):
                yield passed.caller
            return
        meter, began = self._meter(passed.key), self._clock.now()
        with self._counting():
            meter.enter(began)
        known = self._standing(passed.key)
        self._inside[known] = passed.key
        try:
            with calling(passed.caller), standing(known):
                yield passed.caller
        finally:
            del self._inside[known]
            meter.leave(self._clock.now() - began)

    def counts_tokens(self, caller: Caller) -> bool:
        key = self._key(caller)
        return key is not None and key.allowance.tokens_per_minute is not None

    def check_still(self, caller: Caller) -> None:
        """For what was let in long before it is done, as a job. Raises Refusal where the key is known no more, and
        while it may have no tokens."""
        if self._book is None:
            return
        key = self._key(caller)
        if key is None or key.tenant != caller.tenant or key.is_over(self._wall_ms()):
            raise unknown_key()
        refusal = self._meter(key).debt(self._clock.now())
        if refusal is not None:
            raise refusal

    def charge(self, caller: Caller, num_tokens: int) -> None:
        key = self._key(caller)
        if key is not None:
            self._meter(key).charge(num_tokens, self._clock.now())

    def replace(self, book: KeyBook) -> None:
        """In force for every call from now on. Those that are inside finish, but for those that would not."""
        self._book = book
        now = self._clock.now()
        for name, meter in tuple(self._meters.items()):
            key = book.named(name)
            if key is None:
                del self._meters[name]
            elif key.allowance != meter.allowance:
                meter.change(key.allowance, now)
        for known, key in tuple(self._inside.items()):
            if not _is_same(key, book.named(key.name)):
                known.end()

    def _standing(self, key: Key) -> Standing:
        def seconds_left() -> float | None:
            return None if key.expires_ms is None else (key.expires_ms - self._wall_ms()) / 1000

        return Standing(seconds_left, unknown_key)

    def _key(self, caller: Caller) -> Key | None:
        return None if self._book is None else self._book.named(caller.name)

    def _meter(self, key: Key) -> Meter:
        meter = self._meters.get(key.name)
        if meter is None:
            meter = self._meters[key.name] = Meter(key.allowance, self._clock.now())
        return meter


def _is_same(key: Key, now: Key | None) -> bool:
    """Whoever shows it is let in as the same, to the same, for as long."""
    return now is not None and _of(now) == _of(key)


def _of(key: Key) -> tuple[object, ...]:
    return key.digest, key.role, key.tenant, key.expires_ms
