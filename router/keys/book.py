"""All keys that are in force, found by what is shown."""

from collections.abc import Iterable
from hmac import compare_digest

from router.keys.key import Key
from router.keys.token import MOST_BYTES, token_digest

_START = 8
_NO_DIGEST = bytes(32)


class KeyBook:
    """Never changed; another takes its place."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)
        self._by_start: dict[bytes, list[Key]] = {}
        self._by_name = {key.name: key for key in self.keys}
        for key in self.keys:
            self._by_start.setdefault(key.digest[:_START], []).append(key)

    def named(self, name: str) -> Key | None:
        return self._by_name.get(name)

    def find(self, token: bytes, wall_ms: int) -> Key | None:
        """Looked up is a digest, of which nobody chooses a bit; it is compared whole, in constant time."""
        if len(token) > MOST_BYTES:
            return None
        digest = token_digest(token)
        found: Key | None = None
        for key in self._by_start.get(digest[:_START], ()):
            if compare_digest(key.digest, digest):
                found = key
        if found is None:
            compare_digest(_NO_DIGEST, digest)
            return None
        return None if found.is_over(wall_ms) else found
