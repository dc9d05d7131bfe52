"""The identity of the model and adapters that computed a result, as used by prefix caches, receipts and packages.

Models and adapters are identified by the digest of their content, never by a name or a load order. Otherwise, a
cache would return results of the old weights after new ones were loaded under the same name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_parts(parts: Iterable[bytes]) -> bytes:
    """Return the sha256 over length-prefixed parts, so that ("a", "bc") and ("ab", "c") differ."""
    hasher = sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes whenever the file is written, replaced or relinked; None if it is not accessible."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Lane:
    """(specialist, model revision, adapter stack): everything that determines the result for a token sequence."""

    specialist: str
    revision: str  # sha256 of the model's content, hex
    adapters: tuple[str, ...] = ()
    """sha256 of each adapter's content, hex, in the order in which they are applied; empty for the bare model."""

    def __post_init__(self) -> None:
        if not self.specialist:
            raise ValueError("specialist must not be empty")
        for name, digest in [("revision", self.revision), *(("adapter", a) for a in self.adapters)]:
            if not _HEX_DIGEST.fullmatch(digest):
                raise ValueError(f"{name} must be a sha256 digest (64 lowercase hex digits), got {digest!r}")

    def digest(self) -> bytes:
        adapters = digest_parts(adapter.encode() for adapter in self.adapters)
        return digest_parts((self.specialist.encode(), self.revision.encode(), adapters))

    def differences(self, other: "Lane") -> list[str]:
        """Return one line for each field that differs."""
        return [
            f"{field.name}: {getattr(self, field.name)!r} != {getattr(other, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
