"""Text from elsewhere, fit for a terminal: nothing in it is an order, and how wide it is is known."""

import unicodedata

_MARKS = ("Mn", "Me", "Cf")


def printable(text: str) -> str:
    """Letters that a terminal would take for an order, and those that turn the reading round, are spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def width(text: str) -> int:
    """Columns that printable text takes."""
    return sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """As much as fits; what is missing is marked."""
    if width(text) <= columns:
        return text
    kept, used = "", 0
    for letter in text:
        used += _columns(letter)
        if used > columns - 1:
            break
        kept += letter
    return kept + "…" if columns > 0 else ""


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Exactly so wide."""
    fitting = cut(text, columns)
    space = " " * (columns - width(fitting))
    return space + fitting if right else fitting + space


def _columns(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in _MARKS:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1
