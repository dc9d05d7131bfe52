"""Rows under a heading, never wider than a terminal: what does not fit goes on below."""

import re
import shutil
import sys
from collections.abc import Sequence

WIDTH = 120
"""Where there is no terminal."""
_LEAST = 80
_GAP = "  "
_NARROWEST = 6
_PIECE = re.compile(r"[^\s./-]*[./-]+|[^\s./-]+|\s+")
"""Text may be broken after each of these."""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """As wide as the terminal, unless it is said."""
    cells = [[_clean(cell) for cell in row] for row in (heading, *rows)]
    wanted = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    least = [max(_longest_piece(row[column]) for row in cells) for column in range(len(heading))]
    widths = _fit(wanted, least, terminal_width() if width is None else width)
    return "\n".join(line for row in cells for line in _lines(row, widths))


def terminal_width() -> int:
    """Of whoever reads standard output."""
    return max(_LEAST, shutil.get_terminal_size((WIDTH, 0)).columns) if sys.stdout.isatty() else WIDTH


def _clean(text: str) -> str:
    """Nothing that a terminal would take for an order."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip() or "-"


def _longest_piece(text: str) -> int:
    return max(len(piece) for piece in _PIECE.findall(text))


def _fit(wanted: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """The widest column gives way first. Words are cut only when no column can give way without."""
    fitted = list(wanted)
    room = width - len(_GAP) * (len(fitted) - 1)
    for floors in (least, [_NARROWEST] * len(fitted)):
        while sum(fitted) > room and (
            wide := [n for n, size in enumerate(fitted) if size > max(floors[n], _NARROWEST)]
        ):
            fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(len(cell) for cell in folded)
    lines = ([cell[line] if line < len(cell) else "" for cell in folded] for line in range(height))
    return [_GAP.join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def fold(text: str, width: int) -> list[str]:
    """Lines of at most `width`, broken at spaces and after '.', '/' and '-'; inside of a word only where that is longer
    than a line."""
    lines = [""]
    for piece in _pieces(text, width):
        if len(lines[-1] + piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += piece if lines[-1] or not piece.isspace() else ""
    lines[-1] = lines[-1].rstrip()
    return [line for line in lines if line] or [""]


def _pieces(text: str, width: int) -> list[str]:
    return [piece[start : start + width] for piece in _PIECE.findall(text) for start in range(0, len(piece), width)]
