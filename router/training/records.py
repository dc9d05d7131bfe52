"""Labelled prompts on disk: one JSON object a line with text, label, source and, for what is committed, licence."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_LINE_BYTES = 1 << 20
MAX_RECORDS = 1_000_000


class BadRecord(ValueError):
    """A line that is not a labelled prompt; says which file, which line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Record:
    text: str
    label: str
    source: str
    licence: str = ""
    is_prompt: bool = True
    """False for material that is read for its words but is no kind of prompt: it never counts for calibration."""


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Every record of the files in order. Raises BadRecord or OSError."""
    records = [record for path in paths for record in _read(path)]
    if not records:
        raise BadRecord(f"no records in {', '.join(map(str, paths)) or 'no file'}")
    if len(records) > MAX_RECORDS:
        raise BadRecord(f"{len(records)} records; at most {MAX_RECORDS} are read")
    return records


def write_records(path: Path, records: Iterable[Record]) -> None:
    lines = (json.dumps(_fields(record), ensure_ascii=False) for record in records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _fields(record: Record) -> dict[str, object]:
    fields = asdict(record)
    if record.is_prompt:
        del fields["is_prompt"]
    return fields


def _read(path: Path) -> Iterable[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _parsed(line, f"{path}:{number}")


def _parsed(line: bytes, place: str) -> Record:
    if len(line) > MAX_LINE_BYTES:
        raise BadRecord(f"{place}: a record of {len(line)} bytes; at most {MAX_LINE_BYTES}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{place}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRecord(f"{place}: expected an object with text, label and source")
    text, label, source = (_string(fields, name, place) for name in ("text", "label", "source"))
    is_prompt = fields.get("is_prompt", True)
    if not isinstance(is_prompt, bool):
        raise BadRecord(f"{place}: is_prompt must be true or false, got {is_prompt!r:.60}")
    return Record(text, label, source, str(fields.get("licence", "")), is_prompt)


def _string(fields: dict[str, object], name: str, place: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRecord(f"{place}: {name} must be a string that says something, got {value!r:.60}")
    return value
