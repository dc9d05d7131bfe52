"""Bytes that may be held at once, by everybody together."""


class Room:
    """Belongs to the event loop. Whoever takes gives back as much."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self, num_bytes: int) -> bool:
        """Whether there was room for so much more; it is taken if so."""
        if self.taken + num_bytes > self.most:
            return False
        self.taken += num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        self.taken -= num_bytes
