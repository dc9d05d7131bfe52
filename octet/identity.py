"""Who computed something: the one identity that prefix caches, receipts and packages carry.

Models and adapters are named by the digest of their content, never by a name or a load order: a name that
is given new weights would otherwise go on answering from the old ones' cache.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import sha256

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(parts: Iterable[bytes]) -> bytes:
    """sha256 over length-prefixed parts, so that ("a", "bc") and ("ab", "c") differ."""
    hasher = sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


@dataclass(frozen=True, slots=True)
class Lane:
    """(specialist, model revision, adapter stack): everything that decides what a token sequence computes to."""

    specialist: str
    revision: str
    """sha256 of the model's content, hex."""
    adapters: tuple[str, ...] = ()
    """sha256 of each adapter's content, hex, in the order they are applied; empty for the bare model."""

    def __post_init__(self) -> None:
        if not self.specialist:
            raise ValueError("specialist must not be empty")
        for name, digest in [("revision", self.revision), *(("adapter", a) for a in self.adapters)]:
            if not _HEX_DIGEST.fullmatch(digest):
                raise ValueError(f"{name} must be a sha256 digest (64 lowercase hex digits), got {digest!r}")

    def digest(self) -> bytes:
        adapters = digest_of(adapter.encode() for adapter in self.adapters)
        return digest_of((self.specialist.encode(), self.revision.encode(), adapters))

    def differences(self, other: "Lane") -> list[str]:
        """What differs, a line each, for whoever refuses a mismatch."""
        return [
            f"{field.name}: {getattr(self, field.name)!r} != {getattr(other, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
