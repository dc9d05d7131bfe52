"""Adapters for the engine without weights: a digest of their files is all it computes with."""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from octet.identity import digest_of
from specialist.adapters.digest import check_digest
from specialist.adapters.errors import AdapterRefused, UnknownAdapter

_FILES = ("adapter_config.json", "adapter_model.safetensors")


class SimAdapters:
    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._lock = Lock()
        self._names: dict[str, str] = {}
        self._pins: dict[str, int] = {}

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        digest = digest_of(_read(directory / file) for file in _FILES).hex()
        check_digest(name, digest, pinned)
        with self._lock:
            if name not in self._names and len(self._names) >= self._max_adapters:
                raise AdapterRefused("max_adapters", f"{self._max_adapters} are loaded already: unload one first")
            self._names[name] = digest
        return digest

    def unload(self, name: str) -> None:
        with self._lock:
            if self._names.pop(name, None) is None:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")

    def resolve(self, name: str) -> str:
        with self._lock:
            if name not in self._names:
                raise UnknownAdapter(f"no adapter is loaded as {name!r:.80}")
            return self._names[name]

    def acquire(self, digest: str) -> None:
        with self._lock:
            self._pins[digest] = self._pins.get(digest, 0) + 1

    def release(self, digest: str) -> None:
        with self._lock:
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    def names(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._names)

    @property
    def num_in_use(self) -> int:
        with self._lock:
            return sum(self._pins.values())


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise AdapterRefused(file.name, "the directory of an adapter has this file, readable") from None
