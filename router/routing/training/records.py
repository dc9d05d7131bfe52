"""Labelled prompts on disk, one JSON object per line."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.routing.classifier.features import Features
from router.routing.classifier.linear import MAX_LABEL_CHARS
from router.routing.normal_text import is_unicode

MAX_LINE_BYTES = 1 << 20
MAX_RECORDS = 1_000_000
MAX_WEIGHT = 100


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
    ok: tuple[str, ...] = ()  # all acceptable labels, `label` among them; empty if it is the only one
    features: Features | None = None  # stored features, if the text is not known

    @property
    def accepted(self) -> tuple[str, ...]:
        return self.ok or (self.label,)


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
            fields: dict[str, object] = {name: getattr(record, name) for name in ("text", "label", "source", "licence")}
            if not record.is_prompt:
                fields["is_prompt"] = False
            if record.ok:
                fields["ok"] = record.ok
            if record.weight != 1:
                fields["weight"] = record.weight
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
    for name, value in (("label", label), ("source", source)):
        _check_name(value, name, location)
    is_prompt = fields.get("is_prompt", True)
    if not isinstance(is_prompt, bool):
        raise InvalidRecord(f"{location}: is_prompt must be true or false, got {is_prompt!r:.60}")
    weight = fields.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
        raise InvalidRecord(f"{location}: weight must be a number above 0 and at most {MAX_WEIGHT}, got {weight!r:.60}")
    ok = _labels(fields.get("ok", []), label, location)
    return LabelledPrompt(text, label, source, str(fields.get("licence", "")), is_prompt, float(weight), ok)


def _labels(value: object, label: str, location: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise InvalidRecord(f"{location}: ok must be a list of labels, got {value!r:.60}")
    for each in value:
        _check_name(each, "ok", location)
    if value and label not in value:
        raise InvalidRecord(f"{location}: ok must contain the label {label}, got {value!r:.60}")
    return tuple(dict.fromkeys(value)) if len(value) > 1 else ()


def _check_name(value: str, name: str, location: str) -> None:
    if len(value) > MAX_LABEL_CHARS:
        raise InvalidRecord(f"{location}: {name} has {len(value)} characters; the limit is {MAX_LABEL_CHARS}")
    if not is_unicode(value):
        raise InvalidRecord(f"{location}: {name} must be valid Unicode, got {value!r:.60}")


def _string(fields: dict[str, object], name: str, location: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRecord(f"{location}: {name} must be a non-empty string, got {value!r:.60}")
    return value
