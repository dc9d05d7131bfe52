"""From what a terminal sends to the keys that were pressed."""

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
}
_SINGLE = {b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x04": "q"}
_MOST = 64


class Keys:
    """A sequence may come in pieces; what stays a piece until `settle` was the escape key."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def read(self, raw: bytes) -> list[str]:
        self._held += raw
        found: list[str] = []
        while self._held:
            taken, key = _first(self._held)
            if taken == 0:
                break
            self._held = self._held[taken:]
            if key:
                found.append(key)
        return found

    def settle(self) -> list[str]:
        """Nothing more comes for a while."""
        held, self._held = self._held, b""
        return ["escape"] if held == b"\x1b" else []


def _first(held: bytes) -> tuple[int, str]:
    """How much of it the first key takes, and which it is; nothing taken: it is not whole."""
    if held[:1] != b"\x1b":
        return 1, _SINGLE.get(held[:1]) or (held[:1].decode() if 0x20 <= held[0] < 0x7F else "")
    if len(held) == 1:
        return 0, ""
    if held[1:2] == b"\x1b":
        return 1, "escape"
    if held[1:2] not in (b"[", b"O"):
        return 2, ""
    for end in range(2, len(held)):
        if 0x40 <= held[end] <= 0x7E:
            return end + 1, _SEQUENCES.get(held[: end + 1], "")
    return (len(held), "") if len(held) >= _MOST else (0, "")
