"""Text from standard input and files, and to standard output."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

STANDARD_INPUT = "-"


def check_text(name: str, given: str | Sequence[str] | None) -> None:
    """An argument that is no UTF-8 comes with surrogates, which cannot be written. Raises ValueError."""
    try:
        "".join(given or ()).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid UTF-8") from None


def standard_input() -> str:
    """Raises ValueError for what is not text."""
    if sys.stdin.isatty():
        print("reading standard input: type, and end with Ctrl-D", file=sys.stderr)
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input must be valid UTF-8: byte {error.start} is not") from None
    check_text("standard input", text)
    return text


def text_of(name: str) -> str:
    """Of a file, or of standard input for "-". Raises OSError, and ValueError for what is not text."""
    if name == STANDARD_INPUT:
        return standard_input()
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be valid UTF-8: byte {error.start} is not") from None


def write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has had enough; leave nothing for the interpreter to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def file_words(error: OSError) -> str:
    """Which file, and what is the matter with it."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
