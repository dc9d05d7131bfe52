"""What a service needs of a store of adapters, and the way from a name to the weights a request keeps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from octet.rpc.refusal import Refusal, adapter_refused, invalid, shorten, unknown_adapter
from specialist.adapters.errors import UnknownAdapter


class Adapters(Protocol):
    """Safe to use from several threads at once."""

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        """The digest, which must be `pinned` where that is given. Raises AdapterRefused; the name then stands for what
        it stood for before."""

    def unload(self, name: str) -> None:
        """Raises UnknownAdapter."""

    def resolve(self, name: str) -> str:
        """The digest. Raises UnknownAdapter."""

    def acquire(self, digest: str) -> None:
        """Keep these weights until they are released. Raises UnknownAdapter."""

    def release(self, digest: str) -> None: ...

    def names(self) -> Mapping[str, str]:
        """The digest of each name."""


def lease(adapters: Adapters, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
    """The digests the names stand for now, kept until the callable is called. Raises Refusal."""
    digests: list[str] = []

    def release() -> None:
        while digests:
            adapters.release(digests.pop())

    for name in names:
        try:
            digests.append(_acquired(adapters, name))
        except UnknownAdapter:
            release()
            raise unknown_adapter(name) from None
    return tuple(digests), release


def _acquired(adapters: Adapters, name: str) -> str:
    """The digest. Looked up once more if its weights went between the two: the name may have changed hands."""
    digest = adapters.resolve(name)
    try:
        adapters.acquire(digest)
    except UnknownAdapter:
        digest = adapters.resolve(name)
        adapters.acquire(digest)
    return digest


def below(root: Path | None, path: str) -> Path:
    """The directory a caller names, if it and all its files lie below the root. Raises Refusal."""
    if root is None:
        raise adapter_refused("path", "this replica has no adapter root and loads none while serving")
    try:
        return _below(root.resolve(), path)
    except (OSError, RuntimeError):  # too long a name, links in a circle, no right to read
        raise invalid("path", "a readable directory below the adapter root", shorten(path)) from None


def _below(root: Path, path: str) -> Path:
    directory = (root / path).resolve()
    if not directory.is_relative_to(root) or directory == root:
        raise _outside(path)
    if not directory.is_dir():
        raise invalid("path", "a directory below the adapter root", shorten(path))
    for file in directory.iterdir():
        if not file.resolve().is_relative_to(root):
            raise _outside(f"{path}/{file.name}")
    return directory


def _outside(path: str) -> Refusal:
    return invalid("path", "a directory below the adapter root, links included", shorten(path))
