"""Adapters without files: what is found under a path is told by its name."""

from pathlib import Path

from octet.identity import digest_of
from specialist.adapters.digest import check_digest
from specialist.service.sim_adapters import SimAdapters

_MOST = 32


class NamedAdapters(SimAdapters):
    def __init__(self, names: tuple[str, ...] = ()) -> None:
        super().__init__(_MOST)
        for name in names:
            self.load(name, Path(name))

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        digest = digest_of_adapter(directory.name)
        check_digest(name, digest, pinned)
        with self._lock:
            self._names[name] = digest
        return digest


def digest_of_adapter(name: str) -> str:
    return digest_of([b"adapter", name.encode()]).hex()
