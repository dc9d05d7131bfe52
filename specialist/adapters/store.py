"""The adapters a replica holds in memory: by name for who asks, by content for who computes."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from specialist.adapters.adapter import Adapter
from specialist.adapters.digest import check_digest
from specialist.adapters.errors import AdapterRefused, UnknownAdapter
from specialist.adapters.load import read_adapter
from specialist.models.config import ModelConfig

NAME = re.compile(r"[a-z0-9._-]{1,64}")


class AdapterStore:
    """Any thread may call. A copy that has a name or is in use stays; of the others the most recent are kept."""

    def __init__(self, model: ModelConfig, max_adapters: int) -> None:
        if max_adapters < 1:
            raise ValueError(f"max_adapters must be at least 1, got {max_adapters}")
        self.model = model
        self.max_adapters = max_adapters
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._held: OrderedDict[str, Adapter] = OrderedDict()
        """By digest, least recently used first."""
        self._pins: dict[str, int] = {}
        self._on_unused: list[Callable[[str], None]] = []

    def when_unused(self, tell: Callable[[str], None]) -> None:
        """The digest of what has lost its last name and its last user is told, to whoever made something of it."""
        self._on_unused.append(tell)

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        """Read and check an adapter, then give it the name, in one move. Returns its digest, which must be `pinned`
        where that is given.

        Who resolved the name before keeps what it resolved to. Raises AdapterRefused, having changed nothing.
        """
        if not NAME.fullmatch(name):
            raise AdapterRefused("name", f"must match {NAME.pattern}, got {name!r:.80}")
        adapter = read_adapter(directory, self.model)
        check_digest(name, adapter.digest, pinned)
        with self._lock:
            self._make_room(adapter.digest, name)
            self._held.setdefault(adapter.digest, adapter)
            self._held.move_to_end(adapter.digest)
            before = self._names.get(name)
            self._names[name] = adapter.digest
        if before is not None:
            self._tell_if_unused(before)
        return adapter.digest

    def unload(self, name: str) -> None:
        """Forget the name. Requests that use its weights go on with them."""
        with self._lock:
            digest = self._names.pop(name, None)
            if digest is None:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")
        self._tell_if_unused(digest)

    def resolve(self, name: str) -> str:
        """The digest of what the name means now."""
        with self._lock:
            if name not in self._names:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")
            return self._names[name]

    def acquire(self, digest: str) -> None:
        """Keep these weights until as many releases, whatever becomes of their name."""
        with self._lock:
            self._require(digest)
            self._pins[digest] = self._pins.get(digest, 0) + 1

    def release(self, digest: str) -> None:
        with self._lock:
            if digest not in self._pins:
                raise ValueError(f"{digest!r:.80} is released more often than it was acquired")
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]
        self._tell_if_unused(digest)

    def get(self, digest: str) -> Adapter:
        with self._lock:
            self._require(digest)
            self._held.move_to_end(digest)
            return self._held[digest]

    def names(self) -> Mapping[str, str]:
        """Every name, and the digest of what it means now."""
        with self._lock:
            return dict(self._names)

    def __len__(self) -> int:
        """Copies held, named or not."""
        with self._lock:
            return len(self._held)

    def _tell_if_unused(self, digest: str) -> None:
        with self._lock:
            if digest in self._pins or digest in self._names.values():
                return
        for tell in self._on_unused:
            tell(digest)

    def _require(self, digest: str) -> None:
        if digest not in self._held:
            raise UnknownAdapter(f"no adapter with digest {digest!r:.80} is held")

    def _make_room(self, digest: str, name: str) -> None:
        """For a copy that is about to take over the name."""
        if digest in self._held or len(self._held) < self.max_adapters:
            return
        kept = self._pins.keys() | {held for other, held in self._names.items() if other != name}
        unused = next((held for held in self._held if held not in kept), None)
        if unused is None:
            raise AdapterRefused(
                "max_adapters",
                f"{self.max_adapters} adapters are named or in use, the most held here: unload one first",
            )
        del self._held[unused]
