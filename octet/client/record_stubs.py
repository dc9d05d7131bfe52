"""`python -m octet.client.record_stubs` writes records.pyi: all records with their types and proto comments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from octet.client import records

_PROTO = Path(__file__).parents[2] / "proto" / "octet" / "v1"
_DECLARATION = re.compile(r"message (\w+)|[\w ]+ (\w+) = \d+;")
_HEAD = '''"""Written by `make proto` from the messages; see records.py and proto/octet/v1."""

from octet.client.wire_record import WireRecord

MESSAGES: dict[str, tuple[str, str]]
'''


def write_stubs() -> str:
    comments = dict(_read_comments())
    return _HEAD + "".join("\n".join(_class_lines(name, comments)) for name in records.MESSAGES)


def _read_comments() -> Iterator[tuple[tuple[str, str], Sequence[str]]]:
    """Yield (message, field) and the lines of the comment on it; the field is empty for the message itself."""
    for path in sorted(_PROTO.glob("*.proto")):
        message, lines = "", []
        for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
            if line.startswith("//"):
                lines.append(line.removeprefix("//"))
                continue
            if declared := _DECLARATION.match(line):
                message = declared[1] or message
                yield (message, declared[2] or ""), lines
            lines = []


def _class_lines(name: str, comments: dict[tuple[str, str], Sequence[str]]) -> Iterator[str]:
    _, message = records.MESSAGES[name]
    yield ""
    yield from (f"#{line}" for line in comments.get((message, ""), ()))
    yield f"class {name}(WireRecord):"
    for field in fields(getattr(records, name)):
        yield from (f"    #{line}" for line in comments.get((message, field.name), ()))
        yield f"    {field.name}: {_type_name(field.type)}"
    yield ""


def _type_name(annotation: object) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    item, other = get_args(annotation)
    return f"tuple[{_type_name(item)}, ...]" if other is ... else f"{_type_name(item)} | None"


if __name__ == "__main__":
    Path(records.__file__).with_suffix(".pyi").write_text(write_stubs(), encoding="utf-8")
