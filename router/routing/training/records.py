"""Labelled prompts on disk, one JSON object per line."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.routing.classifier.features import Features

MAX_LINE_BYTES = 1 << 20
MAX_RECORDS = 1_000_000


class InvalidRecord(ValueError):
    """The records are invalid. For a bad line, the message states the file and the line."""


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    text: str
    label: str
    source: str
    licence: str = ""
    is_prompt: bool = True  # False for reference material, which is used for training but never for calibration
    weight: float = 1.0  # in training
    features: Features | None = None  # stored features, if the text is not known


def read_records(paths: Sequence[Path]) -> list[LabelledPrompt]:
    """Read all files. Raises InvalidRecord for a bad line, or if there are no or too many records. Raises OSError."""
    records = []
    for path in paths:
        with path.open("rb") as file:
            lines = enumerate(file, start=1)
            records += [_parse(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not records:
        raise InvalidRecord(f"no records in {', '.join(map(str, paths))}" if paths else "no files were given")
    if len(records) > MAX_RECORDS:
        raise InvalidRecord(f"the files have {len(records)} records; the limit is {MAX_RECORDS}")
    return records


def write_records(path: Path, records: Iterable[LabelledPrompt]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            fields = {name: getattr(record, name) for name in ("text", "label", "source", "licence")}
            if not record.is_prompt:
                fields["is_prompt"] = False
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def _parse(line: bytes, location: str) -> LabelledPrompt:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRecord(f"{location}: the line has {len(line)} bytes; the limit is {MAX_LINE_BYTES}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{location}: the line is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRecord(f"{location}: the line must be an object with text, label and source")
    text, label, source = (_string(fields, name, location) for name in ("text", "label", "source"))
    is_prompt = fields.get("is_prompt", True)
    if not isinstance(is_prompt, bool):
        raise InvalidRecord(f"{location}: is_prompt must be true or false, got {is_prompt!r:.60}")
    return LabelledPrompt(text, label, source, str(fields.get("licence", "")), is_prompt)


def _string(fields: dict[str, object], name: str, location: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRecord(f"{location}: {name} must be a non-empty string, got {value!r:.60}")
    return value
