"""A model's identity: what is in its files, not where they lie or when they came."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from octet.identity import digest_of
from specialist.models.progress import Progress

CHUNK = 1 << 20


def revision_of(files: Mapping[str, Path], progress: Progress) -> str:
    """sha256 over each file's part in the model and its content, in the order of the parts' names."""
    total = sum(path.stat().st_size for path in files.values())
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress("computing the model's revision", done, total)

    parts: list[bytes] = []
    for part, path in sorted(files.items()):
        hasher = sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                hasher.update(chunk)
                advance(len(chunk))
        parts += (part.encode(), hasher.digest())
    return digest_of(parts).hex()
