"""What gives a kind of text away: a literal piece of it.

A text's words are cheap to collect once; a mark is only searched for where all its whole words are among them. Words
that the piece may have cut at its ends do not count.
"""

from dataclasses import dataclass, field

_WORD = b"abcdefghijklmnopqrstuvwxyz0123456789_"


def _table() -> bytes:
    """Words in small letters, everything else of ASCII a blank; other alphabets' letters belong to words."""
    folded = (bytes([byte]).lower() if byte < 0x80 else bytes([byte]) for byte in range(256))
    return b"".join(byte if byte in _WORD or byte[0] >= 0x80 else b" " for byte in folded)


_TABLE = _table()


def words_of(text: str) -> frozenset[bytes]:
    return frozenset(text.encode("utf-8", "replace").translate(_TABLE).split())


def _whole_words(piece: str) -> frozenset[bytes]:
    words = piece.encode().translate(_TABLE)
    begun = words[:1].strip()
    ended = words[-1:].strip()
    found = words.split()
    return frozenset(found[1 if begun else 0 : len(found) - 1 if ended else len(found)])


@dataclass(frozen=True, slots=True)
class Mark:
    text: str
    words: frozenset[bytes] = field(init=False)
    """A text without one of them has no such mark."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _whole_words(self.text))


def marks(*pieces: str) -> tuple[Mark, ...]:
    return tuple(Mark(piece) for piece in pieces)
