"""The interface between a replica and its adapters: names, digests, leases and errors. Imports no torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

from octet.identity import digest_parts
from octet.limits import shorten
from octet.rpc.refusal import Refusal, adapter_refused, invalid_field, unknown_adapter

MAX_STACK = 4  # adapters of a request


class AdapterRefused(ValueError):
    """An adapter cannot be loaded. `field` names the file, field or setting at fault. Nothing was changed."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class UnknownAdapter(LookupError):
    """No adapter is loaded under this name or with this digest."""


def check_digest(name: str, digest: str, pinned: str) -> None:
    """Raises AdapterRefused if `pinned` is not empty and `digest` differs from it."""
    if pinned and digest != pinned:
        raise AdapterRefused("digest", f"{name} must have the digest {pinned}, got {digest}")


class AdapterCatalog(ABC):
    """The adapters of a replica: names, digests, and how many requests use each digest. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._pins: dict[str, int] = {}
        self._on_unused: list[Callable[[str], None]] = []

    @abstractmethod
    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        """Load the adapter in `directory` under `name` and return its digest. Raises AdapterRefused if it is unusable,
        or if `pinned` is given and is not its digest; `name` then keeps its previous adapter."""

    def unload(self, name: str) -> None:
        """Remove the name. Requests that use the adapter keep its weights. Raises UnknownAdapter."""
        with self._lock:
            digest = self._names.pop(name, None)
            if digest is None:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")
        self._report_if_unused(digest)

    def resolve(self, name: str) -> str:
        """Return the current digest of the name. Raises UnknownAdapter for an unknown name."""
        with self._lock:
            if name not in self._names:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")
            return self._names[name]

    def acquire(self, digest: str) -> None:
        """Keep the adapter with this digest until `release`, even if it loses its name. Raises UnknownAdapter."""
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
        self._report_if_unused(digest)

    def names(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._names)

    @property
    def num_in_use(self) -> int:
        with self._lock:
            return sum(self._pins.values())

    def when_unused(self, callback: Callable[[str], None]) -> None:
        """From now on, call `callback` with the digest of each adapter that no name and no request uses any more."""
        self._on_unused.append(callback)

    def _is_held(self, digest: str) -> bool:
        return True

    def _require(self, digest: str) -> None:
        if not self._is_held(digest):
            raise UnknownAdapter(f"no adapter with digest {digest!r:.80} is loaded")

    def _report_if_unused(self, digest: str) -> None:
        with self._lock:
            if digest in self._pins or digest in self._names.values():
                return
        for callback in self._on_unused:
            callback(digest)


_FILES = ("adapter_config.json", "adapter_model.safetensors")


class SimAdapters(AdapterCatalog):
    """Adapters for the sim engine: only the digest of their files matters."""

    def __init__(self, max_adapters: int) -> None:
        super().__init__()
        self._max_adapters = max_adapters

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        digest = digest_parts(_read(directory / file) for file in _FILES).hex()
        check_digest(name, digest, pinned)
        with self._lock:
            if name not in self._names and len(self._names) >= self._max_adapters:
                limit = f"the limit of {self._max_adapters} loaded adapters is reached: unload one first"
                raise AdapterRefused("max_adapters", limit)
            self._names[name] = digest
        return digest


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise AdapterRefused(file.name, "missing or not readable: an adapter directory needs this file") from None


def lease_adapters(adapters: AdapterCatalog, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
    """Acquire the named adapters. Return their digests and a function that releases them. Raises Refusal."""
    digests: list[str] = []

    def release() -> None:
        while digests:
            adapters.release(digests.pop())

    for name in names:
        try:
            digests.append(_acquire(adapters, name))
        except UnknownAdapter:
            release()
            raise unknown_adapter(name) from None
    return tuple(digests), release


def _acquire(adapters: AdapterCatalog, name: str) -> str:
    """Acquire the adapter that has this name now, and return its digest."""
    digest = adapters.resolve(name)
    try:
        adapters.acquire(digest)
    except UnknownAdapter:  # the name was loaded again meanwhile, and the old adapter was dropped
        digest = adapters.resolve(name)
        adapters.acquire(digest)
    return digest


def resolve_below(root: Path | None, path: str) -> Path:
    """Return the directory at `path` below `root`. Raises Refusal if it, or a link in it, leads out of `root`."""
    if root is None:
        raise adapter_refused("path", "this replica has no adapter root, so it cannot load adapters while serving")
    try:
        root = root.resolve()
        directory = (root / path).resolve()
        if not directory.is_relative_to(root) or directory == root:
            raise _outside(path)
        if not directory.is_dir():
            raise invalid_field("path", "a directory below the adapter root", shorten(path))
        for file in directory.iterdir():
            if not file.resolve().is_relative_to(root):
                raise _outside(f"{path}/{file.name}")
    except (OSError, RuntimeError):  # name too long, circular links, no permission
        raise invalid_field("path", "a readable directory below the adapter root", shorten(path)) from None
    return directory


def _outside(path: str) -> Refusal:
    return invalid_field("path", "below the adapter root after links are resolved", shorten(path))
