"""Where conversations were last answered."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from octet.clock import Clock

MOST = 10_000
SECONDS = 3600.0
"""Longer than an idle conversation's blocks live where anybody else is served."""
_KEY_BYTES = 16


class Homes:
    """Of one specialist: at most `most` conversations, those that were quiet for longest go first, and none is kept
    for more than `seconds` behind its last request."""

    def __init__(self, clock: Clock, most: int = MOST, seconds: float = SECONDS) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._homes: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """The longest quiet first."""

    def __len__(self) -> int:
        return len(self._homes)

    def learn(self, session: bytes, adapters: Sequence[str], replica: str) -> None:
        """It let a request of the conversation in: what it computes is there, however the answer ends."""
        if not session:
            return
        key = _key(session, adapters)
        self._homes[key] = (replica, self._clock.now())
        self._homes.move_to_end(key)
        if len(self._homes) > self._most:
            self._homes.popitem(last=False)

    def find(self, session: bytes, adapters: Sequence[str]) -> str | None:
        """The replica's name. None for a conversation that is not known, or was quiet for too long."""
        self._forget_old()
        found = self._homes.get(_key(session, adapters)) if session else None
        return None if found is None else found[0]

    def _forget_old(self) -> None:
        oldest = self._clock.now() - self._seconds
        while self._homes:
            key, (_, at) = next(iter(self._homes.items()))
            if at >= oldest:
                return
            del self._homes[key]


def _key(session: bytes, adapters: Sequence[str]) -> bytes:
    """Blocks of one adapter stack are nothing to another."""
    hasher = blake2b(session, digest_size=_KEY_BYTES)
    for name in adapters:
        hasher.update(b"\0" + name.encode())
    return hasher.digest()
