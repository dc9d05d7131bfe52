"""What the user says, a line at a time: typed at a prompt, or from a pipe."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from octet.text_io import check_text

PROMPT = "> "
_MORE = "… "
_MOST_CHARACTERS = 1_000_000
_MOST_HISTORY = 1000


def piped() -> Iterator[str]:
    """Whatever standard input is, without a prompt. Raises ValueError."""
    try:
        while line := sys.stdin.readline(_MOST_CHARACTERS + 1):
            if len(line) > _MOST_CHARACTERS:
                raise ValueError(f"a line has at most {_MOST_CHARACTERS:,} characters")
            check_text("standard input", line)
            yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input must be valid UTF-8: byte {error.start} is not") from None


def typed() -> Iterator[str]:
    """At a prompt, until Ctrl-D. Ctrl-C throws away what stands there; a line that ends in a backslash goes on."""
    text = ""
    while True:
        try:
            line = input(_MORE if text else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("  (Ctrl-D leaves)")
            text = ""
            continue
        if line.endswith("\\"):
            text += line[:-1] + "\n"
            continue
        yield text + line
        text = ""


@contextmanager
def remembering(file: Path | None) -> Iterator[None]:
    """Lines of earlier conversations, where the terminal can show them again; None to keep none."""
    try:
        import readline
    except ImportError:  # not every Python has it
        yield
        return
    if file is None:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with suppress(OSError):  # a convenience: never the reason for a failure
            _write_history(readline, file)


def _write_history(readline: Any, file: Path) -> None:
    """For nobody else's eyes: readline sees to that by itself, and libedit, in its place, does not."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    readline.set_history_length(_MOST_HISTORY)
    readline.write_history_file(file)


def history_file() -> Path | None:
    """None where there is no home to keep it in."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "octet" / "chat_history"
