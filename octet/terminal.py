"""Text input and output of terminals and pipes: reading, cleaning, folding, tables, durations."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from octet.clock import wall_ms

STANDARD_INPUT = "-"
ONE_LINE = 1000  # columns of a table whose rows must not be folded
DEFAULT_WIDTH = 120  # columns, if standard output is not a terminal
_MIN_WIDTH = 80
_GAP = "  "
_MIN_COLUMN = 6
_PIECE = re.compile(r"[^\s./-]*[./-]+|[^\s./-]+|\s+")  # text may be broken after each match
_CHECKOUT = Path(__file__).parents[1]


def check_utf8(name: str, given: str | Sequence[str] | None) -> None:
    """Raises ValueError for an argument with surrogates, which represent bytes that are not UTF-8."""
    try:
        "".join(given or ()).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid UTF-8") from None


def read_standard_input() -> str:
    """Return the whole input. Raises ValueError if it is not UTF-8."""
    if sys.stdin.isatty():
        print("Reading standard input; end it with Ctrl-D.", file=sys.stderr)
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input must be valid UTF-8: the byte at offset {error.start} is not") from None
    check_utf8("standard input", text)
    return text


def read_text(name: str) -> str:
    """Read a file, or standard input for "-". Raises OSError, and ValueError if it is not UTF-8."""
    if name == STANDARD_INPUT:
        return read_standard_input()
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be valid UTF-8: the byte at offset {error.start} is not") from None


def write_output(text: str) -> None:
    """Write to standard output and flush. If the reader is gone, discard the output and raise BrokenPipeError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def format_error(error: Exception) -> str:
    """Return the error's message; for an error about a file, the file's name and the reason."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for this checkout or for an installed wheel."""
    is_checkout = (_CHECKOUT / "pyproject.toml").is_file()
    return f"pip install -e '{_CHECKOUT}[{extra}]'" if is_checkout else f"pip install 'octet-serving[{extra}]'"


def replace_unprintable(text: str) -> str:
    """Replace control characters, escape sequences and direction overrides with spaces, for safe printing."""
    return "".join(character if character.isprintable() else " " for character in text)


def terminal_width() -> int:
    if not sys.stdout.isatty():
        return DEFAULT_WIDTH
    return max(_MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns)


def format_table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Format columns that fit `width`, by default the terminal's; long cells are folded."""
    cells = [[replace_unprintable(cell).strip() or "-" for cell in row] for row in (heading, *rows)]
    columns = list(zip(*cells, strict=True))
    wanted = [max(map(len, column)) for column in columns]
    least = [max(len(piece) for cell in column for piece in _PIECE.findall(cell)) for column in columns]
    widths = _fit_widths(wanted, least, terminal_width() if width is None else width)
    return "\n".join(line for row in cells for line in _row_lines(row, widths))


def _fit_widths(wanted: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return widths that fit `width`. The widest column shrinks first; words are broken only as a last resort."""
    fitted = list(wanted)
    room = width - len(_GAP) * (len(fitted) - 1)
    for floors in (least, [_MIN_COLUMN] * len(fitted)):
        while sum(fitted) > room and (
            wide := [n for n, size in enumerate(fitted) if size > max(floors[n], _MIN_COLUMN)]
        ):
            fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    folded = [fold_text(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(len(cell) for cell in folded)
    lines = ([cell[line] if line < len(cell) else "" for cell in folded] for line in range(height))
    return [_GAP.join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def fold_text(text: str, width: int) -> list[str]:
    """Return lines of at most `width`, broken at spaces and after '.', '/' and '-'; inside a word only if it is longer
    than a line."""
    pieces = (p[start : start + width] for p in _PIECE.findall(text) for start in range(0, len(p), width))
    lines = [""]
    for piece in pieces:
        if len(lines[-1] + piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += piece if lines[-1] or not piece.isspace() else ""
    lines[-1] = lines[-1].rstrip()
    return [line for line in lines if line] or [""]


def format_duration(seconds: float) -> str:
    """Format in s, min, h or d, depending on the length, rounded to a whole number."""
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def format_age(unix_ms: int, now_ms: int | None = None) -> str:
    """Format the time since `unix_ms`; empty for 0."""
    if unix_ms == 0:
        return ""
    now = wall_ms() if now_ms is None else now_ms
    return format_duration((now - unix_ms) / 1000)


def format_moment(unix_ms: int, form: str) -> str:
    """Format the moment in local time; a moment that is out of range is given in milliseconds."""
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000).astimezone():{form}}"
    except (OverflowError, OSError, ValueError):
        return f"{unix_ms} ms"


def format_latency(seconds: float | None) -> str:
    """Format with three significant digits, in ms or s; "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def format_seconds(seconds: float) -> str:
    """Format with a precision of 0.1 ms below a second, else of 10 ms."""
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"


def format_percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
