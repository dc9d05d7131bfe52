"""What the network brings, cut anywhere, as runs that begin with a frame and have at least one whole."""


class Segments:
    """What is kept is looked at again only when enough has come: however small the pieces, each is copied once."""

    __slots__ = ("_kept", "_missing")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._missing = 0

    def whole(self, data: bytes) -> bytes:
        """Everything that has come. Empty while what was kept lacks something."""
        if not self._kept:
            return data
        self._kept.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return b""
        together = b"".join(self._kept)
        self._kept.clear()
        return together

    def keep(self, data: bytes, at: int, missing: int) -> None:
        """From `at` on; `missing` bytes are needed before it can be read."""
        self._kept.append(data[at:])
        self._missing = missing
