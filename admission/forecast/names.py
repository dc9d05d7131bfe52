"""Who asked before: somebody who only asks again is not somebody else."""

MOST = 512
"""Names that are remembered."""


class Names:
    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_new(self, name: str) -> bool:
        """And is known from now on."""
        new = name not in self._seen
        self._seen[name] = None
        if len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]
        return new
