"""Where a JSON value that is still being written ends."""


class Brackets:
    """Follows text character by character, from the value's first bracket on."""

    __slots__ = ("_escaped", "_quoted", "depth")

    def __init__(self) -> None:
        self.depth = 0
        """Brackets that are open."""
        self._quoted = False
        self._escaped = False

    def step(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = character == "\\"
            self._quoted = character != '"'
        elif character == '"':
            self._quoted = True
        elif character in "[{":
            self.depth += 1
        elif character in "]}":
            self.depth -= 1
